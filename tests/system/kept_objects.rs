//! Lists, watches and deletes of collections of which a plugin keeps some objects (`keep-objects`).

use std::sync::Arc;

use bytes::Bytes;
use ctrlmesh_testkit::{ApiServer, Fault, Rule};
use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::path_cleaning_proxy::kubeconfig_for;
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, config_map, guest_entry};
use ctrlmesh_wire::protobuf::fields;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(crate) const ALL: &str = "/api/v1/configmaps";
const OF_A: &str = "/api/v1/namespaces/a/configmaps";
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub(crate) fn keeping_entry(predicate: Value) -> EntrySpec {
    let edit = json!({ "keepObjects": predicate });
    guest_entry("scripted", json!({ "onRequest": [{ "then": { "proceed": [edit] } }] }))
}

/// Config maps `a0` to `a2` in namespace `a`, and `b0` and `b1` in namespace `b`.
pub(crate) async fn start_env(predicate: Value) -> anyhow::Result<TestEnv> {
    start_env_with(keeping_entry(predicate)).await
}

async fn start_env_with(entry: EntrySpec) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![entry]).await?;
    for name in ["a", "b"] {
        env.api
            .store()
            .put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))?;
    }
    env.seed_config_maps("a", "a", 3)?;
    env.seed_config_maps("b", "b", 2)?;
    Ok(env)
}

pub(crate) async fn open_watch(env: &TestEnv) -> anyhow::Result<Stream> {
    let list = env.client().get(ALL).await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let watch = env
        .client()
        .open_stream(&format!("{ALL}?watch=1&resourceVersion={version}"))
        .await?;
    assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
    Ok(watch)
}

/// Type and name of the next event.
pub(crate) async fn next_event(watch: &mut Stream) -> anyhow::Result<(String, String)> {
    let event = watch.next_event().await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok((text(&event["type"]), text(&event["object"]["metadata"]["name"])))
}

pub(crate) fn event(event_type: &str, name: &str) -> (String, String) {
    (event_type.to_owned(), name.to_owned())
}

#[tokio::test]
async fn list_has_kept_objects_as_the_api_server_has_them() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let direct = Client::http1(env.api.address()).get(OF_A).await?.json();
    for client in [env.client(), Client::http2(env.sidecar.api_address())] {
        let list = client.get(ALL).await?;
        assert_eq!((list.status, list.names().len()), (200, 3));
        assert_eq!(list.json()["items"], direct["items"]);
        assert_eq!(list.json()["metadata"], direct["metadata"]);
    }
    let hidden = env.sidecar.metric_value("ctrlmesh_objects_hidden_total").await?;
    assert_eq!(hidden, 4.0);
    Ok(())
}

#[tokio::test]
async fn predicates_are_combined() -> anyhow::Result<()> {
    for (predicate, expected) in [
        (json!({ "names": ["a1", "b1"] }), &["a1", "b1"][..]),
        (json!({ "labels": "shard=b" }), &["b0", "b1"]),
        (json!({ "not": { "names": ["a1"] } }), &["a0", "a2", "b0", "b1"]),
        (
            json!({ "all": [{ "namespaces": ["a"] }, { "names": ["a1", "b1"] }] }),
            &["a1"],
        ),
        (
            json!({ "any": [{ "namespaces": ["b"] }, { "names": ["a1"] }] }),
            &["a1", "b0", "b1"],
        ),
        (json!({ "any": [] }), &[]),
        (
            json!({ "uidRanges": [["0x0000000000000000", "0x10000000000000000"]] }),
            &["a0", "a1", "a2", "b0", "b1"],
        ),
    ] {
        let env = start_env(predicate.clone()).await?;
        assert_eq!(env.client().get(ALL).await?.names(), expected, "{predicate}");
    }
    Ok(())
}

#[tokio::test]
async fn halves_of_the_uid_space_have_each_object_once() -> anyhow::Result<()> {
    let halves = [
        ["0x0000000000000000", "0x8000000000000000"],
        ["0x8000000000000000", "0x10000000000000000"],
    ];
    let mut env = start_env(json!({ "uidRanges": [halves[0]] })).await?;
    let mut names = env.client().get(ALL).await?.names();
    env.publish(vec![keeping_entry(json!({ "uidRanges": [halves[1]] }))])
        .await?;
    names.extend(env.client().get(ALL).await?.names());
    names.sort();
    assert_eq!(names, ["a0", "a1", "a2", "b0", "b1"]);
    Ok(())
}

