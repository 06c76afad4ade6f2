//! Hot reload under load: a new chain with a new build of the plugin each second, while requests go on at a fixed rate; and the same without
//! reloads, to see the pauses of the machine.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::time::{MissedTickBehavior, interval};

use crate::bench_env::BenchEnv;
use crate::chain::{Chain, SidecarFolder, with_custom_section};
use crate::contestants::sidecar::Sidecar;
use crate::open_loop::{Pace, PacedLoad, run_open_loop};
use crate::report::{Budget, Limit};
use crate::stats::{Spread, as_micros, as_millis, median};
use crate::table::{format_number, format_range};
use crate::work::{GET, LIST, Work};

/// Requests per second of each kind: enough to notice every pause of a millisecond.
const RATE: u32 = 1000;

const CLIENTS: usize = 8;

/// Time between the starts of two reloads, unless one takes longer.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Half of a round has reloads. It takes this many times longer than others, so that there are a few.
const ROUND_FACTOR: u32 = 2;

/// Milliseconds of the p99.9 above that without reloads.
pub(crate) const ADDED_P999: f64 = 1.0;

pub(crate) const FAILED_REQUESTS: f64 = 0.0;

/// The requests, and what the table says of them.
const KINDS: [(Work, &str); 2] = [
    (GET, "get, which no entry wants"),
    (LIST, "small list, which shard-selector wants"),
];

pub(crate) async fn measure_reloads(env: &BenchEnv) -> anyhow::Result<()> {
    let folder = Rc::new(env.create_folder(&env.plain, Chain::Sharded)?);
    let sidecar = Rc::new(Sidecar::start(&env.program, &folder).await?);
    let reloads = Rc::new(Cell::new(0));
    let time = env.scale.round_time() * ROUND_FACTOR;
    let mut rows = KINDS.map(|(_, name)| Row::new(name));
    for _ in 0..env.scale.rounds {
        let quiet = run_both_kinds(sidecar.api, time).await?;
        let reloading = reload_until(
            Rc::clone(&sidecar),
            Rc::clone(&folder),
            Rc::clone(&reloads),
            Instant::now() + time,
        );
        let reloading = tokio::task::spawn_local(reloading);
        let busy = run_both_kinds(sidecar.api, time).await?;
        reloading.await??;
        for ((row, quiet), busy) in rows.iter_mut().zip(&quiet).zip(&busy) {
            row.add_round(quiet, busy);
        }
    }
    let title = format!(
        "Hot reload: {} new chains, each with a plugin that is compiled anew",
        reloads.get()
    );
    env.report.print_table(
        &title,
        &[
            "",
            "requests",
            "failed",
            "p50 µs",
            "p50 µs, reloads",
            "p99.9 ms",
            "p99.9 ms, reloads",
            "added p99.9 ms",
            "min–max",
            "longest ms, reloads",
        ],
        rows.iter().map(Row::table_cells),
    );
    report_rows(env, &rows);
    ensure!(
        reloads.get() > 0,
        "no chain came into force, so nothing was measured: give it more --seconds"
    );
    none_failed(&rows)
}

fn report_rows(env: &BenchEnv, rows: &[Row]) {
    let raw: serde_json::Map<String, serde_json::Value> =
        rows.iter().map(|row| (row.name.to_owned(), row.to_json())).collect();
    env.report.add_raw("Hot reload", raw.into());
    for row in rows {
        env.report.add_budget(Budget {
            what: format!("Hot reload: {}: p99.9 above that without", row.name),
            unit: "ms",
            values: row.added_p999(),
            limit: Limit::AtMost(ADDED_P999),
        });
    }
    env.report.add_budget(Budget {
        what: "Hot reload: failed requests".to_owned(),
        unit: "requests",
        values: rows.iter().map(|row| f64::from(row.failed)).collect(),
        limit: Limit::AtMost(FAILED_REQUESTS),
    });
}

/// No request may fail, not even during a reload.
fn none_failed(rows: &[Row]) -> anyhow::Result<()> {
    let failed: u32 = rows.iter().map(|row| row.failed).sum();
    ensure!(failed == 0, "{failed} requests failed, none may: see the table");
    Ok(())
}

/// Counts finished `reloads`.
async fn reload_until(
    sidecar: Rc<Sidecar>,
    folder: Rc<SidecarFolder>,
    reloads: Rc<Cell<u64>>,
    end: Instant,
) -> anyhow::Result<()> {
    let mut ticks = interval(RELOAD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if Instant::now() >= end {
            return Ok(());
        }
        let generation = reloads.get() + 2;
        let number = u8::try_from(generation % 251)?;
        let plugin = with_custom_section(ctrlmesh_plugins_builtin::SHARD_SELECTOR, number);
        folder.write_chain(generation, Chain::Sharded, &plugin)?;
        sidecar.wait_for_generation(generation).await?;
        reloads.set(reloads.get() + 1);
    }
}

