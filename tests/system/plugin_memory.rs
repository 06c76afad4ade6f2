//! Memory of plugins and of their compiler within the sidecar's limit, from `--memory-limit` or its container. `tests/e2e/memory` tests a
//! limit that the kernel enforces.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use ctrlmesh_contract::status::Status;
use ctrlmesh_plugins_builtin::guests;
use ctrlmesh_tests::{EntrySpec, TestEnv, guest_entry, shard_entry, wait_until};
use serde_json::{Value, json};

const LIST: &str = "/api/v1/configmaps";
const MIB: f64 = 1024.0 * 1024.0;
const USED: &str = "ctrlmesh_plugin_memory_bytes";

/// The flags that injection sets.
const DEFAULT: [&str; 4] = ["--memory-limit", "256Mi", "--workers", "2"];

/// Keeps this much memory in each instance once it has seen a request (or is configured), and traps if it gets less.
fn hoarding_entry(name: &str, phase: &str, mib: usize) -> EntrySpec {
    let bytes = guests::get("hoard").expect("tests/guests has it");
    EntrySpec::new(&format!("hoard/{name}"), bytes)
        .with_settings(json!({ "in": phase, "mib": mib, "must": true }))
        .with_field("timeoutMs", 1_000.into())
}

/// An entry with the maximum of memory that takes all of it.
fn entry_hoarding_its_maximum(name: &str) -> EntrySpec {
    hoarding_entry(name, "on-request", 250)
        .with_settings(json!({ "in": "on-request", "mib": 250 }))
        .with_field("memoryMiB", 256.into())
}

async fn get_bodies(env: &TestEnv, count: usize) -> anyhow::Result<Vec<Value>> {
    let mut bodies = Vec::new();
    for _ in 0..count {
        let answer = env.client().get(LIST).await?;
        anyhow::ensure!(answer.status == 200, "{}\n{}", answer.json(), env.sidecar.log());
        bodies.push(answer.json());
    }
    Ok(bodies)
}

/// Checks that the sidecar has never used more.
fn assert_stays_below(env: &TestEnv, mib: usize) -> anyhow::Result<()> {
    let peak = env.sidecar.peak_memory()?;
    assert!(peak < mib << 20, "{peak}");
    Ok(())
}

/// Checks that a chain is refused for this reason with all parts in the message, and that the previous one, which shows only `a0`, stays.
async fn assert_refused(env: &TestEnv, reason: &str, parts: &[&str]) -> anyhow::Result<()> {
    let is_refused = |status: &Status| status.refused.is_some();
    let status = env.sidecar.wait_status("it is refused", is_refused).await?;
    let refused = status.refused.context("it is refused")?;
    assert_eq!(refused.reason, reason, "{}", refused.message);
    for part in parts {
        assert!(refused.message.contains(part), "{}", refused.message);
    }
    assert_eq!(env.client().get(LIST).await?.names(), ["a0"], "the last chain stays");
    Ok(())
}

#[tokio::test]
async fn guest_faults_when_it_grows_beyond_remaining_memory() -> anyhow::Result<()> {
    let greedy = guest_entry("greedy", json!({ "in": "on-request" }))
        .with_field("memoryMiB", 256.into())
        .with_field("timeoutMs", 1_000.into())
        .with_field("onFailure", "Open".into());
    let env = TestEnv::start_with(vec![greedy, shard_entry("a")], &DEFAULT).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    env.sidecar.forget_peak_memory()?;
    for _ in 0..4 {
        assert_eq!(env.client().get(LIST).await?.names(), ["a0"]);
    }
    let faults = r#"ctrlmesh_plugin_faults_total{entry="greedy/test",kind="memory"}"#;
    assert_eq!(env.sidecar.metric_value(faults).await?, 4.0, "{}", env.sidecar.log());
    assert_eq!(
        env.sidecar.metric_value("ctrlmesh_memory_limit_bytes").await?,
        256.0 * MIB
    );
    assert_eq!(
        env.sidecar.metric_value("ctrlmesh_plugin_memory_limit_bytes").await?,
        160.0 * MIB
    );
    let status = env.sidecar.status().await?;
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
    assert_stays_below(&env, 200)
}

#[tokio::test]
async fn hoarding_guests_leave_memory_for_small_ones() -> anyhow::Result<()> {
    let greedy = ["a", "b"].map(|name| entry_hoarding_its_maximum(name).with_field("order", 1.into()));
    let entries = greedy
        .into_iter()
        .chain([hoarding_entry("small", "on-request", 2), shard_entry("a")]);
    let env = TestEnv::start_with(entries.collect(), &DEFAULT).await?;
    env.sidecar.forget_peak_memory()?;
    get_bodies(&env, 20).await?;
    let used = env.sidecar.metric_value(USED).await?;
    assert!((120.0 * MIB..=160.0 * MIB).contains(&used), "{used}");
    assert_stays_below(&env, 240)
}

#[tokio::test]
async fn four_plugins_at_their_caps_are_replaced_within_the_default_limit() -> anyhow::Result<()> {
    let chain = |mib| {
        ["a", "b", "c", "d"]
            .map(|name| hoarding_entry(name, "on-request", mib))
            .to_vec()
    };
    let mut env = TestEnv::start_with(chain(13), &DEFAULT).await?;
    env.sidecar.forget_peak_memory()?;
    get_bodies(&env, 8).await?;
    let used = env.sidecar.metric_value(USED).await?;
    assert!(used > 8.0 * 13.0 * MIB, "{used}");
    env.publish(chain(12)).await?;
    wait_until("the instances before have ended", || async {
        Ok(env.sidecar.metric_value(USED).await? < 40.0 * MIB)
    })
    .await?;
    get_bodies(&env, 8).await?;
    assert!(env.sidecar.metric_value(USED).await? > 8.0 * 12.0 * MIB);
    assert_stays_below(&env, 240)
}

