//! State that plugins keep with a request and report: places, notes, reports; and how they recognize a lock.

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::{TestEnv, guest_entry, wait_until};
use serde_json::{Value, json};

use crate::breakers::get_report;

async fn start_scripted(script: Value) -> anyhow::Result<TestEnv> {
    TestEnv::start(vec![guest_entry("scripted", script)]).await
}

#[tokio::test]
async fn place_is_held_as_long_as_the_request() -> anyhow::Result<()> {
    let line = json!({ "place": { "key": "p", "max": 1 }, "then": { "proceed": [] } });
    let env = start_scripted(json!({ "onRequest": [line] })).await?;
    let gate = Gate::new();
    let slow = Rule::new(Fault::Hold(gate.clone())).resource("secrets");
    env.api.faults().add(slow);
    let client = env.client();
    let held = tokio::spawn({
        let client = client.clone();
        async move { client.get("/api/v1/secrets").await }
    });
    gate.wait_for_arrivals(1).await?;
    let refused = client.get("/api/v1/configmaps").await?;
    assert_eq!(
        (refused.status, &refused.json()["message"]),
        (429, &"Ok(Admission::Full(0))".into())
    );
    gate.open();
    assert_eq!(held.await??.status, 200);
    wait_until("the place is free", || async {
        Ok(client.get("/api/v1/configmaps").await?.status == 200)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn place_is_freed_when_the_client_vanishes() -> anyhow::Result<()> {
    let line = json!({ "place": { "key": "p", "max": 1 }, "then": { "proceed": [] } });
    let env = start_scripted(json!({ "onRequest": [line] })).await?;
    let gate = Gate::new();
    env.api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).resource("secrets"));
    let client = env.client();
    let gone = tokio::spawn({
        let client = client.clone();
        async move { client.get("/api/v1/secrets").await }
    });
    gate.wait_for_arrivals(1).await?;
    gone.abort();
    wait_until("the place is free", || async {
        Ok(client.get("/api/v1/configmaps").await?.status == 200)
    })
    .await?;
    gate.open();
    Ok(())
}

#[tokio::test]
async fn note_stays_with_its_request() -> anyhow::Result<()> {
    let env = start_scripted(json!({
        "onRequest": [{ "when": { "resource": "secrets" }, "note": 7, "then": { "proceed": [] } }],
        "onResponse": [{ "echo": "x", "then": { "proceed": {} } }],
    }))
    .await?;
    let noted = env.client().get("/api/v1/secrets").await?;
    assert_eq!(
        (&noted.headers["x-seen-note"], &noted.headers["x-seen-port"]),
        (&"7".parse()?, &env.api.tls_address().port().to_string().parse()?)
    );
    let other = env.client().get("/api/v1/configmaps").await?;
    assert_eq!(other.headers["x-seen-note"], "0");
    Ok(())
}

#[tokio::test]
async fn reports_are_in_the_status_and_survive_a_reload() -> anyhow::Result<()> {
    let script = |message: &str| {
        json!({ "onRequest": [
            { "when": { "resource": "secrets" }, "report": { "key": "a", "json": "{\"state\":\"Opened\"}" },
              "then": { "proceed": [] } },
            { "when": { "resource": "pods" }, "report": { "key": "b", "json": "{" },
              "then": { "refuse": { "code": 400, "message": message } } },
        ] })
    };
    let mut env = start_scripted(script("first")).await?;
    env.client().get("/api/v1/secrets").await?;
    env.client().get("/api/v1/pods").await?;
    let reports = |env: &TestEnv| {
        let admin = env.sidecar.admin_client();
        async move { anyhow::Ok(admin.get("/status").await?.json()["chain"]["entries"][0]["reports"].clone()) }
    };
    assert_eq!(reports(&env).await?, json!({ "a": { "state": "Opened" } }));
    let dropped = r#"ctrlmesh_plugin_updates_dropped_total{entry="scripted/test"}"#;
    assert!((env.sidecar.metric_value(dropped).await? - 1.0).abs() < f64::EPSILON);
    env.publish(vec![guest_entry("scripted", script("second"))]).await?;
    assert_eq!(reports(&env).await?, json!({ "a": { "state": "Opened" } }));
    Ok(())
}

#[tokio::test]
async fn lock_is_recognized_by_kind_client_and_content() -> anyhow::Result<()> {
    let refuse = json!({ "refuse": { "code": 418, "message": "a lock" } });
    let env = start_scripted(json!({ "onRequest": [{ "when": { "leaderLock": true }, "then": refuse }] })).await?;
    let client = env.client();
    let status = async |target: &str| anyhow::Ok(client.get(target).await?.status);
    assert_eq!(
        status("/apis/coordination.k8s.io/v1/namespaces/default/leases/op").await?,
        418
    );
    assert_eq!(status("/api/v1/namespaces/default/configmaps/op").await?, 404);
    let record = json!({
        "metadata": { "name": "op", "annotations": { "control-plane.alpha.kubernetes.io/leader": "{}" } },
    });
    let written = client
        .send(
            http::Method::POST,
            "/api/v1/namespaces/default/configmaps",
            record.to_string(),
        )
        .await?;
    assert_eq!(written.status, 418, "the annotation tells");
    assert_eq!(
        status("/api/v1/namespaces/default/configmaps/op").await?,
        418,
        "and is remembered"
    );
    assert_eq!(status("/api/v1/namespaces/default/configmaps/other").await?, 404);
    let election = client.clone().with_header("user-agent", "manager/v1/leader-election");
    assert_eq!(
        election.get("/api/v1/namespaces/default/endpoints/op2").await?.status,
        418
    );
    Ok(())
}

#[tokio::test]
async fn inspected_body_arrives_complete() -> anyhow::Result<()> {
    let env = start_scripted(json!({ "onRequest": [{ "then": { "proceed": [] } }] })).await?;
    let object = json!({ "metadata": { "name": "c" }, "data": { "k": "v" } });
    let created = env
        .client()
        .send(
            http::Method::POST,
            "/api/v1/namespaces/default/configmaps",
            object.to_string(),
        )
        .await?;
    assert_eq!((created.status, &created.json()["data"]["k"]), (201, &"v".into()));
    Ok(())
}

#[tokio::test]
async fn report_of_counters_shows_their_current_values() -> anyhow::Result<()> {
    let settings = json!({
        "show": { "key": "rule", "fields": [["hits", "c"], ["none", "d"]] },
        "ops": [{ "add": { "key": "c", "delta": 1 } }, { "showCounters": { "key": "late", "fields": [] } }],
    });
    let env = TestEnv::start(vec![guest_entry("stateful", settings)]).await?;
    assert_eq!(get_report(&env, "rule").await?, json!({ "hits": 0, "none": 0 }));
    for hits in 1..3 {
        env.client().get("/api/v1/pods").await?;
        assert_eq!(get_report(&env, "rule").await?, json!({ "hits": hits, "none": 0 }));
    }
    assert_eq!(get_report(&env, "late").await?, json!(null));
    Ok(())
}
