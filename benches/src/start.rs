//! Time from process start to ready, with a cold and a warm compile cache, and memory of an idle sidecar.

use std::time::Duration;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::sidecar::Sidecar;
use crate::stats::{as_mebibytes, as_millis, median};
use crate::{Scale, table};

/// Time until memory that only the start needed has been freed.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Row {
    ready: Vec<f64>,
    memory: Vec<f64>,
}

impl Row {
    async fn add_start(&mut self, sidecar: Sidecar) -> anyhow::Result<()> {
        self.ready.push(as_millis(sidecar.ready_after));
        tokio::time::sleep(SETTLE).await;
        self.memory.push(as_mebibytes(sidecar.process.resident_memory()?));
        Ok(())
    }

    fn table_cells(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            table::format_number(median(&self.ready), 0),
            table::format_number(median(&self.memory), 1),
        ]
    }
}

pub(crate) async fn measure_starts(env: &BenchEnv, scale: &Scale) -> anyhow::Result<()> {
    let (mut empty, mut cold, mut warm) = (Row::default(), Row::default(), Row::default());
    for round in 0..scale.rounds {
        let folder = env.create_folder(&format!("start-empty-{round}"), Chain::Empty)?;
        empty.add_start(Sidecar::start(&env.program, &folder).await?).await?;
        // A folder of its own, and thus a cache of its own, which only the second start finds filled.
        let folder = env.create_folder(&format!("start-{round}"), Chain::Sharded)?;
        cold.add_start(Sidecar::start(&env.program, &folder).await?).await?;
        warm.add_start(Sidecar::start(&env.program, &folder).await?).await?;
    }
    table::print_table(
        "Start",
        &["", "ready after ms", "idle RSS MiB"],
        [
            empty.table_cells("no entry"),
            cold.table_cells("shard-selector, cold compile cache"),
            warm.table_cells("shard-selector, warm compile cache"),
        ],
    );
    Ok(())
}
