//! The proxies alone: small requests over plaintext on both sides.

use std::path::Path;
use std::process::Command;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::envoy::ENVOY_WASM;
use crate::contestants::sidecar::{POLL, Sidecar};
use crate::contestants::{BARE, Contestant, NGINX, NO_ENTRY};
use crate::cost::{CostBudget, CostTable};
use crate::work::{CREATE, GET, HttpVersion, LIST, PATCH, Work};

const SHARD_SELECTOR: &str = "ctrlmesh, shard-selector";
const SHARD_SELECTOR_CALLED: &str = "ctrlmesh, shard-selector, without reuse";
const ALL_FOUR: &str = "ctrlmesh, all four";
const ALL_FOUR_CALLED: &str = "ctrlmesh, all four, without reuse";

/// A sidecar as a row of the tables.
#[derive(Debug, Clone, Copy)]
struct SidecarRow {
    name: &'static str,
    chain: Chain,
    repeats_verdicts: bool,
}

impl SidecarRow {
    const fn new(name: &'static str, chain: Chain) -> Self {
        Self {
            name,
            chain,
            repeats_verdicts: true,
        }
    }

    /// Plugins are called for each request that they want.
    const fn without_reuse(self) -> Self {
        Self {
            repeats_verdicts: false,
            ..self
        }
    }

    /// `program`: the sidecar's binary.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if !self.repeats_verdicts {
            command.args(["--plugin-reuse", "off"]);
        }
        command
    }
}

/// Rows of a `get`. Its chains wake their plugins; the last one's entry does not want it.
const GET_ROWS: [SidecarRow; 7] = [
    SidecarRow::new(NO_ENTRY, Chain::Empty),
    SidecarRow::new("ctrlmesh, rate-limit", Chain::Limited),
    SidecarRow::new("ctrlmesh, circuit-breaker", Chain::Guarded),
    SidecarRow::new("ctrlmesh, fault-inject without a draw", Chain::Faulty),
    SidecarRow::new("ctrlmesh, fault-inject that draws", Chain::FaultyByDraw),
    SidecarRow::new("ctrlmesh, these three without a draw", Chain::Full),
    SidecarRow::new("ctrlmesh, an entry that does not want it", Chain::Sharded),
];

/// Rows of a list, which wakes shard-selector and thus all four.
const LIST_ROWS: [SidecarRow; 5] = [
    SidecarRow::new(NO_ENTRY, Chain::Empty),
    SidecarRow::new(SHARD_SELECTOR, Chain::Sharded),
    SidecarRow::new(SHARD_SELECTOR_CALLED, Chain::Sharded).without_reuse(),
    SidecarRow::new(ALL_FOUR, Chain::Full),
    SidecarRow::new(ALL_FOUR_CALLED, Chain::Full).without_reuse(),
];

const WRITE_ROWS: [SidecarRow; 2] = [
    SidecarRow::new(NO_ENTRY, Chain::Empty),
    SidecarRow::new("ctrlmesh, all but shard-selector", Chain::Full),
];

pub(crate) const GET_BUDGETS: [CostBudget; 2] = [
    CostBudget::Ratio {
        row: NO_ENTRY,
        to: BARE,
        at_most: 1.1,
    },
    CostBudget::Ratio {
        row: NO_ENTRY,
        to: NGINX,
        at_most: 1.1,
    },
];

pub(crate) const LIST_BUDGETS: [CostBudget; 5] = [
    CostBudget::Ratio {
        row: SHARD_SELECTOR,
        to: BARE,
        at_most: 1.15,
    },
    CostBudget::Ratio {
        row: ALL_FOUR,
        to: BARE,
        at_most: 1.2,
    },
    CostBudget::Ratio {
        row: ALL_FOUR,
        to: ENVOY_WASM,
        at_most: 0.5,
    },
    CostBudget::Ratio {
        row: ALL_FOUR_CALLED,
        to: BARE,
        at_most: 1.7,
    },
    // Includes building the request's view before the call, and applying the verdict after it.
    CostBudget::Difference {
        what: "a call all in: shard-selector",
        row: SHARD_SELECTOR_CALLED,
        without: NO_ENTRY,
        at_most: 2.5,
    },
];

