//! Watches: latency that the sidecar adds to events, and memory of a thousand open watches.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::origin::{QUIET_WATCH, WATCH, sent_at, since_epoch};
use crate::stats::{Durations, as_mebibytes, as_micros, median};
use crate::stream::Stream;
use crate::{Scale, table};

/// Measures the events of one open watch, sent every two milliseconds.
pub(crate) async fn measure_events(env: &BenchEnv, scale: &Scale) -> anyhow::Result<()> {
    let bare = env.start_bare_proxy()?;
    let empty = env.start_sidecar("watch-empty", Chain::Empty).await?;
    let sharded = env.start_sidecar("watch-sharded", Chain::Sharded).await?;
    let mut rows = [
        Row::new("direct", env.origin),
        Row::new("bare hyper proxy", bare.1),
        Row::new("ctrlmesh, no entry", empty.api),
        Row::new("ctrlmesh, shard-selector", sharded.api),
    ];
    for _ in 0..scale.rounds {
        let mut direct = None;
        for row in &mut rows {
            let latencies = measure_latencies(row.address, scale.round_time()).await?;
            let at = |share| latencies.per_mille(share).map(as_micros).context("no event came");
            let seen = (at(500)?, at(990)?);
            row.add_round(seen, *direct.get_or_insert(seen));
        }
    }
    table::print_table(
        "Watch events",
        &["", "p50 µs", "p99 µs", "added p50 µs", "added p99 µs"],
        rows.iter().map(Row::table_cells),
    );
    Ok(())
}

struct Row {
    name: &'static str,
    address: SocketAddr,
    p50: Vec<f64>,
    p99: Vec<f64>,
    added_p50: Vec<f64>,
    added_p99: Vec<f64>,
}

impl Row {
    const fn new(name: &'static str, address: SocketAddr) -> Self {
        Self {
            name,
            address,
            p50: Vec::new(),
            p99: Vec::new(),
            added_p50: Vec::new(),
            added_p99: Vec::new(),
        }
    }

    fn add_round(&mut self, (p50, p99): (f64, f64), direct: (f64, f64)) {
        self.p50.push(p50);
        self.p99.push(p99);
        self.added_p50.push(p50 - direct.0);
        self.added_p99.push(p99 - direct.1);
    }

    fn table_cells(&self) -> Vec<String> {
        let number = |values: &[f64]| table::format_number(median(values), 0);
        vec![
            self.name.to_owned(),
            number(&self.p50),
            number(&self.p99),
            number(&self.added_p50),
            number(&self.added_p99),
        ]
    }
}

async fn measure_latencies(address: SocketAddr, time: Duration) -> anyhow::Result<Durations> {
    let mut watch = Stream::open(address, WATCH).await?;
    let start = Instant::now();
    let mut latencies = Vec::new();
    while start.elapsed() < time {
        let event = watch.next().await?.context("the watch ended")?;
        let now = since_epoch();
        latencies.push(now.saturating_sub(sent_at(&event).context("not one whole event in a piece")?));
    }
    Ok(Durations::new(latencies))
}

/// Open watches of one controller, as many as one that watches every kind of a cluster with many kinds.
const MANY: usize = 1000;

/// Resident memory with many open watches, each on connections of its own: HTTP/1.1 on both sides, the most expensive case.
pub(crate) async fn measure_many_watches(env: &BenchEnv) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (name, chain) in [
        ("ctrlmesh, no entry", Chain::Empty),
        ("ctrlmesh, shard-selector", Chain::Sharded),
    ] {
        let sidecar = env.start_sidecar(&format!("watches-{name}"), chain).await?;
        let before = sidecar.process.resident_memory()?;
        let mut watches = Vec::with_capacity(MANY);
        for _ in 0..MANY {
            let mut watch = Stream::open(sidecar.api, QUIET_WATCH).await?;
            watch.next().await?.context("the watch ended")?;
            watches.push(watch);
        }
        let with = sidecar.process.resident_memory()?;
        let each = with.saturating_sub(before) / MANY as u64;
        rows.push(vec![
            name.to_owned(),
            table::format_number(Some(as_mebibytes(before)), 1),
            table::format_number(Some(as_mebibytes(with)), 1),
            (each >> 10).to_string(),
        ]);
    }
    table::print_table(
        &format!("{MANY} open watches"),
        &["", "RSS before MiB", "RSS MiB", "KiB each"],
        rows,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_latency_is_computed_per_round() {
        let mut row = Row::new("ours", SocketAddr::from(([127, 0, 0, 1], 1)));
        for slow in [0.0, 100.0, 1000.0] {
            row.add_round((60.0 + slow, 90.0 + slow), (50.0 + slow, 70.0 + slow));
        }
        assert_eq!(row.table_cells(), ["ours", "160", "190", "10", "20"]);
    }
}
