//! The real plugins count each decision by rule, with the maximum number of rules of each plugin.

use ctrlmesh_tests::sidecar::metric_in;
use ctrlmesh_tests::{Target, TestEnv};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::breakers::{breaker_entry, sleeping_policy};
use crate::faults::faults_entry;
use crate::limits::limiter_entry;

fn config_maps_path(number: usize) -> String {
    format!("/api/v1/namespaces/n{number}/configmaps")
}

fn resource_rules(number: usize) -> Value {
    json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "namespaces": [format!("n{number}")] }])
}

/// Checks that each of these counters has each of these labels with this value, and that nothing was dropped.
async fn check_counters(env: &TestEnv, entry: &str, names: &[&str], labels: usize, value: f64) -> anyhow::Result<()> {
    let text = env.sidecar.metrics().await?;
    for name in names {
        for label in 0..labels {
            let series = format!(r#"ctrlmesh_plugin_{name}_total{{entry="{entry}",label="r{label}"}}"#);
            assert_eq!(metric_in(&text, &series)?, value, "{series}");
        }
    }
    let dropped = format!(r#"ctrlmesh_plugin_updates_dropped_total{{entry="{entry}"}}"#);
    assert_eq!(metric_in(&text, &dropped)?, 0.0);
    Ok(())
}

#[tokio::test]
async fn all_decisions_of_64_limits_are_counted() -> anyhow::Result<()> {
    const RULES: usize = 64;
    let rules: Vec<Value> = (0..RULES)
        .map(|number| {
            let bucket = json!({ "limit": 1, "interval": "5s", "burst": 1 });
            json!({ "name": format!("r{number}"), "resourceRules": resource_rules(number), "bucket": bucket, "queue": "5s" })
        })
        .collect();
    let env = TestEnv::start(vec![limiter_entry(json!(rules))]).await?;
    let mut clients = JoinSet::new();
    for number in 0..RULES {
        let client = env.client();
        clients.spawn(async move {
            let path = config_maps_path(number);
            let granted = client.get(&path).await?.status;
            // One of two requests waits for the next token, the other is refused.
            let (one, other) = tokio::join!(client.get(&path), client.get(&path));
            let mut statuses = [granted, one?.status, other?.status];
            statuses.sort_unstable();
            anyhow::Ok(statuses)
        });
    }
    while let Some(statuses) = clients.join_next().await {
        assert_eq!(statuses??, [200, 200, 429]);
    }
    check_counters(&env, "rate-limit/test", &["granted", "queued", "refused"], RULES, 1.0).await
}

#[tokio::test]
async fn all_decisions_of_24_breakers_are_counted() -> anyhow::Result<()> {
    const RULES: usize = 24;
    let rules: Vec<Value> = (0..RULES)
        .map(|number| {
            json!({
                "name": format!("r{number}"), "resourceRules": resource_rules(number), "triggerPolicy": "Normal",
                "bucket": { "limit": 1, "interval": "1h", "burst": 1 }, "recoverPolicy": sleeping_policy("300ms"),
            })
        })
        .collect();
    let env = TestEnv::start(vec![breaker_entry(json!(rules))]).await?;
    let mut clients = JoinSet::new();
    for number in 0..RULES {
        let client = env.client();
        clients.spawn(async move {
            let path = config_maps_path(number);
            assert_eq!(client.get(&path).await?.status, 200, "passed");
            assert_eq!(client.get(&path).await?.status, 429, "opened and refused");
            while client.get(&path).await?.status != 200 {}
            anyhow::Ok(())
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let entry = "circuit-breaker/test";
    ctrlmesh_tests::wait_until("the last probe is judged", || async {
        let series = |number| format!(r#"ctrlmesh_plugin_closed_total{{entry="{entry}",label="r{number}"}}"#);
        let text = env.sidecar.metrics().await?;
        Ok((0..RULES).all(|number| metric_in(&text, &series(number)).is_ok_and(|closed| closed >= 1.0)))
    })
    .await?;
    check_counters(&env, entry, &["passed", "opened", "probed", "closed"], RULES, 1.0).await?;
    let text = env.sidecar.metrics().await?;
    for number in 0..RULES {
        let series = format!(r#"ctrlmesh_plugin_refused_total{{entry="{entry}",label="r{number}"}}"#);
        assert!(metric_in(&text, &series)? >= 1.0, "{series}");
    }
    Ok(())
}

#[tokio::test]
async fn all_decisions_of_30_faults_are_counted_and_shown() -> anyhow::Result<()> {
    const RULES: usize = 30;
    let rules: Vec<Value> = (0..RULES)
        .map(|number| {
            let namespaces = [format!("n{number}")];
            let matched = json!({ "resources": [{ "resources": ["configmaps"], "namespaces": namespaces }] });
            json!({ "name": format!("r{number}"), "match": matched, "do": "refuse", "nth": 1 })
        })
        .collect();
    let env = TestEnv::start(vec![faults_entry(json!(rules))]).await?;
    for number in 0..RULES {
        assert_eq!(env.client().get(&config_maps_path(number)).await?.status, 503);
    }
    check_counters(&env, "fault-inject/test", &["fault_matched", "fault_fired"], RULES, 1.0).await?;
    let status = env.sidecar.status().await?;
    let reports = &status.chain.entries[0].reports;
    assert_eq!(reports.len(), RULES);
    assert!(
        reports
            .values()
            .all(|report| *report == json!({ "matched": 1, "fired": 1 })),
        "{reports:?}"
    );
    Ok(())
}

#[tokio::test]
async fn each_list_counts_its_denials() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let lists: Vec<Value> = (0..8)
        .map(|number| {
            json!({
                "name": format!("r{number}"), "interceptType": "Blacklist", "contentType": "Normal",
                "contents": ["127.0.0.1"], "methods": [format!("M{number}")],
            })
        })
        .collect();
    let plugin = ctrlmesh_plugins_builtin::CIRCUIT_BREAKER;
    let entry = ctrlmesh_tests::EntrySpec::new("circuit-breaker/test", plugin)
        .with_settings(json!({ "trafficInterceptRules": lists }));
    let (env, client) = crate::external::start_env(vec![entry], &[]).await?;
    for number in 0..8 {
        let method = http::Method::from_bytes(format!("M{number}").as_bytes())?;
        let url = format!("http://127.0.0.1:{}/", target.port());
        assert_eq!(client.send(method, &url, "").await?.status, 403);
    }
    check_counters(&env, "circuit-breaker/test", &["denied"], 8, 1.0).await
}
