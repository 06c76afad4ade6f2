//! The proxies alone: small requests over plaintext on both sides.

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::envoy::ENVOY_WASM;
use crate::contestants::{BARE, Contestant, NGINX, NO_ENTRY};
use crate::cost::{CostBudget, CostTable};
use crate::work::{CREATE, GET, HttpVersion, LIST, PATCH, Work};

const SHARD_SELECTOR: &str = "ctrlmesh, shard-selector";
const ALL_FOUR: &str = "ctrlmesh, all four";

/// Rows of a `get`. Its chains wake their plugins; the last one's entry does not want it.
const GET_ROWS: [(&str, Chain); 7] = [
    (NO_ENTRY, Chain::Empty),
    ("ctrlmesh, rate-limit", Chain::Limited),
    ("ctrlmesh, circuit-breaker", Chain::Guarded),
    ("ctrlmesh, fault-inject without a draw", Chain::Faulty),
    ("ctrlmesh, fault-inject that draws", Chain::FaultyByDraw),
    ("ctrlmesh, these three without a draw", Chain::Full),
    ("ctrlmesh, an entry that does not want it", Chain::Sharded),
];

/// Rows of a list, which wakes shard-selector and thus all four.
const LIST_ROWS: [(&str, Chain); 3] = [
    (NO_ENTRY, Chain::Empty),
    (SHARD_SELECTOR, Chain::Sharded),
    (ALL_FOUR, Chain::Full),
];

const WRITE_ROWS: [(&str, Chain); 2] = [
    (NO_ENTRY, Chain::Empty),
    ("ctrlmesh, all but shard-selector", Chain::Full),
];

pub(crate) const GET_BUDGETS: [CostBudget; 2] = [
    CostBudget {
        row: NO_ENTRY,
        to: BARE,
        at_most: 1.1,
    },
    CostBudget {
        row: NO_ENTRY,
        to: NGINX,
        at_most: 1.1,
    },
];

pub(crate) const LIST_BUDGETS: [CostBudget; 3] = [
    CostBudget {
        row: SHARD_SELECTOR,
        to: BARE,
        at_most: 1.15,
    },
    CostBudget {
        row: ALL_FOUR,
        to: BARE,
        at_most: 1.2,
    },
    CostBudget {
        row: ALL_FOUR,
        to: ENVOY_WASM,
        at_most: 0.5,
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
    rows: &[(&str, Chain)],
    budgets: &[CostBudget],
) -> anyhow::Result<()> {
    let mut contestants = env.start_others(&env.plain)?;
    if env.scale.all && version == HttpVersion::Http1 {
        contestants.insert(0, Contestant::direct(env.plain.address));
    }
    for (name, chain) in rows {
        let sidecar = env.start_sidecar(&env.plain, *chain).await?;
        contestants.push(sidecar.into_contestant(name));
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
