//! Watches: what the sidecar adds to the way of an event, and what a thousand of them weigh.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::chain::Chain;
use crate::origin::{QUIET_WATCH, WATCH, sent, since_epoch};
use crate::stand::Stand;
use crate::stats::{Durations, mebibytes, median, micros};
use crate::stream::Stream;
use crate::{Scale, table};

/// Events on one open watch, one each two milliseconds.
pub(crate) async fn events(stand: &Stand, scale: &Scale) -> anyhow::Result<()> {
    let bare = stand.bare()?;
    let empty = stand.sidecar("watch-empty", Chain::Empty).await?;
    let sharded = stand.sidecar("watch-sharded", Chain::Sharded).await?;
    let mut rows = [
        Row::new("direct", stand.origin),
        Row::new("bare hyper proxy", bare.1),
        Row::new("ctrlmesh, no entry", empty.api),
        Row::new("ctrlmesh, shard-selector", sharded.api),
    ];
    for _ in 0..scale.rounds {
        let mut direct = None;
        for row in &mut rows {
            let latencies = latencies(row.address, scale.time()).await?;
            let at = |share| latencies.per_mille(share).map(micros).context("no event came");
            let seen = (at(500)?, at(990)?);
            row.add(seen, *direct.get_or_insert(seen));
        }
    }
    table::print(
        "Watch events",
        &["", "p50 µs", "p99 µs", "added p50 µs", "added p99 µs"],
        rows.iter().map(Row::texts),
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

    fn add(&mut self, (p50, p99): (f64, f64), direct: (f64, f64)) {
        self.p50.push(p50);
        self.p99.push(p99);
        self.added_p50.push(p50 - direct.0);
        self.added_p99.push(p99 - direct.1);
    }

    fn texts(&self) -> Vec<String> {
        let number = |values: &[f64]| table::number(median(values), 0);
        vec![
            self.name.to_owned(),
            number(&self.p50),
            number(&self.p99),
            number(&self.added_p50),
            number(&self.added_p99),
        ]
    }
}

async fn latencies(address: SocketAddr, time: Duration) -> anyhow::Result<Durations> {
    let mut watch = Stream::open(address, WATCH).await?;
    let start = Instant::now();
    let mut latencies = Vec::new();
    while start.elapsed() < time {
        let event = watch.next().await?.context("the watch ended")?;
        let now = since_epoch();
        latencies.push(now.saturating_sub(sent(&event).context("not one whole event in a piece")?));
    }
    Ok(Durations::new(latencies))
}

/// Open watches of one controller, as many as a controller of every kind in a cluster with many of them.
const MANY: usize = 1000;

/// Resident memory with many open watches, each on connections of its own: HTTP/1.1 on both sides, the dearest case.
pub(crate) async fn many(stand: &Stand) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (name, chain) in [
        ("ctrlmesh, no entry", Chain::Empty),
        ("ctrlmesh, shard-selector", Chain::Sharded),
    ] {
        let sidecar = stand.sidecar(&format!("watches-{name}"), chain).await?;
        let before = sidecar.process.memory()?;
        let mut watches = Vec::with_capacity(MANY);
        for _ in 0..MANY {
            let mut watch = Stream::open(sidecar.api, QUIET_WATCH).await?;
            watch.next().await?.context("the watch ended")?;
            watches.push(watch);
        }
        let with = sidecar.process.memory()?;
        let each = with.saturating_sub(before) / MANY as u64;
        rows.push(vec![
            name.to_owned(),
            table::number(Some(mebibytes(before)), 1),
            table::number(Some(mebibytes(with)), 1),
            (each >> 10).to_string(),
        ]);
    }
    table::print(
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
    fn what_is_added_is_told_apart_in_each_round() {
        let mut row = Row::new("ours", SocketAddr::from(([127, 0, 0, 1], 1)));
        for slow in [0.0, 100.0, 1000.0] {
            row.add((60.0 + slow, 90.0 + slow), (50.0 + slow, 70.0 + slow));
        }
        assert_eq!(row.texts(), ["ours", "160", "190", "10", "20"]);
    }
}
