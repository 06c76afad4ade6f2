//! Requests in flight under an earlier chain, as `/status` reports them: the manager waits for them when it moves objects between
//! shards.

use std::time::Duration;

use ctrlmesh_contract::status::{InFlight, Status};
use ctrlmesh_testkit::{Fault, FaultTime, Gate, Rule};
use ctrlmesh_tests::client::{ReceivedResponse, Stream};
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, config_map, shard_entry, wait_until};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::faults::{fault_rule, faults_entry};

pub(crate) const LIST: &str = "/api/v1/configmaps";
const IN_NAMESPACE: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) fn in_flight(writes: u64, watches: u64) -> InFlight {
    InFlight {
        writes,
        watches,
        ..InFlight::default()
    }
}

/// Requests only: caches have tests of their own.
async fn earlier_requests(env: &TestEnv) -> anyhow::Result<InFlight> {
    Ok(without_caches(&env.sidecar.status().await?))
}

fn without_caches(status: &Status) -> InFlight {
    InFlight {
        caches: 0,
        ..status.chain.earlier
    }
}

pub(crate) async fn wait_earlier(env: &TestEnv, expected: InFlight) -> anyhow::Result<()> {
    let fits = move |status: &Status| without_caches(status) == expected;
    env.sidecar.wait_status("what is under way", fits).await.map(drop)
}

/// Starts these writes one after another; returns when each of them is held by the API server.
async fn start_held_writes(
    env: &TestEnv,
    client: &Client,
) -> anyhow::Result<(Gate, Vec<JoinHandle<anyhow::Result<ReceivedResponse>>>)> {
    env.seed_config_maps("default", "a", 3)?;
    let gate = Gate::new();
    for verb in ["create", "update", "patch", "delete", "deletecollection"] {
        env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb(verb));
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
async fn writes_of_an_earlier_chain_are_reported_until_answered() -> anyhow::Result<()> {
    for client in [Client::http1, Client::http2] {
        let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
        let client = client(env.sidecar.api_address());
        let (gate, begun) = start_held_writes(&env, &client).await?;
        assert_eq!(
            earlier_requests(&env).await?,
            in_flight(0, 0),
            "their chain is in force"
        );
        env.publish(vec![shard_entry("b")]).await?;
        assert_eq!(earlier_requests(&env).await?, in_flight(5, 0));
        let late = {
            let client = client.clone();
            tokio::spawn(async move { client.send(Method::DELETE, &format!("{IN_NAMESPACE}/late"), "").await })
        };
        gate.wait_for_arrivals(6).await?;
        assert_eq!(
            earlier_requests(&env).await?,
            in_flight(5, 0),
            "that one is the new chain's"
        );
        gate.open();
        for write in begun {
            write.await??;
        }
        late.await??;
        assert_eq!(earlier_requests(&env).await?, in_flight(0, 0));
    }
    Ok(())
}

#[tokio::test]
async fn label_change_gives_the_pod_another_chain_of_the_same_generation() -> anyhow::Result<()> {
    let selector = json!({ "matchLabels": { "shard": "a" } });
    let mut env = TestEnv::start(vec![shard_entry("a").with_field("podSelector", selector)]).await?;
    let (gate, begun) = start_held_writes(&env, &env.client()).await?;
    env.chain.set_labels(&[("shard", "a")])?;
    let selected = |status: &Status| !status.chain.entries.is_empty();
    let status = env.sidecar.wait_status("the pod is selected", selected).await?;
    assert_eq!((status.chain.generation, status.chain.earlier), (1, in_flight(5, 0)));
    gate.open();
    for write in begun {
        write.await??;
    }
    wait_earlier(&env, in_flight(0, 0)).await
}

#[tokio::test]
async fn write_is_reported_while_it_may_execute_when_its_client_went_away() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let (gate, begun) = start_held_writes(&env, &env.client()).await?;
    for write in begun {
        write.abort();
    }
    let gone = r#"ctrlmesh_request_failures_total{reason="client_gone"}"#;
    wait_until("the clients are gone", || async {
        Ok(env.sidecar.metric_value(gone).await? == 5.0)
    })
    .await?;
    env.publish(vec![shard_entry("b")]).await?;
    assert!(
        earlier_requests(&env).await?.writes > 0,
        "the API server may still be at it"
    );
    gate.open();
    Ok(())
}