/// The contents of the fields with this number.
pub(crate) fn contents(message: &[u8], number: u32) -> Vec<&[u8]> {
    let found = fields(message).map(Result::unwrap);
    let found = found.filter(|field| field.number == number);
    found.map(|field| field.payload.unwrap()).collect()
}

/// The items of a list in protobuf.
pub(crate) fn items(body: &[u8]) -> Vec<&[u8]> {
    let envelope = body.strip_prefix(b"k8s\0").unwrap();
    contents(contents(envelope, 2)[0], 2)
}

#[tokio::test]
async fn protobuf_list_has_kept_objects_as_the_api_server_has_them() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let direct = Client::http1(env.api.address()).with_header("accept", PROTOBUF);
    let direct = direct.get(OF_A).await?;
    let list = env.client().with_header("accept", PROTOBUF).get(ALL).await?;
    assert_eq!(
        (list.status, &list.headers["content-type"]),
        (200, &direct.headers["content-type"])
    );
    assert_eq!(items(&list.body).len(), 3);
    assert_eq!(items(&list.body), items(&direct.body));
    Ok(())
}

#[tokio::test]
async fn rows_of_table_are_filtered_even_if_client_wants_no_objects() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    assert_tables_have_rows(&env, &["a0", "a1", "a2"]).await
}

/// Asserts which rows the client gets, whatever it wants of their objects.
pub(crate) async fn assert_tables_have_rows(env: &TestEnv, expected: &[&str]) -> anyhow::Result<()> {
    let client = env
        .client()
        .with_header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    for query in ["", "?includeObject=None", "?includeObject=Object"] {
        let table = client.get(&format!("{ALL}{query}")).await?.json();
        let rows = table["rows"].as_array().unwrap();
        let cells: Vec<&Value> = rows.iter().map(|row| &row["cells"][0]).collect();
        assert_eq!(cells, expected, "{query}");
    }
    Ok(())
}

#[tokio::test]
async fn pages_have_all_kept_objects_and_do_not_count_others() -> anyhow::Result<()> {
    let env = start_env(json!({ "labels": "shard=b" })).await?;
    let mut names = Vec::new();
    let mut more = String::new();
    loop {
        let page = env.client().get(&format!("{ALL}?limit=2&continue={more}")).await?;
        assert_eq!(page.status, 200);
        names.extend(page.names());
        let list = page.json();
        let metadata = &list["metadata"];
        assert!(metadata.get("remainingItemCount").is_none(), "{metadata}");
        metadata["continue"].as_str().unwrap_or_default().clone_into(&mut more);
        if more.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["b0", "b1"]);
    let direct = Client::http1(env.api.address());
    let page = direct.get(&format!("{ALL}?limit=2")).await?.json();
    assert_eq!(page["metadata"]["remainingItemCount"], 3);
    Ok(())
}

#[tokio::test]
async fn watch_has_events_of_kept_objects_only() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let mut watch = open_watch(&env).await?;
    for namespace in ["b", "a"] {
        env.api.store().put(config_map(namespace, "new", "x"))?;
        env.api.store().put(config_map(namespace, "new", "y"))?;
        env.api.store().delete("configmaps", namespace, "new")?;
    }
    for event_type in ["ADDED", "MODIFIED", "DELETED"] {
        let next = watch.next_event().await?;
        let metadata = &next["object"]["metadata"];
        assert_eq!(
            (&next["type"], &metadata["namespace"]),
            (&event_type.into(), &"a".into())
        );
    }
    Ok(())
}

#[tokio::test]
async fn object_that_leaves_the_predicate_is_deleted_for_the_client() -> anyhow::Result<()> {
    let env = start_env(json!({ "labels": "shard=a" })).await?;
    let mut watch = open_watch(&env).await?;
    env.api.store().put(config_map("a", "a0", "b"))?;
    let deleted = watch.next_event().await?;
    assert_eq!(deleted["type"], "DELETED");
    let mut object = deleted["object"].clone();
    assert!(object["metadata"]["resourceVersion"].is_string(), "{object}");
    let metadata = object["metadata"].as_object_mut().unwrap();
    for key in ["uid", "resourceVersion"] {
        metadata.remove(key);
    }
    let name_alone = json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "namespace": "a", "name": "a0" } });
    assert_eq!(object, name_alone);
    env.api.store().put(config_map("a", "foreign", "b"))?;
    env.api.store().put(config_map("a", "a0", "a"))?;
    assert_eq!(next_event(&mut watch).await?, event("ADDED", "a0"));
    Ok(())
}

