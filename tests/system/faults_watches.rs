//! The real fault-inject plugin: watches that are held, expire, end or are refused, over HTTP/1.1 and HTTP/2.

use std::time::{Duration, Instant};

use ctrlmesh_tests::{TestEnv, config_map, wait_until};
use serde_json::json;

use crate::faults::{fault_rule, faults_entry, http1_and_http2_clients, rule_counts, start_with_fault};
use crate::limits::LIST;

fn watch_target() -> String {
    format!("{LIST}?watch=1")
}

#[tokio::test]
async fn held_watch_events_come_late_and_in_order() -> anyhow::Result<()> {
    let hold = fault_rule(
        json!({ "hold": { "for": "500ms" } }),
        json!({
            "match": { "resources": [{ "resources": ["configmaps"], "verbs": ["watch"] }] },
        }),
    );
    let env = TestEnv::start(vec![faults_entry(json!([hold]))]).await?;
    env.seed_config_maps("default", "a", 3)?;
    for client in http1_and_http2_clients(&env) {
        let start = Instant::now();
        let mut events = client.open_stream(&watch_target()).await?;
        let mut names = Vec::new();
        for _ in 0..3 {
            names.push(events.next_event().await?["object"]["metadata"]["name"].clone());
        }
        assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
        assert_eq!(names, ["a0", "a1", "a2"]);
        let start = Instant::now();
        env.api.store().put(config_map("default", "late", "a"))?;
        assert_eq!(events.next_event().await?["object"]["metadata"]["name"], "late");
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "only the beginning is held"
        );
        env.api.store().delete("configmaps", "default", "late")?;
        assert_eq!(client.get(LIST).await?.status, 200);
    }
    Ok(())
}

#[tokio::test]
async fn watch_expires_or_ends_cleanly() -> anyhow::Result<()> {
    for (fault, expires) in [("expire", true), ("close", false)] {
        let env = start_with_fault(json!({ fault: { "after": "300ms" } })).await?;
        for client in http1_and_http2_clients(&env) {
            let start = Instant::now();
            let mut events = client.open_stream(&watch_target()).await?;
            assert_eq!(events.next_event().await?["type"], "ADDED", "{fault}");
            if expires {
                let last = events.next_event().await?;
                assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
                assert_eq!(last["object"]["reason"], "Expired");
            }
            assert_eq!(events.next().await?, None, "{fault}: the end is clean");
            assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
        }
        assert_eq!(env.client().get(LIST).await?.status, 200, "a list is no watch");
        assert_eq!(rule_counts(&env, "x").await?, (2, 2));
    }
    Ok(())
}

#[tokio::test]
async fn reload_asks_about_open_watch_without_injecting_a_fault() -> anyhow::Result<()> {
    let second = fault_rule(json!("refuse"), json!({ "nth": 2 }));
    let mut env = TestEnv::start(vec![faults_entry(json!([second]))]).await?;
    let mut events = env.client().open_stream(&watch_target()).await?;
    let other = json!({ "name": "other", "do": "conflict", "match": { "resources": [{ "resources": ["pods"] }] } });
    env.publish(vec![faults_entry(json!([second, other]))]).await?;
    wait_until("the watch was asked about", || async {
        Ok(env.sidecar.metric_value("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    env.api.store().put(config_map("default", "a", "a"))?;
    assert_eq!(events.next_event().await?["type"], "ADDED", "it goes on");
    assert_eq!(rule_counts(&env, "x").await?, (1, 0));
    assert_eq!(env.client().get(&watch_target()).await?.status, 503, "the second one");
    Ok(())
}
