//! A plugin whose binary was built against version 0.1 of the interface, in today's sidecar: called in all phases of a request, with its
//! note, its state and its reports.

use ctrlmesh_tests::{EntrySpec, TestEnv};
use serde_json::json;

use crate::breakers::{fail_config_maps, get_statuses, plugin_count, rule_for_all, sleeping_policy, wait_state};
use crate::limits::LIST;

const CIRCUIT_BREAKER: &[u8] = include_bytes!("../guests/kept/0.1/circuit-breaker.wasm");

#[tokio::test]
async fn circuit_breaker_of_0_1_counts_outcomes_and_opens() -> anyhow::Result<()> {
    let rule = rule_for_all(json!({ "recoverPolicy": sleeping_policy("60s") }));
    let entry = EntrySpec::new("circuit-breaker/test", CIRCUIT_BREAKER);
    let env = TestEnv::start(vec![entry.with_settings(json!({ "rateLimitings": [rule] }))]).await?;
    let client = env.client();
    fail_config_maps(&env, 503);
    assert_eq!(get_statuses(&client, LIST, 3).await?, [503; 3]);
    let opened = wait_state(&env, "api", "Opened").await?;
    assert_eq!(opened["reason"], "3 requests failed one after another");
    assert_eq!(client.get(LIST).await?.status, 429);
    assert!(plugin_count(&env, "passed", "api").await? >= 3.0);
    Ok(())
}