#[tokio::test]
async fn object_that_can_never_match_is_never_deleted_for_the_client() -> anyhow::Result<()> {
    let env = start_env(json!({ "all": [{ "labels": "shard=a" }, { "namespaces": ["a"] }] })).await?;
    let mut watch = open_watch(&env).await?;
    env.api.store().put(config_map("b", "b0", "c"))?;
    env.api.store().delete("configmaps", "b", "b0")?;
    env.api.store().put(config_map("a", "a0", "c"))?;
    assert_eq!(next_event(&mut watch).await?, event("DELETED", "a0"));
    Ok(())
}

#[tokio::test]
async fn watch_ends_when_entry_that_fails_closed_makes_impossible_edit() -> anyhow::Result<()> {
    let keeping = json!({ "keepObjects": { "namespaces": ["a"] } });
    let impossible = json!({ "setQuery": { "name": "dryRun", "value": "All" } });
    let entry_with = |edits: Value, policy: &str| {
        let entry = guest_entry("scripted", json!({ "onRequest": [{ "then": { "proceed": edits } }] }));
        entry.with_field("onFailure", policy.into())
    };
    for (policy, last) in [("Closed", "ERROR"), ("Open", "ADDED")] {
        let mut env = start_env(json!({ "namespaces": ["a"] })).await?;
        let mut watch = open_watch(&env).await?;
        let other = entry_with(json!([impossible]), policy).with_field("name", "other/test".into());
        env.publish(vec![entry_with(json!([keeping]), "Closed"), other]).await?;
        env.api.store().put(config_map("a", "new", "x"))?;
        assert_eq!(watch.next_event().await?["type"], last, "{policy}");
    }
    Ok(())
}

#[tokio::test]
async fn new_predicate_ends_open_watch_and_same_one_does_not() -> anyhow::Result<()> {
    let mut env = start_env(json!({ "namespaces": ["a"] })).await?;
    let mut watch = open_watch(&env).await?;
    env.publish(vec![
        keeping_entry(json!({ "namespaces": ["a"] })).with_field("order", 7.into()),
    ])
    .await?;
    env.api.store().put(config_map("a", "new", "x"))?;
    assert_eq!(next_event(&mut watch).await?, event("ADDED", "new"));
    env.publish(vec![keeping_entry(json!({ "namespaces": ["b"] }))]).await?;
    let last = watch.next_event().await?;
    assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(watch.next().await?, None, "a clean end");
    assert_eq!(env.client().get(ALL).await?.names(), ["b0", "b1"]);
    Ok(())
}

#[tokio::test]
async fn only_filterable_responses_are_asked_for() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    env.api.requests().clear();
    let refused = env.client().with_header("accept", "application/yaml").get(ALL).await?;
    assert_eq!(
        (refused.status, refused.json()["reason"].as_str()),
        (406, Some("NotAcceptable"))
    );
    assert_eq!(env.api.requests().count("list"), 0);
    let client = env
        .client()
        .with_header("accept", "application/yaml, application/json")
        .with_header("accept-encoding", "br");
    assert_eq!(client.get(ALL).await?.names(), ["a0", "a1", "a2"]);
    let seen = env.api.requests().recent();
    let list = seen.iter().find(|seen| seen.target == ALL).unwrap();
    assert_eq!(list.headers["accept"], "application/json");
    assert_eq!(list.headers["accept-encoding"], "identity");
    Ok(())
}

#[tokio::test]
async fn errors_of_the_api_server_pass() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let missing = env.client().get("/apis/none.example/v1/things").await?;
    let direct = Client::http1(env.api.address());
    let expected = direct.get("/apis/none.example/v1/things").await?;
    assert_eq!((missing.status, missing.body), (404, expected.body));
    Ok(())
}

#[tokio::test]
async fn edit_of_other_verbs_is_the_plugins_fault() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    let answer = env.client().get("/api/v1/namespaces/a/configmaps/a0").await?;
    let status = answer.json();
    assert_eq!((answer.status, &status["reason"]), (500, &"InternalError".into()));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("keep-objects on get"), "{message}");
    Ok(())
}

#[tokio::test]
async fn deletecollection_deletes_kept_objects_alone() -> anyhow::Result<()> {
    for policy in ["Closed", "Open"] {
        let predicate = json!({ "names": ["a0", "a2", "b0"] });
        let entry = keeping_entry(predicate).with_field("onFailure", policy.into());
        let env = start_env_with(entry).await?;
        let deleted = env.client().send(Method::DELETE, OF_A, "").await?;
        assert_eq!(deleted.status, 200, "{policy}: {:?}", deleted.body);
        let left = Client::http1(env.api.address()).get(ALL).await?;
        assert_eq!(left.names(), ["a1", "b0", "b1"], "{policy}");
        assert_eq!(env.api.requests().count("delete"), 2);
    }
    Ok(())
}