/// Sends gets and lists at the same time.
async fn run_both_kinds(address: SocketAddr, time: Duration) -> anyhow::Result<[PacedLoad; 2]> {
    let [get, list] = KINDS.map(|(work, _)| Pace {
        work,
        rate: RATE,
        clients: CLIENTS,
    });
    let (get, list) = tokio::try_join!(run_open_loop(address, get, time), run_open_loop(address, list, time))?;
    Ok([get, list])
}

/// One kind of request.
struct Row {
    name: &'static str,
    requests: usize,
    failed: u32,
    /// Without and with reloads, by round.
    quiet: Vec<Percentiles>,
    busy: Vec<Percentiles>,
    longest: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Percentiles {
    /// Microseconds.
    p50: f64,
    /// Milliseconds.
    p999: f64,
}

impl Percentiles {
    fn from_load(load: &PacedLoad) -> Option<Self> {
        Some(Self {
            p50: as_micros(load.latencies.per_mille(500)?),
            p999: as_millis(load.latencies.per_mille(999)?),
        })
    }
}

impl Row {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            requests: 0,
            failed: 0,
            quiet: Vec::new(),
            busy: Vec::new(),
            longest: Duration::ZERO,
        }
    }

    fn add_round(&mut self, quiet: &PacedLoad, busy: &PacedLoad) {
        self.requests += quiet.latencies.len() + busy.latencies.len();
        self.failed += quiet.failed + busy.failed;
        self.longest = self.longest.max(busy.latencies.longest().unwrap_or_default());
        if let (Some(quiet), Some(busy)) = (Percentiles::from_load(quiet), Percentiles::from_load(busy)) {
            self.quiet.push(quiet);
            self.busy.push(busy);
        }
    }

    /// Milliseconds that reloads add, by round.
    fn added_p999(&self) -> Vec<f64> {
        let rounds = self.busy.iter().zip(&self.quiet);
        rounds.map(|(busy, quiet)| busy.p999 - quiet.p999).collect()
    }

    fn table_cells(&self) -> Vec<String> {
        let p50 = |rounds: &[Percentiles]| {
            let values: Vec<f64> = rounds.iter().map(|round| round.p50).collect();
            format_number(median(&values), 0)
        };
        let p999 = |rounds: &[Percentiles]| {
            let values: Vec<f64> = rounds.iter().map(|round| round.p999).collect();
            format_number(median(&values), 2)
        };
        let added = Spread::from_values(&self.added_p999());
        vec![
            self.name.to_owned(),
            self.requests.to_string(),
            self.failed.to_string(),
            p50(&self.quiet),
            p50(&self.busy),
            p999(&self.quiet),
            p999(&self.busy),
            format_number(added.map(|added| added.median), 2),
            format_range(added, 2),
            format_number(Some(as_millis(self.longest)), 2),
        ]
    }

    fn to_json(&self) -> serde_json::Value {
        let p999 = |rounds: &[Percentiles]| rounds.iter().map(|round| round.p999).collect::<Vec<f64>>();
        serde_json::json!({
            "failed": self.failed, "p999_ms": p999(&self.quiet), "p999_ms_with_reloads": p999(&self.busy),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Durations;

    fn load(micros: u64, failed: u32) -> PacedLoad {
        PacedLoad {
            latencies: Durations::new(vec![Duration::from_micros(micros)]),
            failed,
        }
    }

    #[test]
    fn failed_request_fails_the_measurement() {
        let mut row = Row::new("get");
        row.add_round(&load(1000, 0), &load(1000, 0));
        assert!(none_failed(&[Row::new("list")]).is_ok());
        row.add_round(&load(1000, 0), &load(1000, 3));
        let error = none_failed(&[row]).unwrap_err();
        assert!(error.to_string().contains("3 requests failed"), "{error}");
    }

    #[test]
    fn pause_of_reloads_is_the_difference_within_a_round() {
        let mut row = Row::new("get");
        // The machine slows down; reloads add the same.
        row.add_round(&load(1000, 0), &load(1500, 0));
        row.add_round(&load(3000, 0), &load(3500, 0));
        assert_eq!(row.added_p999(), [0.5, 0.5]);
        assert_eq!(row.table_cells()[1], "4");
    }
}
