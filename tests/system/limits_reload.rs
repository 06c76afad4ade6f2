//! The real rate-limit plugin across chain changes: used tokens stay used.

use ctrlmesh_tests::{EntrySpec, TestEnv};
use serde_json::{Value, json};

use crate::limits::{LIST, limiter_entry, match_config_maps};
use crate::limits_rules::{bucket_of, count_granted};

fn rule_with_burst(name: &str, burst: u32) -> Value {
    json!({ "name": name, "resourceRules": match_config_maps(), "bucket": bucket_of(burst) })
}

/// The same plugin in other bytes: with a custom section appended, which has no meaning (component-model, Binary.md).
pub(crate) fn with_custom_section(plugin: &[u8]) -> Vec<u8> {
    let mut bytes = plugin.to_vec();
    bytes.extend([0, 6, 4, b'n', b'e', b'x', b't', 0]);
    bytes
}

#[tokio::test]
async fn used_tokens_survive_other_bytes_and_other_edits() -> anyhow::Result<()> {
    let settings = json!({ "rateLimitings": [rule_with_burst("all", 10)] });
    let mut env = TestEnv::start(vec![limiter_entry(json!([rule_with_burst("all", 10)]))]).await?;
    let client = env.client();
    assert_eq!(count_granted(&client, LIST, 2).await?, 2);

    let next = with_custom_section(ctrlmesh_plugins_builtin::RATE_LIMIT);
    let before = env.sidecar.status().await?.chain.entries[0].plugin;
    env.publish(vec![EntrySpec::new("rate-limit/test", &next).with_settings(settings)])
        .await?;
    assert_ne!(env.sidecar.status().await?.chain.entries[0].plugin, before);
    assert_eq!(count_granted(&client, LIST, 3).await?, 3);

    let other = json!({ "name": "other", "restRules": [{ "url": "https://x/*", "method": "*" }], "maxInFlight": 1 });
    env.publish(vec![limiter_entry(json!([other, rule_with_burst("all", 10)]))])
        .await?;
    assert_eq!(count_granted(&client, LIST, 20).await?, 5, "ten in all");

    env.publish(vec![limiter_entry(json!([rule_with_burst("renamed", 10)]))])
        .await?;
    assert_eq!(count_granted(&client, LIST, 20).await?, 10, "another name begins anew");
    Ok(())
}

#[tokio::test]
async fn changed_limit_keeps_the_fill_level_in_proportion() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![limiter_entry(json!([rule_with_burst("all", 10)]))]).await?;
    let client = env.client();
    assert_eq!(count_granted(&client, LIST, 6).await?, 6);
    env.publish(vec![limiter_entry(json!([rule_with_burst("all", 100)]))])
        .await?;
    assert_eq!(count_granted(&client, LIST, 20).await?, 20, "40 of 100 were there");
    env.publish(vec![limiter_entry(json!([rule_with_burst("all", 10)]))])
        .await?;
    assert_eq!(count_granted(&client, LIST, 20).await?, 2, "20 of 100 are 2 of 10");
    Ok(())
}

#[tokio::test]
async fn place_is_held_across_a_reload() -> anyhow::Result<()> {
    let rule = json!({ "name": "one", "resourceRules": match_config_maps(), "maxInFlight": 1 });
    let mut env = TestEnv::start(vec![limiter_entry(json!([rule]))]).await?;
    let (client, gate) = (env.client(), ctrlmesh_testkit::Gate::new());
    let held = ctrlmesh_testkit::Fault::Hold(gate.clone());
    env.api
        .faults()
        .add(ctrlmesh_testkit::Rule::new(held).verb("list").times(1));
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.get(LIST).await }
    });
    gate.wait_for_arrivals(1).await?;
    env.publish(vec![limiter_entry(json!([
        rule,
        super::limits_reload::rule_with_burst("all", 9)
    ]))])
    .await?;
    assert_eq!(client.get(LIST).await?.status, 429, "the place is still taken");
    gate.open();
    assert_eq!(first.await??.status, 200);
    ctrlmesh_tests::wait_until("it is free", || async { Ok(client.get(LIST).await?.status == 200) }).await
}
