//! Lists with a limit in shards with ranges of a hash: a client never takes a page of other shards' objects for an empty list.

use ctrlmesh_testkit::{Fault, Gate, Rule};
use ctrlmesh_tests::{Client, ReceivedResponse, TestEnv, wait_until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::hash_ranges::{hash_entry, owned_config_map};
use crate::kept_objects::{ALL, PROTOBUF, items};

const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const EXISTENCE_CHECK: &str = "/api/v1/configmaps?limit=1";

/// The range of `c6` alone.
const OF_C6: &str = "406";
/// A range without objects.
const OF_NONE: &str = "0";

/// Config maps `c0` to `c9`, each of its own controller, of which the shard has those in this range.
async fn start_env(range: &str) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![hash_entry("owner", &[range])]).await?;
    for owner in 0..10 {
        env.api.store().put(owned_config_map(&format!("c{owner}"), owner))?;
    }
    Ok(env)
}

/// Number of lists that the API server has got since this was called last.
fn take_count(env: &TestEnv) -> u64 {
    let count = env.api.requests().count_of("list", "configmaps");
    env.api.requests().clear();
    count
}

fn token_of(list: &Value) -> &str {
    list["metadata"]["continue"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn existence_check_finds_the_only_object_on_the_seventh_page() -> anyhow::Result<()> {
    let env = start_env(OF_C6).await?;
    let direct = Client::http1(env.api.address()).get(ALL).await?.json();
    for (accept, key) in [("application/json", "items"), (METADATA, "items"), (TABLE, "rows")] {
        take_count(&env);
        let client = env.client().with_header("accept", accept);
        let page = client.get(EXISTENCE_CHECK).await?;
        let list = page.json();
        assert_eq!((page.status, take_count(&env)), (200, 7), "{accept}");
        assert_eq!(list[key].as_array().map(Vec::len), Some(1), "{list}");
        assert!(list[key][0].to_string().contains(r#""name":"c6""#), "{list}");
        let metadata = &list["metadata"];
        assert_eq!(metadata["resourceVersion"], direct["metadata"]["resourceVersion"]);
        assert!(metadata.get("remainingItemCount").is_none(), "{metadata}");
        let next = client
            .get(&format!("{EXISTENCE_CHECK}&continue={}", token_of(&list)))
            .await?;
        assert_eq!((next.status, &next.json()[key]), (200, &json!([])), "{accept}");
        assert_eq!((token_of(&next.json()), take_count(&env)), ("", 3), "{accept}");
    }
    let client = Client::http2(env.sidecar.api_address()).with_header("accept", PROTOBUF);
    let page = client.get(EXISTENCE_CHECK).await?;
    assert_eq!((page.status, take_count(&env)), (200, 7));
    assert_eq!(items(&page.body).len(), 1);
    assert!(page.body.windows(2).any(|bytes| bytes == b"c6"));
    Ok(())
}

#[tokio::test]
async fn list_of_which_nothing_is_kept_is_empty_and_has_no_token() -> anyhow::Result<()> {
    let env = start_env(OF_NONE).await?;
    for (limit, pages) in [(1, 10), (4, 3), (10, 1)] {
        take_count(&env);
        let page = env.client().get(&format!("{ALL}?limit={limit}")).await?;
        let list = page.json();
        assert_eq!((page.status, &list["items"], token_of(&list)), (200, &json!([]), ""));
        assert_eq!(take_count(&env), pages, "limit {limit}");
    }
    Ok(())
}

#[tokio::test]
async fn pages_with_an_object_and_lists_without_limit_need_one_request() -> anyhow::Result<()> {
    let env = start_env(OF_C6).await?;
    let direct = Client::http1(env.api.address());
    for query in ["limit=7", "limit=10", "limit=0", "limit=", ""] {
        let target = format!("{ALL}?{query}");
        let expected = direct.get(&target).await?.json();
        take_count(&env);
        let page = env.client().get(&target).await?;
        assert_eq!((page.status, page.names()), (200, vec!["c6".to_owned()]), "{query}");
        assert_eq!(token_of(&page.json()), token_of(&expected), "{query}");
        assert_eq!(take_count(&env), 1, "{query}");
    }
    env.api.store().delete("configmaps", "default", "c6")?;
    take_count(&env);
    let all = env.client().get(ALL).await?;
    assert_eq!((all.status, all.names().len(), take_count(&env)), (200, 0, 1));
    Ok(())
}

#[tokio::test]
async fn further_pages_are_asked_for_with_the_identity_and_options_of_the_client() -> anyhow::Result<()> {
    let env = start_env(OF_C6).await?;
    let direct = Client::http1(env.api.address()).get(ALL).await?.json();
    let version = direct["metadata"]["resourceVersion"].as_str().unwrap();
    let of_client = [
        ("authorization", "Bearer controllers-own"),
        ("impersonate-user", "jane"),
        ("impersonate-group", "a"),
        ("user-agent", "manager/1"),
        ("accept", METADATA),
    ];
    let client = of_client
        .into_iter()
        .fold(env.client(), |client, (name, value)| client.with_header(name, value));
    take_count(&env);
    let selector = "labelSelector=shard%3Dnone";
    let target = format!("{EXISTENCE_CHECK}&resourceVersion={version}&resourceVersionMatch=Exact&{selector}");
    assert_eq!(client.get(&target).await?.names(), ["c6"]);
    let mut sent = env.api.requests().recent();
    sent.retain(|request| request.verb == "list");
    assert_eq!((sent.len(), &sent[0].target), (7, &target));
    for request in &sent {
        for (name, value) in of_client {
            assert_eq!(request.headers[name], value);
        }
    }
    for request in &sent[1..] {
        let start = format!("{EXISTENCE_CHECK}&{selector}&continue=");
        assert!(request.target.starts_with(&start), "{}", request.target);
    }
    Ok(())
}

/// Begins an existence check, and holds the response to its first request, which is for an empty page, until the gate opens.
async fn hold_first_page(env: &TestEnv) -> anyhow::Result<(Gate, JoinHandle<anyhow::Result<ReceivedResponse>>)> {
    let gate = Gate::new();
    let held = Rule::new(Fault::HoldResponse(gate.clone()));
    env.api.faults().add(held.verb("list").times(1));
    let client = env.client();
    let check = tokio::spawn(async move { client.get(EXISTENCE_CHECK).await });
    gate.wait_for_arrivals(1).await?;
    Ok((gate, check))
}

#[tokio::test]
async fn errors_of_further_pages_pass() -> anyhow::Result<()> {
    let env = start_env(OF_C6).await?;
    for (code, retry_after) in [(410, None), (403, None), (429, Some(7)), (500, None)] {
        let (gate, check) = hold_first_page(&env).await?;
        let refused = Rule::new(Fault::Status { code, retry_after });
        env.api.faults().add(refused.verb("list").times(1));
        gate.open();
        let refused = check.await??;
        assert_eq!((refused.status, &refused.json()["code"]), (code, &code.into()));
        let seconds = refused.headers.get("retry-after").map(|value| value.to_str().unwrap());
        assert_eq!(seconds, retry_after.map(|_| "7"));
    }
    assert_eq!(take_count(&env), 8);
    let (gate, check) = hold_first_page(&env).await?;
    let cut = Rule::new(Fault::CutBody { after: 60 });
    env.api.faults().add(cut.verb("list").times(1));
    gate.open();
    assert!(check.await?.is_err(), "the transfer is broken");
    assert_eq!(take_count(&env), 2);
    Ok(())
}

#[tokio::test]
async fn no_further_page_is_asked_for_when_the_client_has_gone_away() -> anyhow::Result<()> {
    let env = start_env(OF_NONE).await?;
    let (first, check) = hold_first_page(&env).await?;
    let second = Gate::new();
    let held = Rule::new(Fault::Hold(second.clone())).verb("list");
    let held = env.api.faults().add(held);
    first.open();
    second.wait_for_arrivals(1).await?;
    check.abort();
    let gone = r#"ctrlmesh_request_failures_total{reason="client_gone"}"#;
    wait_until("the client is gone", || async {
        Ok(env.sidecar.metric_value(gone).await? == 1.0)
    })
    .await?;
    env.api.faults().remove(held);
    second.open();
    // The pages of this list are all that come.
    let list = env.client().get(EXISTENCE_CHECK).await?.json();
    assert_eq!((&list["items"], token_of(&list)), (&json!([]), ""));
    assert_eq!(take_count(&env), 2 + 10);
    Ok(())
}
