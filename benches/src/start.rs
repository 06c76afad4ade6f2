//! Time from process start to ready, with a cold and a warm compile cache and with precompiled plugins, and memory of an idle sidecar.

use std::time::Duration;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::sidecar::Sidecar;
use crate::image::ImageFolder;
use crate::report::{Budget, Limit};
use crate::stats::{Spread, as_mebibytes, as_millis, median};
use crate::table::{format_number, format_range};

/// Time until memory that only the start needed has been freed.
const SETTLE: Duration = Duration::from_secs(2);

const TITLE: &str = "Start";

/// Milliseconds to ready with precompiled plugins, as in images, and a cold cache; MiB of an idle sidecar that has compiled its plugins. All
/// with the four built-in plugins.
pub(crate) const READY: f64 = 150.0;
pub(crate) const IDLE_ANONYMOUS: f64 = 10.0;
pub(crate) const IDLE_RESIDENT: f64 = 20.0;

pub(crate) async fn measure_starts(env: &BenchEnv) -> anyhow::Result<()> {
    let mut empty = Row::new("no entry");
    let mut shard_selector = ColdAndWarm {
        cold: Row::new("shard-selector, cold compile cache"),
        warm: Row::new("shard-selector, warm compile cache"),
    };
    let mut all_four = ColdAndWarm {
        cold: Row::new("all four, cold compile cache"),
        warm: Row::new("all four, warm compile cache"),
    };
    let mut precompiled = Row::new("all four, precompiled, cold compile cache");
    let image = ImageFolder::create(&env.program)?;
    if image.is_none() {
        let reason = "it needs root, because a sidecar accepts no artifact that it could change";
        let text = format!("The start with precompiled plugins is left out: {reason}.");
        env.report.print_note(&text);
    }
    for _ in 0..env.scale.rounds {
        if env.scale.all {
            let folder = env.create_folder(&env.plain, Chain::Empty)?;
            empty.add_start(Sidecar::start(&env.program, &folder).await?).await?;
            shard_selector.add_starts(env, Chain::Sharded).await?;
        }
        all_four.add_starts(env, Chain::Full).await?;
        if let Some(image) = &image {
            precompiled.add_start(image.start_cold(env, Chain::Full).await?).await?;
        }
    }
    let rows = [
        &empty,
        &shard_selector.cold,
        &shard_selector.warm,
        &all_four.cold,
        &all_four.warm,
        &precompiled,
    ];
    let header = ["", "ready after ms", "min–max", "idle anonymous MiB", "idle RSS MiB"];
    let measured = rows.into_iter().filter(|row| !row.ready.is_empty());
    env.report.print_table(TITLE, &header, measured.map(Row::table_cells));
    let raw = rows.map(|row| (row.name.to_owned(), row.to_json()));
    let raw: serde_json::Map<String, serde_json::Value> = raw.into_iter().collect();
    env.report.add_raw(TITLE, raw.into());
    let budget = |what: &str, unit, values, at_most| Budget {
        what: format!("{TITLE}: all four, {what}"),
        unit,
        values,
        limit: Limit::AtMost(at_most),
    };
    let what = "ready with precompiled plugins and a cold cache";
    env.report.add_budget(budget(what, "ms", precompiled.ready, READY));
    let Row {
        anonymous, resident, ..
    } = all_four.cold;
    env.report
        .add_budget(budget("idle, anonymous", "MiB", anonymous, IDLE_ANONYMOUS));
    env.report
        .add_budget(budget("idle, resident", "MiB", resident, IDLE_RESIDENT));
    Ok(())
}

struct ColdAndWarm {
    cold: Row,
    warm: Row,
}

impl ColdAndWarm {
    async fn add_starts(&mut self, env: &BenchEnv, chain: Chain) -> anyhow::Result<()> {
        // A folder of its own, and thus a cache of its own, which only the second start finds filled.
        let folder = env.create_folder(&env.plain, chain)?;
        self.cold
            .add_start(Sidecar::start(&env.program, &folder).await?)
            .await?;
        self.warm.add_start(Sidecar::start(&env.program, &folder).await?).await
    }
}

/// The values of all rounds.
struct Row {
    name: &'static str,
    /// Milliseconds.
    ready: Vec<f64>,
    /// MiB.
    anonymous: Vec<f64>,
    resident: Vec<f64>,
}

impl Row {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            ready: Vec::new(),
            anonymous: Vec::new(),
            resident: Vec::new(),
        }
    }

    async fn add_start(&mut self, sidecar: Sidecar) -> anyhow::Result<()> {
        self.ready.push(as_millis(sidecar.ready_after));
        tokio::time::sleep(SETTLE).await;
        self.anonymous.push(as_mebibytes(sidecar.process.anonymous_memory()?));
        self.resident.push(as_mebibytes(sidecar.process.resident_memory()?));
        Ok(())
    }

    fn table_cells(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            format_number(median(&self.ready), 0),
            format_range(Spread::from_values(&self.ready), 0),
            format_number(median(&self.anonymous), 1),
            format_number(median(&self.resident), 1),
        ]
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "ready_ms": self.ready, "anonymous_mib": self.anonymous, "resident_mib": self.resident,
        })
    }
}
