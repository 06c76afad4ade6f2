//! The real fault-inject plugin: its responses, what of a request was executed, and the result over HTTP/1.1 and HTTP/2, in JSON and in
//! protobuf.

use ctrlmesh_tests::{Client, EntrySpec, ReceivedResponse, TestEnv, config_map};
use ctrlmesh_wire::Status;
use http::Method;
use serde_json::{Value, json};

use crate::limits::LIST;

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(crate) fn faults_with(settings: Value) -> EntrySpec {
    EntrySpec::new("fault-inject/test", ctrlmesh_plugins_builtin::FAULT_INJECT).with_settings(settings)
}

pub(crate) fn faults_entry(rules: Value) -> EntrySpec {
    faults_with(json!({ "seed": 1, "class": "server", "faults": rules }))
}

/// One rule, `x`, for config maps and non-resource requests.
pub(crate) fn fault_rule(fault: Value, more: Value) -> Value {
    let mut rule = json!({
        "name": "x", "do": fault,
        "match": { "resources": [{ "resources": ["configmaps"] }], "nonResources": [{ "nonResourceURLs": ["*"] }] },
    });
    for (field, value) in more.as_object().expect("fields") {
        rule[field] = value.clone();
    }
    rule
}

/// An environment with this fault for config maps, of which `a0` exists.
pub(crate) async fn start_with_fault(fault: Value) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![faults_entry(json!([fault_rule(fault, json!({}))]))]).await?;
    env.seed_config_maps("default", "a", 1)?;
    Ok(env)
}

pub(crate) fn http1_and_http2_clients(env: &TestEnv) -> [Client; 2] {
    [
        Client::http1(env.sidecar.api_address()),
        Client::http2(env.sidecar.api_address()),
    ]
    .map(|client| client.with_header("content-type", "application/json"))
}

pub(crate) fn config_map_exists(env: &TestEnv, name: &str) -> bool {
    let store = env.api.store();
    store.read(|state| state.get("configmaps", "default", name).is_some())
}