/// The counts that the sidecar reports for a delete with this fault after a new chain is in force.
async fn reported_after_delete(fault: Fault) -> anyhow::Result<InFlight> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.api.faults().add(Rule::new(fault).verb("delete"));
    env.client()
        .send(Method::DELETE, &format!("{IN_NAMESPACE}/a0"), "")
        .await?;
    env.publish(vec![shard_entry("b")]).await?;
    earlier_requests(&env).await
}

#[tokio::test]
async fn write_is_reported_while_it_may_execute_when_the_api_server_gave_up() -> anyhow::Result<()> {
    for (code, unfinished) in [(504, 1), (500, 1), (409, 0), (429, 0)] {
        let retry_after = None;
        let fault = Fault::Status { code, retry_after };
        assert_eq!(reported_after_delete(fault).await?, in_flight(unfinished, 0), "{code}");
    }
    Ok(())
}

#[tokio::test]
async fn write_is_reported_while_it_may_execute_when_its_connection_broke() -> anyhow::Result<()> {
    for when in [FaultTime::BeforeExecuting, FaultTime::AfterExecuting] {
        let reported = reported_after_delete(Fault::ResetConnection(when)).await?;
        assert_eq!(reported, in_flight(1, 0), "{when:?}");
    }
    Ok(())
}

#[tokio::test]
async fn write_ends_with_its_response_when_it_never_reached_the_api_server() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![faults_entry(json!([fault_rule(json!("refuse"), json!({}))]))]).await?;
    let refused = env
        .client()
        .send(Method::DELETE, &format!("{IN_NAMESPACE}/a0"), "")
        .await?;
    assert_eq!((refused.status, env.api.requests().count("delete")), (503, 0));
    env.publish(vec![]).await?;
    assert_eq!(earlier_requests(&env).await?, in_flight(0, 0));
    Ok(())
}

#[tokio::test]
async fn requests_that_change_no_object_are_not_reported() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    env.api.faults().add(Rule::new(Fault::Tunnel).verb("create"));
    let mut exec = TcpStream::connect(env.sidecar.api_address()).await?;
    let head = "POST /api/v1/namespaces/default/pods/p/exec HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\n\
                upgrade: SPDY/3.1\r\ncontent-length: 0\r\n\r\n";
    exec.write_all(head.as_bytes()).await?;
    assert_eq!(exec.read_u8().await?, b'H');
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("get"));
    let client = env.client();
    let get = tokio::spawn(async move { client.get(&format!("{IN_NAMESPACE}/a0")).await });
    gate.wait_for_arrivals(1).await?;
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(earlier_requests(&env).await?, in_flight(0, 0));
    gate.open();
    assert_eq!(get.await??.status, 404);
    Ok(())
}

fn lists_in_flight(lists: u64) -> InFlight {
    InFlight {
        lists,
        ..InFlight::default()
    }
}

/// `before`: the chain under which the list begins; without a rule, the list is not filtered.
async fn check_list_is_reported_until_answered(before: Vec<EntrySpec>) -> anyhow::Result<()> {
    let mut env = TestEnv::start(before).await?;
    env.seed_config_maps("default", "a", 3)?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
    let client = env.client();
    let list = || {
        let client = client.clone();
        tokio::spawn(async move { client.get(LIST).await })
    };
    let early = list();
    gate.wait_for_arrivals(1).await?;
    assert_eq!(
        earlier_requests(&env).await?,
        lists_in_flight(0),
        "its chain is in force"
    );
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(earlier_requests(&env).await?, lists_in_flight(1));
    let late = list();
    gate.wait_for_arrivals(2).await?;
    assert_eq!(
        earlier_requests(&env).await?,
        lists_in_flight(1),
        "that one is the new chain's"
    );
    gate.open();
    assert_eq!(early.await??.names().len(), 3, "it shows what the earlier chain showed");
    assert!(late.await??.names().is_empty());
    wait_earlier(&env, lists_in_flight(0)).await
}

#[tokio::test]
async fn lists_of_an_earlier_chain_are_reported_until_answered() -> anyhow::Result<()> {
    check_list_is_reported_until_answered(vec![shard_entry("a")]).await?;
    check_list_is_reported_until_answered(vec![]).await
}

