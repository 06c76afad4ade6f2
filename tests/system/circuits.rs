//! The real circuit-breaker plugin in front of an API server that fails: when it opens, what it lets through meanwhile, and
//! how it closes.

use ctrlmesh_testkit::{Fault, Gate, Rule, RuleId, When};
use ctrlmesh_tests::{Client, EntrySpec, Stand, wait_until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::limits::{LIST, maps};

const SECRETS: &str = "/api/v1/secrets";

/// The plugin with these rules.
pub(crate) fn breaker(rules: Value) -> EntrySpec {
    let plugin = ctrlmesh_plugins_builtin::CIRCUIT_BREAKER;
    EntrySpec::new("circuit-breaker/test", plugin).settings(json!({ "rateLimitings": rules }))
}

/// A rule for everything but locks.
pub(crate) fn all(more: Value) -> Value {
    let mut rule = json!({
        "name": "api", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 3 },
        "resourceRules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"] }],
    });
    for (field, value) in more.as_object().expect("fields") {
        rule[field] = value.clone();
    }
    rule
}

pub(crate) fn sleeping(window: &str) -> Value {
    json!({ "type": "SleepingWindow", "sleepingWindowSize": window })
}

pub(crate) fn failing(stand: &Stand, code: u16) -> RuleId {
    let fault = Fault::Status {
        code,
        retry_after: None,
    };
    stand.api.faults().add(Rule::new(fault).resource("configmaps"))
}

/// The answers' statuses to so many requests, one after another.
pub(crate) async fn statuses(client: &Client, path: &str, count: usize) -> anyhow::Result<Vec<u16>> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(client.get(path).await?.status);
    }
    Ok(statuses)
}

/// What `/status` shows under a key.
pub(crate) async fn report(stand: &Stand, key: &str) -> anyhow::Result<Value> {
    let status = stand.sidecar.status().await?;
    Ok(status.chain.entries[0].reports.get(key).cloned().unwrap_or_default())
}

pub(crate) async fn wait_state(stand: &Stand, key: &str, state: &str) -> anyhow::Result<Value> {
    wait_until(state, || async { Ok(report(stand, key).await?["state"] == state) }).await?;
    report(stand, key).await
}

