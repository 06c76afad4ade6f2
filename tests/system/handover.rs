//! What `/status` tells of requests that are under way under an earlier chain: who moves objects from one shard to another
//! waits for them.

use std::time::Duration;

use ctrlmesh_contract::status::{InFlight, Status};
use ctrlmesh_testkit::{Fault, Gate, Rule, When};
use ctrlmesh_tests::client::{Answer, Stream};
use ctrlmesh_tests::{Client, EntrySpec, Stand, config_map, shard, wait_until};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::faults::{faults, rule};

pub(crate) const LIST: &str = "/api/v1/configmaps";
const IN_NAMESPACE: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) fn in_flight(writes: u64, watches: u64) -> InFlight {
    InFlight {
        writes,
        watches,
        ..InFlight::default()
    }
}

/// Requests: caches have tests of their own.
async fn earlier(stand: &Stand) -> anyhow::Result<InFlight> {
    Ok(requests(&stand.sidecar.status().await?))
}

fn requests(status: &Status) -> InFlight {
    InFlight {
        caches: 0,
        ..status.chain.earlier
    }
}

pub(crate) async fn wait_earlier(stand: &Stand, expected: InFlight) -> anyhow::Result<()> {
    let fits = move |status: &Status| requests(status) == expected;
    stand.sidecar.wait_status("what is under way", fits).await.map(drop)
}

/// Begins these writes one after another; when this returns, each of them is at the API server, which waits.
async fn held_writes(
    stand: &Stand,
    client: &Client,
) -> anyhow::Result<(Gate, Vec<JoinHandle<anyhow::Result<Answer>>>)> {
    stand.seed("default", "a", 3)?;
    let gate = Gate::new();
    for verb in ["create", "update", "patch", "delete", "deletecollection"] {
        stand.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb(verb));
    }
    let mut begun = Vec::new();
    let body = config_map("default", "new", "a").to_string();
    for (method, target) in [
        (Method::POST, IN_NAMESPACE.to_owned()),
        (Method::PUT, format!("{IN_NAMESPACE}/a0")),
        (Method::PATCH, format!("{IN_NAMESPACE}/a1")),
        (Method::DELETE, format!("{IN_NAMESPACE}/a2")),
        (Method::DELETE, IN_NAMESPACE.to_owned()),
    ] {
        let (client, body) = (client.clone(), body.clone());
        begun.push(tokio::spawn(async move { client.send(method, &target, body).await }));
        gate.wait_for_arrivals(begun.len()).await?;
    }
    Ok((gate, begun))
}

#[tokio::test]
async fn writes_that_began_under_an_earlier_chain_are_told_until_they_are_answered() -> anyhow::Result<()> {
    for client in [Client::http1, Client::http2] {
        let mut stand = Stand::start(vec![shard("a")]).await?;
        let client = client(stand.sidecar.api());
        let (gate, begun) = held_writes(&stand, &client).await?;
        assert_eq!(earlier(&stand).await?, in_flight(0, 0), "their chain is in force");
        stand.publish(vec![shard("b")]).await?;
        assert_eq!(earlier(&stand).await?, in_flight(5, 0));
        let late = {
            let client = client.clone();
            tokio::spawn(async move { client.send(Method::DELETE, &format!("{IN_NAMESPACE}/late"), "").await })
        };
        gate.wait_for_arrivals(6).await?;
        assert_eq!(earlier(&stand).await?, in_flight(5, 0), "that one is the new chain's");
        gate.open();
        for write in begun {
            write.await??;
        }
        late.await??;
        assert_eq!(earlier(&stand).await?, in_flight(0, 0));
    }
    Ok(())
}

#[tokio::test]
async fn a_pod_whose_labels_change_has_another_chain_of_the_same_generation() -> anyhow::Result<()> {
    let selector = json!({ "matchLabels": { "shard": "a" } });
    let mut stand = Stand::start(vec![shard("a").set("podSelector", selector)]).await?;
    let (gate, begun) = held_writes(&stand, &stand.client()).await?;
    stand.chain.set_labels(&[("shard", "a")])?;
    let selected = |status: &Status| !status.chain.entries.is_empty();
    let status = stand.sidecar.wait_status("the pod is selected", selected).await?;
    assert_eq!((status.chain.generation, status.chain.earlier), (1, in_flight(5, 0)));
    gate.open();
    for write in begun {
        write.await??;
    }
    wait_earlier(&stand, in_flight(0, 0)).await
}