/// `{matched, fired}` of a rule.
pub(crate) async fn rule_counts(env: &TestEnv, rule: &str) -> anyhow::Result<(u64, u64)> {
    let status = env.sidecar.status().await?;
    let report = &status.chain.entries[0].reports[rule];
    let count = |field: &str| report[field].as_u64().unwrap_or(u64::MAX);
    for (field, metric) in [("matched", "fault_matched"), ("fired", "fault_fired")] {
        let series = format!(r#"ctrlmesh_plugin_{metric}_total{{entry="fault-inject/test",label="{rule}"}}"#);
        assert_eq!(
            env.sidecar.metric_value(&series).await?,
            count(field) as f64,
            "{series}"
        );
    }
    Ok((count("matched"), count("fired")))
}

/// Sends a request that some fault applies to.
async fn send_kind(client: &Client, what: &str) -> anyhow::Result<ReceivedResponse> {
    let name = format!("{MAPS}/a0");
    match what {
        "create" => {
            let object = config_map("default", "mine", "a").to_string();
            client.send(Method::POST, MAPS, object).await
        }
        "update" => {
            let object = config_map("default", "a0", "b").to_string();
            client.send(Method::PUT, &name, object).await
        }
        "get" => client.get(&name).await,
        path => client.get(path).await,
    }
}

/// A fault, a request that it applies to, and the expected code and part of the message.
type Case<'a> = (Value, &'a str, u16, &'a str);

/// Checks that each fault answers over both protocols, and nothing is forwarded.
async fn check_responses(cases: &[Case<'_>]) -> anyhow::Result<()> {
    for (fault, request, code, said) in cases {
        let env = start_with_fault(fault.clone()).await?;
        for client in http1_and_http2_clients(&env) {
            let answer = send_kind(&client, request).await?;
            let status = answer.json();
            let message = status["message"].as_str().unwrap_or_default();
            assert_eq!(
                (answer.status, &status["kind"]),
                (*code, &"Status".into()),
                "{fault}: {status}"
            );
            assert!(message.contains(said), "{fault}: {message}");
        }
        let seen = env.api.requests().recent();
        assert!(
            seen.iter().all(|seen| !seen.target.contains("configmaps")),
            "{fault}: {seen:?}"
        );
        assert_eq!(rule_counts(&env, "x").await?, (2, 2), "{fault}");
    }
    Ok(())
}

#[tokio::test]
async fn reads_are_answered_by_the_sidecar() -> anyhow::Result<()> {
    let aged = format!("{MAPS}?watch=1&resourceVersion=1");
    let (next, newer) = (
        format!("{LIST}?limit=1&continue=x"),
        format!("{LIST}?resourceVersion=5"),
    );
    let watch_list = format!("{LIST}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let timeout = json!({ "timeout": { "after": "10ms" } });
    check_responses(&[
        (json!("refuse"), "get", 503, "currently unable to handle the request"),
        (timeout, "get", 504, "within the allotted timeout"),
        (json!("tooOld"), &aged, 410, "too old resource version: 1"),
        (json!("tooNew"), &newer, 504, "Too large resource version: 5"),
        (
            json!("failPage"),
            &next,
            410,
            "start a new list without the continue parameter",
        ),
        (json!("noWatchList"), &watch_list, 422, "sendInitialEvents is forbidden"),
        (json!("unauthorized"), "get", 401, "Unauthorized"),
    ])
    .await
}

#[tokio::test]
async fn writes_are_answered_by_the_sidecar() -> anyhow::Result<()> {
    let user = json!({ "forbidden": { "user": "u" } });
    let deny = json!({ "deny": { "webhook": "w", "message": "no" } });
    let modified = "cannot be fulfilled on configmaps \"a0\": the object has been modified";
    check_responses(&[
        (json!("conflict"), "update", 409, modified),
        (json!("exists"), "create", 409, "configmaps \"mine\" already exists"),
        (
            user,
            "update",
            403,
            "configmaps \"a0\" is forbidden: User \"u\" cannot update",
        ),
        (deny, "create", 403, "\"w\" denied the request: no"),
        (json!({ "quota": { "quota": "q" } }), "create", 403, "exceeded quota: q"),
        (
            json!({ "webhookDown": { "webhook": "w" } }),
            "update",
            500,
            "failed calling webhook \"w\"",
        ),
        (
            json!("namespaceTerminating"),
            "create",
            403,
            "because it is being terminated",
        ),
    ])
    .await
}

#[tokio::test]
async fn non_status_responses_have_the_bytes_of_the_server() -> anyhow::Result<()> {
    for (fault, request, code, body) in [
        (
            json!("throttle"),
            "get",
            429,
            "Too many requests, please try again later.\n",
        ),
        (
            json!({ "discoveryDown": { "code": 503 } }),
            "/apis",
            503,
            "service unavailable\n",
        ),
        (
            json!({ "groupDown": { "group": "apps" } }),
            "/apis/apps/v1/deployments",
            503,
            "service unavailable\n",
        ),
        (
            json!({ "answer": { "code": 502, "body": "<html>bad</html>" } }),
            "get",
            502,
            "<html>bad</html>",
        ),
    ] {
        let mut own = fault_rule(fault.clone(), json!({}));
        if fault.get("groupDown").or(fault.get("discoveryDown")).is_some() {
            own.as_object_mut().expect("a rule").remove("match");
        }
        let env = TestEnv::start(vec![faults_entry(json!([own]))]).await?;
        for client in http1_and_http2_clients(&env) {
            let answer = send_kind(&client, request).await?;
            assert_eq!((answer.status, &answer.body[..]), (code, body.as_bytes()), "{fault}");
            assert_ne!(answer.headers["content-type"], "application/json", "{fault}");
        }
        assert_eq!(rule_counts(&env, "x").await?, (2, 2), "{fault}");
    }
    Ok(())
}

#[tokio::test]
async fn lost_response_is_of_an_executed_request() -> anyhow::Result<()> {
    for (how, code, retry_after) in [
        ("reset", None, None),
        ("error", Some(504), None),
        ("retry", Some(500), Some("2")),
    ] {
        let env = start_with_fault(json!({ "lose": { "how": how } })).await?;
        for (client, name) in http1_and_http2_clients(&env).into_iter().zip(["one", "two"]) {
            let object = config_map("default", name, "a").to_string();
            let answer = client.send(Method::POST, MAPS, object.clone()).await;
            assert_eq!(
                answer.as_ref().ok().map(|answer| answer.status),
                code,
                "{how}: {answer:?}"
            );
            if let Ok(answer) = answer {
                let hint = answer.headers.get("retry-after").map(|value| value.to_str().unwrap());
                assert_eq!(hint, retry_after, "{how}");
                assert_eq!(answer.json()["kind"], "Status");
            }
            assert!(config_map_exists(&env, name), "{how}: it was done");
            let again = client.send(Method::POST, MAPS, object).await?;
            assert_eq!(again.status, 409, "{how}: a refusal is not lost");
        }
        assert_eq!(rule_counts(&env, "x").await?, (4, 2), "{how}");
    }
    Ok(())
}

/// A ConfigMap `mine` as client-go's protobuf serializer writes it: magic, `Unknown` with type and object.
fn protobuf_config_map() -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let mut field = vec![number << 3 | 2, u8::try_from(bytes.len()).expect("short")];
        field.extend(bytes);
        field
    };
    let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let object = field(1, &field(1, b"mine"));
    [b"k8s\0".to_vec(), field(1, &kind), field(2, &object)].concat()
}

#[tokio::test]
async fn protobuf_client_gets_protobuf() -> anyhow::Result<()> {
    for (fault, code, message) in [
        (json!("exists"), 409, "configmaps \"mine\" already exists"),
        (
            json!({ "deny": { "policy": "p", "binding": "b", "message": "no" } }),
            422,
            "configmaps \"mine\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
        ),
    ] {
        let env = start_with_fault(fault.clone()).await?;
        for address in [
            Client::http1(env.sidecar.api_address()),
            Client::http2(env.sidecar.api_address()),
        ] {
            let json = address.clone().with_header("content-type", "application/json");
            let json = send_kind(&json, "create").await?;
            assert_eq!(
                (json.status, &json.json()["message"]),
                (code, &message.into()),
                "{fault}"
            );
            let client = address
                .with_header("content-type", PROTOBUF)
                .with_header("accept", PROTOBUF);
            let answer = client.send(Method::POST, MAPS, protobuf_config_map()).await?;
            assert_eq!(
                (answer.status, &answer.headers["content-type"]),
                (code, &PROTOBUF.parse()?),
                "{fault}"
            );
            let same = Status::from_json(&json.body).expect("a Status");
            assert_eq!(answer.body, same.to_protobuf(), "{fault}");
        }
        assert_eq!(env.api.requests().count("create"), 0);
    }
    Ok(())
}

#[tokio::test]
async fn delays_and_aborts_of_the_crd_work_together() -> anyhow::Result<()> {
    let fault = json!({
        "name": "x",
        "match": { "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"] }] },
        "delay": { "fixedDelay": "200ms", "percent": "100" },
        "abort": { "httpStatus": 503, "percent": "100", "retryAfter": 3 },
    });
    let env = TestEnv::start(vec![faults_with(json!({ "httpFault": [fault] }))]).await?;
    let start = std::time::Instant::now();
    let answer = env.client().get(LIST).await?;
    assert!(start.elapsed().as_millis() >= 200, "{:?}", start.elapsed());
    assert_eq!((answer.status, &answer.headers["retry-after"]), (503, &"3".parse()?));
    assert_eq!(env.api.requests().count("list"), 0);
    assert_eq!(
        env.client().get(MAPS.trim_end_matches("/configmaps")).await?.status,
        200
    );
    Ok(())
}

/// The server generates the name only later, so errors name the prefix.
#[tokio::test]
async fn object_without_name_is_called_by_its_prefix() -> anyhow::Result<()> {
    let env = start_with_fault(json!("exists")).await?;
    for (object, called) in [
        (json!({ "generateName": "web-" }), "web-"),
        (json!({ "generateName": "web-", "name": "a" }), "a"),
        (json!({}), "Unknown"),
    ] {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": object });
        let answer = http1_and_http2_clients(&env)[0]
            .send(Method::POST, MAPS, object.to_string())
            .await?;
        let status: Value = serde_json::from_slice(&answer.body)?;
        assert_eq!(status["message"], format!("configmaps {called:?} already exists"));
        assert_eq!(status["details"]["name"], called);
    }
    Ok(())
}