/// A `get` and a small list; with `--all` also over HTTP/2.
pub(crate) async fn measure_requests(env: &BenchEnv) -> anyhow::Result<()> {
    measure_work(env, GET, HttpVersion::Http1, &GET_ROWS, &GET_BUDGETS).await?;
    measure_work(env, LIST, HttpVersion::Http1, &LIST_ROWS, &LIST_BUDGETS).await?;
    if env.scale.all {
        measure_work(env, GET, HttpVersion::Http2, &GET_ROWS, &[]).await?;
        measure_work(env, LIST, HttpVersion::Http2, &LIST_ROWS, &[]).await?;
    }
    Ok(())
}

/// Requests with a body. shard-selector is not called for them.
pub(crate) async fn measure_writes(env: &BenchEnv) -> anyhow::Result<()> {
    for version in [HttpVersion::Http1, HttpVersion::Http2] {
        for work in [CREATE, PATCH] {
            measure_work(env, work, version, &WRITE_ROWS, &[]).await?;
        }
    }
    Ok(())
}

async fn measure_work(
    env: &BenchEnv,
    work: Work,
    version: HttpVersion,
    rows: &[SidecarRow],
    budgets: &[CostBudget],
) -> anyhow::Result<()> {
    let mut contestants = env.start_others(&env.plain)?;
    if env.scale.all && version == HttpVersion::Http1 {
        contestants.insert(0, Contestant::direct(env.plain.address));
    }
    for row in rows {
        let folder = env.create_folder(&env.plain, row.chain)?;
        let sidecar = Sidecar::start_command(row.command(&env.program), &folder, POLL).await?;
        contestants.push(sidecar.into_contestant(row.name));
    }
    let table = CostTable {
        title: format!(
            "Requests: {}, {}, {} clients, {}",
            work.name,
            version.name(),
            env.scale.connections,
            env.plain.describe()
        ),
        work,
        version,
        clients: env.scale.connections,
        contestants: &contestants,
        budgets,
    };
    table.measure(env).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_reuse_call_the_plugins_of_a_row_with_it() {
        for row in GET_ROWS.iter().chain(&LIST_ROWS).chain(&WRITE_ROWS) {
            let command = row.command(Path::new("ctrlmesh-proxy"));
            let arguments: Vec<_> = command.get_args().collect();
            let Some(name) = row.name.strip_suffix(", without reuse") else {
                assert!(arguments.is_empty(), "{}: {arguments:?}", row.name);
                continue;
            };
            assert_eq!(arguments, ["--plugin-reuse", "off"], "{}", row.name);
            let with_reuse = LIST_ROWS.iter().find(|other| other.name == name).unwrap();
            assert_eq!(with_reuse.chain, row.chain, "{}", row.name);
        }
    }

    /// A budget of a row that is not measured would never be missed.
    #[test]
    fn budgets_are_of_rows() {
        let others = [BARE, NGINX, ENVOY_WASM];
        let sets: [(&[SidecarRow], &[CostBudget]); 2] = [(&GET_ROWS, &GET_BUDGETS), (&LIST_ROWS, &LIST_BUDGETS)];
        for (rows, budgets) in sets {
            for budget in budgets {
                let (name, other) = match *budget {
                    CostBudget::Ratio { row, to, .. } => (row, to),
                    CostBudget::Difference { row, without, .. } => (row, without),
                };
                let is_ours = |name: &str| rows.iter().any(|row| row.name == name);
                assert!(is_ours(name), "{name}");
                assert!(is_ours(other) || others.contains(&other), "{other}");
            }
        }
    }
}
