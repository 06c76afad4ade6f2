//! What happened to a request: the access log and `/status` name each plugin that did something to it.

use ctrlmesh_contract::status::Touched;
use ctrlmesh_tests::{EntrySpec, Stand, config_map, wait_until};
use http::Method;
use serde_json::{Value, json};

use crate::consistent_reads::{limits, one_of};
use crate::faults::{MAPS, faults};
use crate::handover::reflect;

/// A rule for config maps of this name.
fn rule(name: &str, object: &str, fault: Value) -> Value {
    let resources = json!([{ "resources": ["configmaps"], "names": [object] }]);
    json!({ "name": name, "do": fault, "match": { "resources": resources } })
}

fn limit() -> EntrySpec {
    let resource_rules =
        json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"], "namespaces": ["*"] }]);
    let limit = json!({ "name": "deletes", "resourceRules": resource_rules, "bucket": { "limit": 1, "interval": "1h", "burst": 1 } });
    EntrySpec::new("rate-limit/test", ctrlmesh_plugins_builtin::RATE_LIMIT)
        .settings(json!({ "rateLimitings": [limit] }))
}

fn all_rules() -> EntrySpec {
    faults(json!([
        rule("slow", "a0", json!({ "delay": { "for": "1ms" } })),
        rule("conflict", "a0", json!("conflict")),
        rule("lost", "a1", json!({ "lose": { "how": "error" } })),
        rule("reset", "a2", json!("reset")),
    ]))
}

async fn row(stand: &Stand, entry: &str, did: &str, request: &str) -> anyhow::Result<Touched> {
    let what = format!("{entry} {did} {request}");
    let fits = |row: &&Touched| row.entry == entry && row.did == did && row.request == request;
    let status = stand
        .sidecar
        .wait_status(&what, |status| status.touched.iter().any(|row| fits(&row)))
        .await?;
    Ok(status.touched.iter().find(fits).cloned().unwrap_or_default())
}

#[tokio::test]
async fn each_touched_request_is_named_with_entry_rule_and_what_was_done() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![all_rules(), limit(), limits(&[one_of(&["a"])], false)]).await?;
    stand.seed("default", "a", 4)?;
    let client = stand.client().with("content-type", "application/json");
    let name = |name: &str| format!("{MAPS}/{name}");
    for _ in 0..2 {
        let object = config_map("default", "a0", "a").to_string();
        assert_eq!(client.send(Method::PUT, &name("a0"), object).await?.status, 409);
    }
    let object = config_map("default", "a1", "a").to_string();
    assert_eq!(client.send(Method::PUT, &name("a1"), object).await?.status, 504);
    assert!(client.get(&name("a2")).await.is_err(), "it is broken off");
    for status in [200, 429] {
        assert_eq!(client.send(Method::DELETE, &name("a3"), "").await?.status, status);
    }
    let mut watch = reflect(&client).await?;

    let conflict = row(&stand, "fault-inject/test", "refused", "update configmaps default/a0").await?;
    assert_eq!((&*conflict.rule, conflict.status, conflict.count), ("conflict", 409, 2));
    let slow = row(&stand, "fault-inject/test", "delayed", "update configmaps default/a0").await?;
    assert_eq!((&*slow.rule, slow.count), ("slow", 2));
    let lost = row(&stand, "fault-inject/test", "lost", "update configmaps default/a1").await?;
    assert_eq!((&*lost.rule, lost.status), ("lost", 504));
    let reset = row(&stand, "fault-inject/test", "faulted", "get configmaps default/a2").await?;
    assert_eq!((&*reset.rule, reset.status), ("reset", 0));
    let limited = row(&stand, "rate-limit/test", "refused", "delete configmaps default/a3").await?;
    assert_eq!((&*limited.rule, limited.status), ("deletes", 429));
    let narrowed = row(&stand, "shard-selector/test", "edited", "list configmaps").await?;
    assert_eq!(narrowed.count, 1);

    stand.publish(vec![limits(&[one_of(&["b"])], false)]).await?;
    assert_eq!(watch.event().await?["object"]["code"], 410);
    drop(watch);
    row(&stand, "shard-selector/test", "expired", "watch configmaps").await?;
    for line in [
        r#"status=409 upstream_status=0 failure="refused" touched="delayed by fault-inject/test (rule slow), refused by fault-inject/test (rule conflict)""#,
        r#"failure="plugin_reset" touched="faulted by fault-inject/test (rule reset)""#,
        r#"touched="refused by rate-limit/test (rule deletes)""#,
        r#"touched="edited by shard-selector/test, expired by shard-selector/test""#,
    ] {
        let is_logged = || async { Ok(stand.sidecar.log().contains(line)) };
        wait_until(line, is_logged).await?;
    }
    assert!(!stand.sidecar.log().contains("Some("), "words, not Rust");
    Ok(())
}
