//! The real fault-inject plugin: watches that are held, expire, end or are refused, over HTTP/1.1 and HTTP/2.

use std::time::{Duration, Instant};

use ctrlmesh_tests::{Stand, config_map, wait_until};
use serde_json::json;

use crate::faults::{both, counts, faults, faulty, rule};
use crate::limits::LIST;

fn watch() -> String {
    format!("{LIST}?watch=1")
}

#[tokio::test]
async fn the_events_of_a_held_watch_come_late_and_in_order() -> anyhow::Result<()> {
    let hold = rule(
        json!({ "hold": { "for": "500ms" } }),
        json!({
            "match": { "resources": [{ "resources": ["configmaps"], "verbs": ["watch"] }] },
        }),
    );
    let stand = Stand::start(vec![faults(json!([hold]))]).await?;
    stand.seed("default", "a", 3)?;
    for client in both(&stand) {
        let start = Instant::now();
        let mut events = client.stream(&watch()).await?;
        let mut names = Vec::new();
        for _ in 0..3 {
            names.push(events.event().await?["object"]["metadata"]["name"].clone());
        }
        assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
        assert_eq!(names, ["a0", "a1", "a2"]);
        let start = Instant::now();
        stand.api.store().put(config_map("default", "late", "a"))?;
        assert_eq!(events.event().await?["object"]["metadata"]["name"], "late");
        assert!(
            start.elapsed() < Duration::from_millis(500),
            "only the beginning is held"
        );
        stand.api.store().delete("configmaps", "default", "late")?;
        assert_eq!(client.get(LIST).await?.status, 200);
    }
    Ok(())
}

#[tokio::test]
async fn a_watch_expires_or_ends_in_peace() -> anyhow::Result<()> {
    for (fault, expires) in [("expire", true), ("close", false)] {
        let stand = faulty(json!({ fault: { "after": "300ms" } })).await?;
        for client in both(&stand) {
            let start = Instant::now();
            let mut events = client.stream(&watch()).await?;
            assert_eq!(events.event().await?["type"], "ADDED", "{fault}");
            if expires {
                let last = events.event().await?;
                assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
                assert_eq!(last["object"]["reason"], "Expired");
            }
            assert_eq!(events.next().await?, None, "{fault}: the end is clean");
            assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
        }
        assert_eq!(stand.client().get(LIST).await?.status, 200, "a list is no watch");
        assert_eq!(counts(&stand, "x").await?, (2, 2));
    }
    Ok(())
}

#[tokio::test]
async fn a_reload_asks_again_about_a_watch_and_makes_no_fault_of_it() -> anyhow::Result<()> {
    let second = rule(json!("refuse"), json!({ "nth": 2 }));
    let mut stand = Stand::start(vec![faults(json!([second]))]).await?;
    let mut events = stand.client().stream(&watch()).await?;
    let other = json!({ "name": "other", "do": "conflict", "match": { "resources": [{ "resources": ["pods"] }] } });
    stand.publish(vec![faults(json!([second, other]))]).await?;
    wait_until("the watch was asked about", || async {
        Ok(stand.sidecar.metric("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    stand.api.store().put(config_map("default", "a", "a"))?;
    assert_eq!(events.event().await?["type"], "ADDED", "it goes on");
    assert_eq!(counts(&stand, "x").await?, (1, 0));
    assert_eq!(stand.client().get(&watch()).await?.status, 503, "the second one");
    Ok(())
}
