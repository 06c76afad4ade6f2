//! Verdicts that the sidecar repeats, and what `/status` and metrics say when an audit finds that a plugin contradicts them.

use ctrlmesh_contract::status::{EntryState, EntryStatus, ReuseStatus};
use ctrlmesh_tests::{EntrySpec, TestEnv, guest_entry, wait_until};
use serde_json::json;

use crate::breakers::get_statuses;
use crate::limits::LIST;

/// A plugin that gives every request the same selector, or every other request another one, and says that its verdicts are reusable.
fn selecting_entry(selector: &str, alternates: bool) -> EntrySpec {
    let root = json!({ "leaf": { "edit": selector, "reuse": "whileUnchanged" } });
    guest_entry("decision_tree", json!({ "root": root, "alternates": alternates }))
}

/// Verdicts are remembered by thread, so that only one thread makes counts exact.
async fn start_audited(entry: EntrySpec, audited_one_in: &str) -> anyhow::Result<TestEnv> {
    TestEnv::start_with(vec![entry], &["--workers", "1", "--plugin-audit", audited_one_in]).await
}

async fn entry_status(env: &TestEnv) -> anyhow::Result<EntryStatus> {
    Ok(env.sidecar.status().await?.chain.entries[0].clone())
}

/// Values of `ctrlmesh_plugin_<name>{entry="decision-tree/test"<more labels>}`: calls for requests, repeated, audited, impure.
async fn reuse_metrics(env: &TestEnv) -> anyhow::Result<[f64; 4]> {
    let series = [
        ("calls_total", r#",phase="request""#),
        ("reused_total", ""),
        ("audited_total", ""),
        ("faults_total", r#",kind="impure""#),
    ];
    let mut values = [0.0; 4];
    for (value, (name, labels)) in values.iter_mut().zip(series) {
        let series = format!(r#"ctrlmesh_plugin_{name}{{entry="decision-tree/test"{labels}}}"#);
        *value = env.sidecar.metric_value(&series).await?;
    }
    Ok(values)
}

/// Whether the lists that reached the API server had the second selector of the plugin, oldest first.
fn had_odd_selector(env: &TestEnv) -> Vec<bool> {
    let requests = env.api.requests().recent();
    let lists = requests.iter().filter(|request| request.verb == "list");
    lists.map(|request| request.target.contains("odd")).collect()
}

#[tokio::test]
async fn verdicts_are_not_repeated_any_more_once_an_audit_finds_plugin_impure() -> anyhow::Result<()> {
    let mut env = start_audited(selecting_entry("a=1", true), "1").await?;
    let client = env.client();
    assert_eq!(client.get(LIST).await?.status, 200);
    assert_eq!(reuse_metrics(&env).await?, [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(entry_status(&env).await?.reuse, None);
    // The second request is audited, and the plugin decides differently. From then on it is called each time.
    assert_eq!(get_statuses(&client, LIST, 9).await?, [200; 9]);
    assert_eq!(reuse_metrics(&env).await?, [10.0, 0.0, 1.0, 1.0]);
    let alternating: Vec<bool> = (0..10).map(|number| number % 2 == 0).collect();
    assert_eq!(
        had_odd_selector(&env),
        alternating,
        "each request has the verdict of its own call"
    );
    let status = entry_status(&env).await?;
    let reuse = status.reuse.unwrap_or_default();
    assert_eq!((reuse.reused, reuse.audited), (0, 1));
    let contradiction = reuse.impure.unwrap_or_default();
    assert!(contradiction.contains("it decided on edits before"), "{contradiction}");
    assert_eq!(
        (status.state, status.faults),
        (EntryState::Active, 0),
        "its calls succeeded"
    );
    wait_until("the log says it", || async {
        let log = env.sidecar.log();
        Ok(log.contains("verdicts of the entry are not repeated any more"))
    })
    .await?;

    // Other settings are judged anew.
    env.publish(vec![selecting_entry("a=2", false)]).await?;
    assert_eq!(get_statuses(&client, LIST, 10).await?, [200; 10]);
    assert_eq!(reuse_metrics(&env).await?, [20.0, 0.0, 10.0, 1.0]);
    assert_eq!(entry_status(&env).await?.reuse.unwrap_or_default().impure, None);
    Ok(())
}

#[tokio::test]
async fn repeated_verdicts_are_counted_in_metrics_and_status() -> anyhow::Result<()> {
    let env = start_audited(selecting_entry("a=1", false), "1000000000").await?;
    assert_eq!(get_statuses(&env.client(), LIST, 10).await?, [200; 10]);
    assert_eq!(reuse_metrics(&env).await?, [1.0, 9.0, 0.0, 0.0]);
    let expected = ReuseStatus {
        reused: 9,
        audited: 0,
        impure: None,
    };
    assert_eq!(entry_status(&env).await?.reuse, Some(expected));
    assert_eq!(env.api.requests().count("list"), 10);
    Ok(())
}

/// Without audits nobody finds out, and the verdict of the first call is repeated: what the audit is for.
#[tokio::test]
async fn plugin_that_is_not_audited_is_not_found_impure() -> anyhow::Result<()> {
    let env = start_audited(selecting_entry("a=1", true), "1000000000").await?;
    assert_eq!(get_statuses(&env.client(), LIST, 4).await?, [200; 4]);
    assert_eq!(had_odd_selector(&env), [true; 4]);
    assert_eq!(reuse_metrics(&env).await?, [1.0, 3.0, 0.0, 0.0]);
    Ok(())
}
