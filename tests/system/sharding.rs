//! The shard's selector always applies, to every verb that reads or deletes a collection.

use ctrlmesh_tests::{EntrySpec, TestEnv, guest_entry, shard_entry};
use http::Method;
use serde_json::json;

/// One thread remembers the lists of all requests.
const ONE_THREAD: [&str; 2] = ["--workers", "1"];

async fn start_env() -> anyhow::Result<TestEnv> {
    start_env_with(&[]).await
}

async fn start_env_with(arguments: &[&str]) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start_with(vec![shard_entry("a")], arguments).await?;
    env.seed_config_maps("default", "a", 3)?;
    env.seed_config_maps("default", "b", 2)?;
    Ok(env)
}

const MINE: [&str; 3] = ["a0", "a1", "a2"];

#[tokio::test]
async fn list_is_narrowed_to_shard() -> anyhow::Result<()> {
    let env = start_env().await?;
    for target in [
        "/api/v1/configmaps",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/configmaps?labelSelector=",
        "/api/v1/configmaps?labelSelector=&labelSelector=shard%3Db",
        "/api/v1/configmaps?label%53elector=shard",
        "/api/v1/namespaces//configmaps",
        "/api/v1/%63onfigmaps",
        "/api/v1/configmaps/",
        "/api/v1/configmaps?watch=0&watch=1",
    ] {
        let answer = env.client().get(target).await?;
        assert_eq!(
            (answer.status, answer.names()),
            (200, MINE.map(str::to_owned).to_vec()),
            "{target}"
        );
    }
    let foreign = env.client().get("/api/v1/configmaps?labelSelector=shard%3Db").await?;
    assert_eq!(
        (foreign.status, foreign.names().len()),
        (200, 0),
        "a foreign shard is empty, not an error"
    );
    Ok(())
}

#[tokio::test]
async fn repeated_list_is_narrowed_by_each_chain() -> anyhow::Result<()> {
    let mut env = start_env_with(&ONE_THREAD).await?;
    let client = env.client();
    for (shard, expected) in [("a", MINE.as_slice()), ("b", &["b0", "b1"]), ("a", &MINE)] {
        env.publish(vec![shard_entry(shard)]).await?;
        for _ in 0..2 {
            assert_eq!(client.get("/api/v1/configmaps").await?.names(), expected, "{shard}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn repeated_list_gets_header_edits_each_time() -> anyhow::Result<()> {
    let edits = json!([{ "setHeader": { "name": "x-a", "value": "1" } }, { "andLabelSelector": "shard=a" }]);
    let entry = guest_entry("scripted", json!({ "onRequest": [{ "then": { "proceed": edits } }] }));
    let env = TestEnv::start_with(vec![entry], &ONE_THREAD).await?;
    for _ in 0..2 {
        assert_eq!(env.client().get("/api/v1/configmaps").await?.status, 200);
    }
    let lists = env.api.requests().recent();
    let lists = lists
        .iter()
        .filter(|request| request.target.starts_with("/api/v1/configmaps"));
    let is_edited: Vec<bool> = lists
        .map(|list| list.headers.get("x-a").is_some_and(|value| value == "1"))
        .collect();
    assert_eq!(is_edited, [true, true]);
    env.sidecar
        .wait_status("both lists are noted as edited", |status| {
            let mut rows = status.touched.iter();
            rows.any(|row| row.entry == "scripted/test" && row.did == "edited" && row.count == 2)
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn client_selectors_are_anded_with_the_shard() -> anyhow::Result<()> {
    let env = start_env().await?;
    for (shard, number) in [("a", "3"), ("a", "7"), ("b", "7")] {
        env.api.store().put(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": format!("{shard}-{number}"), "namespace": "default",
                "labels": { "shard": shard, "number": number },
            },
        }))?;
    }
    for (selector, expected) in [
        ("number>5", ["a-7"].as_slice()),
        ("number<5", &["a-3"]),
        ("number>2,number<9", &["a-3", "a-7"]),
        ("number>7", &[]),
        ("number!=7,number", &["a-3"]),
        ("shard!=a", &[]),
    ] {
        for encoded in [
            selector.replace('>', "%3E").replace('<', "%3C"),
            selector.replace('>', "%3e").replace('<', "%3c").replace(',', "%2C"),
        ] {
            let answer = env
                .client()
                .get(&format!("/api/v1/configmaps?labelSelector={encoded}"))
                .await?;
            assert_eq!(
                (answer.status, answer.names()),
                (200, expected.iter().map(ToString::to_string).collect()),
                "{encoded}"
            );
        }
    }
    let refused = env
        .client()
        .get("/api/v1/configmaps?labelSelector=number%3Eten")
        .await?;
    assert_eq!(
        (refused.status, refused.json()["reason"].as_str()),
        (400, Some("BadRequest"))
    );
    Ok(())
}

#[tokio::test]
async fn cluster_scoped_list_is_narrowed_to_shard() -> anyhow::Result<()> {
    let settings = json!({ "limits": [{
        "relateResources": [{ "apiGroups": [""], "resources": ["namespaces"] }],
        "selector": { "matchLabels": { "shard": "a" } },
    }] });
    let rule =
        EntrySpec::new("shard-selector/cluster", ctrlmesh_plugins_builtin::SHARD_SELECTOR).with_settings(settings);
    let env = TestEnv::start(vec![rule]).await?;
    let put = |name: &str, shard: &str| {
        env.api.store().put(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "shard": shard } },
        }))
    };
    put("mine", "a")?;
    put("foreign", "b")?;
    let list = env.client().get("/api/v1/namespaces").await?;
    assert_eq!((list.status, list.names()), (200, vec!["mine".to_owned()]));
    let version = list.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut watch = env
        .client()
        .open_stream(&format!("/api/v1/namespaces?watch=1&resourceVersion={version}"))
        .await?;
    put("late-foreign", "b")?;
    put("late-mine", "a")?;
    assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "late-mine");
    env.seed_config_maps("default", "b", 1)?;
    assert_eq!(
        env.client().get("/api/v1/configmaps").await?.names(),
        ["b0"],
        "no limit names them"
    );
    Ok(())
}

