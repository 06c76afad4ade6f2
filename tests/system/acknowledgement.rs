//! Acknowledgement of rules: nothing is pushed to a sidecar; it reports in `/status` only what it has in force.

use ctrlmesh_contract::status::{EntryStatus, Status};
use ctrlmesh_tests::{EntrySpec, TestEnv};
use serde_json::{Value, json};

use crate::breakers::{breaker_entry, fail_config_maps, get_statuses, rule_for_all, sleeping_policy, wait_state};
use crate::faults::{fault_rule, faults_entry, rule_counts};
use crate::limits::LIST;

fn first_entry(status: &Status) -> &EntryStatus {
    &status.chain.entries[0]
}

async fn wait_refused(env: &TestEnv) -> anyhow::Result<Status> {
    let refused = |status: &Status| status.refused.is_some();
    env.sidecar.wait_status("the chain is refused", refused).await
}

/// Publishes settings that the plugin refuses, and checks that the sidecar does not acknowledge them.
async fn assert_not_acknowledged(env: &mut TestEnv, bad: EntrySpec, field: &str) -> anyhow::Result<()> {
    let before = env.sidecar.status().await?;
    let generation = env.chain.publish(vec![bad])?;
    let after = wait_refused(env).await?;
    let refused = after.refused.clone().unwrap();
    assert!(refused.message.contains(field), "{}", refused.message);
    assert_eq!(refused.generation, Some(generation));
    assert_eq!(after.chain.generation, before.chain.generation);
    assert_eq!(first_entry(&after).settings_hash, first_entry(&before).settings_hash);
    Ok(())
}

#[tokio::test]
async fn cb_10_breaker_is_acknowledged_by_hash_and_shown_by_snapshot() -> anyhow::Result<()> {
    let with = |failures: u32| {
        let trip = json!({ "consecutiveFailures": failures });
        breaker_entry(json!([rule_for_all(
            json!({ "trip": trip, "recoverPolicy": sleeping_policy("1h") })
        )]))
    };
    let mut env = TestEnv::start(vec![with(100)]).await?;
    fail_config_maps(&env, 500);
    assert_eq!(get_statuses(&env.client(), LIST, 5).await?, [500; 5]);
    let first = env.sidecar.status().await?;
    env.publish(vec![with(2)]).await?;
    let second = env.sidecar.status().await?;
    assert_eq!(second.chain.generation, first.chain.generation + 1);
    assert_ne!(first_entry(&second).settings_hash, first_entry(&first).settings_hash);
    get_statuses(&env.client(), LIST, 2).await?;
    let snapshot = wait_state(&env, "api", "Opened").await?;
    for field in ["reason", "lastTransitionTime", "recoversAt"] {
        assert!(snapshot[field].is_string(), "{field}: {snapshot}");
    }
    assert_not_acknowledged(&mut env, with(0), "consecutiveFailures").await?;
    assert_eq!(
        env.client().get(LIST).await?.status,
        429,
        "the last good rule is in force"
    );
    Ok(())
}

/// In the peer, a sidecar acknowledges what it could not apply.
#[tokio::test]
async fn fi_08_fault_is_acknowledged_only_when_in_force() -> anyhow::Result<()> {
    let with = |more: Value| faults_entry(json!([fault_rule(json!("refuse"), more)]));
    let mut env = TestEnv::start(vec![with(json!({ "percent": 0 }))]).await?;
    assert_eq!(env.client().get(LIST).await?.status, 200);
    let first = env.sidecar.status().await?;
    assert_not_acknowledged(&mut env, with(json!({ "percent": 101 })), "percent").await?;
    assert_eq!(env.client().get(LIST).await?.status, 200);
    env.publish(vec![with(json!({ "percent": 100 }))]).await?;
    let second = env.sidecar.status().await?;
    assert_ne!(first_entry(&second).settings_hash, first_entry(&first).settings_hash);
    assert!(second.refused.is_none());
    assert_eq!(env.client().get(LIST).await?.status, 503);
    assert_eq!(rule_counts(&env, "x").await?, (3, 1));
    Ok(())
}

#[tokio::test]
async fn refused_chain_changes_nothing_of_the_one_in_force() -> anyhow::Result<()> {
    let with = |recover: &str| {
        let policy = json!({ "type": "Manual" });
        breaker_entry(json!([rule_for_all(
            json!({ "recoverPolicy": policy, "recover": recover })
        )]))
    };
    let mut env = TestEnv::start(vec![with("monday")]).await?;
    fail_config_maps(&env, 500);
    get_statuses(&env.client(), LIST, 3).await?;
    let before = wait_state(&env, "api", "Opened").await?;
    // The breaker's new settings are valid and would close it; another entry's are not.
    let bad = faults_entry(json!([fault_rule(json!("refuse"), json!({ "percent": 101 }))]));
    env.chain.publish(vec![with("tuesday"), bad])?;
    wait_refused(&env).await?;
    assert_eq!(wait_state(&env, "api", "Opened").await?, before);
    assert_eq!(env.client().get(LIST).await?.status, 429);
    env.publish(vec![with("tuesday")]).await?;
    assert_eq!(env.client().get(LIST).await?.status, 500, "now it is closed");
    Ok(())
}
