//! Memory that connections and watches keep after much has passed through them: buffers are small again, or released.
//!
//! Transfers come one after the other, so that little is held at the same time. Each sidecar has one worker thread, and did the same
//! before, so that its allocator needs no further memory.

use std::cell::Cell;

use anyhow::Context as _;
use bytes::Bytes;
use ctrlmesh_tests::{DEADLINE, TestEnv, config_map, wait_until};
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIST: &str = "/api/v1/namespaces/default/configmaps";
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0";
const MISSING: &str = "/api/v1/namespaces/default/configmaps/missing";

/// Config maps of the list, and bytes of the data of each: 4 MiB together.
const OBJECTS: usize = 4;
const OBJECT_BYTES: usize = 1 << 20;

/// Connections or watches with a list of 4 MiB each. A watch takes 11 to 23 KiB without any event (docs/benchmarks.md).
const READERS: usize = 64;
const KEPT_BY_READER: usize = 64 << 10;

/// Connections with an upload. hyper alone would keep 64 to 250 KiB of each.
const WRITERS: usize = 128;
const KEPT_BY_WRITER: usize = 32 << 10;
const UPLOAD_BYTES: usize = 512 << 10;

/// Transfers before the memory is measured for the first time.
const EARLIER: usize = 8;

type Sender = http1::SendRequest<Full<Bytes>>;

async fn start_env() -> anyhow::Result<TestEnv> {
    let env = TestEnv::start_with(vec![], &["--workers", "1"]).await?;
    for index in 0..OBJECTS {
        let object = large_config_map(&format!("large{index}"), OBJECT_BYTES);
        env.api.store().put(object)?;
    }
    Ok(env)
}

fn large_config_map(name: &str, bytes: usize) -> serde_json::Value {
    let mut object = config_map("default", name, "a");
    object["data"]["k"] = "x".repeat(bytes).into();
    object
}

async fn connect(env: &TestEnv) -> anyhow::Result<Sender> {
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Connections that have had a small request.
async fn connect_all(env: &TestEnv, count: usize) -> anyhow::Result<Vec<Sender>> {
    let mut senders = Vec::new();
    for _ in 0..count {
        let mut sender = connect(env).await?;
        assert_eq!(send(&mut sender, Method::GET, MISSING, Bytes::new()).await?.0, 404);
        senders.push(sender);
    }
    Ok(senders)
}

/// Sends a request. Gives the status of its response and the length of its body.
async fn send(sender: &mut Sender, method: Method, target: &str, body: Bytes) -> anyhow::Result<(u16, usize)> {
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header(HOST, "x")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))?;
    let exchange = async {
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        anyhow::Ok((status, response.into_body().collect().await?.to_bytes().len()))
    };
    timeout(DEADLINE, exchange).await.context("no response")?
}

async fn read_list(sender: &mut Sender) -> anyhow::Result<()> {
    let (status, length) = send(sender, Method::GET, LIST, Bytes::new()).await?;
    assert!(
        status == 200 && length > OBJECTS * OBJECT_BYTES,
        "{status}, {length} bytes"
    );
    Ok(())
}

async fn upload(sender: &mut Sender, name: &str) -> anyhow::Result<()> {
    let body = large_config_map(name, UPLOAD_BYTES).to_string();
    let (status, _) = send(sender, Method::POST, LIST, body.into()).await?;
    assert_eq!(status, 201);
    Ok(())
}

/// Reads the events with which a watch begins.
async fn read_initial_events(mut watch: Incoming) -> anyhow::Result<Incoming> {
    let mut read = 0;
    while read < OBJECTS * OBJECT_BYTES {
        let frame = timeout(DEADLINE, watch.frame()).await.context("nothing came")?;
        let frame = frame.context("the watch ended")??;
        read += frame.data_ref().map_or(0, Bytes::len);
    }
    Ok(watch)
}

