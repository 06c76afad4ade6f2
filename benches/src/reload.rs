//! Hot reload under load: new chains with a new build of the plugin, again and again, while requests go on at a steady pace; and the same
//! without reloads, to see the pauses of the machine.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::bench_env::BenchEnv;
use crate::chain::{Chain, SidecarFolder, with_custom_section};
use crate::load::Client;
use crate::origin::{GET, LIST};
use crate::sidecar::Sidecar;
use crate::stats::{Durations, as_micros, as_millis};
use crate::{Scale, table};

/// Interval of requests on each connection: short enough to notice every pause of a millisecond.
const PACE: Duration = Duration::from_millis(1);

/// Connections for each kind of request.
const CONNECTIONS: usize = 2;

/// Time between two chains.
const REST: Duration = Duration::from_millis(300);

pub(crate) async fn measure_reloads(env: &BenchEnv, scale: &Scale) -> anyhow::Result<()> {
    let folder = Rc::new(env.create_folder("reload", Chain::Sharded)?);
    let sidecar = Rc::new(Sidecar::start(&env.program, &folder).await?);
    let time = scale.round_time() * u32::try_from(scale.rounds).unwrap_or(1);
    let quiet = run_paced_load(sidecar.api, time).await?;
    let reloading = tokio::task::spawn_local(reload_until(Rc::clone(&sidecar), folder, Instant::now() + time));
    let busy = run_paced_load(sidecar.api, time).await?;
    let reloads = reloading.await??;
    let [get, list] = quiet;
    let [busy_get, busy_list] = busy;
    table::print_table(
        &format!("Hot reload: {reloads} new chains, each with a plugin that is compiled anew"),
        &["", "requests", "failed", "p50 µs", "p99 µs", "p99.9 ms", "longest ms"],
        [
            get.table_cells("get, which no entry wants; no reload"),
            busy_get.table_cells("get, which no entry wants; reloads"),
            list.table_cells("list, which shard-selector wants; no reload"),
            busy_list.table_cells("list, which shard-selector wants; reloads"),
        ],
    );
    ensure!(
        reloads > 0,
        "no chain came into force, so nothing was measured: give it more --seconds"
    );
    none_failed(&[get, busy_get, list, busy_list])
}

/// No request may fail, not even during a reload.
fn none_failed(seen: &[LoadResult]) -> anyhow::Result<()> {
    let failed: u64 = seen.iter().map(|seen| seen.failed).sum();
    ensure!(failed == 0, "{failed} requests failed, none may: see the table");
    Ok(())
}

async fn reload_until(sidecar: Rc<Sidecar>, folder: Rc<SidecarFolder>, end: Instant) -> anyhow::Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        let generation = done + 2;
        let number = u8::try_from(generation % 251)?;
        let plugin = with_custom_section(ctrlmesh_plugins_builtin::SHARD_SELECTOR, number);
        folder.write_chain(generation, Chain::Sharded, &plugin)?;
        sidecar.wait_for_generation(generation).await?;
        done += 1;
        tokio::time::sleep(REST).await;
    }
    Ok(done)
}

/// The results of one kind of request.
struct LoadResult {
    latencies: Durations,
    failed: u64,
}

impl LoadResult {
    fn table_cells(&self, name: &str) -> Vec<String> {
        let at = |share| self.latencies.per_mille(share);
        vec![
            name.to_owned(),
            self.latencies.len().to_string(),
            self.failed.to_string(),
            table::format_number(at(500).map(as_micros), 0),
            table::format_number(at(990).map(as_micros), 0),
            table::format_number(at(999).map(as_millis), 2),
            table::format_number(self.latencies.longest().map(as_millis), 2),
        ]
    }
}

/// Sends gets and lists at a steady pace.
async fn run_paced_load(address: SocketAddr, time: Duration) -> anyhow::Result<[LoadResult; 2]> {
    let end = Instant::now() + time;
    let mut kinds = Vec::new();
    for target in [GET, LIST] {
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            tasks.spawn_local(request_at_pace(address, target, end));
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
        seen.push(LoadResult {
            latencies: Durations::new(all),
            failed,
        });
    }
    seen.try_into().map_err(|_| anyhow::anyhow!("two kinds of requests"))
}

/// Latencies of the answered requests, and the number of failed ones.
async fn request_at_pace(
    address: SocketAddr,
    target: &'static str,
    end: Instant,
) -> anyhow::Result<(Vec<Duration>, u64)> {
    let mut ticks = interval(PACE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut client = Client::connect(address, target).await?;
    let (mut latencies, mut failed) = (Vec::new(), 0);
    while Instant::now() < end {
        ticks.tick().await;
        let start = Instant::now();
        if client.send_request().await.is_ok() {
            latencies.push(start.elapsed());
        } else {
            failed += 1;
            client = Client::connect(address, target).await?;
        }
    }
    Ok((latencies, failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_request_fails_the_measurement() {
        let seen = |failed| LoadResult {
            latencies: Durations::new(vec![PACE]),
            failed,
        };
        assert!(none_failed(&[seen(0), seen(0)]).is_ok());
        let error = none_failed(&[seen(0), seen(3)]).unwrap_err();
        assert!(error.to_string().contains("3 requests failed"), "{error}");
    }
}
