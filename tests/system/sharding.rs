//! The shard's selector always wins, on every verb that reads or deletes a collection.

use ctrlmesh_tests::{Stand, shard};
use http::Method;

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