#[tokio::test]
async fn earlier_instances_end_with_their_last_request() -> anyhow::Result<()> {
    let mut env = TestEnv::start_with(vec![hoarding_entry("a", "on-request", 12)], &DEFAULT).await?;
    get_bodies(&env, 8).await?;
    let watch = env.client().open_stream(&format!("{LIST}?watch=1")).await?;
    // A change of another plugin's settings does not change the watch, so it stays open.
    env.publish(vec![hoarding_entry("a", "on-response", 1)]).await?;
    let used = env.sidecar.metric_value(USED).await?;
    assert!(used > 24.0 * MIB, "the watch may need them: {used}");
    drop(watch);
    wait_until("they have ended", || async {
        Ok(env.sidecar.metric_value(USED).await? < 20.0 * MIB)
    })
    .await
}

#[tokio::test]
async fn chain_is_refused_when_its_initial_memories_do_not_fit() -> anyhow::Result<()> {
    let mut env = TestEnv::start_with(vec![shard_entry("a")], &["--memory-limit", "128Mi", "--workers", "2"]).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    // One after the other they fit into 80 MiB, but not two of each at once.
    let entries = ["a", "b", "c", "d"].map(|name| hoarding_entry(name, "configure", 11));
    env.chain.publish(entries.to_vec())?;
    assert_refused(
        &env,
        "memory",
        &["2 instances of each", "80 MiB", "128 MiB", "--memory-limit"],
    )
    .await?;
    let fitting = ["a", "b", "c"].map(|name| hoarding_entry(name, "configure", 10));
    env.publish(fitting.to_vec()).await
}

#[tokio::test]
async fn earlier_instances_make_room_for_the_next_chain() -> anyhow::Result<()> {
    let chain = |phase: &str| ["a", "b", "c"].map(|name| hoarding_entry(name, phase, 7)).to_vec();
    let mut env = TestEnv::start_with(chain("configure"), &["--memory-limit", "128Mi", "--workers", "2"]).await?;
    // The watch keeps its chain, so that no instance ends by itself; both chains at once would need 96 of 80 MiB.
    let _watch = env.client().open_stream(&format!("{LIST}?watch=1")).await?;
    let other = chain("configure")
        .into_iter()
        .map(|entry| entry.with_field("timeoutMs", 999.into()));
    env.publish(other.collect()).await?;
    get_bodies(&env, 4).await.map(drop)
}

/// The shard rule, by a plugin that has a section more, so that no cache has it.
fn shard_entry_to_be_compiled() -> anyhow::Result<EntrySpec> {
    const NAME: &[u8] = b"made";
    let made = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos().to_le_bytes();
    let mut bytes = ctrlmesh_plugins_builtin::SHARD_SELECTOR.to_vec();
    bytes.extend([0, u8::try_from(1 + NAME.len() + made.len())?, u8::try_from(NAME.len())?]);
    bytes.extend(NAME);
    bytes.extend(made);
    Ok(EntrySpec::new("shard-selector/test", &bytes).with_settings(json!({
        "shard": "a",
        "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "selector": { "matchLabels": { "shard": "a" } },
        }],
    })))
}

#[tokio::test]
async fn plugin_at_its_cap_is_replaced_by_one_that_must_be_compiled() -> anyhow::Result<()> {
    let leaking = ["a", "b", "c", "d"].map(|name| hoarding_entry(name, "on-request", 14));
    let mut env = TestEnv::start_with(leaking.to_vec(), &DEFAULT).await?;
    // Each of two threads has its instances, and connections are dealt to them in turn.
    get_bodies(&env, 8).await?;
    let used = env.sidecar.metric_value(USED).await?;
    assert!(used > 8.0 * 14.0 * MIB, "{used}");
    let [_, others @ ..] = leaking;
    let repaired = shard_entry_to_be_compiled()?;
    env.publish([repaired].into_iter().chain(others).collect()).await?;
    get_bodies(&env, 4).await.map(drop)
}

#[tokio::test]
async fn instances_of_an_earlier_chain_make_room_for_the_trial_of_a_plugin() -> anyhow::Result<()> {
    let chain = ["a", "b", "c", "d"].map(|name| hoarding_entry(name, "configure", 8));
    let mut env = TestEnv::start_with(chain.to_vec(), &["--memory-limit", "128Mi", "--workers", "2"]).await?;
    let used = env.sidecar.metric_value(USED).await?;
    assert!(used > 71.0 * MIB, "no other instance fits 80 MiB: {used}");
    env.publish(chain.map(|entry| entry.with_field("timeoutMs", 999.into())).to_vec())
        .await?;
    get_bodies(&env, 4).await.map(drop)
}

#[tokio::test]
async fn plugin_is_refused_by_name_when_it_needs_too_much_memory_to_compile() -> anyhow::Result<()> {
    let mut env = TestEnv::start_with(vec![shard_entry("a")], &DEFAULT).await?;
    env.seed_config_maps("default", "a", 1)?;
    let bomb = EntrySpec::new("bomb/test", &guests::compile_bomb());
    env.chain.publish(vec![bomb, shard_entry("a")])?;
    assert_refused(
        &env,
        "compile_memory",
        &["bomb/test", "sha256:", " MiB", "--memory-limit"],
    )
    .await
}