async fn open_watch_over_http1(env: &TestEnv) -> anyhow::Result<Incoming> {
    let request = Request::get(WATCH).header(HOST, "x").body(Full::default())?;
    let response = connect(env).await?.send_request(request).await?;
    assert_eq!(response.status(), 200);
    read_initial_events(response.into_body()).await
}

async fn open_watch_over_http2(mut sender: http2::SendRequest<Full<Bytes>>) -> anyhow::Result<Incoming> {
    let request = Request::get(format!("http://x{WATCH}")).body(Full::default())?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    assert_eq!(response.status(), 200);
    read_initial_events(response.into_body()).await
}

/// Memory of a sidecar that has had lists and small requests.
async fn memory_before(env: &TestEnv) -> anyhow::Result<usize> {
    for _ in 0..EARLIER {
        read_list(&mut connect(env).await?).await?;
    }
    connect_all(env, EARLIER).await?;
    env.sidecar.anonymous_memory()
}

/// Waits until the sidecar has at most so many bytes more than before. Its threads return memory when they allocate again, so they get
/// requests.
#[allow(clippy::print_stdout, reason = "the figures of a run that passes")]
async fn wait_for_memory(env: &TestEnv, before: usize, growth: usize) -> anyhow::Result<()> {
    let grown = Cell::new(0);
    let waited = wait_until("memory is returned", || async {
        connect_all(env, EARLIER).await?;
        grown.set(env.sidecar.anonymous_memory()?.saturating_sub(before));
        Ok(grown.get() <= growth)
    });
    let waited = waited.await;
    let figures = format!(
        "{} KiB more than before, at most {} KiB",
        grown.get() >> 10,
        growth >> 10
    );
    println!("{figures}");
    waited.context(figures)
}

#[tokio::test]
async fn idle_connections_keep_no_buffers_of_uploads() -> anyhow::Result<()> {
    let env = start_env().await?;
    for index in 0..EARLIER {
        upload(&mut connect(&env).await?, &format!("earlier{index}")).await?;
    }
    let mut senders = connect_all(&env, WRITERS).await?;
    let before = env.sidecar.anonymous_memory()?;
    for (index, sender) in senders.iter_mut().enumerate() {
        upload(sender, &format!("upload{index}")).await?;
    }
    wait_for_memory(&env, before, WRITERS * KEPT_BY_WRITER).await?;
    assert!(senders.iter().all(|sender| !sender.is_closed()));
    Ok(())
}

#[tokio::test]
async fn idle_connections_keep_no_buffers_of_lists() -> anyhow::Result<()> {
    let env = start_env().await?;
    let mut senders = connect_all(&env, READERS).await?;
    let before = memory_before(&env).await?;
    for sender in &mut senders {
        read_list(sender).await?;
    }
    wait_for_memory(&env, before, READERS * KEPT_BY_READER).await?;
    assert!(senders.iter().all(|sender| !sender.is_closed()));
    Ok(())
}

#[tokio::test]
async fn quiet_watches_over_http1_keep_no_buffers_of_their_first_events() -> anyhow::Result<()> {
    let env = start_env().await?;
    let before = memory_before(&env).await?;
    let mut watches = Vec::new();
    for _ in 0..READERS {
        watches.push(open_watch_over_http1(&env).await?);
    }
    wait_for_memory(&env, before, READERS * KEPT_BY_READER).await?;
    assert_eq!(env.api.activity().watches, READERS);
    Ok(())
}

#[tokio::test]
async fn quiet_watches_over_http2_keep_no_buffers_of_their_first_events() -> anyhow::Result<()> {
    let env = start_env().await?;
    let before = memory_before(&env).await?;
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut watches = Vec::new();
    for _ in 0..READERS {
        watches.push(open_watch_over_http2(sender.clone()).await?);
    }
    wait_for_memory(&env, before, READERS * KEPT_BY_READER).await?;
    assert_eq!(env.api.activity().watches, READERS);
    Ok(())
}
