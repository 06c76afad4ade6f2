//! Shards with ranges of a hash write the objects of these ranges only: the sidecar checks the object of each write, and binds the write
//! to its UID.

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::client::ReceivedResponse;
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, guest_entry};
use http::Method;
use serde_json::{Value, json};

use crate::in_flight_requests::{in_flight, wait_earlier};

const PODS: &str = "/api/v1/namespaces/default/pods";
const REFUSED: &str = r#"ctrlmesh_objects_refused_total{entry="shard-selector/test"}"#;
const MERGE_PATCH: &str = "application/merge-patch+json";
const LABELLED: &str = r#"{"metadata":{"labels":{"written":"x"}}}"#;

/// A shard of pods, with more settings.
fn shard(key: &str, ranges: &[&str], more: Value) -> EntrySpec {
    let mut settings = json!({
        "shard": "a",
        "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["pods"] }],
            "hashRanges": { "key": key, "ranges": ranges },
        }],
    });
    if let (Value::Object(settings), Value::Object(more)) = (&mut settings, more) {
        settings.extend(more);
    }
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR).with_settings(settings)
}

fn half_by_owner() -> EntrySpec {
    shard("owner", &["0-511"], json!({}))
}

/// A pod whose name begins with the number of its controller.
fn pod(name: &str) -> Value {
    let owner = &name[..1];
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "ownerReferences": [{
            "apiVersion": "example.com/v1", "kind": "Widget", "name": format!("w{owner}"), "controller": true,
            "uid": format!("{owner}f2c7a90-3b1d-4e55-8a6e-{owner}d4c1b7e9a52"),
        }] },
        "spec": { "nodeName": "n" },
    })
}

/// A sidecar of one shard, and a pod of this shard and of another one.
struct Fence {
    env: TestEnv,
    own: String,
    other: String,
}

impl Fence {
    async fn start(entry: EntrySpec) -> anyhow::Result<Self> {
        let env = TestEnv::start(vec![entry]).await?;
        let names: Vec<String> = (0..8)
            .flat_map(|owner| ["a", "b", "c", "d"].map(|pod| format!("{owner}-{pod}")))
            .collect();
        for name in &names {
            env.api.store().put(pod(name))?;
        }
        let shown = env.client().get(PODS).await?.names();
        let other = names.iter().find(|name| !shown.contains(name));
        let (own, other) = (shown[0].clone(), other.expect("another shard's pod").clone());
        env.api.requests().clear();
        Ok(Self { env, own, other })
    }

    async fn send(&self, write: &Write, name: &str) -> anyhow::Result<ReceivedResponse> {
        let client = self.env.client().with_header("content-type", write.content_type);
        client
            .send(write.method.clone(), &write.target(name), write.body(name))
            .await
    }

    /// Methods and paths that have reached the API server.
    fn arrived(&self) -> Vec<String> {
        let requests = self.env.api.requests().recent();
        let line = |target: &str| target.split('?').next().unwrap_or_default().to_owned();
        requests
            .iter()
            .map(|request| format!("{} {}", request.method, line(&request.target)))
            .collect()
    }

    async fn pod(&self, name: &str) -> anyhow::Result<Value> {
        Ok(Client::http1(self.env.api.address())
            .get(&format!("{PODS}/{name}"))
            .await?
            .json())
    }
}

/// A kind of write.
struct Write {
    method: Method,
    /// The part of the target behind the object.
    rest: &'static str,
    content_type: &'static str,
    /// `NAME` stands for the name of the object.
    body: String,
}

impl Write {
    fn new(method: Method, rest: &'static str, content_type: &'static str, body: impl Into<String>) -> Self {
        Self {
            method,
            rest,
            content_type,
            body: body.into(),
        }
    }

    fn target(&self, name: &str) -> String {
        format!("{PODS}/{name}{}", self.rest)
    }

    fn body(&self, name: &str) -> String {
        self.body.replace("NAME", name)
    }
}

