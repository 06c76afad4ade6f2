//! Deletes of collections of which a shard has some objects: the sidecar lists the collection and deletes the objects of the shard.

use std::collections::BTreeSet;

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::client::ReceivedResponse;
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, config_map, wait_until};
use ctrlmesh_wire::protobuf::{Message, envelope};
use http::Method;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::in_flight_requests::{in_flight, wait_earlier};

const ALL: &str = "/api/v1/configmaps";
const OF_NAMESPACE: &str = "/api/v1/namespaces/default/configmaps";

/// A shard of config maps.
fn shard(key: &str, ranges: &[&str]) -> EntrySpec {
    let settings = json!({
        "shard": "a",
        "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps", "namespaces"] }],
            "hashRanges": { "key": key, "ranges": ranges },
        }],
    });
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR).with_settings(settings)
}

/// A shard that is one of several, and has all objects of the namespace `default`.
fn whole_namespace() -> EntrySpec {
    shard("namespace", &["0-1022"])
}

/// The config maps `a00`, `a01` and so on in the namespace `default`.
async fn start_env(entry: EntrySpec, count: usize) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![entry]).await?;
    for number in 0..count {
        let team = if number % 2 == 0 { "even" } else { "odd" };
        env.api
            .store()
            .put(config_map("default", &format!("a{number:02}"), team))?;
    }
    Ok(env)
}

async fn delete(env: &TestEnv, query: &str, body: &str) -> anyhow::Result<ReceivedResponse> {
    let client = env.client().with_header("content-type", "application/json");
    client
        .send(Method::DELETE, &format!("{OF_NAMESPACE}{query}"), body.to_owned())
        .await
}

/// Begins a delete whose requests with this verb are held.
fn begin_held_delete(env: &TestEnv, verb: &str) -> (Gate, JoinHandle<anyhow::Result<ReceivedResponse>>) {
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb(verb));
    let client = env.client();
    let deleting = tokio::spawn(async move { client.send(Method::DELETE, OF_NAMESPACE, "").await });
    (gate, deleting)
}

/// The names of the objects in the store.
fn stored(env: &TestEnv) -> BTreeSet<String> {
    env.api.store().read(|state| {
        let objects = state.list("configmaps");
        objects
            .map(|object| object["metadata"]["name"].as_str().unwrap_or_default().to_owned())
            .collect()
    })
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn each_shard_deletes_its_own_objects_over_several_pages() -> anyhow::Result<()> {
    let mut env = start_env(shard("uid", &["0-511"]), 1_200).await?;
    let all = stored(&env);
    let own: BTreeSet<String> = env.client().get(ALL).await?.names().into_iter().collect();
    assert!(
        !own.is_empty() && own.len() < all.len(),
        "{} of {}",
        own.len(),
        all.len()
    );
    env.api.requests().clear();
    let deleted = delete(&env, "", "").await?;
    let status = deleted.json();
    assert_eq!(deleted.status, 200, "{:?}\n{}", deleted.body, env.sidecar.log());
    assert_eq!(
        (&status["kind"], &status["status"]),
        (&json!("Status"), &json!("Success"))
    );
    assert_eq!(stored(&env), &all - &own);
    let log = env.api.requests();
    assert_eq!((log.count("list"), log.count("deletecollection")), (3, 0));
    assert_eq!(log.count("delete"), own.len() as u64);
    let recent = log.recent();
    let lists: Vec<_> = recent.iter().filter(|request| request.verb == "list").collect();
    assert!(lists.iter().all(|list| list.target.contains("limit=500")));
    let accept = lists[0].headers["accept"].to_str()?.to_owned();
    assert!(
        accept.starts_with("application/json;as=PartialObjectMetadataList;"),
        "{accept}"
    );

    env.publish(vec![shard("uid", &["512-1023"])]).await?;
    assert_eq!(delete(&env, "", "").await?.status, 200);
    assert_eq!(stored(&env), BTreeSet::new(), "the other shard has the rest");
    Ok(())
}

#[tokio::test]
async fn shard_without_objects_deletes_nothing() -> anyhow::Result<()> {
    let env = start_env(shard("uid", &[]), 2).await?;
    assert_eq!(delete(&env, "", "").await?.status, 200);
    assert_eq!(stored(&env), names(&["a00", "a01"]));
    assert_eq!(env.api.requests().count("delete"), 0);
    Ok(())
}

#[tokio::test]
async fn selectors_and_limit_of_the_client_hold() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 6).await?;
    let rest = |deleted: &[&str]| &names(&["a00", "a01", "a02", "a03", "a04", "a05"]) - &names(deleted);
    assert_eq!(
        delete(&env, "?labelSelector=shard%3Dodd&limit=2", "").await?.status,
        200
    );
    assert_eq!(stored(&env), rest(&["a01", "a03"]));
    assert_eq!(
        delete(&env, "?fieldSelector=metadata.name%3Da02", "").await?.status,
        200
    );
    assert_eq!(stored(&env), rest(&["a01", "a02", "a03"]));
    assert_eq!(
        delete(&env, "?watch=1&labelSelector=shard%3Deven", "").await?.status,
        200
    );
    assert_eq!(stored(&env), names(&["a05"]));
    Ok(())
}

