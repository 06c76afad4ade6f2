//! Latency at fixed rates: an open loop, beside the bare proxy in the same round.

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::{BARE, Contestant, NO_ENTRY};
use crate::open_loop::{Pace, PacedLoad, run_open_loop};
use crate::stats::{Spread, as_micros, median};
use crate::table::{format_number, format_range};
use crate::work::{HttpVersion, LIST};

/// Requests per second: a busy operator, and two that would need the better part of a core.
const RATES: [u32; 3] = [500, 2000, 8000];

/// Enough that a request does not wait for a free connection while the proxy is not late.
const CLIENTS: usize = 64;

pub(crate) async fn measure_latencies(env: &BenchEnv) -> anyhow::Result<()> {
    let mut contestants = env.start_others(&env.plain)?;
    for (name, chain) in [(NO_ENTRY, Chain::Empty), ("ctrlmesh, all four", Chain::Full)] {
        let sidecar = env.start_sidecar(&env.plain, chain).await?;
        contestants.push(sidecar.into_contestant(name));
    }
    for rate in RATES {
        measure_rate(env, rate, &contestants).await?;
    }
    Ok(())
}

/// The first contestant is the bare proxy.
async fn measure_rate(env: &BenchEnv, rate: u32, contestants: &[Contestant]) -> anyhow::Result<()> {
    let pace = Pace {
        work: LIST,
        rate,
        clients: CLIENTS,
    };
    let mut rows: Vec<Row> = contestants.iter().map(|_| Row::default()).collect();
    for _ in 0..env.scale.rounds {
        let mut bare = None;
        for (contestant, row) in contestants.iter().zip(&mut rows) {
            let address = contestant.address(HttpVersion::Http1);
            let load = run_open_loop(address, pace, env.scale.round_time()).await?;
            if contestant.name == BARE {
                bare = percentiles(&load);
            }
            row.add_round(&load, bare);
        }
    }
    let title = format!("Latency at {rate} requests/s: {}, plaintext", LIST.name);
    env.report.print_table(
        &title,
        &[
            "",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "added p50",
            "min–max",
            "added p99",
            "min–max",
            "added p99.9",
            "failed",
        ],
        contestants
            .iter()
            .zip(&rows)
            .map(|(contestant, row)| row.table_cells(&contestant.name)),
    );
    let raw = contestants.iter().zip(&rows);
    let raw: serde_json::Map<String, serde_json::Value> = raw
        .map(|(contestant, row)| (contestant.name.clone(), row.to_json()))
        .collect();
    env.report.add_raw(&title, raw.into());
    Ok(())
}

/// Microseconds: p50, p99 and p99.9.
type Percentiles = [f64; 3];

fn percentiles(load: &PacedLoad) -> Option<Percentiles> {
    let at = |share| load.latencies.per_mille(share).map(as_micros);
    Some([at(500)?, at(990)?, at(999)?])
}

/// A percentile in each round.
fn values_of_rounds(rounds: &[Percentiles], place: usize) -> Vec<f64> {
    rounds.iter().filter_map(|round| round.get(place).copied()).collect()
}

#[derive(Debug, Default)]
struct Row {
    rounds: Vec<Percentiles>,
    /// Relative to the bare proxy in the same round.
    added: Vec<Percentiles>,
    failed: u32,
}

impl Row {
    fn add_round(&mut self, load: &PacedLoad, bare: Option<Percentiles>) {
        self.failed += load.failed;
        let Some(seen) = percentiles(load) else { return };
        self.rounds.push(seen);
        if let Some([p50, p99, p999]) = bare {
            let [own_p50, own_p99, own_p999] = seen;
            self.added.push([own_p50 - p50, own_p99 - p99, own_p999 - p999]);
        }
    }

    fn table_cells(&self, name: &str) -> Vec<String> {
        let number = |of: &[Percentiles], place| format_number(median(&values_of_rounds(of, place)), 0);
        let range = |place| format_range(Spread::from_values(&values_of_rounds(&self.added, place)), 0);
        vec![
            name.to_owned(),
            number(&self.rounds, 0),
            number(&self.rounds, 1),
            number(&self.rounds, 2),
            number(&self.added, 0),
            range(0),
            number(&self.added, 1),
            range(1),
            number(&self.added, 2),
            self.failed.to_string(),
        ]
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({ "p50_p99_p999_us": self.rounds, "added_us": self.added, "failed": self.failed })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::stats::Durations;

    #[test]
    fn added_latency_is_computed_per_round() {
        let load = |micros| PacedLoad {
            latencies: Durations::new(vec![Duration::from_micros(micros); 10]),
            failed: 1,
        };
        let mut row = Row::default();
        // The machine slows down from round to round; what is added does not change.
        for slow in [0, 100, 1000] {
            row.add_round(&load(60 + slow), percentiles(&load(50 + slow)));
        }
        let cells = row.table_cells("ours");
        assert_eq!(
            cells,
            ["ours", "160", "160", "160", "10", "10–10", "10", "10–10", "10", "3"]
        );
    }
}
