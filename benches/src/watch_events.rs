//! Watch events: the latency that proxies add, with one and with many watches that have a thousand events per second in all.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::{BARE, Contestant, NO_ENTRY};
use crate::origin::{sent_at, since_epoch, watch_target};
use crate::report::{Budget, Limit};
use crate::stats::{Durations, Spread, as_micros, median};
use crate::stream::Stream;
use crate::table::{format_number, format_range};
use crate::work::HttpVersion;

/// Open watches; their events come a thousand times per second in all, so this is also the interval of each in milliseconds.
const WATCHES: [u32; 3] = [1, 100, 1000];

/// The row that has a budget.
const SHARD_SELECTOR: &str = "ctrlmesh, shard-selector";

/// Microseconds above the bare proxy.
pub(crate) const ADDED_P50: f64 = 30.0;
pub(crate) const ADDED_P99: f64 = 150.0;

/// Each watch on connections of its own, as over HTTP/1.1; with `--all` also over HTTP/2 and TLS.
pub(crate) async fn measure_events(env: &BenchEnv) -> anyhow::Result<()> {
    for watches in WATCHES {
        measure_watches(env, HttpVersion::Http1, watches).await?;
        if env.scale.all {
            measure_watches(env, HttpVersion::Http2, watches).await?;
        }
    }
    Ok(())
}

async fn measure_watches(env: &BenchEnv, version: HttpVersion, watches: u32) -> anyhow::Result<()> {
    let origin = match version {
        HttpVersion::Http1 => &env.plain,
        HttpVersion::Http2 => &env.tls,
    };
    let mut rows = Vec::new();
    if env.scale.all && version == HttpVersion::Http1 {
        rows.push(Row::new(Contestant::direct(origin.address)));
    }
    rows.push(Row::new(env.start_bare_proxy(origin)?));
    for (name, chain) in [(NO_ENTRY, Chain::Empty), (SHARD_SELECTOR, Chain::Sharded)] {
        let sidecar = env.start_sidecar(origin, chain).await?;
        rows.push(Row::new(sidecar.into_contestant(name)));
    }
    for _ in 0..env.scale.rounds {
        let mut samples = Vec::new();
        for row in &rows {
            let latencies = read_events(
                row.contestant.address(version),
                version,
                watches,
                env.scale.round_time(),
            )
            .await?;
            let at = |share| latencies.per_mille(share).map(as_micros).context("no event came");
            samples.push((at(500)?, at(990)?));
        }
        let bare = rows.iter().zip(&samples).find(|(row, _)| row.contestant.name == BARE);
        let (_, &bare) = bare.context("no bare proxy")?;
        for (row, sample) in rows.iter_mut().zip(&samples) {
            row.add_round(*sample, bare);
        }
    }
    let title = format!(
        "Watch events: {watches} watches, {}, {}",
        version.name(),
        origin.describe()
    );
    env.report.print_table(
        &title,
        &[
            "",
            "p50 µs",
            "p99 µs",
            "added p50 µs",
            "min–max",
            "added p99 µs",
            "min–max",
        ],
        rows.iter().map(Row::table_cells),
    );
    let raw = rows.iter().map(|row| (row.contestant.name.clone(), row.to_json()));
    let raw: serde_json::Map<String, serde_json::Value> = raw.collect();
    env.report.add_raw(&title, raw.into());
    for row in rows.into_iter().filter(|row| row.contestant.name == SHARD_SELECTOR) {
        let budget = |which: &str, values, at_most| Budget {
            what: format!("{title}: {which} above bare hyper's"),
            unit: "µs",
            values,
            limit: Limit::AtMost(at_most),
        };
        env.report.add_budget(budget("p50", row.added_p50, ADDED_P50));
        env.report.add_budget(budget("p99", row.added_p99, ADDED_P99));
    }
    Ok(())
}

struct Row {
    contestant: Contestant,
    p50: Vec<f64>,
    p99: Vec<f64>,
    /// Above the bare proxy in the same round.
    added_p50: Vec<f64>,
    added_p99: Vec<f64>,
}

impl Row {
    fn new(contestant: Contestant) -> Self {
        Self {
            contestant,
            p50: Vec::new(),
            p99: Vec::new(),
            added_p50: Vec::new(),
            added_p99: Vec::new(),
        }
    }

    fn add_round(&mut self, (p50, p99): (f64, f64), bare: (f64, f64)) {
        self.p50.push(p50);
        self.p99.push(p99);
        self.added_p50.push(p50 - bare.0);
        self.added_p99.push(p99 - bare.1);
    }

    fn table_cells(&self) -> Vec<String> {
        let number = |values: &[f64]| format_number(median(values), 0);
        let range = |values: &[f64]| format_range(Spread::from_values(values), 0);
        vec![
            self.contestant.name.clone(),
            number(&self.p50),
            number(&self.p99),
            number(&self.added_p50),
            range(&self.added_p50),
            number(&self.added_p99),
            range(&self.added_p99),
        ]
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "p50_us": self.p50, "p99_us": self.p99,
            "added_p50_us": self.added_p50, "added_p99_us": self.added_p99,
        })
    }
}

/// Latencies of all events of equal watches that are sent during `time`.
async fn read_events(
    address: SocketAddr,
    version: HttpVersion,
    watches: u32,
    time: Duration,
) -> anyhow::Result<Durations> {
    let target = watch_target(Duration::from_millis(u64::from(watches)));
    let streams = Stream::open_many(address, version, &target, watches as usize).await?;
    // Events that came while the other watches were opened have waited for this client.
    let begin = since_epoch();
    let end = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for stream in streams {
        tasks.spawn_local(read_until(stream, begin, end));
    }
    let mut all = Vec::new();
    while let Some(latencies) = tasks.join_next().await {
        all.extend(latencies??);
    }
    Ok(Durations::new(all))
}

/// Latencies of the events sent since `begin`, a time since the epoch.
async fn read_until(mut watch: Stream, begin: Duration, end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut events = Events::default();
    // The last event may come after the end: it is what ends the watch.
    while Instant::now() < end {
        let piece = watch.next().await?.context("the watch ended")?;
        let now = since_epoch();
        for event in events.split(&piece) {
            let sent = sent_at(&event).context("an event without a time")?;
            if sent >= begin {
                latencies.push(now.saturating_sub(sent));
            }
        }
    }
    Ok(latencies)
}

/// Splits what a proxy passes on into events: it may send two together, or one in pieces.
#[derive(Debug, Default)]
struct Events {
    /// Bytes of an event whose end has not come.
    begun: Vec<u8>,
}

impl Events {
    /// The events that end in this piece.
    fn split(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        let mut ended = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                ended.push(std::mem::take(&mut self.begun));
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_latency_is_computed_per_round() {
        let mut row = Row::new(Contestant::direct(SocketAddr::from(([127, 0, 0, 1], 1))));
        for slow in [0.0, 100.0, 1000.0] {
            row.add_round((60.0 + slow, 90.0 + slow), (50.0 + slow, 70.0 + slow));
        }
        let cells = row.table_cells();
        assert_eq!(cells, ["direct", "160", "190", "10", "10–10", "20", "20–20"]);
    }

    #[test]
    fn events_are_whole_however_they_arrive() {
        let mut events = Events::default();
        assert_eq!(events.split(b"ab"), Vec::<Vec<u8>>::new());
        assert_eq!(events.split(b"c\nd\ne"), [b"abc\n".to_vec(), b"d\n".to_vec()]);
        assert_eq!(events.split(b"\n"), [b"e\n".to_vec()]);
    }
}