#[tokio::test]
async fn objects_are_chosen_by_their_current_state() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 3).await?;
    let direct = Client::http1(env.api.address());
    let earlier = direct.get(&format!("{OF_NAMESPACE}?limit=1")).await?.json();
    let [version, token] =
        ["resourceVersion", "continue"].map(|key| earlier["metadata"][key].as_str().unwrap_or_default());
    env.api.store().put(config_map("default", "a00", "odd"))?;
    env.api.store().put(config_map("default", "a03", "even"))?;
    let of_version = format!("?labelSelector=shard%3Deven&resourceVersion={version}");
    for query in [
        format!("{of_version}&resourceVersionMatch=Exact"),
        format!("?continue={token}"),
    ] {
        let refused = delete(&env, &query, "{}").await?;
        assert_eq!(refused.status, 400, "{query}: {:?}", refused.body);
    }
    assert_eq!(stored(&env), names(&["a00", "a01", "a02", "a03"]));
    assert_eq!(delete(&env, &of_version, "{}").await?.status, 200);
    assert_eq!(stored(&env), names(&["a00", "a01"]));
    Ok(())
}

#[tokio::test]
async fn options_of_the_request_hold_for_each_delete() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 3).await?;
    for (query, body) in [("?dryRun=All", ""), ("", r#"{"dryRun":["All"]}"#)] {
        assert_eq!(delete(&env, query, body).await?.status, 200, "{query} {body}");
    }
    let dry_run = envelope("v1", "DeleteOptions", &Message::new().string(5, "All"));
    let client = env
        .client()
        .with_header("content-type", "application/vnd.kubernetes.protobuf");
    assert_eq!(client.send(Method::DELETE, OF_NAMESPACE, dry_run).await?.status, 200);
    assert_eq!(env.api.requests().count("delete"), 9);
    // The test kit cannot orphan objects, and says so.
    let orphaning = delete(&env, "", r#"{"propagationPolicy":"Orphan"}"#).await?;
    assert_eq!(orphaning.status, 501, "{:?}", orphaning.body);
    assert_eq!(stored(&env), names(&["a00", "a01", "a02"]));
    Ok(())
}

#[tokio::test]
async fn object_that_took_the_name_of_a_listed_one_is_not_deleted() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 3).await?;
    let (gate, deleting) = begin_held_delete(&env, "delete");
    gate.wait_for_arrivals(3).await?;
    let store = env.api.store();
    for name in ["a00", "a01"] {
        store.delete("configmaps", "default", name)?;
    }
    store.put(config_map("default", "a01", "new"))?;
    gate.open();
    let deleted = deleting.await??;
    assert_eq!(deleted.status, 200, "{:?}", deleted.body);
    assert_eq!(stored(&env), names(&["a01"]));
    Ok(())
}

#[tokio::test]
async fn failed_delete_ends_the_deletion_with_the_error_of_the_api_server() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 40).await?;
    let fault = Fault::Status {
        code: 429,
        retry_after: Some(7),
    };
    env.api
        .faults()
        .add(Rule::new(fault).verb("delete").name("a09").times(1));
    let failed = delete(&env, "", "").await?;
    assert_eq!((failed.status, &failed.json()["kind"]), (429, &json!("Status")));
    assert_eq!(failed.headers["retry-after"], "7");
    let sent = env.api.requests().count("delete");
    assert!((10..40).contains(&sent), "{sent} deletes");
    assert!(stored(&env).contains("a09") && !stored(&env).contains("a00"));
    assert_eq!(delete(&env, "", "").await?.status, 200, "a repeat goes on");
    assert_eq!(stored(&env), BTreeSet::new());
    Ok(())
}

