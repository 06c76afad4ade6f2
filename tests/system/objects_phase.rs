//! Lists and watches about whose objects a plugin is asked (`ask-about-objects`, `on-objects`).

use anyhow::Context as _;
use ctrlmesh_tests::client::Stream;
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, config_map, guest_entry};
use http::Method;
use serde_json::{Value, json};

use crate::kept_objects::{ALL, FixedServer, assert_tables_have_rows, contents, items};
use crate::kept_objects_gzip::{GZIP, gzip};

const OF_A: &str = "/api/v1/namespaces/a/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const OBJECT_CALLS: &str = r#"ctrlmesh_plugin_calls_total{entry="scripted/test",phase="objects"}"#;
/// Built against version 0.1 of the interface.
const HELLO: &[u8] = include_bytes!("../guests/kept/0.1/hello.wasm");

/// Asks about the objects of lists and watches, needs these annotations, and decides by this text.
fn asking_entry_with(annotations: &[&str], on_objects: Value) -> EntrySpec {
    let edit = json!({ "askAboutObjects": annotations });
    let on_verb = |verb: &str| json!({ "when": { "verb": verb }, "then": { "proceed": [edit] } });
    let settings = json!({ "onRequest": [on_verb("list"), on_verb("watch")], "onObjects": on_objects });
    guest_entry("scripted", settings)
}

fn asking_entry(on_objects: Value) -> EntrySpec {
    asking_entry_with(&[], on_objects)
}

/// Config maps `a0` to `a2` in namespace `a`, and `b0` and `b1` in namespace `b`.
async fn start_env(entries: Vec<EntrySpec>) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(entries).await?;
    for name in ["a", "b"] {
        env.api
            .store()
            .put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))?;
    }
    env.seed_config_maps("a", "a", 3)?;
    env.seed_config_maps("b", "b", 2)?;
    Ok(env)
}

async fn open_watch(env: &TestEnv) -> anyhow::Result<Stream> {
    let list = Client::http1(env.api.address()).get(ALL).await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    env.client().get(ALL).await?;
    let target = format!("{ALL}?watch=1&resourceVersion={version}");
    let watch = env.client().open_stream(&target).await?;
    assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
    Ok(watch)
}

/// Type and name of the next event.
async fn next_event(watch: &mut Stream) -> anyhow::Result<(String, String)> {
    let event = watch.next_event().await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok((text(&event["type"]), text(&event["object"]["metadata"]["name"])))
}

fn event(event_type: &str, name: &str) -> (String, String) {
    (event_type.to_owned(), name.to_owned())
}

