//! Hot reload under load: a new chain with a new build of the plugin again and again, while requests go on at a steady
//! pace. Beside it the same without a reload, for what the machine does by itself.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::chain::{Chain, Folder, rebuilt};
use crate::load::Client;
use crate::origin::{GET, LIST};
use crate::sidecar::Sidecar;
use crate::stand::Stand;
use crate::stats::{Durations, micros, millis};
use crate::{Scale, table};

/// Requests are sent so often on each connection: often enough to meet every pause of a millisecond.
const PACE: Duration = Duration::from_millis(1);

/// Connections of each kind of request.
const CONNECTIONS: usize = 2;

/// A chain is in force for so long before the next one comes.
const REST: Duration = Duration::from_millis(300);

pub(crate) async fn measure(stand: &Stand, scale: &Scale) -> anyhow::Result<()> {
    let folder = Rc::new(stand.folder("reload", Chain::Sharded)?);
    let sidecar = Rc::new(Sidecar::start(&stand.program, &folder).await?);
    let time = scale.time() * u32::try_from(scale.rounds).unwrap_or(1);
    let quiet = load(sidecar.api, time).await?;
    let reloading = tokio::task::spawn_local(reloads(Rc::clone(&sidecar), folder, Instant::now() + time));
    let busy = load(sidecar.api, time).await?;
    let reloads = reloading.await??;
    let [get, list] = quiet;
    let [busy_get, busy_list] = busy;
    table::print(
        &format!("Hot reload: {reloads} new chains, each with a plugin that is compiled anew"),
        &["", "requests", "failed", "p50 µs", "p99 µs", "p99.9 ms", "longest ms"],
        [
            get.texts("get, which no entry wants; no reload"),
            busy_get.texts("get, which no entry wants; reloads"),
            list.texts("list, which shard-selector wants; no reload"),
            busy_list.texts("list, which shard-selector wants; reloads"),
        ],
    );
    Ok(())
}

async fn reloads(sidecar: Rc<Sidecar>, folder: Rc<Folder>, end: Instant) -> anyhow::Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        let generation = done + 2;
        let number = u8::try_from(generation % 251)?;
        let plugin = rebuilt(ctrlmesh_plugins_builtin::SHARD_SELECTOR, number);
        folder.write(generation, Chain::Sharded, &plugin)?;
        sidecar.in_force(generation).await?;
        done += 1;
        tokio::time::sleep(REST).await;
    }
    Ok(done)
}

/// What one kind of request met.
struct Seen {
    latencies: Durations,
    failed: u64,
}

impl Seen {
    fn texts(&self, name: &str) -> Vec<String> {
        let at = |share| self.latencies.per_mille(share);
        vec![
            name.to_owned(),
            self.latencies.len().to_string(),
            self.failed.to_string(),
            table::number(at(500).map(micros), 0),
            table::number(at(990).map(micros), 0),
            table::number(at(999).map(millis), 2),
            table::number(self.latencies.longest().map(millis), 2),
        ]
    }
}

/// Gets and lists at a steady pace.
async fn load(address: SocketAddr, time: Duration) -> anyhow::Result<[Seen; 2]> {
    let end = Instant::now() + time;
    let mut kinds = Vec::new();
    for target in [GET, LIST] {
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            tasks.spawn_local(paced(address, target, end));
        }
        kinds.push(tasks);
    }
    let mut seen = Vec::new();
    for mut tasks in kinds {
        let mut all = Vec::new();
        let mut failed = 0;
        while let Some(one) = tasks.join_next().await {
            let (latencies, failures) = one??;
            all.extend(latencies);
            failed += failures;
        }
        seen.push(Seen {
            latencies: Durations::new(all),
            failed,
        });
    }
    seen.try_into().map_err(|_| anyhow::anyhow!("two kinds of requests"))
}

/// Latencies of the requests that were answered, and how many were not.
async fn paced(address: SocketAddr, target: &'static str, end: Instant) -> anyhow::Result<(Vec<Duration>, u64)> {
    let mut ticks = interval(PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut client = Client::connect(address, target).await?;
    let (mut latencies, mut failed) = (Vec::new(), 0);
    while Instant::now() < end {
        ticks.tick().await;
        let start = Instant::now();
        if client.exchange().await.is_ok() {
            latencies.push(start.elapsed());
        } else {
            failed += 1;
            client = Client::connect(address, target).await?;
        }
    }
    Ok((latencies, failed))
}
