//! The real circuit-breaker plugin in front of a failing API server: when it opens, what it lets through, and how it closes.

use ctrlmesh_testkit::{Fault, FaultTime, Gate, Rule, RuleId};
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, wait_until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::limits::{LIST, match_config_maps};
use crate::upgrades::{EXEC, VNC, open_tunnel, tunnel_client};

const SECRETS: &str = "/api/v1/secrets";

pub(crate) fn breaker_entry(rules: Value) -> EntrySpec {
    let plugin = ctrlmesh_plugins_builtin::CIRCUIT_BREAKER;
    EntrySpec::new("circuit-breaker/test", plugin).with_settings(json!({ "rateLimitings": rules }))
}

/// A rule for everything but locks.
pub(crate) fn rule_for_all(more: Value) -> Value {
    let mut rule = json!({
        "name": "api", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 3 },
        "resourceRules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"] }],
    });
    for (field, value) in more.as_object().expect("fields") {
        rule[field] = value.clone();
    }
    rule
}

pub(crate) fn sleeping_policy(window: &str) -> Value {
    json!({ "type": "SleepingWindow", "sleepingWindowSize": window })
}

pub(crate) fn fail_config_maps(env: &TestEnv, code: u16) -> RuleId {
    let fault = Fault::Status {
        code,
        retry_after: None,
    };
    env.api.faults().add(Rule::new(fault).resource("configmaps"))
}

/// The statuses of `count` requests, one after another.
pub(crate) async fn get_statuses(client: &Client, path: &str, count: usize) -> anyhow::Result<Vec<u16>> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(client.get(path).await?.status);
    }
    Ok(statuses)
}

/// The report in `/status` under a key.
pub(crate) async fn get_report(env: &TestEnv, key: &str) -> anyhow::Result<Value> {
    let status = env.sidecar.status().await?;
    Ok(status.chain.entries[0].reports.get(key).cloned().unwrap_or_default())
}

pub(crate) async fn wait_state(env: &TestEnv, key: &str, state: &str) -> anyhow::Result<Value> {
    wait_until(state, || async { Ok(get_report(env, key).await?["state"] == state) }).await?;
    get_report(env, key).await
}

pub(crate) async fn plugin_count(env: &TestEnv, what: &str, label: &str) -> anyhow::Result<f64> {
    let series = format!(r#"ctrlmesh_plugin_{what}_total{{entry="circuit-breaker/test",label="{label}"}}"#);
    env.sidecar.metric_value(&series).await
}

/// Sends requests until one is not refused, and returns its status; the API server may hold it meanwhile.
fn spawn_until_admitted(client: Client) -> tokio::task::JoinHandle<anyhow::Result<u16>> {
    tokio::spawn(async move {
        loop {
            match client.get(LIST).await?.status {
                429 => {}
                status => return Ok(status),
            }
        }
    })
}

#[tokio::test]
async fn breaker_opens_on_api_server_failures_and_closes_again() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![breaker_entry(json!([rule_for_all(
        json!({ "recoverPolicy": sleeping_policy("1s") })
    )]))])
    .await?;
    let client = env.client();
    assert_eq!(
        client.get("/api/v1/namespaces/default/configmaps/none").await?.status,
        404
    );
    assert_eq!(get_report(&env, "api").await?["state"], "Closed");
    let broken = fail_config_maps(&env, 503);
    assert_eq!(get_statuses(&client, LIST, 3).await?, [503; 3]);
    let opened = wait_state(&env, "api", "Opened").await?;
    assert_eq!(opened["reason"], "3 requests failed one after another");
    for time in ["lastTransitionTime", "recoversAt"] {
        assert!(
            opened[time].as_str().is_some_and(|time| time.ends_with('Z')),
            "{opened}"
        );
    }
    let before = env.api.requests().total();
    let refused = client.get(SECRETS).await?;
    let cause = &refused.json()["details"]["causes"][0]["message"];
    assert_eq!((refused.status, cause), (429, &Value::from("api")));
    let seconds: u64 = refused.headers["retry-after"].to_str()?.parse()?;
    assert!((1..=3).contains(&seconds), "{seconds}");
    assert_eq!(env.api.requests().total(), before, "nothing reached the API server");
    // A probe fails, and the breaker opens again; then a probe succeeds.
    assert_eq!(spawn_until_admitted(client.clone()).await??, 503);
    wait_until("it opened again", || async {
        Ok(plugin_count(&env, "opened", "api").await? >= 2.0)
    })
    .await?;
    env.api.faults().remove(broken);
    assert_eq!(spawn_until_admitted(client.clone()).await??, 200);
    wait_state(&env, "api", "Closed").await?;
    assert_eq!(get_statuses(&client, LIST, 5).await?, [200; 5]);
    assert_eq!(plugin_count(&env, "closed", "api").await?, 1.0);
    assert_eq!(plugin_count(&env, "passed", "api").await?, 9.0);
    assert!(plugin_count(&env, "probed", "api").await? >= 2.0);
    assert!(plugin_count(&env, "refused", "api").await? >= 1.0);
    Ok(())
}