#[tokio::test]
async fn list_is_reported_while_its_response_is_passed_on() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let mut object = config_map("default", "large", "a");
    object["data"]["k"] = Value::String("x".repeat(900_000));
    env.api.store().put(object)?;
    let slow = Fault::SlowBody {
        chunk: 1000,
        every: Duration::from_millis(50),
    };
    env.api.faults().add(Rule::new(slow).verb("list").times(1));
    let mut list = env.client().open_stream(LIST).await?;
    assert!(list.next().await?.is_some());
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(earlier_requests(&env).await?, lists_in_flight(1));
    env.publish(vec![shard_entry("c")]).await?;
    assert_eq!(earlier_requests(&env).await?, lists_in_flight(1));
    drop(list);
    wait_earlier(&env, lists_in_flight(0)).await
}

/// A watch in the middle of a large event that is sent very slowly, so that it can't be ended there.
async fn open_slow_watch(env: &TestEnv) -> anyhow::Result<Stream> {
    let slow = Fault::SlowBody {
        chunk: 1000,
        every: Duration::from_millis(50),
    };
    env.api.faults().add(Rule::new(slow).verb("watch").times(1));
    let mut watch = list_and_watch(&env.client()).await?;
    let mut object = config_map("default", "large", "a");
    object["data"]["k"] = Value::String("x".repeat(900_000));
    env.api.store().put(object)?;
    assert!(watch.next().await?.is_some());
    Ok(watch)
}

#[tokio::test]
async fn watch_is_reported_while_it_shows_the_earlier_view() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let slow = open_slow_watch(&env).await?;
    let mut quick = list_and_watch(&env.client()).await?;
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(quick.next_event().await?["object"]["code"], 410);
    wait_earlier(&env, in_flight(0, 1)).await?;
    env.publish(vec![shard_entry("c")]).await?;
    wait_earlier(&env, in_flight(0, 1)).await?;
    drop(slow);
    wait_earlier(&env, in_flight(0, 0)).await
}

#[tokio::test]
async fn watch_belongs_to_the_new_chain_when_its_view_is_the_same() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let mut watch = list_and_watch(&env.client()).await?;
    for _ in 0..3 {
        env.publish(vec![shard_entry("a")]).await?;
        wait_earlier(&env, in_flight(0, 0)).await?;
    }
    env.api.store().put(config_map("default", "mine", "a"))?;
    assert_eq!(watch.next_event().await?["object"]["metadata"]["name"], "mine");
    Ok(())
}

async fn wait_caches(env: &TestEnv, expected: u64) -> anyhow::Result<()> {
    let fits = move |status: &Status| status.chain.earlier.caches == expected;
    env.sidecar
        .wait_status("whose caches are of before", fits)
        .await
        .map(drop)
}

/// Between the end of a watch and the next one, client-go may wait for up to a minute; until then, its controller may write based on
/// what it has cached.
#[tokio::test]
async fn cache_of_the_earlier_view_is_reported_until_its_client_watches_again() -> anyhow::Result<()> {
    let mut env = TestEnv::start(vec![shard_entry("a")]).await?;
    let client = env.client();
    let mut watch = list_and_watch(&client).await?;
    wait_caches(&env, 0).await?;
    env.publish(vec![shard_entry("b")]).await?;
    assert_eq!(watch.next_event().await?["object"]["code"], 410);
    drop(watch);
    wait_caches(&env, 1).await?;
    // The client resumes from its version and has to list again.
    let again = client.get(&format!("{LIST}?watch=1&resourceVersion=1")).await?;
    assert_eq!(again.status, 410);
    wait_caches(&env, 1).await?;
    client.get(LIST).await?;
    wait_caches(&env, 1).await?;
    let watch = list_and_watch(&client).await?;
    wait_caches(&env, 0).await?;
    // A watch that begins with the current state is a list, too.
    env.publish(vec![shard_entry("c")]).await?;
    wait_caches(&env, 1).await?;
    drop(watch);
    let streamed = format!("{LIST}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let watch = client.open_stream(&streamed).await?;
    assert_eq!(watch.head.status, 200);
    wait_caches(&env, 0).await
}

/// Lists and watches like a reflector.
pub(crate) async fn list_and_watch(client: &Client) -> anyhow::Result<Stream> {
    let list = client.get(LIST).await?.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let stream = client
        .open_stream(&format!("{LIST}?watch=1&resourceVersion={version}"))
        .await?;
    assert_eq!(stream.head.status, 200);
    Ok(stream)
}