fn writes() -> Vec<Write> {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "NAME", "namespace": "default", "labels": { "written": "x" } },
        "spec": { "nodeName": "n" },
        "status": { "phase": "x" },
    });
    let json_patch = r#"[{"op":"add","path":"/metadata/labels","value":{"written":"x"}}]"#;
    let yaml = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: NAME\n  labels: {written: x}\n";
    let applied =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "NAME", "labels": { "written": "x" } } });
    let apply = "?fieldManager=m&force=true";
    vec![
        Write::new(Method::PUT, "", "application/json", object.to_string()),
        Write::new(Method::PUT, "/status", "application/json", object.to_string()),
        Write::new(Method::PATCH, "", MERGE_PATCH, LABELLED),
        Write::new(Method::PATCH, "", "application/strategic-merge-patch+json", LABELLED),
        Write::new(Method::PATCH, "/status", MERGE_PATCH, r#"{"status":{"phase":"x"}}"#),
        Write::new(Method::PATCH, "", "application/json-patch+json", json_patch),
        Write::new(Method::PATCH, apply, "application/apply-patch+yaml", yaml),
        Write::new(
            Method::PATCH,
            apply,
            "application/apply-patch+yaml",
            applied.to_string(),
        ),
        Write::new(Method::DELETE, "", "application/json", ""),
        Write::new(Method::DELETE, "", "application/json", r#"{"gracePeriodSeconds":0}"#),
    ]
}

#[tokio::test]
async fn own_objects_are_written_after_one_read_of_their_metadata() -> anyhow::Result<()> {
    let fence = Fence::start(half_by_owner()).await?;
    for write in writes() {
        fence.env.api.store().put(pod(&fence.own))?;
        fence.env.api.requests().clear();
        let answer = fence.send(&write, &fence.own).await?;
        let what = format!("{} {} {}", write.method, write.rest, write.content_type);
        assert_eq!(
            answer.status,
            200,
            "{what}: {:?}\n{}",
            answer.body,
            fence.env.sidecar.log()
        );
        let sent = write.target(&fence.own);
        let expected = [
            format!("GET {PODS}/{}", fence.own),
            format!("{} {}", write.method, sent.split('?').next().unwrap()),
        ];
        assert_eq!(fence.arrived(), expected, "{what}");
        let requests = fence.env.api.requests().recent();
        let accept = requests[0].headers["accept"].to_str()?.to_owned();
        assert!(
            accept.starts_with("application/json;as=PartialObjectMetadata;"),
            "{accept}"
        );
    }
    assert_eq!(fence.env.sidecar.metric_value(REFUSED).await.unwrap_or_default(), 0.0);
    Ok(())
}

#[tokio::test]
async fn writes_of_other_objects_are_refused_and_not_sent() -> anyhow::Result<()> {
    let fence = Fence::start(half_by_owner()).await?;
    let before = fence.pod(&fence.other).await?;
    let tunnels = [Method::POST, Method::GET].map(|method| Write::new(method, "/exec", "application/json", ""));
    let mut count = 0.0;
    for write in writes().into_iter().chain(tunnels) {
        fence.env.api.requests().clear();
        let answer = fence.send(&write, &fence.other).await?;
        let what = format!("{} {} {}", write.method, write.rest, write.content_type);
        assert_eq!(answer.status, 409, "{what}: {:?}", answer.body);
        let status = answer.json();
        assert_eq!(
            (&status["reason"], &status["details"]["name"]),
            (&json!("Conflict"), &json!(fence.other))
        );
        assert_eq!(status["details"]["causes"][0]["reason"], "ObjectDoesNotMatch");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(
            message.contains(&format!("pods \"{}\"", fence.other)) && message.contains("shard-selector/test"),
            "{message}"
        );
        assert!(!answer.headers.contains_key("retry-after"), "{what}");
        assert_eq!(fence.arrived(), [format!("GET {PODS}/{}", fence.other)], "{what}");
        count += 1.0;
    }
    assert_eq!(fence.pod(&fence.other).await?, before);
    assert_eq!(fence.env.sidecar.metric_value(REFUSED).await?, count);
    Ok(())
}

#[tokio::test]
async fn object_that_is_replaced_after_the_check_is_not_written() -> anyhow::Result<()> {
    let fence = Fence::start(half_by_owner()).await?;
    for write in writes() {
        let what = format!("{} {} {}", write.method, write.rest, write.content_type);
        fence.env.api.store().put(pod(&fence.own))?;
        let gate = Gate::new();
        let held = Rule::new(Fault::Hold(gate.clone())).method(write.method.clone());
        let held = fence.env.api.faults().add(held);
        let replace = async {
            gate.wait_for_arrivals(1).await?;
            fence.env.api.store().delete("pods", "default", &fence.own)?;
            let replaced = fence.env.api.store().put(pod(&fence.own))?;
            gate.open();
            anyhow::Ok(replaced)
        };
        let (answer, replaced) = tokio::join!(fence.send(&write, &fence.own), replace);
        let (answer, replaced) = (answer?, replaced?);
        fence.env.api.faults().remove(held);
        assert!(
            matches!(answer.status, 409 | 422),
            "{what}: {} {:?}",
            answer.status,
            answer.body
        );
        let metadata = &fence.pod(&fence.own).await?["metadata"];
        for field in ["uid", "resourceVersion"] {
            assert_eq!(metadata[field], replaced["metadata"][field], "{what}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn own_uid_in_a_put_spares_the_read_if_the_hash_needs_no_more() -> anyhow::Result<()> {
    let fence = Fence::start(shard("uid", &["0-511"], json!({}))).await?;
    for (name, status) in [(&fence.own, 200), (&fence.other, 409)] {
        let mut object = fence.pod(name).await?;
        object["metadata"]["labels"] = json!({ "written": "x" });
        fence.env.api.requests().clear();
        let write = Write::new(Method::PUT, "", "application/json", object.to_string());
        let answer = fence.send(&write, name).await?;
        assert_eq!(answer.status, status, "{:?}", answer.body);
        let expected = if status == 200 {
            vec![format!("PUT {PODS}/{name}")]
        } else {
            Vec::new()
        };
        assert_eq!(fence.arrived(), expected);
    }
    Ok(())
}

#[tokio::test]
async fn hash_of_the_namespace_needs_no_read() -> anyhow::Result<()> {
    let whole = TestEnv::start(vec![shard("namespace", &["0-511"], json!({}))]).await?;
    let other = TestEnv::start(vec![shard("namespace", &["512-1023"], json!({}))]).await?;
    let mut statuses = Vec::new();
    for env in [whole, other] {
        env.api.store().put(pod("0-a"))?;
        env.api.requests().clear();
        let client = env.client().with_header("content-type", MERGE_PATCH);
        let answer = client.send(Method::PATCH, &format!("{PODS}/0-a"), LABELLED).await?;
        assert_eq!(env.api.requests().count("get"), 0);
        assert_eq!(env.api.requests().count("patch") == 1, answer.status == 200);
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    Ok(())
}

#[tokio::test]
async fn client_without_the_right_to_get_is_told_so() -> anyhow::Result<()> {
    let fence = Fence::start(half_by_owner()).await?;
    for (code, expected) in [(403, 403), (401, 401), (429, 503), (500, 503)] {
        let fault = Fault::Status {
            code,
            retry_after: None,
        };
        let rule = fence.env.api.faults().add(Rule::new(fault).verb("get"));
        let write = Write::new(Method::PATCH, "", MERGE_PATCH, LABELLED);
        let answer = fence.send(&write, &fence.own).await?;
        fence.env.api.faults().remove(rule);
        let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(answer.status, expected, "{code}: {message}");
        assert_eq!(message.contains("grant the verb \"get\""), expected == 403, "{message}");
        assert_eq!(answer.headers.contains_key("retry-after"), expected == 503, "{message}");
    }
    assert_eq!(fence.env.api.requests().count("patch"), 0);
    Ok(())
}

#[tokio::test]
async fn request_for_an_object_that_does_not_exist_is_answered_by_the_api_server() -> anyhow::Result<()> {
    let fence = Fence::start(half_by_owner()).await?;
    let applied = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME"},"spec":{"nodeName":"n"}}"#;
    for (write, status) in [
        (Write::new(Method::PATCH, "", MERGE_PATCH, LABELLED), 404),
        (Write::new(Method::DELETE, "", "application/json", ""), 404),
        (
            Write::new(
                Method::PATCH,
                "?fieldManager=m",
                "application/apply-patch+yaml",
                applied,
            ),
            201,
        ),
    ] {
        assert_eq!(fence.send(&write, "new").await?.status, status, "{}", write.method);
    }
    Ok(())
}

#[tokio::test]
async fn uid_or_encoding_that_does_not_fit_is_refused_before_the_write_is_sent() -> anyhow::Result<()> {
    let fence = Fence::start(half_by_owner()).await?;
    for (write, status) in [
        (
            Write::new(Method::PATCH, "", MERGE_PATCH, r#"{"metadata":{"uid":"other"}}"#),
            409,
        ),
        (
            Write::new(
                Method::DELETE,
                "",
                "application/json",
                r#"{"preconditions":{"uid":"other"}}"#,
            ),
            409,
        ),
        (Write::new(Method::DELETE, "?uid=other", "application/json", ""), 409),
        (Write::new(Method::PUT, "", "application/cbor", "x"), 415),
        (Write::new(Method::PUT, "", "application/json", "{"), 400),
    ] {
        let answer = fence.send(&write, &fence.own).await?;
        assert_eq!(answer.status, status, "{} {:?}", write.content_type, answer.body);
    }
    let written = ["put", "patch", "update", "delete"].map(|verb| fence.env.api.requests().count(verb));
    assert_eq!(written, [0; 4]);
    Ok(())
}

#[tokio::test]
async fn options_in_the_query_of_a_delete_still_hold() -> anyhow::Result<()> {
    let fence = Fence::start(half_by_owner()).await?;
    let write = Write::new(Method::DELETE, "?dryRun=All", "application/json", "");
    assert_eq!(fence.send(&write, &fence.own).await?.status, 200);
    assert_eq!(fence.pod(&fence.own).await?["metadata"]["name"], json!(fence.own));
    Ok(())
}

#[tokio::test]
async fn gets_by_name_pass_unless_the_setting_refuses_them() -> anyhow::Result<()> {
    for (setting, status) in [
        (None, 200),
        (Some("Pass"), 200),
        (Some("NotFound"), 404),
        (Some("Forbidden"), 403),
    ] {
        let more = setting.map_or_else(|| json!({}), |setting| json!({ "namedGets": setting }));
        let fence = Fence::start(shard("owner", &["0-511"], more)).await?;
        let get = async |name: &str| fence.env.client().get(&format!("{PODS}/{name}")).await;
        assert_eq!(get(&fence.own).await?.status, 200, "{setting:?}");
        let other = get(&fence.other).await?;
        assert_eq!(other.status, status, "{setting:?}: {:?}", other.body);
        assert_eq!(get("9-none").await?.status, 404);
        if status == 404 {
            let message = format!("pods \"{}\" not found", fence.other);
            assert_eq!(
                (&other.json()["reason"], &other.json()["message"]),
                (&json!("NotFound"), &json!(message))
            );
        }
    }
    Ok(())
}

/// API servers ignore selectors there.
#[tokio::test]
async fn selector_of_a_get_by_name_decides_nothing() -> anyhow::Result<()> {
    let fence = Fence::start(shard("owner", &["0-511"], json!({ "namedGets": "NotFound" }))).await?;
    for (name, status) in [(&fence.own, 200), (&fence.other, 404)] {
        for value in ["x", ""] {
            let target = format!("{PODS}/{name}?labelSelector=absent%3D{value}");
            assert_eq!(fence.env.client().get(&target).await?.status, status, "{target}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn write_that_is_being_checked_holds_back_the_next_chain() -> anyhow::Result<()> {
    let mut fence = Fence::start(half_by_owner()).await?;
    let gate = Gate::new();
    fence
        .env
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("get").resource("pods"));
    let client = fence.env.client().with_header("content-type", MERGE_PATCH);
    let target = format!("{PODS}/{}", fence.own);
    let write = tokio::spawn(async move { client.send(Method::PATCH, &target, LABELLED).await });
    gate.wait_for_arrivals(1).await?;
    fence
        .env
        .publish(vec![shard("owner", &["512-1023"], json!({}))])
        .await?;
    wait_earlier(&fence.env, in_flight(1, 0)).await?;
    gate.open();
    assert_eq!(write.await??.status, 200);
    wait_earlier(&fence.env, in_flight(0, 0)).await?;
    Ok(())
}

#[tokio::test]
async fn requirement_of_any_plugin_is_closed_and_illegal_where_no_object_is_named() -> anyhow::Result<()> {
    let edit = json!({ "requireObjectMatch": { "predicate": { "labels": "team=a" }, "refusal": "forbidden" } });
    let on = |verb: &str| json!({ "when": { "verb": verb }, "then": { "proceed": [edit] } });
    let settings = json!({ "onRequest": [on("patch"), on("list")] });
    let env = TestEnv::start(vec![guest_entry("scripted", settings)]).await?;
    for (name, team) in [("0-a", "a"), ("0-b", "b")] {
        let mut object = pod(name);
        object["metadata"]["labels"] = json!({ "team": team });
        env.api.store().put(object)?;
    }
    let client = env.client().with_header("content-type", MERGE_PATCH);
    for (name, status) in [("0-a", 200), ("0-b", 403)] {
        let answer = client.send(Method::PATCH, &format!("{PODS}/{name}"), LABELLED).await?;
        assert_eq!(answer.status, status, "{:?}", answer.body);
    }
    let list = client.get(PODS).await?;
    assert_eq!(list.status, 500);
    let message = list.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("require-object-match on list"), "{message}");
    Ok(())
}