/// While it is closed, the sidecar repeats its verdict and counts for it.
#[tokio::test]
async fn closed_breaker_is_called_only_to_open() -> anyhow::Result<()> {
    let rule = rule_for_all(json!({ "recoverPolicy": sleeping_policy("60s") }));
    let arguments = ["--workers", "1", "--plugin-audit", "1000000"];
    let env = TestEnv::start_with(vec![breaker_entry(json!([rule]))], &arguments).await?;
    let client = env.client();
    assert_eq!(get_statuses(&client, LIST, 20).await?, [200; 20]);
    fail_config_maps(&env, 503);
    assert_eq!(get_statuses(&client, LIST, 3).await?, [503; 3]);
    wait_state(&env, "api", "Opened").await?;
    for (phase, expected) in [("request", 1.0), ("response", 0.0), ("complete", 0.0), ("crossed", 1.0)] {
        let calls = format!(r#"ctrlmesh_plugin_calls_total{{entry="circuit-breaker/test",phase="{phase}"}}"#);
        assert_eq!(env.sidecar.metric_value(&calls).await?, expected, "{phase}");
    }
    assert_eq!(plugin_count(&env, "passed", "api").await?, 23.0);
    Ok(())
}

/// A rule for tunnels that opens after two failures.
fn tunnel_rule(recover_policy: Value) -> Value {
    let resources = ["pods/exec", "virtualmachineinstances/vnc"];
    let tunnels = json!({ "apiGroups": ["*"], "resources": resources, "verbs": ["*"], "namespaces": ["*"] });
    rule_for_all(json!({
        "resourceRules": [tunnels], "trip": { "consecutiveFailures": 2 }, "recoverPolicy": recover_policy,
    }))
}

async fn fail_tunnels(env: &TestEnv, client: &Client, path: &str, count: u32) -> anyhow::Result<()> {
    let fault = Fault::Status {
        code: 500,
        retry_after: None,
    };
    env.api.faults().add(Rule::new(fault).path(path).times(count));
    for _ in 0..count {
        assert_eq!(open_tunnel(client, path).await?.head.status, 500);
    }
    Ok(())
}

#[tokio::test]
async fn tunnel_counts_as_success_when_it_begins() -> anyhow::Result<()> {
    for path in [EXEC, VNC] {
        let env = TestEnv::start(vec![breaker_entry(json!([tunnel_rule(json!({ "type": "Manual" }))]))]).await?;
        let client = tunnel_client(&env, path);
        let mut tunnels = Vec::new();
        for _ in 0..2 {
            fail_tunnels(&env, &client, path, 1).await?;
            let tunnel = open_tunnel(&client, path).await?;
            assert_eq!(tunnel.head.status, 101, "{path}: the failures are not in a row");
            tunnels.push(tunnel);
        }
        fail_tunnels(&env, &client, path, 2).await?;
        wait_state(&env, "api", "Opened").await?;
    }
    Ok(())
}

/// The bytes of a tunnel are not read, so the 101 is the success of a probe, long before the tunnel ends.
#[tokio::test]
async fn tunnel_that_begins_closes_half_open_breaker() -> anyhow::Result<()> {
    for path in [EXEC, VNC] {
        let rule = tunnel_rule(sleeping_policy("50ms"));
        let env = TestEnv::start(vec![breaker_entry(json!([rule]))]).await?;
        let client = tunnel_client(&env, path);
        fail_tunnels(&env, &client, path, 2).await?;
        wait_state(&env, "api", "Opened").await?;
        let probe = loop {
            let tunnel = open_tunnel(&client, path).await?;
            if tunnel.head.status != 429 {
                break tunnel;
            }
        };
        assert_eq!(probe.head.status, 101, "{path}");
        wait_state(&env, "api", "Closed").await?;
        assert_eq!(open_tunnel(&client, path).await?.head.status, 101, "{path}");
        drop(probe);
    }
    Ok(())
}

#[tokio::test]
async fn half_open_breaker_bounds_concurrent_probes() -> anyhow::Result<()> {
    const PROBES: usize = 3;
    let rule = rule_for_all(json!({ "recoverPolicy": sleeping_policy("200ms"), "probes": PROBES }));
    let env = TestEnv::start_with(vec![breaker_entry(json!([rule]))], &["--workers", "2"]).await?;
    let broken = fail_config_maps(&env, 500);
    get_statuses(&env.client(), LIST, 3).await?;
    wait_state(&env, "api", "Opened").await?;
    env.api.faults().remove(broken);
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
    let first = spawn_until_admitted(env.client());
    gate.wait_for_arrivals(1).await?;
    let before = env.api.requests().total();
    let mut clients = JoinSet::new();
    for _ in 0..64 {
        let client = env.client();
        clients.spawn(async move { anyhow::Ok(client.get(LIST).await?.status) });
    }
    for _ in PROBES - 1..64 {
        let refused = tokio::time::timeout(ctrlmesh_tests::DEADLINE, clients.join_next()).await?;
        assert_eq!(refused.expect("all but the probes")??, 429);
    }
    gate.wait_for_arrivals(PROBES).await?;
    assert_eq!(env.api.requests().total(), before + (PROBES as u64 - 1));
    assert_eq!(get_report(&env, "api").await?["state"], "HalfOpen");
    gate.open();
    assert_eq!(first.await??, 200);
    while let Some(probe) = clients.join_next().await {
        assert_eq!(probe??, 200);
    }
    wait_state(&env, "api", "Closed").await?;
    assert_eq!(plugin_count(&env, "probed", "api").await?, PROBES as f64);
    assert_eq!(env.client().get(LIST).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn breaker_opens_on_share_of_failures_or_slow_responses() -> anyhow::Result<()> {
    let errors = json!({ "errorPercent": 50, "minimumRequests": 6 });
    let env = TestEnv::start(vec![breaker_entry(json!([rule_for_all(json!({ "trip": errors }))]))]).await?;
    let client = env.client();
    get_statuses(&client, SECRETS, 3).await?;
    let broken = fail_config_maps(&env, 500);
    get_statuses(&client, LIST, 2).await?;
    assert_eq!(
        get_report(&env, "api").await?["state"],
        "Closed",
        "too few, and too small a share"
    );
    get_statuses(&client, LIST, 1).await?;
    let opened = wait_state(&env, "api", "Opened").await?;
    assert_eq!(
        (&opened["reason"], &opened["requests"], &opened["failures"]),
        (&"3 of 6 requests failed".into(), &6.into(), &3.into())
    );
    assert_eq!(opened["recoversAt"], Value::Null, "until somebody closes it");
    env.api.faults().remove(broken);

    let slow = json!({ "slowPercent": 50, "slowerThan": "50ms", "minimumRequests": 4 });
    let env = TestEnv::start(vec![breaker_entry(json!([rule_for_all(json!({ "trip": slow }))]))]).await?;
    let late = Fault::Delay(std::time::Duration::from_millis(100));
    env.api.faults().add(Rule::new(late).resource("configmaps"));
    assert_eq!(get_statuses(&env.client(), LIST, 4).await?, [200; 4]);
    let opened = wait_state(&env, "api", "Opened").await?;
    assert_eq!(
        (&opened["reason"], &opened["slow"]),
        (&"4 of 4 requests were slow".into(), &4.into())
    );
    Ok(())
}

#[tokio::test]
async fn broken_connections_count_but_conflicts_and_vanished_clients_do_not() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![breaker_entry(json!([rule_for_all(json!({}))]))]).await?;
    let client = env.client();
    let conflicts = fail_config_maps(&env, 409);
    assert_eq!(get_statuses(&client, LIST, 6).await?, [409; 6]);
    env.api.faults().remove(conflicts);
    let gate = Gate::new();
    let held = env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
    for arrived in 1..=4 {
        let gone = tokio::spawn({
            let client = client.clone();
            async move { client.get(LIST).await }
        });
        gate.wait_for_arrivals(arrived).await?;
        gone.abort();
    }
    let gone = "ctrlmesh_request_failures_total{reason=\"client_gone\"}";
    wait_until("all have gone", || async {
        Ok(env.sidecar.metric_value(gone).await? >= 4.0)
    })
    .await?;
    env.api.faults().remove(held);
    assert_eq!(get_report(&env, "api").await?["state"], "Closed");
    let reset = Fault::ResetStream(FaultTime::AfterExecuting);
    env.api.faults().add(Rule::new(reset).verb("create"));
    let created = client
        .send(http::Method::POST, "/api/v1/namespaces/default/configmaps", "{}")
        .await?;
    assert_eq!(created.status, 502);
    env.api.stop().await;
    assert_eq!(get_statuses(&client, LIST, 2).await?, [503; 2]);
    let opened = wait_state(&env, "api", "Opened").await?;
    assert_eq!(opened["failures"], 3, "one reset, and two unreachable");
    Ok(())
}

#[tokio::test]
async fn each_resource_has_its_own_breaker() -> anyhow::Result<()> {
    let rule = rule_for_all(json!({ "key": "resource", "recoverPolicy": sleeping_policy("1h") }));
    let env = TestEnv::start(vec![breaker_entry(json!([rule]))]).await?;
    let client = env.client();
    fail_config_maps(&env, 500);
    get_statuses(&client, LIST, 3).await?;
    let opened = wait_state(&env, "api//configmaps", "Opened").await?;
    assert_eq!(
        (&opened["name"], &opened["key"]),
        (&"api".into(), &"/configmaps".into())
    );
    assert_eq!(client.get(LIST).await?.status, 429);
    assert_eq!(client.get(SECRETS).await?.status, 200);
    assert_eq!(
        get_report(&env, "api//secrets").await?,
        Value::Null,
        "what is closed needs no report"
    );
    Ok(())
}

#[tokio::test]
async fn empty_bucket_opens_breaker_and_spares_the_lock() -> anyhow::Result<()> {
    let rule = json!({
        "name": "api", "triggerPolicy": "Normal", "resourceRules": match_config_maps(), "recoverPolicy": { "type": "Manual" },
        "bucket": { "limit": 1, "interval": "1h", "burst": 2 },
    });
    let forced = rule_for_all(json!({ "name": "forced", "triggerPolicy": "ForceOpened" }));
    let mut env = TestEnv::start(vec![breaker_entry(json!([rule]))]).await?;
    let client = env.client();
    assert_eq!(get_statuses(&client, LIST, 4).await?, [200, 200, 429, 429]);
    assert_eq!(get_report(&env, "api").await?["reason"], "its bucket was empty");
    env.publish(vec![breaker_entry(json!([forced]))]).await?;
    assert_eq!(client.get(LIST).await?.status, 429);
    let lock = "/apis/coordination.k8s.io/v1/namespaces/operator/leases/lock";
    assert_eq!(client.get(lock).await?.status, 404, "it reached the API server");
    Ok(())
}
