//! What plugins and their compiler may take of the memory that the sidecar has, as `--memory-limit` or its container says. With a limit
//! that the kernel enforces: `tests/e2e/memory`.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use ctrlmesh_contract::status::Status;
use ctrlmesh_plugins_builtin::guests;
use ctrlmesh_tests::{EntrySpec, Stand, guest, shard, wait_until};
use serde_json::{Value, json};

const LIST: &str = "/api/v1/configmaps";
const MIB: f64 = 1024.0 * 1024.0;
const USED: &str = "ctrlmesh_plugin_memory_bytes";

/// What injection gives a sidecar.
const DEFAULT: [&str; 4] = ["--memory-limit", "256Mi", "--workers", "2"];

/// Keeps so much in each instance once it has seen a request (or is configured), and traps if it gets less.
fn hoard(name: &str, phase: &str, mib: usize) -> EntrySpec {
    let bytes = guests::get("hoard").expect("tests/guests has it");
    EntrySpec::new(&format!("hoard/{name}"), bytes)
        .settings(json!({ "in": phase, "mib": mib, "must": true }))
        .set("timeoutMs", 1_000.into())
}

/// The most that an entry may have, and one that takes all of it.
fn hoards_all(name: &str) -> EntrySpec {
    hoard(name, "on-request", 250)
        .settings(json!({ "in": "on-request", "mib": 250 }))
        .set("memoryMiB", 256.into())
}

async fn bodies_of_requests(stand: &Stand, count: usize) -> anyhow::Result<Vec<Value>> {
    let mut bodies = Vec::new();
    for _ in 0..count {
        let answer = stand.client().get(LIST).await?;
        anyhow::ensure!(answer.status == 200, "{}\n{}", answer.json(), stand.sidecar.log());
        bodies.push(answer.json());
    }
    Ok(bodies)
}

/// The sidecar has never taken as much.
fn stays_below(stand: &Stand, mib: usize) -> anyhow::Result<()> {
    let peak = stand.sidecar.peak_memory()?;
    assert!(peak < mib << 20, "{peak}");
    Ok(())
}

/// A chain is refused for this reason, by a message that has all of these parts, and the one before stays, which shows `a0` alone.
async fn refused(stand: &Stand, reason: &str, parts: &[&str]) -> anyhow::Result<()> {
    let is_refused = |status: &Status| status.refused.is_some();
    let status = stand.sidecar.wait_status("it is refused", is_refused).await?;
    let refused = status.refused.context("it is refused")?;
    assert_eq!(refused.reason, reason, "{}", refused.message);
    for part in parts {
        assert!(refused.message.contains(part), "{}", refused.message);
    }
    assert_eq!(stand.client().get(LIST).await?.names(), ["a0"], "the last chain stays");
    Ok(())
}

#[tokio::test]
async fn guest_that_grows_beyond_what_is_left_faults_and_others_are_served() -> anyhow::Result<()> {
    let greedy = guest("greedy", json!({ "in": "on-request" }))
        .set("memoryMiB", 256.into())
        .set("timeoutMs", 1_000.into())
        .set("onFailure", "Open".into());
    let stand = Stand::start_with(vec![greedy, shard("a")], &DEFAULT).await?;
    stand.seed("default", "a", 1)?;
    stand.seed("default", "b", 1)?;
    stand.sidecar.forget_peak_memory()?;
    for _ in 0..4 {
        assert_eq!(stand.client().get(LIST).await?.names(), ["a0"]);
    }
    let faults = r#"ctrlmesh_plugin_faults_total{entry="greedy/test",kind="memory"}"#;
    assert_eq!(stand.sidecar.metric(faults).await?, 4.0, "{}", stand.sidecar.log());
    assert_eq!(stand.sidecar.metric("ctrlmesh_memory_limit_bytes").await?, 256.0 * MIB);
    assert_eq!(
        stand.sidecar.metric("ctrlmesh_plugin_memory_limit_bytes").await?,
        160.0 * MIB
    );
    let status = stand.sidecar.status().await?;
    let entry = status
        .chain
        .entries
        .iter()
        .find(|entry| entry.name == "greedy/test")
        .context("no entry")?;
    let error = entry.error.clone().unwrap_or_default();
    assert!(
        error.contains("greedy/test")
            && error.contains("160 MiB")
            && error.contains("256 MiB")
            && error.contains("--memory-limit"),
        "{error}"
    );
    stays_below(&stand, 200)
}

#[tokio::test]
async fn guests_that_keep_all_that_they_get_leave_enough_for_those_that_need_little() -> anyhow::Result<()> {
    let greedy = ["a", "b"].map(|name| hoards_all(name).set("order", 1.into()));
    let entries = greedy.into_iter().chain([hoard("small", "on-request", 2), shard("a")]);
    let stand = Stand::start_with(entries.collect(), &DEFAULT).await?;
    stand.sidecar.forget_peak_memory()?;
    bodies_of_requests(&stand, 20).await?;
    let used = stand.sidecar.metric(USED).await?;
    assert!((120.0 * MIB..=160.0 * MIB).contains(&used), "{used}");
    stays_below(&stand, 240)
}

#[tokio::test]
async fn four_plugins_at_their_caps_are_replaced_within_the_default_limit() -> anyhow::Result<()> {
    let chain = |mib| ["a", "b", "c", "d"].map(|name| hoard(name, "on-request", mib)).to_vec();
    let mut stand = Stand::start_with(chain(13), &DEFAULT).await?;
    stand.sidecar.forget_peak_memory()?;
    bodies_of_requests(&stand, 8).await?;
    let used = stand.sidecar.metric(USED).await?;
    assert!(used > 8.0 * 13.0 * MIB, "{used}");
    stand.publish(chain(12)).await?;
    wait_until("the instances before have ended", || async {
        Ok(stand.sidecar.metric(USED).await? < 40.0 * MIB)
    })
    .await?;
    bodies_of_requests(&stand, 8).await?;
    assert!(stand.sidecar.metric(USED).await? > 8.0 * 12.0 * MIB);
    stays_below(&stand, 240)
}

