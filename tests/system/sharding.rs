//! The shard's selector always wins, on every verb that reads or deletes a collection.

use ctrlmesh_tests::{EntrySpec, Stand, shard};
use http::Method;
use serde_json::json;

async fn stand() -> anyhow::Result<Stand> {
    let stand = Stand::start(vec![shard("a")]).await?;
    stand.seed("default", "a", 3)?;
    stand.seed("default", "b", 2)?;
    Ok(stand)
}

const MINE: [&str; 3] = ["a0", "a1", "a2"];

#[tokio::test]
async fn a_list_shows_the_shard_and_nothing_else() -> anyhow::Result<()> {
    let stand = stand().await?;
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
        let answer = stand.client().get(target).await?;
        assert_eq!(
            (answer.status, answer.names()),
            (200, MINE.map(str::to_owned).to_vec()),
            "{target}"
        );
    }
    let foreign = stand.client().get("/api/v1/configmaps?labelSelector=shard%3Db").await?;
    assert_eq!(
        (foreign.status, foreign.names().len()),
        (200, 0),
        "a foreign shard is empty, not an error"
    );
    Ok(())
}

#[tokio::test]
async fn a_client_may_compare_as_apimachinery_does_and_gets_its_shards_part() -> anyhow::Result<()> {
    let stand = stand().await?;
    for (shard, number) in [("a", "3"), ("a", "7"), ("b", "7")] {
        stand.api.store().put(json!({
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
            let answer = stand
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
    let refused = stand
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
async fn a_resource_without_a_namespace_is_narrowed_too() -> anyhow::Result<()> {
    let settings = json!({ "limits": [{
        "relateResources": [{ "apiGroups": [""], "resources": ["namespaces"] }],
        "selector": { "matchLabels": { "shard": "a" } },
    }] });
    let rule = EntrySpec::new("shard-selector/cluster", ctrlmesh_plugins_builtin::SHARD_SELECTOR).settings(settings);
    let stand = Stand::start(vec![rule]).await?;
    let put = |name: &str, shard: &str| {
        stand.api.store().put(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": { "shard": shard } },
        }))
    };
    put("mine", "a")?;
    put("foreign", "b")?;
    let list = stand.client().get("/api/v1/namespaces").await?;
    assert_eq!((list.status, list.names()), (200, vec!["mine".to_owned()]));
    let version = list.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut watch = stand
        .client()
        .stream(&format!("/api/v1/namespaces?watch=1&resourceVersion={version}"))
        .await?;
    put("late-foreign", "b")?;
    put("late-mine", "a")?;
    assert_eq!(watch.event().await?["object"]["metadata"]["name"], "late-mine");
    stand.seed("default", "b", 1)?;
    assert_eq!(
        stand.client().get("/api/v1/configmaps").await?.names(),
        ["b0"],
        "no limit names them"
    );
    Ok(())
}

#[tokio::test]
async fn every_page_is_the_shards() -> anyhow::Result<()> {
    let stand = stand().await?;
    let mut names = Vec::new();
    let mut more = String::new();
    loop {
        let answer = stand
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
async fn deletecollection_deletes_the_shard_and_nothing_else() -> anyhow::Result<()> {
    let stand = stand().await?;
    let answer = stand
        .client()
        .send(Method::DELETE, "/api/v1/namespaces/default/configmaps", "")
        .await?;
    assert_eq!(answer.status, 200);
    let left = stand.api.store().read(|state| state.list("configmaps").count());
    assert_eq!(left, 2, "the other shard's");
    Ok(())
}

#[tokio::test]
async fn what_can_not_be_parsed_is_refused_and_never_sent() -> anyhow::Result<()> {
    let stand = stand().await?;
    stand.api.requests().clear();
    for query in [
        "labelSelector=shard%3Da;x=1",
        "labelSelector=shard%3Da%zz",
        "labelSelector=a%3D%3D%3D",
        "labelSelector=,",
    ] {
        let answer = stand.client().get(&format!("/api/v1/configmaps?{query}")).await?;
        assert_eq!(
            (answer.status, answer.json()["reason"].as_str()),
            (400, Some("BadRequest")),
            "{query}"
        );
    }
    assert_eq!(stand.api.requests().count("list"), 0);
    Ok(())
}

#[tokio::test]
async fn other_kinds_and_reads_by_name_pass() -> anyhow::Result<()> {
    let stand = stand().await?;
    assert_eq!(
        stand
            .client()
            .get("/api/v1/namespaces/default/configmaps/b0")
            .await?
            .status,
        200
    );
    stand.client().get("/api/v1/secrets?labelSelector=x%3D1").await?;
    let seen = stand.api.requests().all();
    assert!(
        seen.iter()
            .any(|seen| seen.target == "/api/v1/secrets?labelSelector=x%3D1"),
        "byte-equal"
    );
    let metric = stand
        .sidecar
        .metric(r#"ctrlmesh_plugin_calls_total{entry="shard-selector/test",phase="request"}"#)
        .await?;
    assert_eq!(
        metric, 0.0,
        "a request that the plugin did not ask for never reaches it"
    );
    Ok(())
}

#[tokio::test]
async fn a_watch_over_websocket_is_refused() -> anyhow::Result<()> {
    let stand = stand().await?;
    let client = stand
        .client()
        .with("connection", "Upgrade")
        .with("upgrade", "websocket")
        .with("sec-websocket-version", "13")
        .with("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let answer = client.get("/api/v1/configmaps?watch=1").await?;
    assert_eq!((answer.status, answer.json()["kind"].as_str()), (400, Some("Status")));
    Ok(())
}