async fn faults_of(env: &TestEnv, entry: &str, kind: &str) -> anyhow::Result<f64> {
    let series = format!(r#"ctrlmesh_plugin_faults_total{{entry="{entry}",kind="{kind}"}}"#);
    env.sidecar.metric_value(&series).await
}

#[tokio::test]
async fn list_has_the_objects_that_the_plugin_keeps_as_the_api_server_has_them() -> anyhow::Result<()> {
    let env = start_env(vec![asking_entry(json!({ "labels": { "shard": "a" } }))]).await?;
    let direct = Client::http1(env.api.address()).get(OF_A).await?.json();
    for client in [env.client(), Client::http2(env.sidecar.api_address())] {
        let list = client.get(ALL).await?;
        assert_eq!((list.status, list.names().len()), (200, 3), "{}", env.sidecar.log());
        assert_eq!(list.json()["items"], direct["items"]);
    }
    assert!(env.sidecar.metric_value(OBJECT_CALLS).await? >= 2.0);
    let hidden = env.sidecar.metric_value("ctrlmesh_objects_hidden_total").await?;
    assert_eq!(hidden, 4.0);
    Ok(())
}

#[tokio::test]
async fn protobuf_list_has_the_objects_that_the_plugin_keeps() -> anyhow::Result<()> {
    let env = start_env(vec![asking_entry(json!({ "names": ["a0", "b1"] }))]).await?;
    let direct = Client::http1(env.api.address()).with_header("accept", PROTOBUF);
    let direct = direct.get(ALL).await?;
    let list = env.client().with_header("accept", PROTOBUF).get(ALL).await?;
    assert_eq!(list.status, 200);
    let (all, kept) = (items(&direct.body), items(&list.body));
    assert_eq!((all.len(), kept.len()), (5, 2));
    assert_eq!(kept, [all[0], all[4]]);
    Ok(())
}

#[tokio::test]
async fn table_has_the_rows_of_objects_that_the_plugin_keeps() -> anyhow::Result<()> {
    let env = start_env(vec![asking_entry(json!({ "labels": { "shard": "a" } }))]).await?;
    assert_tables_have_rows(&env, &["a0", "a1", "a2"]).await
}

#[tokio::test]
async fn list_in_gzip_has_the_objects_that_the_plugin_keeps() -> anyhow::Result<()> {
    let (mine, foreign) = (config_map("a", "mine", "a"), config_map("a", "foreign", "b"));
    let list = json!({ "kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [foreign, mine] });
    let entry = asking_entry(json!({ "labels": { "shard": "a" } }));
    let server = FixedServer::start_with_entry(entry, 200, &GZIP, gzip(&list.to_string())).await?;
    let client = server.env.client().with_header("accept-encoding", "gzip");
    let answer = client.get(ALL).await?;
    assert_eq!((answer.status, answer.names()), (200, vec!["mine".to_owned()]));
    assert_eq!(answer.json()["items"][0], mine);
    assert!(server.env.sidecar.metric_value(OBJECT_CALLS).await? >= 1.0);
    Ok(())
}

/// Type and name of the next event of a watch in protobuf.
async fn next_protobuf_event(watch: &mut Stream) -> anyhow::Result<(String, String)> {
    let mut bytes: Vec<u8> = Vec::new();
    let is_whole = |bytes: &[u8]| {
        let length = bytes.first_chunk().map(|length| u32::from_be_bytes(*length) as usize);
        length.is_some_and(|length| bytes.len() >= 4 + length)
    };
    while !is_whole(bytes.as_slice()) {
        bytes.extend(watch.next().await?.context("the watch ended")?);
    }
    let event = &bytes[4..];
    let raw = contents(contents(event, 2)[0], 1)[0];
    let object = contents(raw.strip_prefix(b"k8s\0").context("no envelope")?, 2)[0];
    let metadata = contents(object, 1)[0];
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Ok((text(contents(event, 1)[0]), text(contents(metadata, 1)[0])))
}

#[tokio::test]
async fn protobuf_watch_has_events_of_objects_that_the_plugin_keeps() -> anyhow::Result<()> {
    let env = start_env(vec![asking_entry(json!({ "labels": { "shard": "c" } }))]).await?;
    let store = env.api.store();
    let client = env.client().with_header("accept", PROTOBUF);
    let mut watch = client.open_stream(&format!("{ALL}?watch=1")).await?;
    assert_eq!(watch.head.status, 200, "{}", env.sidecar.log());
    let content_type = watch.head.headers["content-type"].to_str()?;
    assert!(content_type.starts_with(PROTOBUF), "{content_type}");
    store.put(config_map("a", "a0", "c"))?;
    assert_eq!(next_protobuf_event(&mut watch).await?, event("ADDED", "a0"));
    store.put(config_map("a", "a0", "b"))?;
    assert_eq!(next_protobuf_event(&mut watch).await?, event("DELETED", "a0"));
    store.put(config_map("a", "a1", "c"))?;
    assert_eq!(next_protobuf_event(&mut watch).await?, event("ADDED", "a1"));
    Ok(())
}

#[tokio::test]
async fn request_that_no_plugin_asks_about_makes_no_call() -> anyhow::Result<()> {
    let env = start_env(vec![asking_entry(json!({ "names": [] }))]).await?;
    assert_eq!(env.client().get(&format!("{OF_A}/a0")).await?.status, 200);
    assert_eq!(env.sidecar.metric_value(OBJECT_CALLS).await?, 0.0);
    assert_eq!(env.client().get(ALL).await?.names(), [""; 0]);
    assert!(env.sidecar.metric_value(OBJECT_CALLS).await? >= 1.0);
    Ok(())
}

#[tokio::test]
async fn plugin_gets_controller_and_annotations_that_it_asks_for() -> anyhow::Result<()> {
    let mut owned = config_map("a", "owned", "a");
    owned["metadata"]["annotations"] = json!({ "example.com/team": "t", "example.com/other": "o" });
    owned["metadata"]["ownerReferences"] = json!([
        { "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1" },
        { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "2", "controller": true },
    ]);
    for (annotations, on_objects) in [
        (&[][..], json!({ "controller": "ReplicaSet/web", "annotationCount": 0 })),
        (
            &["example.com/team", "example.com/missing"],
            json!({ "annotations": { "example.com/team": "t" }, "annotationCount": 1 }),
        ),
    ] {
        let env = start_env(vec![asking_entry_with(annotations, on_objects.clone())]).await?;
        env.api.store().put(owned.clone())?;
        let json_list = env.client().get(ALL).await?;
        assert_eq!(json_list.names(), ["owned"], "{on_objects}");
        let list = env.client().with_header("accept", PROTOBUF).get(ALL).await?;
        assert_eq!(items(&list.body).len(), 1, "{on_objects}");
    }
    Ok(())
}

#[tokio::test]
async fn plugin_reads_header_fields_of_the_request_when_it_is_asked() -> anyhow::Result<()> {
    let env = start_env(vec![asking_entry(
        json!({ "names": ["a0"], "userAgent": "operator/1" }),
    )])
    .await?;
    for (agent, kept) in [("operator/1", &["a0"][..]), ("other/1", &[][..])] {
        let list = env.client().with_header("user-agent", agent).get(ALL).await?;
        assert_eq!(list.names(), kept, "{agent}");
    }
    Ok(())
}

#[tokio::test]
async fn long_list_comes_in_several_calls() -> anyhow::Result<()> {
    // A call with many objects takes a while in a sidecar that is built for tests.
    let entry = asking_entry(json!({ "labels": { "shard": "a" } })).with_field("timeoutMs", 1_000.into());
    let env = start_env(vec![entry]).await?;
    env.seed_config_maps("b", "c", 600)?;
    env.seed_config_maps("a", "a", 300)?;
    for accept in ["application/json", PROTOBUF] {
        let list = env.client().with_header("accept", accept).get(ALL).await?;
        let kept = if accept == PROTOBUF {
            items(&list.body).len()
        } else {
            list.names().len()
        };
        assert_eq!(kept, 300, "{accept}");
    }
    assert!(env.sidecar.metric_value(OBJECT_CALLS).await? >= 2.0 * 4.0);
    Ok(())
}

#[tokio::test]
async fn plugins_and_predicates_add_up() -> anyhow::Result<()> {
    let predicate = json!({ "keepObjects": { "namespaces": ["a"] } });
    let both = json!([{ "askAboutObjects": [] }, predicate]);
    let settings =
        json!({ "onRequest": [{ "then": { "proceed": both } }], "onObjects": { "names": ["a0", "a1", "b0"] } });
    let second = asking_entry(json!({ "names": ["a1", "a2", "b0"] })).with_field("name", "second/test".into());
    let env = start_env(vec![guest_entry("scripted", settings), second]).await?;
    assert_eq!(env.client().get(ALL).await?.names(), ["a1"]);
    let count = |entry: &str| format!(r#"ctrlmesh_plugin_objects_total{{entry="{entry}",label=""}}"#);
    assert_eq!(env.sidecar.metric_value(&count("scripted/test")).await?, 3.0);
    assert_eq!(env.sidecar.metric_value(&count("second/test")).await?, 2.0);
    Ok(())
}

#[tokio::test]
async fn object_that_the_plugin_no_longer_keeps_is_deleted_for_the_client() -> anyhow::Result<()> {
    let env = start_env(vec![asking_entry(json!({ "labels": { "shard": "c" } }))]).await?;
    let store = env.api.store();
    let mut watch = env.client().open_stream(&format!("{ALL}?watch=1")).await?;
    store.put(config_map("a", "a0", "c"))?;
    assert_eq!(next_event(&mut watch).await?, event("ADDED", "a0"));
    store.put(config_map("a", "a0", "b"))?;
    let deleted = watch.next_event().await?;
    assert_eq!(deleted["type"], "DELETED");
    assert!(deleted["object"]["metadata"].get("labels").is_none(), "{deleted}");
    store.put(config_map("a", "a0", "d"))?;
    store.put(config_map("a", "a1", "c"))?;
    assert_eq!(next_event(&mut watch).await?, event("ADDED", "a1"));
    store.delete("configmaps", "a", "a1")?;
    assert_eq!(next_event(&mut watch).await?, event("DELETED", "a1"));
    Ok(())
}

#[tokio::test]
async fn list_is_broken_off_after_any_failure_whatever_the_failure_policy() -> anyhow::Result<()> {
    let acting = |guest: &str| guest_entry(guest, json!({ "in": "on-objects" }));
    let slow = |entry: EntrySpec| entry.with_field("timeoutMs", 1_000.into());
    for policy in ["Closed", "Open"] {
        for (entry, name, kind) in [
            (asking_entry(json!({ "trapAt": "a1" })), "scripted/test", "trap"),
            (asking_entry(json!({ "moreFlags": 1 })), "scripted/test", "invalid"),
            (
                asking_entry(json!({ "leavesLastOut": true })),
                "scripted/test",
                "invalid",
            ),
            (acting("spin"), "spin/test", "deadline"),
            (slow(acting("greedy")), "greedy/test", "memory"),
            (slow(acting("recurse")), "recurse/test", "trap"),
        ] {
            let env = start_env(vec![entry.with_field("onFailure", policy.into())]).await?;
            let clients = [env.client(), Client::http2(env.sidecar.api_address())];
            for (client, faults) in clients.into_iter().zip([1.0, 2.0]) {
                assert!(client.get(ALL).await.is_err(), "{name} {kind} {policy}");
                assert_eq!(faults_of(&env, name, kind).await?, faults, "{}", env.sidecar.log());
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn watch_ends_with_error_event_before_the_object_on_which_the_plugin_fails() -> anyhow::Result<()> {
    for policy in ["Closed", "Open"] {
        let entry = asking_entry(json!({ "trapAt": "bad" })).with_field("onFailure", policy.into());
        let env = start_env(vec![entry]).await?;
        let mut watch = open_watch(&env).await?;
        env.api.store().put(config_map("a", "good", "x"))?;
        assert_eq!(next_event(&mut watch).await?, event("ADDED", "good"));
        env.api.store().put(config_map("a", "bad", "x"))?;
        let last = watch.next_event().await?;
        assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &502.into()));
        let message = last["object"]["message"].as_str().unwrap();
        assert!(message.contains("scripted/test"), "{message}");
        assert_eq!(watch.next().await?, None, "a clean end");
        // A fresh instance decides on later requests.
        assert_eq!(env.client().get(&format!("{OF_A}?limit=1")).await?.names(), ["a0"]);
    }
    Ok(())
}

#[tokio::test]
async fn other_settings_end_an_open_watch_and_the_same_ones_do_not() -> anyhow::Result<()> {
    let keeping = |shard: &str| asking_entry(json!({ "labels": { "shard": shard } }));
    let mut env = start_env(vec![keeping("x")]).await?;
    let mut watch = open_watch(&env).await?;
    env.publish(vec![keeping("x").with_field("order", 7.into())]).await?;
    env.api.store().put(config_map("a", "new", "x"))?;
    assert_eq!(next_event(&mut watch).await?, event("ADDED", "new"));
    env.publish(vec![keeping("a")]).await?;
    let last = watch.next_event().await?;
    assert_eq!((&last["type"], &last["object"]["code"]), (&"ERROR".into(), &410.into()));
    assert_eq!(env.client().get(ALL).await?.names(), ["a0", "a1", "a2"]);
    Ok(())
}

#[tokio::test]
async fn question_about_other_verbs_is_the_plugins_fault_and_deletecollection_is_refused() -> anyhow::Result<()> {
    let settings = json!({ "onRequest": [{ "then": { "proceed": [{ "askAboutObjects": [] }] } }] });
    let env = start_env(vec![guest_entry("scripted", settings)]).await?;
    let answer = env.client().get(&format!("{OF_A}/a0")).await?;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(answer.status, 500);
    assert!(message.contains("ask-about-objects on get"), "{message}");
    assert_eq!(env.client().send(Method::DELETE, OF_A, "").await?.status, 400);
    let left = env.api.store().read(|state| state.list("configmaps").count());
    assert_eq!(left, 5);
    Ok(())
}

#[tokio::test]
async fn invalid_question_is_a_fault() -> anyhow::Result<()> {
    let many: Vec<String> = (0..17).map(|key| format!("example.com/{key}")).collect();
    let long = "k".repeat(318);
    for edits in [
        json!([{ "askAboutObjects": many }]),
        json!([{ "askAboutObjects": many[..9] }, { "askAboutObjects": many[8..] }]),
        json!([{ "askAboutObjects": [""] }]),
        json!([{ "askAboutObjects": [long] }]),
    ] {
        let entry = guest_entry("scripted", json!({ "onRequest": [{ "then": { "proceed": edits } }] }));
        let env = start_env(vec![entry]).await?;
        assert_eq!(env.client().get(ALL).await?.status, 500, "{edits}");
        assert_eq!(faults_of(&env, "scripted/test", "invalid").await?, 1.0, "{edits}");
    }
    Ok(())
}

#[tokio::test]
async fn plugin_of_0_1_works_beside_one_that_is_asked() -> anyhow::Result<()> {
    let hello = EntrySpec::new("hello/test", HELLO).with_settings(json!({ "protectedNamespaces": ["b"] }));
    let env = start_env(vec![hello, asking_entry(json!({ "names": ["a0"] }))]).await?;
    assert_eq!(env.client().get(ALL).await?.names(), ["a0"], "{}", env.sidecar.log());
    let delete = env.client().send(Method::DELETE, "/api/v1/namespaces/b", "").await?;
    assert_eq!(delete.status, 403);
    let metrics = env.sidecar.metrics().await?;
    assert!(!metrics.contains("ctrlmesh_plugin_faults_total{"), "{metrics}");
    Ok(())
}
