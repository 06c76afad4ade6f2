//! From nothing to ready, with a cold and a warm compile cache, and what an idle sidecar weighs.

use std::time::Duration;

use crate::chain::Chain;
use crate::sidecar::Sidecar;
use crate::stand::Stand;
use crate::stats::{mebibytes, median, millis};
use crate::{Scale, table};

/// Until what was needed for the start only has been given back.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Row {
    ready: Vec<f64>,
    memory: Vec<f64>,
}

impl Row {
    async fn add(&mut self, sidecar: Sidecar) -> anyhow::Result<()> {
        self.ready.push(millis(sidecar.ready_after));
        tokio::time::sleep(SETTLE).await;
        self.memory.push(mebibytes(sidecar.process.memory()?));
        Ok(())
    }

    fn texts(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            table::number(median(&self.ready), 0),
            table::number(median(&self.memory), 1),
        ]
    }
}

pub(crate) async fn measure(stand: &Stand, scale: &Scale) -> anyhow::Result<()> {
    let (mut empty, mut cold, mut warm) = (Row::default(), Row::default(), Row::default());
    for round in 0..scale.rounds {
        let folder = stand.folder(&format!("start-empty-{round}"), Chain::Empty)?;
        empty.add(Sidecar::start(&stand.program, &folder).await?).await?;
        // A folder of its own, and so a cache of its own, which only the second start finds filled.
        let folder = stand.folder(&format!("start-{round}"), Chain::Sharded)?;
        cold.add(Sidecar::start(&stand.program, &folder).await?).await?;
        warm.add(Sidecar::start(&stand.program, &folder).await?).await?;
    }
    table::print(
        "Start",
        &["", "ready after ms", "idle RSS MiB"],
        [
            empty.texts("no entry"),
            cold.texts("shard-selector, cold compile cache"),
            warm.texts("shard-selector, warm compile cache"),
        ],
    );
    Ok(())
}