#[tokio::test]
async fn instances_of_an_earlier_chain_end_with_its_last_request() -> anyhow::Result<()> {
    let mut stand = Stand::start_with(vec![hoard("a", "on-request", 12)], &DEFAULT).await?;
    bodies_of_requests(&stand, 8).await?;
    let watch = stand.client().stream(&format!("{LIST}?watch=1")).await?;
    // Another plugin's settings do not change what the watch shows, so it goes on.
    stand.publish(vec![hoard("a", "on-response", 1)]).await?;
    let used = stand.sidecar.metric(USED).await?;
    assert!(used > 24.0 * MIB, "the watch may need them: {used}");
    drop(watch);
    wait_until("they have ended", || async {
        Ok(stand.sidecar.metric(USED).await? < 20.0 * MIB)
    })
    .await
}

#[tokio::test]
async fn chain_whose_first_memories_do_not_fit_is_refused_and_the_last_one_stays() -> anyhow::Result<()> {
    let mut stand = Stand::start_with(vec![shard("a")], &["--memory-limit", "128Mi", "--workers", "2"]).await?;
    stand.seed("default", "a", 1)?;
    stand.seed("default", "b", 1)?;
    // One after the other they fit 80 MiB, but not two of each at once.
    let entries = ["a", "b", "c", "d"].map(|name| hoard(name, "configure", 11));
    stand.chain.publish(entries.to_vec())?;
    refused(
        &stand,
        "memory",
        &["2 instances of each", "80 MiB", "128 MiB", "--memory-limit"],
    )
    .await?;
    let fitting = ["a", "b", "c"].map(|name| hoard(name, "configure", 10));
    stand.publish(fitting.to_vec()).await
}

#[tokio::test]
async fn instances_of_an_earlier_chain_make_room_for_the_next() -> anyhow::Result<()> {
    let chain = |phase: &str| ["a", "b", "c"].map(|name| hoard(name, phase, 7)).to_vec();
    let mut stand = Stand::start_with(chain("configure"), &["--memory-limit", "128Mi", "--workers", "2"]).await?;
    // The watch keeps its chain, so nothing goes by itself; both chains at once would need 96 of 80 MiB.
    let _watch = stand.client().stream(&format!("{LIST}?watch=1")).await?;
    let other = chain("configure")
        .into_iter()
        .map(|entry| entry.set("timeoutMs", 999.into()));
    stand.publish(other.collect()).await?;
    bodies_of_requests(&stand, 4).await.map(drop)
}

/// The same plugin with a section more, so that no cache has it.
fn never_compiled(name: &str, phase: &str, mib: usize) -> anyhow::Result<EntrySpec> {
    const NAME: &[u8] = b"made";
    let made = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos().to_le_bytes();
    let mut bytes = guests::get("hoard").context("tests/guests has it")?.to_vec();
    bytes.extend([0, u8::try_from(1 + NAME.len() + made.len())?, u8::try_from(NAME.len())?]);
    bytes.extend(NAME);
    bytes.extend(made);
    let settings = json!({ "in": phase, "mib": mib, "must": true });
    Ok(EntrySpec::new(&format!("hoard/{name}"), &bytes)
        .settings(settings)
        .set("timeoutMs", 1_000.into()))
}

#[tokio::test]
async fn plugin_at_its_cap_is_replaced_by_one_that_must_be_compiled() -> anyhow::Result<()> {
    let leaking = ["a", "b", "c", "d"].map(|name| hoard(name, "on-request", 14));
    let mut stand = Stand::start_with(leaking.to_vec(), &DEFAULT).await?;
    // Each of two threads has its instances, and connections are dealt to them in turn.
    bodies_of_requests(&stand, 8).await?;
    let used = stand.sidecar.metric(USED).await?;
    assert!(used > 8.0 * 14.0 * MIB, "{used}");
    let [_, others @ ..] = leaking;
    let mended = never_compiled("a", "on-request", 1)?;
    stand.publish([mended].into_iter().chain(others).collect()).await?;
    bodies_of_requests(&stand, 4).await.map(drop)
}

#[tokio::test]
async fn instances_of_an_earlier_chain_make_room_for_the_trial_of_a_plugin() -> anyhow::Result<()> {
    let chain = ["a", "b", "c", "d"].map(|name| hoard(name, "configure", 8));
    let mut stand = Stand::start_with(chain.to_vec(), &["--memory-limit", "128Mi", "--workers", "2"]).await?;
    let used = stand.sidecar.metric(USED).await?;
    assert!(used > 71.0 * MIB, "no other instance fits 80 MiB: {used}");
    stand
        .publish(chain.map(|entry| entry.set("timeoutMs", 999.into())).to_vec())
        .await?;
    bodies_of_requests(&stand, 4).await.map(drop)
}

#[tokio::test]
async fn plugin_that_takes_too_much_memory_to_compile_is_refused_by_name() -> anyhow::Result<()> {
    let mut stand = Stand::start_with(vec![shard("a")], &DEFAULT).await?;
    stand.seed("default", "a", 1)?;
    let bomb = EntrySpec::new("bomb/test", &guests::compile_bomb());
    stand.chain.publish(vec![bomb, shard("a")])?;
    refused(
        &stand,
        "compile_memory",
        &["bomb/test", "sha256:", " MiB", "--memory-limit"],
    )
    .await
}