#[tokio::test]
async fn deletecollection_deletes_objects_that_all_plugins_keep() -> anyhow::Result<()> {
    let second = keeping_entry(json!({ "names": ["a1", "a2"] })).with_field("name", "second/test".into());
    let env = TestEnv::start(vec![keeping_entry(json!({ "names": ["a0", "a1"] })), second]).await?;
    env.seed_config_maps("default", "a", 3)?;
    let collection = "/api/v1/namespaces/default/configmaps";
    assert_eq!(env.client().send(Method::DELETE, collection, "").await?.status, 200);
    let left = Client::http1(env.api.address()).get(ALL).await?;
    assert_eq!(left.names(), ["a0", "a2"]);
    Ok(())
}

#[tokio::test]
async fn list_that_breaks_off_is_a_broken_transfer() -> anyhow::Result<()> {
    let env = start_env(json!({ "namespaces": ["a"] })).await?;
    env.api
        .faults()
        .add(Rule::new(Fault::CutBody { after: 400 }).verb("list"));
    for client in [env.client(), Client::http2(env.sidecar.api_address())] {
        assert!(client.get(ALL).await.is_err());
    }
    Ok(())
}

/// A sidecar before a server that gives every request the same response. Dropping this ends both.
pub(crate) struct FixedServer {
    pub(crate) env: TestEnv,
    _serving: JoinSet<()>,
}

impl FixedServer {
    /// The sidecar keeps the objects of namespace `a`.
    pub(crate) async fn start(
        headers: &[(&'static str, &'static str)],
        body: impl AsRef<[u8]>,
    ) -> anyhow::Result<Self> {
        Self::start_with_status(200, headers, body).await
    }

    pub(crate) async fn start_with_status(
        status: u16,
        headers: &[(&'static str, &'static str)],
        body: impl AsRef<[u8]>,
    ) -> anyhow::Result<Self> {
        let entry = keeping_entry(json!({ "namespaces": ["a"] }));
        Self::start_with_entry(entry, status, headers, body).await
    }

    /// The sidecar runs this entry.
    pub(crate) async fn start_with_entry(
        entry: EntrySpec,
        status: u16,
        headers: &[(&'static str, &'static str)],
        body: impl AsRef<[u8]>,
    ) -> anyhow::Result<Self> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let response = Arc::new(response.body(Full::new(Bytes::copy_from_slice(body.as_ref())))?);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = format!("http://{}", listener.local_addr()?);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let response = Arc::clone(&response);
                connections.spawn(async move {
                    let service = service_fn(|_: Request<Incoming>| {
                        let response = Response::clone(&response);
                        async move { anyhow::Ok(response) }
                    });
                    drop(
                        http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await,
                    );
                });
            }
        });
        let env = start_entry_behind(&server, entry).await?;
        Ok(Self { env, _serving: serving })
    }
}

/// A sidecar that sends its requests to this URL and keeps the objects of namespace `a`.
pub(crate) async fn start_env_behind(server: &str) -> anyhow::Result<TestEnv> {
    start_entry_behind(server, keeping_entry(json!({ "namespaces": ["a"] }))).await
}

async fn start_entry_behind(server: &str, entry: EntrySpec) -> anyhow::Result<TestEnv> {
    let api = ApiServer::builder().start().await?;
    TestEnv::start_behind(api, vec![entry], &kubeconfig_for(server)).await
}