#[tokio::test]
async fn a_write_whose_client_went_away_is_told_as_long_as_it_may_be_carried_out() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let (gate, begun) = held_writes(&stand, &stand.client()).await?;
    for write in begun {
        write.abort();
    }
    let gone = r#"ctrlmesh_request_failures_total{reason="client_gone"}"#;
    wait_until("the clients are gone", || async {
        Ok(stand.sidecar.metric(gone).await? == 5.0)
    })
    .await?;
    stand.publish(vec![shard("b")]).await?;
    assert!(earlier(&stand).await?.writes > 0, "the API server may still be at it");
    gate.open();
    Ok(())
}

/// What is told of a delete that this befalls, once a new chain is in force.
async fn told_of_a_delete(fault: Fault) -> anyhow::Result<InFlight> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    stand.seed("default", "a", 1)?;
    stand.api.faults().add(Rule::new(fault).verb("delete"));
    stand
        .client()
        .send(Method::DELETE, &format!("{IN_NAMESPACE}/a0"), "")
        .await?;
    stand.publish(vec![shard("b")]).await?;
    earlier(&stand).await
}

#[tokio::test]
async fn a_write_that_the_api_server_gave_up_is_told_as_long_as_it_may_be_carried_out() -> anyhow::Result<()> {
    for (code, told) in [(504, 1), (500, 1), (409, 0), (429, 0)] {
        let retry_after = None;
        let fault = Fault::Status { code, retry_after };
        assert_eq!(told_of_a_delete(fault).await?, in_flight(told, 0), "{code}");
    }
    Ok(())
}

#[tokio::test]
async fn a_write_whose_connection_broke_is_told_as_long_as_it_may_be_carried_out() -> anyhow::Result<()> {
    for when in [When::BeforeExecuting, When::AfterExecuting] {
        let told = told_of_a_delete(Fault::ResetConnection(when)).await?;
        assert_eq!(told, in_flight(1, 0), "{when:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_write_that_never_reached_the_api_server_is_over_with_its_answer() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![faults(json!([rule(json!("refuse"), json!({}))]))]).await?;
    let refused = stand
        .client()
        .send(Method::DELETE, &format!("{IN_NAMESPACE}/a0"), "")
        .await?;
    assert_eq!((refused.status, stand.api.requests().count("delete")), (503, 0));
    stand.publish(vec![]).await?;
    assert_eq!(earlier(&stand).await?, in_flight(0, 0));
    Ok(())
}

#[tokio::test]
async fn what_changes_no_object_is_not_waited_for() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    stand.api.faults().add(Rule::new(Fault::Tunnel).verb("create"));
    let mut exec = TcpStream::connect(stand.sidecar.api()).await?;
    let head = "POST /api/v1/namespaces/default/pods/p/exec HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\n\
                upgrade: SPDY/3.1\r\ncontent-length: 0\r\n\r\n";
    exec.write_all(head.as_bytes()).await?;
    assert_eq!(exec.read_u8().await?, b'H');
    let gate = Gate::new();
    stand.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("get"));
    let client = stand.client();
    let get = tokio::spawn(async move { client.get(&format!("{IN_NAMESPACE}/a0")).await });
    gate.wait_for_arrivals(1).await?;
    stand.publish(vec![shard("b")]).await?;
    assert_eq!(earlier(&stand).await?, in_flight(0, 0));
    gate.open();
    assert_eq!(get.await??.status, 404);
    Ok(())
}

fn lists(lists: u64) -> InFlight {
    InFlight {
        lists,
        ..InFlight::default()
    }
}

/// `before`: the chain under which the list begins; without a rule nobody guards it.
async fn a_list_is_told_until_it_is_answered(before: Vec<EntrySpec>) -> anyhow::Result<()> {
    let mut stand = Stand::start(before).await?;
    stand.seed("default", "a", 3)?;
    let gate = Gate::new();
    stand
        .api
        .faults()
        .add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
    let client = stand.client();
    let list = || {
        let client = client.clone();
        tokio::spawn(async move { client.get(LIST).await })
    };
    let early = list();
    gate.wait_for_arrivals(1).await?;
    assert_eq!(earlier(&stand).await?, lists(0), "its chain is in force");
    stand.publish(vec![shard("b")]).await?;
    assert_eq!(earlier(&stand).await?, lists(1));
    let late = list();
    gate.wait_for_arrivals(2).await?;
    assert_eq!(earlier(&stand).await?, lists(1), "that one is the new chain's");
    gate.open();
    assert_eq!(early.await??.names().len(), 3, "it shows what the earlier chain showed");
    assert!(late.await??.names().is_empty());
    wait_earlier(&stand, lists(0)).await
}

#[tokio::test]
async fn lists_that_began_under_an_earlier_chain_are_told_until_they_are_answered() -> anyhow::Result<()> {
    a_list_is_told_until_it_is_answered(vec![shard("a")]).await?;
    a_list_is_told_until_it_is_answered(vec![]).await
}

