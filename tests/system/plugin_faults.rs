//! A plugin that misbehaves costs one instance; the request is answered in time, by the entry's failure policy.

use ctrlmesh_contract::status::EntryState;
use ctrlmesh_tests::{EntrySpec, Stand, guest, shard};
use serde_json::{Value, json};

const LIST: &str = "/api/v1/configmaps";

/// One way to misbehave and the kind of fault that it counts as.
const WAYS: [(&str, &str, &str); 6] = [
    ("spin", r#"{"in":"on-request"}"#, "deadline"),
    ("host_calls", r#"{"in":"on-request"}"#, "deadline"),
    ("greedy", r#"{"in":"on-request"}"#, "memory"),
    ("recurse", r#"{"in":"on-request"}"#, "trap"),
    ("trap", r#"{"in":"on-request","how":"panic"}"#, "trap"),
    ("trap", r#"{"in":"on-request","how":"exit"}"#, "trap"),
];

fn misbehaving(name: &str, settings: &str) -> EntrySpec {
    let entry = guest(name, serde_json::from_str(settings).unwrap());
    // Filling memory or stack takes a while on a busy machine; only the endless ones are to meet the deadline.
    if matches!(name, "spin" | "host_calls") {
        entry
    } else {
        entry.set("timeoutMs", 1_000.into())
    }
}

#[tokio::test]
async fn a_closed_entry_answers_500_that_names_plugin_and_digest_and_an_open_one_lets_pass() -> anyhow::Result<()> {
    for (name, settings, kind) in WAYS {
        let mut stand = Stand::start(vec![misbehaving(name, settings)]).await?;
        let entry = format!("{}/test", name.replace('_', "-"));
        let answer = stand.client().get(LIST).await?;
        assert_eq!(answer.status, 500, "{name}");
        let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(&entry) && message.contains("sha256:"), "{message}");
        let series = format!(r#"ctrlmesh_plugin_faults_total{{entry="{entry}",kind="{kind}"}}"#);
        assert_eq!(
            stand.sidecar.metric(&series).await?,
            1.0,
            "{name}: {}",
            stand.sidecar.log()
        );
        stand
            .publish(vec![misbehaving(name, settings).set("onFailure", "Open".into())])
            .await?;
        assert_eq!(stand.client().get(LIST).await?.status, 200, "{name} is open");
        assert!(stand.sidecar.is_running()?);
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_breaks_the_rules_is_a_fault() -> anyhow::Result<()> {
    let too_many: Vec<Value> = (0..100).map(|_| json!({ "removeHeader": "x" })).collect();
    for then in [
        json!({ "refuse": { "code": 200, "message": "no" } }),
        json!({ "refuse": { "code": 999, "message": "no" } }),
        json!({ "proceed": [{ "setHeader": { "name": "bad name", "value": "x" } }] }),
        json!({ "proceed": [{ "setHeader": { "name": "content-length", "value": "1" } }] }),
        json!({ "proceed": [{ "andLabelSelector": "" }] }),
        json!({ "proceed": [{ "andLabelSelector": "a in" }] }),
        json!({ "proceed": [{ "setQuery": { "name": "labelSelector", "value": "" } }] }),
        json!({ "proceed": too_many }),
    ] {
        let stand = Stand::start(vec![guest("scripted", json!({ "onRequest": [{ "then": then }] }))]).await?;
        let answer = stand.client().get(LIST).await?;
        assert_eq!(answer.status, 500, "{then}");
        let series = r#"ctrlmesh_plugin_faults_total{entry="scripted/test",kind="invalid"}"#;
        assert_eq!(stand.sidecar.metric(series).await?, 1.0, "{then}");
    }
    Ok(())
}

#[tokio::test]
async fn repeated_faults_quarantine_the_entry_and_others_go_on() -> anyhow::Result<()> {
    let crash = misbehaving("trap", r#"{"in":"on-request","how":"panic"}"#).set("onFailure", "Open".into());
    let stand = Stand::start(vec![crash.set("order", 1.into()), shard("a")]).await?;
    stand.seed("default", "a", 1)?;
    stand.seed("default", "b", 1)?;
    for _ in 0..6 {
        assert_eq!(
            stand.client().get(LIST).await?.names(),
            ["a0"],
            "the shard rule still holds"
        );
    }
    let status = stand.sidecar.status().await?;
    let entry = status
        .chain
        .entries
        .iter()
        .find(|entry| entry.name == "trap/test")
        .unwrap();
    assert_eq!(entry.state, EntryState::Quarantined);
    assert!(
        entry.until.is_some() && entry.error.as_deref().unwrap_or_default().contains("panic"),
        "{entry:?}"
    );
    assert_eq!(
        stand
            .sidecar
            .metric(r#"ctrlmesh_plugin_quarantines_total{entry="trap/test"}"#)
            .await?,
        1.0
    );
    let skipped = stand
        .sidecar
        .metric(r#"ctrlmesh_plugin_skips_total{entry="trap/test"}"#)
        .await?;
    assert!(skipped >= 1.0, "in quarantine it is not called");
    Ok(())
}

#[tokio::test]
async fn few_faults_that_lose_seconds_quarantine_the_entry() -> anyhow::Result<()> {
    let spin = guest("spin", json!({ "in": "on-response" })).set("timeoutMs", 1_000.into());
    let stand = Stand::start(vec![spin.set("onFailure", "Open".into())]).await?;
    let quarantines = r#"ctrlmesh_plugin_quarantines_total{entry="spin/test"}"#;
    for requests in 1..5 {
        assert_eq!(stand.client().get(LIST).await?.status, 200);
        // Each response takes a second, and each request before it succeeds: faults are neither frequent nor in a row.
        if stand.sidecar.metric(quarantines).await? == 1.0 {
            assert!(requests >= 2, "one fault is no pattern");
            return Ok(());
        }
    }
    anyhow::bail!("not quarantined: {}", stand.sidecar.log());
}

#[tokio::test]
async fn faults_on_the_way_back_follow_the_policy_too() -> anyhow::Result<()> {
    for phase in ["on-response", "on-complete"] {
        let settings = json!({ "in": phase, "how": "panic" });
        let stand = Stand::start(vec![guest("trap", settings.clone())]).await?;
        let answer = stand.client().get(LIST).await?;
        let expected = if phase == "on-response" { 500 } else { 200 };
        assert_eq!(answer.status, expected, "{phase}");
        let open = Stand::start(vec![guest("trap", settings).set("onFailure", "Open".into())]).await?;
        assert_eq!(open.client().get(LIST).await?.status, 200, "{phase}");
    }
    Ok(())
}

#[tokio::test]
async fn an_open_entry_with_an_impossible_edit_leaves_nothing_behind() -> anyhow::Result<()> {
    let edits = json!([{ "setHeader": { "name": "x-left", "value": "1" } }, { "andLabelSelector": "a in" }]);
    let entry = guest("scripted", json!({ "onRequest": [{ "then": { "proceed": edits } }] }));
    let mut stand = Stand::start(vec![entry.clone().set("onFailure", "Open".into())]).await?;
    let client = stand.client();
    assert_eq!(client.get(LIST).await?.status, 200);
    let seen = stand.api.requests().all();
    assert!(
        seen.iter().all(|seen| !seen.headers.contains_key("x-left")),
        "skipped means skipped"
    );
    let version = client.get(LIST).await?.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut watch = client
        .stream(&format!("{LIST}?watch=1&resourceVersion={version}"))
        .await?;
    stand
        .publish(vec![entry.set("onFailure", "Open".into()).set("timeoutMs", 20.into())])
        .await?;
    stand
        .api
        .store()
        .put(ctrlmesh_tests::config_map("default", "after", "a"))?;
    assert_eq!(watch.event().await?["type"], "ADDED", "its view is the same as before");
    Ok(())
}