pub(crate) fn list_of(item: &Value) -> String {
    json!({ "kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [item] }).to_string()
}

#[tokio::test]
async fn response_that_cannot_be_filtered_is_replaced() -> anyhow::Result<()> {
    let list = list_of(&config_map("a", "secret", "x"));
    for headers in [
        &[("content-type", "application/yaml")][..],
        &[],
        &[("content-type", "application/json"), ("content-encoding", "br")],
        &[("content-type", "application/json"), ("content-encoding", "gzip, gzip")],
    ] {
        let server = FixedServer::start(headers, &list).await?;
        for target in [ALL, "/api/v1/configmaps?watch=1"] {
            let answer = server.env.client().get(target).await?;
            assert_eq!(
                (answer.status, &answer.json()["kind"]),
                (502, &"Status".into()),
                "{headers:?}"
            );
            let body = String::from_utf8_lossy(&answer.body);
            assert!(!body.contains("secret"), "{body}");
        }
        let metric = "ctrlmesh_unfilterable_responses_total";
        assert_eq!(server.env.sidecar.metric_value(metric).await?, 2.0);
    }
    Ok(())
}

#[tokio::test]
async fn fields_of_the_whole_body_are_removed() -> anyhow::Result<()> {
    let headers = [
        ("content-type", "application/json"),
        ("etag", "\"1\""),
        ("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ("accept-ranges", "bytes"),
        ("content-encoding", "identity"),
        ("x-other", "kept"),
    ];
    let server = FixedServer::start(&headers, &list_of(&config_map("b", "foreign", "x"))).await?;
    let answer = server.env.client().get(ALL).await?;
    assert_eq!((answer.status, answer.names().len()), (200, 0));
    assert_eq!(answer.json()["items"], json!([]));
    for name in [
        "etag",
        "last-modified",
        "accept-ranges",
        "content-encoding",
        "content-length",
    ] {
        assert!(!answer.headers.contains_key(name), "{name}");
    }
    assert_eq!(answer.headers["x-other"], "kept");
    Ok(())
}

#[tokio::test]
async fn well_formed_transfer_of_unfinished_list_is_broken() -> anyhow::Result<()> {
    let list = list_of(&config_map("a", "mine", "x"));
    let (unfinished, _) = list.split_at(list.len() - 1);
    let server = FixedServer::start(&[("content-type", "application/json")], unfinished).await?;
    let address = server.env.sidecar.api_address();
    for client in [Client::http1(address), Client::http2(address)] {
        assert!(client.get(ALL).await.is_err());
    }
    Ok(())
}

#[tokio::test]
async fn watch_that_cannot_be_read_ends_with_error_event() -> anyhow::Result<()> {
    let added = json!({ "type": "ADDED", "object": config_map("a", "mine", "x") });
    let body = format!("{added}\n{{\"type\":\"ADDED\"");
    let server = FixedServer::start(&[("content-type", "application/json")], &body).await?;
    let answer = server.env.client().get("/api/v1/configmaps?watch=1").await?;
    let text = String::from_utf8(answer.body.to_vec())?;
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 2, "{text}");
    assert_eq!(events[0], added);
    assert_eq!(
        (&events[1]["type"], &events[1]["object"]["code"]),
        (&"ERROR".into(), &502.into())
    );
    Ok(())
}

#[tokio::test]
async fn client_that_starts_empty_gets_objects_that_enter_and_leave_once() -> anyhow::Result<()> {
    let env = start_env(json!({ "labels": "shard=c" })).await?;
    let store = env.api.store();
    for start in ["", "&resourceVersion=0"] {
        let mut watch = env.client().open_stream(&format!("{ALL}?watch=1{start}")).await?;
        assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
        store.put(config_map("a", "a0", "c"))?;
        assert_eq!(next_event(&mut watch).await?, event("ADDED", "a0"), "{start}");
        store.put(config_map("a", "a0", "b"))?;
        assert_eq!(next_event(&mut watch).await?, event("DELETED", "a0"), "{start}");
        store.put(config_map("a", "a0", "d"))?;
        store.delete("configmaps", "a", "a0")?;
        store.put(config_map("a", "a1", "c"))?;
        assert_eq!(next_event(&mut watch).await?, event("ADDED", "a1"), "{start}");
        // As before.
        store.put(config_map("a", "a0", "a"))?;
        store.put(config_map("a", "a1", "a"))?;
        assert_eq!(next_event(&mut watch).await?, event("DELETED", "a1"), "{start}");
    }
    Ok(())
}

#[tokio::test]
async fn client_that_resumes_may_have_an_object_before_its_first_event() -> anyhow::Result<()> {
    let env = start_env(json!({ "labels": "shard=c" })).await?;
    let mut watch = open_watch(&env).await?;
    let store = env.api.store();
    store.put(config_map("a", "a0", "c"))?;
    assert_eq!(next_event(&mut watch).await?, event("MODIFIED", "a0"));
    store.put(config_map("a", "a1", "d"))?;
    assert_eq!(next_event(&mut watch).await?, event("DELETED", "a1"));
    store.put(config_map("a", "a1", "e"))?;
    store.put(config_map("a", "a1", "c"))?;
    assert_eq!(next_event(&mut watch).await?, event("ADDED", "a1"));
    Ok(())
}
