//! A rule on its way: nothing is pushed to a sidecar; what it has in force it says in `/status`, and only that.

use ctrlmesh_contract::status::{EntryStatus, Status};
use ctrlmesh_tests::{EntrySpec, Stand};
use serde_json::{Value, json};

use crate::circuits::{all, breaker, failing, sleeping, statuses, wait_state};
use crate::faults::{counts, faults, rule};
use crate::limits::LIST;

fn only(status: &Status) -> &EntryStatus {
    &status.chain.entries[0]
}

async fn is_refused(stand: &Stand) -> anyhow::Result<Status> {
    let refused = |status: &Status| status.refused.is_some();
    stand.sidecar.wait_status("the chain is refused", refused).await
}

/// Publishes settings that the plugin refuses, and demands that the sidecar claims nothing of them.
async fn is_not_acknowledged(stand: &mut Stand, bad: EntrySpec, field: &str) -> anyhow::Result<()> {
    let before = stand.sidecar.status().await?;
    let generation = stand.chain.publish(vec![bad])?;
    let after = is_refused(stand).await?;
    let refused = after.refused.clone().unwrap();
    assert!(refused.message.contains(field), "{}", refused.message);
    assert_eq!(refused.generation, Some(generation));
    assert_eq!(after.chain.generation, before.chain.generation);
    assert_eq!(only(&after).settings_hash, only(&before).settings_hash);
    Ok(())
}

#[tokio::test]
async fn cb_10_a_breaker_is_acknowledged_by_its_hash_and_shown_by_its_snapshot() -> anyhow::Result<()> {
    let with = |failures: u32| {
        let trip = json!({ "consecutiveFailures": failures });
        breaker(json!([all(json!({ "trip": trip, "recoverPolicy": sleeping("1h") }))]))
    };
    let mut stand = Stand::start(vec![with(100)]).await?;
    failing(&stand, 500);
    assert_eq!(statuses(&stand.client(), LIST, 5).await?, [500; 5]);
    let first = stand.sidecar.status().await?;
    stand.publish(vec![with(2)]).await?;
    let second = stand.sidecar.status().await?;
    assert_eq!(second.chain.generation, first.chain.generation + 1);
    assert_ne!(only(&second).settings_hash, only(&first).settings_hash);
    statuses(&stand.client(), LIST, 2).await?;
    let snapshot = wait_state(&stand, "api", "Opened").await?;
    for field in ["reason", "lastTransitionTime", "recoversAt"] {
        assert!(snapshot[field].is_string(), "{field}: {snapshot}");
    }
    is_not_acknowledged(&mut stand, with(0), "consecutiveFailures").await?;
    assert_eq!(
        stand.client().get(LIST).await?.status,
        429,
        "the last good rule is in force"
    );
    Ok(())
}

/// In the peer a sidecar acknowledges what it could not apply.
#[tokio::test]
async fn fi_08_a_fault_is_acknowledged_when_it_is_in_force_and_not_before() -> anyhow::Result<()> {
    let with = |more: Value| faults(json!([rule(json!("refuse"), more)]));
    let mut stand = Stand::start(vec![with(json!({ "percent": 0 }))]).await?;
    assert_eq!(stand.client().get(LIST).await?.status, 200);
    let first = stand.sidecar.status().await?;
    is_not_acknowledged(&mut stand, with(json!({ "percent": 101 })), "percent").await?;
    assert_eq!(stand.client().get(LIST).await?.status, 200);
    stand.publish(vec![with(json!({ "percent": 100 }))]).await?;
    let second = stand.sidecar.status().await?;
    assert_ne!(only(&second).settings_hash, only(&first).settings_hash);
    assert!(second.refused.is_none());
    assert_eq!(stand.client().get(LIST).await?.status, 503);
    assert_eq!(counts(&stand, "x").await?, (3, 1));
    Ok(())
}

#[tokio::test]
async fn a_chain_that_is_refused_changes_nothing_of_the_one_in_force() -> anyhow::Result<()> {
    let with = |recover: &str| {
        let policy = json!({ "type": "Manual" });
        breaker(json!([all(json!({ "recoverPolicy": policy, "recover": recover }))]))
    };
    let mut stand = Stand::start(vec![with("monday")]).await?;
    failing(&stand, 500);
    statuses(&stand.client(), LIST, 3).await?;
    let before = wait_state(&stand, "api", "Opened").await?;
    // The breaker's new settings are fine, and would close it; another entry's are not.
    let bad = faults(json!([rule(json!("refuse"), json!({ "percent": 101 }))]));
    stand.chain.publish(vec![with("tuesday"), bad])?;
    is_refused(&stand).await?;
    assert_eq!(wait_state(&stand, "api", "Opened").await?, before);
    assert_eq!(stand.client().get(LIST).await?.status, 429);
    stand.publish(vec![with("tuesday")]).await?;
    assert_eq!(stand.client().get(LIST).await?.status, 500, "now it is closed");
    Ok(())
}
