//! Attribution: the access log and `/status` name each plugin that changed a request.

use ctrlmesh_contract::status::Touched;
use ctrlmesh_tests::{EntrySpec, TestEnv, config_map, wait_until};
use http::Method;
use serde_json::{Value, json};

use crate::consistent_reads::{selector_of_shards, shard_with_limits};
use crate::faults::{MAPS, faults_entry};
use crate::in_flight_requests::list_and_watch;

/// A rule for the config map of this name.
fn fault_for(name: &str, object: &str, fault: Value) -> Value {
    let resources = json!([{ "resources": ["configmaps"], "names": [object] }]);
    json!({ "name": name, "do": fault, "match": { "resources": resources } })
}

fn delete_limit() -> EntrySpec {
    let resource_rules =
        json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"], "namespaces": ["*"] }]);
    let limit = json!({ "name": "deletes", "resourceRules": resource_rules, "bucket": { "limit": 1, "interval": "1h", "burst": 1 } });
    EntrySpec::new("rate-limit/test", ctrlmesh_plugins_builtin::RATE_LIMIT)
        .with_settings(json!({ "rateLimitings": [limit] }))
}

fn all_rules() -> EntrySpec {
    faults_entry(json!([
        fault_for("slow", "a0", json!({ "delay": { "for": "1ms" } })),
        fault_for("conflict", "a0", json!("conflict")),
        fault_for("lost", "a1", json!({ "lose": { "how": "error" } })),
        fault_for("reset", "a2", json!("reset")),
    ]))
}

async fn wait_row(env: &TestEnv, entry: &str, did: &str, request: &str) -> anyhow::Result<Touched> {
    let what = format!("{entry} {did} {request}");
    let fits = |row: &&Touched| row.entry == entry && row.did == did && row.request == request;
    let status = env
        .sidecar
        .wait_status(&what, |status| status.touched.iter().any(|row| fits(&row)))
        .await?;
    Ok(status.touched.iter().find(fits).cloned().unwrap_or_default())
}

#[tokio::test]
async fn touched_requests_are_named_with_entry_rule_and_action() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![
        all_rules(),
        delete_limit(),
        shard_with_limits(&[selector_of_shards(&["a"])], false),
    ])
    .await?;
    env.seed_config_maps("default", "a", 4)?;
    let client = env.client().with_header("content-type", "application/json");
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
    let mut watch = list_and_watch(&client).await?;

    let conflict = wait_row(&env, "fault-inject/test", "refused", "update configmaps default/a0").await?;
    assert_eq!((&*conflict.rule, conflict.status, conflict.count), ("conflict", 409, 2));
    let slow = wait_row(&env, "fault-inject/test", "delayed", "update configmaps default/a0").await?;
    assert_eq!((&*slow.rule, slow.count), ("slow", 2));
    let lost = wait_row(&env, "fault-inject/test", "lost", "update configmaps default/a1").await?;
    assert_eq!((&*lost.rule, lost.status), ("lost", 504));
    let reset = wait_row(&env, "fault-inject/test", "faulted", "get configmaps default/a2").await?;
    assert_eq!((&*reset.rule, reset.status), ("reset", 0));
    let limited = wait_row(&env, "rate-limit/test", "refused", "delete configmaps default/a3").await?;
    assert_eq!((&*limited.rule, limited.status), ("deletes", 429));
    let narrowed = wait_row(&env, "shard-selector/test", "edited", "list configmaps").await?;
    assert_eq!(narrowed.count, 1);

    env.publish(vec![shard_with_limits(&[selector_of_shards(&["b"])], false)])
        .await?;
    assert_eq!(watch.next_event().await?["object"]["code"], 410);
    drop(watch);
    wait_row(&env, "shard-selector/test", "expired", "watch configmaps").await?;
    for line in [
        r#"status=409 upstream_status=0 failure="refused" touched="delayed by fault-inject/test (rule slow), refused by fault-inject/test (rule conflict)""#,
        r#"failure="plugin_reset" touched="faulted by fault-inject/test (rule reset)""#,
        r#"touched="refused by rate-limit/test (rule deletes)""#,
        r#"touched="edited by shard-selector/test, expired by shard-selector/test""#,
    ] {
        let is_logged = || async { Ok(env.sidecar.log().contains(line)) };
        wait_until(line, is_logged).await?;
    }
    assert!(!env.sidecar.log().contains("Some("), "words, not Rust");
    Ok(())
}
