//! Memory of a thousand open watches.

use anyhow::Context;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::NO_ENTRY;
use crate::origin::{OriginPort, QUIET_WATCH};
use crate::report::{Budget, Limit};
use crate::stats::{Spread, as_mebibytes, median};
use crate::stream::Stream;
use crate::table::{format_number, format_range};
use crate::work::HttpVersion;

/// Open watches of one controller, as many as one that watches every kind of a cluster with many kinds.
const WATCHES: u32 = 1000;

/// Each round starts a sidecar; memory differs little between them.
const MAX_ROUNDS: u32 = 3;

const ALL_FOUR: &str = "ctrlmesh, all four";

/// Added MiB, by the client's HTTP version.
pub(crate) const ADDED_HTTP2: f64 = 20.0;
pub(crate) const ADDED_HTTP1: f64 = 40.0;

pub(crate) async fn measure_watches(env: &BenchEnv) -> anyhow::Result<()> {
    // HTTP/1.1 on both sides is the most expensive: each watch has two connections with their own buffers.
    for (version, origin, at_most) in [
        (HttpVersion::Http2, &env.tls, ADDED_HTTP2),
        (HttpVersion::Http1, &env.tls, ADDED_HTTP1),
        (HttpVersion::Http1, &env.plain, ADDED_HTTP1),
    ] {
        let title = format!("{WATCHES} open watches: {}, {}", version.name(), origin.describe());
        let mut rows = Vec::new();
        for (name, chain) in [(NO_ENTRY, Chain::Empty), (ALL_FOUR, Chain::Full)] {
            let row = Row::measure(env, version, origin, chain).await?;
            rows.push(row.table_cells(name));
            let raw = serde_json::json!({ "before_mib": row.before, "added_mib": row.added });
            env.report.add_raw(&format!("{title}: {name}"), raw);
            if name == ALL_FOUR {
                env.report.add_budget(Budget {
                    what: format!("{title}: added memory"),
                    unit: "MiB",
                    values: row.added,
                    limit: Limit::AtMost(at_most),
                });
            }
        }
        let header = ["", "RSS before MiB", "added MiB", "min–max", "KiB each"];
        env.report.print_table(&title, &header, rows);
    }
    Ok(())
}

/// Resident memory in MiB, by round.
#[derive(Debug, Default)]
struct Row {
    before: Vec<f64>,
    added: Vec<f64>,
}

impl Row {
    async fn measure(env: &BenchEnv, version: HttpVersion, origin: &OriginPort, chain: Chain) -> anyhow::Result<Self> {
        let mut row = Self::default();
        for _ in 0..env.scale.rounds.min(MAX_ROUNDS) {
            let sidecar = env.start_sidecar(origin, chain).await?;
            let before = sidecar.process.resident_memory()?;
            let mut watches = Stream::open_many(sidecar.api, version, QUIET_WATCH, WATCHES as usize).await?;
            for watch in &mut watches {
                watch.next().await?.context("the watch ended")?;
            }
            let with = sidecar.process.resident_memory()?;
            row.before.push(as_mebibytes(before));
            row.added.push(as_mebibytes(with.saturating_sub(before)));
        }
        Ok(row)
    }

    fn table_cells(&self, name: &str) -> Vec<String> {
        let added = Spread::from_values(&self.added);
        vec![
            name.to_owned(),
            format_number(median(&self.before), 1),
            format_number(added.map(|added| added.median), 1),
            format_range(added, 1),
            format_number(added.map(|added| added.median * 1024.0 / f64::from(WATCHES)), 0),
        ]
    }
}