pub(crate) async fn counted(stand: &Stand, what: &str, label: &str) -> anyhow::Result<f64> {
    let series = format!(r#"ctrlmesh_plugin_{what}_total{{entry="circuit-breaker/test",label="{label}"}}"#);
    stand.sidecar.metric(&series).await
}

/// Sends requests until one is not refused, and returns its status; it may be held by the API server meanwhile.
fn until_let_in(client: Client) -> tokio::task::JoinHandle<anyhow::Result<u16>> {
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
async fn it_opens_on_failures_of_the_api_server_says_so_and_closes_again() -> anyhow::Result<()> {
    let stand = Stand::start(vec![breaker(json!([all(json!({ "recoverPolicy": sleeping("1s") }))]))]).await?;
    let client = stand.client();
    assert_eq!(
        client.get("/api/v1/namespaces/default/configmaps/none").await?.status,
        404
    );
    assert_eq!(report(&stand, "api").await?["state"], "Closed");
    let broken = failing(&stand, 503);
    assert_eq!(statuses(&client, LIST, 3).await?, [503; 3]);
    let opened = wait_state(&stand, "api", "Opened").await?;
    assert_eq!(opened["reason"], "3 requests failed one after another");
    for time in ["lastTransitionTime", "recoversAt"] {
        assert!(
            opened[time].as_str().is_some_and(|time| time.ends_with('Z')),
            "{opened}"
        );
    }
    let before = stand.api.requests().total();
    let refused = client.get(SECRETS).await?;
    let cause = &refused.json()["details"]["causes"][0]["message"];
    assert_eq!((refused.status, cause), (429, &Value::from("api")));
    let seconds: u64 = refused.headers["retry-after"].to_str()?.parse()?;
    assert!((1..=3).contains(&seconds), "{seconds}");
    assert_eq!(stand.api.requests().total(), before, "nothing reached the API server");
    // A probe fails, and it opens again; then one succeeds.
    assert_eq!(until_let_in(client.clone()).await??, 503);
    wait_until("it opened again", || async {
        Ok(counted(&stand, "opened", "api").await? >= 2.0)
    })
    .await?;
    stand.api.faults().remove(broken);
    assert_eq!(until_let_in(client.clone()).await??, 200);
    wait_state(&stand, "api", "Closed").await?;
    assert_eq!(statuses(&client, LIST, 5).await?, [200; 5]);
    assert_eq!(counted(&stand, "closed", "api").await?, 1.0);
    assert_eq!(counted(&stand, "passed", "api").await?, 9.0);
    assert!(counted(&stand, "probed", "api").await? >= 2.0);
    assert!(counted(&stand, "refused", "api").await? >= 1.0);
    Ok(())
}

#[tokio::test]
async fn half_open_it_lets_so_many_probes_through_at_a_time() -> anyhow::Result<()> {
    const PROBES: usize = 3;
    let rule = all(json!({ "recoverPolicy": sleeping("200ms"), "probes": PROBES }));
    let stand = Stand::start_with(vec![breaker(json!([rule]))], &["--workers", "2"]).await?;
    let broken = failing(&stand, 500);
    statuses(&stand.client(), LIST, 3).await?;
    wait_state(&stand, "api", "Opened").await?;
    stand.api.faults().remove(broken);
    let gate = Gate::new();
    stand
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
    let first = until_let_in(stand.client());
    gate.wait_for_arrivals(1).await?;
    let before = stand.api.requests().total();
    let mut clients = JoinSet::new();
    for _ in 0..64 {
        let client = stand.client();
        clients.spawn(async move { anyhow::Ok(client.get(LIST).await?.status) });
    }
    for _ in PROBES - 1..64 {
        let refused = tokio::time::timeout(ctrlmesh_tests::DEADLINE, clients.join_next()).await?;
        assert_eq!(refused.expect("all but the probes")??, 429);
    }
    gate.wait_for_arrivals(PROBES).await?;
    assert_eq!(stand.api.requests().total(), before + (PROBES as u64 - 1));
    assert_eq!(report(&stand, "api").await?["state"], "HalfOpen");
    gate.open();
    assert_eq!(first.await??, 200);
    while let Some(probe) = clients.join_next().await {
        assert_eq!(probe??, 200);
    }
    wait_state(&stand, "api", "Closed").await?;
    assert_eq!(counted(&stand, "probed", "api").await?, PROBES as f64);
    assert_eq!(stand.client().get(LIST).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_share_of_failures_or_of_slow_answers_opens_it() -> anyhow::Result<()> {
    let errors = json!({ "errorPercent": 50, "minimumRequests": 6 });
    let stand = Stand::start(vec![breaker(json!([all(json!({ "trip": errors }))]))]).await?;
    let client = stand.client();
    statuses(&client, SECRETS, 3).await?;
    let broken = failing(&stand, 500);
    statuses(&client, LIST, 2).await?;
    assert_eq!(
        report(&stand, "api").await?["state"],
        "Closed",
        "too few, and too small a share"
    );
    statuses(&client, LIST, 1).await?;
    let opened = wait_state(&stand, "api", "Opened").await?;
    assert_eq!(
        (&opened["reason"], &opened["requests"], &opened["failures"]),
        (&"3 of 6 requests failed".into(), &6.into(), &3.into())
    );
    assert_eq!(opened["recoversAt"], Value::Null, "until somebody closes it");
    stand.api.faults().remove(broken);

    let slow = json!({ "slowPercent": 50, "slowerThan": "50ms", "minimumRequests": 4 });
    let stand = Stand::start(vec![breaker(json!([all(json!({ "trip": slow }))]))]).await?;
    let late = Fault::Delay(std::time::Duration::from_millis(100));
    stand.api.faults().add(Rule::new(late).resource("configmaps"));
    assert_eq!(statuses(&stand.client(), LIST, 4).await?, [200; 4]);
    let opened = wait_state(&stand, "api", "Opened").await?;
    assert_eq!(
        (&opened["reason"], &opened["slow"]),
        (&"4 of 4 requests were slow".into(), &4.into())
    );
    Ok(())
}

#[tokio::test]
async fn broken_connections_count_and_conflicts_and_clients_that_go_do_not() -> anyhow::Result<()> {
    let stand = Stand::start(vec![breaker(json!([all(json!({}))]))]).await?;
    let client = stand.client();
    let conflicts = failing(&stand, 409);
    assert_eq!(statuses(&client, LIST, 6).await?, [409; 6]);
    stand.api.faults().remove(conflicts);
    let gate = Gate::new();
    let held = stand
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
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
        Ok(stand.sidecar.metric(gone).await? >= 4.0)
    })
    .await?;
    stand.api.faults().remove(held);
    assert_eq!(report(&stand, "api").await?["state"], "Closed");
    let reset = Fault::ResetStream(When::AfterExecuting);
    stand.api.faults().add(Rule::new(reset).verb("create"));
    let created = client
        .send(http::Method::POST, "/api/v1/namespaces/default/configmaps", "{}")
        .await?;
    assert_eq!(created.status, 502);
    stand.api.stop().await;
    assert_eq!(statuses(&client, LIST, 2).await?, [503; 2]);
    let opened = wait_state(&stand, "api", "Opened").await?;
    assert_eq!(opened["failures"], 3, "one reset, and two unreachable");
    Ok(())
}

#[tokio::test]
async fn each_resource_has_a_circuit_of_its_own() -> anyhow::Result<()> {
    let rule = all(json!({ "key": "resource", "recoverPolicy": sleeping("1h") }));
    let stand = Stand::start(vec![breaker(json!([rule]))]).await?;
    let client = stand.client();
    failing(&stand, 500);
    statuses(&client, LIST, 3).await?;
    let opened = wait_state(&stand, "api//configmaps", "Opened").await?;
    assert_eq!(
        (&opened["name"], &opened["key"]),
        (&"api".into(), &"/configmaps".into())
    );
    assert_eq!(client.get(LIST).await?.status, 429);
    assert_eq!(client.get(SECRETS).await?.status, 200);
    assert_eq!(
        report(&stand, "api//secrets").await?,
        Value::Null,
        "what is closed needs no report"
    );
    Ok(())
}

#[tokio::test]
async fn an_empty_bucket_opens_it_and_the_lock_stays_free() -> anyhow::Result<()> {
    let rule = json!({
        "name": "api", "triggerPolicy": "Normal", "resourceRules": maps(), "recoverPolicy": { "type": "Manual" },
        "bucket": { "limit": 1, "interval": "1h", "burst": 2 },
    });
    let forced = all(json!({ "name": "forced", "triggerPolicy": "ForceOpened" }));
    let mut stand = Stand::start(vec![breaker(json!([rule]))]).await?;
    let client = stand.client();
    assert_eq!(statuses(&client, LIST, 4).await?, [200, 200, 429, 429]);
    assert_eq!(report(&stand, "api").await?["reason"], "its bucket was empty");
    stand.publish(vec![breaker(json!([forced]))]).await?;
    assert_eq!(client.get(LIST).await?.status, 429);
    let lock = "/apis/coordination.k8s.io/v1/namespaces/operator/leases/lock";
    assert_eq!(client.get(lock).await?.status, 404, "it reached the API server");
    Ok(())
}