#[tokio::test]
async fn pages_are_narrowed_to_shard() -> anyhow::Result<()> {
    let env = start_env().await?;
    let mut names = Vec::new();
    let mut more = String::new();
    loop {
        let answer = env
            .client()
            .get(&format!("/api/v1/configmaps?limit=1&continue={more}"))
            .await?;
        assert_eq!(answer.status, 200);
        names.extend(answer.names());
        more = answer.json()["metadata"]["continue"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if more.is_empty() {
            break;
        }
    }
    names.sort();
    assert_eq!(names, MINE);
    Ok(())
}

#[tokio::test]
async fn deletecollection_is_narrowed_to_shard() -> anyhow::Result<()> {
    let env = start_env().await?;
    let answer = env
        .client()
        .send(Method::DELETE, "/api/v1/namespaces/default/configmaps", "")
        .await?;
    assert_eq!(answer.status, 200);
    let left = env.api.store().read(|state| state.list("configmaps").count());
    assert_eq!(left, 2, "the other shard's");
    Ok(())
}

#[tokio::test]
async fn unparsable_requests_are_refused_and_never_sent() -> anyhow::Result<()> {
    let env = start_env().await?;
    env.api.requests().clear();
    for query in [
        "labelSelector=shard%3Da;x=1",
        "labelSelector=shard%3Da%zz",
        "labelSelector=a%3D%3D%3D",
        "labelSelector=,",
    ] {
        let answer = env.client().get(&format!("/api/v1/configmaps?{query}")).await?;
        assert_eq!(
            (answer.status, answer.json()["reason"].as_str()),
            (400, Some("BadRequest")),
            "{query}"
        );
    }
    assert_eq!(env.api.requests().count("list"), 0);
    Ok(())
}

#[tokio::test]
async fn other_kinds_and_reads_by_name_pass() -> anyhow::Result<()> {
    let env = start_env().await?;
    assert_eq!(
        env.client()
            .get("/api/v1/namespaces/default/configmaps/b0")
            .await?
            .status,
        200
    );
    env.client().get("/api/v1/secrets?labelSelector=x%3D1").await?;
    let seen = env.api.requests().recent();
    assert!(
        seen.iter()
            .any(|seen| seen.target == "/api/v1/secrets?labelSelector=x%3D1"),
        "byte-equal"
    );
    let metric = env
        .sidecar
        .metric_value(r#"ctrlmesh_plugin_calls_total{entry="shard-selector/test",phase="request"}"#)
        .await?;
    assert_eq!(
        metric, 0.0,
        "a request that the plugin did not ask for never reaches it"
    );
    Ok(())
}

#[tokio::test]
async fn websocket_watch_is_refused() -> anyhow::Result<()> {
    let env = start_env().await?;
    let client = env
        .client()
        .with_header("connection", "Upgrade")
        .with_header("upgrade", "websocket")
        .with_header("sec-websocket-version", "13")
        .with_header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let answer = client.get("/api/v1/configmaps?watch=1").await?;
    assert_eq!((answer.status, answer.json()["kind"].as_str()), (400, Some("Status")));
    Ok(())
}