#[tokio::test]
async fn a_list_whose_answer_is_still_being_passed_on_is_told() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let mut object = config_map("default", "large", "a");
    object["data"]["k"] = Value::String("x".repeat(900_000));
    stand.api.store().put(object)?;
    let slow = Fault::SlowBody {
        chunk: 1000,
        every: Duration::from_millis(50),
    };
    stand.api.faults().add(Rule::new(slow).verb("list").times(1));
    let mut list = stand.client().stream(LIST).await?;
    assert!(list.next().await?.is_some());
    stand.publish(vec![shard("b")]).await?;
    assert_eq!(earlier(&stand).await?, lists(1));
    stand.publish(vec![shard("c")]).await?;
    assert_eq!(earlier(&stand).await?, lists(1));
    drop(list);
    wait_earlier(&stand, lists(0)).await
}

/// A watch in the middle of a large event that comes very slowly: it can't be ended there.
async fn slow_watch(stand: &Stand) -> anyhow::Result<Stream> {
    let slow = Fault::SlowBody {
        chunk: 1000,
        every: Duration::from_millis(50),
    };
    stand.api.faults().add(Rule::new(slow).verb("watch").times(1));
    let mut watch = reflect(&stand.client()).await?;
    let mut object = config_map("default", "large", "a");
    object["data"]["k"] = Value::String("x".repeat(900_000));
    stand.api.store().put(object)?;
    assert!(watch.next().await?.is_some());
    Ok(watch)
}

#[tokio::test]
async fn a_watch_that_still_shows_the_earlier_view_is_told() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let slow = slow_watch(&stand).await?;
    let mut quick = reflect(&stand.client()).await?;
    stand.publish(vec![shard("b")]).await?;
    assert_eq!(quick.event().await?["object"]["code"], 410);
    wait_earlier(&stand, in_flight(0, 1)).await?;
    stand.publish(vec![shard("c")]).await?;
    wait_earlier(&stand, in_flight(0, 1)).await?;
    drop(slow);
    wait_earlier(&stand, in_flight(0, 0)).await
}

#[tokio::test]
async fn a_watch_that_the_new_chain_shows_the_same_is_that_chains() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let mut watch = reflect(&stand.client()).await?;
    for _ in 0..3 {
        stand.publish(vec![shard("a")]).await?;
        wait_earlier(&stand, in_flight(0, 0)).await?;
    }
    stand.api.store().put(config_map("default", "mine", "a"))?;
    assert_eq!(watch.event().await?["object"]["metadata"]["name"], "mine");
    Ok(())
}

async fn wait_caches(stand: &Stand, expected: u64) -> anyhow::Result<()> {
    let fits = move |status: &Status| status.chain.earlier.caches == expected;
    stand
        .sidecar
        .wait_status("whose caches are of before", fits)
        .await
        .map(drop)
}

/// Between the end of a watch and the next one client-go waits, for a minute at times: by what it has cached till then its
/// controller may write.
#[tokio::test]
async fn a_cache_that_still_holds_the_earlier_view_is_told_until_its_client_watches_again() -> anyhow::Result<()> {
    let mut stand = Stand::start(vec![shard("a")]).await?;
    let client = stand.client();
    let mut watch = reflect(&client).await?;
    wait_caches(&stand, 0).await?;
    stand.publish(vec![shard("b")]).await?;
    assert_eq!(watch.event().await?["object"]["code"], 410);
    drop(watch);
    wait_caches(&stand, 1).await?;
    // It comes back with what it has, and is sent again.
    let again = client.get(&format!("{LIST}?watch=1&resourceVersion=1")).await?;
    assert_eq!(again.status, 410);
    wait_caches(&stand, 1).await?;
    client.get(LIST).await?;
    wait_caches(&stand, 1).await?;
    let watch = reflect(&client).await?;
    wait_caches(&stand, 0).await?;
    // A watch that begins with what is there is a list, too.
    stand.publish(vec![shard("c")]).await?;
    wait_caches(&stand, 1).await?;
    drop(watch);
    let streamed = format!("{LIST}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let watch = client.stream(&streamed).await?;
    assert_eq!(watch.head.status, 200);
    wait_caches(&stand, 0).await
}

/// Lists, as a reflector does, and watches from there.
pub(crate) async fn reflect(client: &Client) -> anyhow::Result<Stream> {
    let list = client.get(LIST).await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let stream = client
        .stream(&format!("{LIST}?watch=1&resourceVersion={version}"))
        .await?;
    assert_eq!(stream.head.status, 200);
    Ok(stream)
}
