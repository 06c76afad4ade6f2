//! The real rate-limit plugin across changes of its chain: what has been used up stays so.

use ctrlmesh_tests::{EntrySpec, Stand};
use serde_json::{Value, json};

use crate::limits::{LIST, limiter, maps};
use crate::limits_rules::{granted, tokens};

fn rule(name: &str, burst: u32) -> Value {
    json!({ "name": name, "resourceRules": maps(), "bucket": tokens(burst) })
}

/// The same plugin in other bytes: with a custom section behind it, which means nothing (component-model, Binary.md).
pub(crate) fn other_bytes(plugin: &[u8]) -> Vec<u8> {
    let mut bytes = plugin.to_vec();
    bytes.extend([0, 6, 4, b'n', b'e', b'x', b't', 0]);
    bytes
}

#[tokio::test]
async fn what_is_used_up_outlives_other_bytes_and_edits_elsewhere() -> anyhow::Result<()> {
    let settings = json!({ "rateLimitings": [rule("all", 10)] });
    let mut stand = Stand::start(vec![limiter(json!([rule("all", 10)]))]).await?;
    let client = stand.client();
    assert_eq!(granted(&client, LIST, 2).await?, 2);

    let next = other_bytes(ctrlmesh_plugins_builtin::RATE_LIMIT);
    let before = stand.sidecar.status().await?.chain.entries[0].plugin;
    stand
        .publish(vec![EntrySpec::new("rate-limit/test", &next).settings(settings)])
        .await?;
    assert_ne!(stand.sidecar.status().await?.chain.entries[0].plugin, before);
    assert_eq!(granted(&client, LIST, 3).await?, 3);

    let other = json!({ "name": "other", "restRules": [{ "url": "https://x/*", "method": "*" }], "maxInFlight": 1 });
    stand.publish(vec![limiter(json!([other, rule("all", 10)]))]).await?;
    assert_eq!(granted(&client, LIST, 20).await?, 5, "ten in all");

    stand.publish(vec![limiter(json!([rule("renamed", 10)]))]).await?;
    assert_eq!(granted(&client, LIST, 20).await?, 10, "another name begins anew");
    Ok(())
}

#[tokio::test]
async fn a_changed_limit_keeps_the_fill_level_in_proportion() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![limiter(json!([rule("all", 10)]))]).await?;
    let client = stand.client();
    assert_eq!(granted(&client, LIST, 6).await?, 6);
    stand.publish(vec![limiter(json!([rule("all", 100)]))]).await?;
    assert_eq!(granted(&client, LIST, 20).await?, 20, "40 of 100 were there");
    stand.publish(vec![limiter(json!([rule("all", 10)]))]).await?;
    assert_eq!(granted(&client, LIST, 20).await?, 2, "20 of 100 are 2 of 10");
    Ok(())
}

#[tokio::test]
async fn a_place_is_held_across_a_reload() -> anyhow::Result<()> {
    let rule = json!({ "name": "one", "resourceRules": maps(), "maxInFlight": 1 });
    let mut stand = Stand::start(vec![limiter(json!([rule]))]).await?;
    let (client, gate) = (stand.client(), ctrlmesh_testkit::Gate::new());
    let held = ctrlmesh_testkit::Fault::Hold(gate.clone());
    stand
        .api
        .faults()
        .add(ctrlmesh_testkit::Rule::new(held).verb("list").times(1));
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.get(LIST).await }
    });
    gate.wait_for_arrivals(1).await?;
    stand
        .publish(vec![limiter(json!([rule, super::limits_reload::rule("all", 9)]))])
        .await?;
    assert_eq!(client.get(LIST).await?.status, 429, "the place is still taken");
    gate.open();
    assert_eq!(first.await??.status, 200);
    ctrlmesh_tests::wait_until("it is free", || async { Ok(client.get(LIST).await?.status == 200) }).await
}