#[tokio::test]
async fn conflict_about_the_same_object_is_a_failure() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 1).await?;
    let refused = delete(&env, "", r#"{"preconditions":{"resourceVersion":"1"}}"#).await?;
    assert_eq!((refused.status, &refused.json()["reason"]), (409, &json!("Conflict")));
    assert_eq!(stored(&env), names(&["a00"]));
    Ok(())
}

#[tokio::test]
async fn missing_right_is_named() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 3).await?;
    for verb in ["list", "delete"] {
        let fault = Fault::Status {
            code: 403,
            retry_after: None,
        };
        let rule = env.api.faults().add(Rule::new(fault).verb(verb));
        let refused = delete(&env, "", "").await?;
        env.api.faults().remove(rule);
        assert_eq!(refused.status, 403, "{verb}: {:?}", refused.body);
        let message = refused.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(&format!("grant the verb \"{verb}\"")), "{message}");
        assert_eq!(stored(&env).len(), 3, "{verb}");
    }
    Ok(())
}

#[tokio::test]
async fn request_that_no_delete_can_follow_is_refused() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 2).await?;
    for (target, content_type, body, status) in [
        (
            OF_NAMESPACE,
            "application/json",
            r#"{"preconditions":{"uid":"u"}}"#,
            400,
        ),
        (OF_NAMESPACE, "application/json", "{", 400),
        (OF_NAMESPACE, "application/cbor", "x", 415),
        ("/api/v1/namespaces", "application/json", "", 405),
        (ALL, "application/json", "", 405),
    ] {
        let client = env.client().with_header("content-type", content_type);
        let refused = client.send(Method::DELETE, target, body).await?;
        assert_eq!(refused.status, status, "{target} {body}: {:?}", refused.body);
    }
    assert_eq!(env.api.requests().count("delete"), 0);
    assert_eq!(env.api.requests().count("list"), 1, "that of all namespaces");
    assert_eq!(stored(&env).len(), 2);
    Ok(())
}

#[tokio::test]
async fn deletion_ends_when_its_client_is_gone() -> anyhow::Result<()> {
    let env = start_env(whole_namespace(), 20).await?;
    let (gate, deleting) = begin_held_delete(&env, "delete");
    gate.wait_for_arrivals(4).await?;
    deleting.abort();
    let gone = r#"ctrlmesh_request_failures_total{reason="client_gone"}"#;
    wait_until("the client is gone", || async {
        Ok(env.sidecar.metric_value(gone).await? == 1.0)
    })
    .await?;
    gate.open();
    // A later request shows that no delete has come in between.
    assert_eq!(env.client().get(ALL).await?.status, 200);
    assert_eq!(env.api.requests().count("delete"), 4);
    Ok(())
}

#[tokio::test]
async fn deletion_of_an_earlier_chain_is_in_flight_until_its_last_delete() -> anyhow::Result<()> {
    let mut env = start_env(shard("uid", &["0-511"]), 40).await?;
    let all = stored(&env);
    let own: BTreeSet<String> = env.client().get(ALL).await?.names().into_iter().collect();
    let (listing, deleting) = begin_held_delete(&env, "list");
    listing.wait_for_arrivals(1).await?;
    env.publish(vec![shard("uid", &["512-1023"])]).await?;
    wait_earlier(&env, in_flight(1, 0)).await?;
    let held = Gate::new();
    env.api
        .faults()
        .add(Rule::new(Fault::HoldResponse(held.clone())).verb("delete"));
    listing.open();
    held.wait_for_arrivals(own.len().min(4)).await?;
    wait_earlier(&env, in_flight(1, 0)).await?;
    held.open();
    assert_eq!(deleting.await??.status, 200);
    wait_earlier(&env, in_flight(0, 0)).await?;
    assert_eq!(stored(&env), &all - &own, "the shard with which it began");
    Ok(())
}
