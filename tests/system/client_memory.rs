//! Memory that clients can make the sidecar hold: heads and bodies that are read completely are bounded, per connection and in all.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use ctrlmesh_testkit::{ApiServer, Fault, Gate, Rule};
use ctrlmesh_tests::{NAMESPACE, TestEnv, config_map, shard_entry, wait_until};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";

/// Allowed growth of the sidecar in bytes: two and a half times its bound for all requests. The attacks ask for three times that.
const GROWTH: usize = 80 << 20;

/// A body that is small enough to be kept, and a list that is larger than a window to the API server.
const BODY: usize = 250_000;
const LIST: usize = 300_000;

/// A window that bounds nothing.
const WIDE: u32 = 1 << 30;

fn status_of(body: &[u8]) -> Value {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    assert_eq!(status["kind"], "Status", "{}", String::from_utf8_lossy(body));
    status
}

async fn read_response(response: Response<Incoming>) -> anyhow::Result<(u16, Bytes)> {
    let status = response.status().as_u16();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

#[tokio::test]
async fn large_heads_are_refused_beyond_the_bound_of_a_connection() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())));
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    let mut answers = JoinSet::new();
    for _ in 0..900 {
        let mut sender = sender.clone();
        let request = Request::get("http://x/api/v1/configmaps").header("x-large", "x".repeat(120 << 10));
        let request = request.body(Empty::<Bytes>::new())?;
        sender.ready().await?;
        answers.spawn(async move { read_response(sender.send_request(request).await?).await });
    }
    let (mut refused, mut served) = (0, 0);
    while refused < 800 {
        let (code, body) = answers.join_next().await.expect("some are refused")??;
        assert_eq!((code, &status_of(&body)["reason"]), (429, &"TooManyRequests".into()));
        refused += 1;
    }
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
    gate.open();
    while let Some(answer) = answers.join_next().await {
        let (code, _) = answer??;
        assert!(matches!(code, 200 | 429), "{code}");
        served += usize::from(code == 200);
    }
    assert!(served > 30, "{served} had room");
    assert_eq!(
        env.client().get("/api/v1/configmaps").await?.status,
        200,
        "it was given back"
    );
    Ok(())
}

/// A request with this number of short fields, each with a name of its own.
fn request_with_fields(count: u32) -> anyhow::Result<Request<Empty<Bytes>>> {
    let letter = |number: u32| char::from_digit(10 + number % 26, 36).unwrap_or('x');
    let mut request = Request::get("http://x/api/v1/configmaps");
    for number in 0..count {
        let name: String = [letter(number / 676), letter(number / 26), letter(number)]
            .iter()
            .collect();
        request = request.header(format!("x-{name}"), "");
    }
    Ok(request.body(Empty::new())?)
}

/// A field takes more memory than its bytes: 120 KiB of short ones became 700.
#[tokio::test]
async fn heads_of_many_fields_are_refused() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![]).await?;
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    let mut answers = JoinSet::new();
    for _ in 0..300 {
        let (mut sender, request) = (sender.clone(), request_with_fields(3_400)?);
        sender.ready().await?;
        answers.spawn(async move { read_response(sender.send_request(request).await?).await });
    }
    let mut codes = std::collections::BTreeSet::new();
    while let Some(answer) = answers.join_next().await {
        let (code, body) = answer??;
        status_of(&body);
        codes.insert(code);
    }
    assert!(
        codes.contains(&431) && codes.iter().all(|code| matches!(code, 431 | 429)),
        "{codes:?}"
    );
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < GROWTH / 2, "{} MiB", grown >> 20);
    Ok(())
}

#[tokio::test]
async fn fields_of_held_heads_count_with_the_memory_that_they_take() -> anyhow::Result<()> {
    let env = TestEnv::start(vec![shard_entry("a")]).await?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())));
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    let mut answers = JoinSet::new();
    for _ in 0..5 {
        let stream = TcpStream::connect(env.sidecar.api_address()).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        for _ in 0..600 {
            let (mut sender, request) = (sender.clone(), request_with_fields(250)?);
            sender.ready().await?;
            answers.spawn(async move { read_response(sender.send_request(request).await?).await });
        }
    }
    // The bound of 32 MiB has room for about 250.
    for _ in 0..2_700 {
        let answer = tokio::time::timeout(Duration::from_secs(60), answers.join_next()).await;
        let (code, _) = answer?.expect("some are refused")??;
        assert!(matches!(code, 429 | 503), "{code}");
    }
    // If all were held, they would take 400 MiB. About 25 KiB are for each stream itself, whether it is refused or not.
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < 160 << 20, "{} MiB", grown >> 20);
    gate.open();
    Ok(())
}

#[tokio::test]
async fn unfinished_lock_writes_are_refused_beyond_the_total_bound() -> anyhow::Result<()> {
    const LENGTH: usize = 3_000_000;
    // Two and a half times the bound for all requests (32 MiB), and room for the buffers of connections. The attack asks for
    // 400 MiB.
    const MOST: usize = 160 << 20;
    let api = ApiServer::builder().namespace(NAMESPACE).start().await?;
    let env = TestEnv::start_around(api, vec![shard_entry("a")], &[]).await?;
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    let mut writes = JoinSet::new();
    for _ in 0..140 {
        let mut stream = TcpStream::connect(env.sidecar.api_address()).await?;
        writes.spawn(async move {
            let head = format!("PUT {LEASES}/lock HTTP/1.1\r\nhost: x\r\ncontent-length: {LENGTH}\r\n\r\n");
            // A refused client may not be allowed to finish writing.
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&vec![b'x'; LENGTH - 1]).await;
            stream
        });
    }
    let held = writes.join_all().await;
    // There may be no room for bytes that arrive with the head either: such a connection ends without a response.
    wait_until("all are refused that there is no room for", || async {
        Ok(env.sidecar.metric_value("ctrlmesh_connections").await? <= 12.0)
    })
    .await?;
    let refused = r#"ctrlmesh_request_failures_total{reason="refused"}"#;
    assert!(env.sidecar.metric_value(refused).await? > 20.0, "and told so");
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < MOST, "{} MiB", grown >> 20);
    drop(held);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "lock", "namespace": NAMESPACE, "annotations": { "large": "x".repeat(100 << 10) } },
    });
    let client = env.client().with_header("content-type", "application/json");
    wait_until("it was given back", || async {
        let written = client.send(http::Method::POST, LEASES, lease.to_string()).await?;
        Ok(matches!(written.status, 201 | 409))
    })
    .await
}

#[tokio::test]
async fn body_beyond_the_bound_of_its_connection_is_distinguished() -> anyhow::Result<()> {
    let api = ApiServer::builder().namespace(NAMESPACE).start().await?;
    let env = TestEnv::start_around(api, vec![shard_entry("a")], &[]).await?;
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut writes = JoinSet::new();
    for _ in 0..4 {
        let request = Request::put(format!("http://x{LEASES}/lock")).header("content-type", "application/json");
        let request = request.body(Unfinished(Some(Bytes::from(vec![b'x'; 2_900_000]))))?;
        let mut sender = sender.clone();
        writes.spawn(async move { read_response(sender.send_request(request).await?).await });
    }
    let (code, body) = writes.join_next().await.expect("four were sent")??;
    assert_eq!((code, &status_of(&body)["reason"]), (429, &"TooManyRequests".into()));
    Ok(())
}

/// A connection of HTTP/2 whose streams have these windows.
async fn connect(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    window: u32,
) -> anyhow::Result<http2::SendRequest<Full<Bytes>>> {
    let mut client = http2::Builder::new(TokioExecutor::new());
    client
        .initial_stream_window_size(window)
        .initial_connection_window_size(WIDE);
    let (sender, connection) = client.handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// So many GETs of a list that is larger than the window of a stream to the API server. Returns when all responses have
/// begun, or all requests were written if nothing is read.
async fn ask_for_lists(
    env: &TestEnv,
    sender: &http2::SendRequest<Full<Bytes>>,
    count: usize,
) -> anyhow::Result<JoinSet<anyhow::Result<Response<Incoming>>>> {
    let mut large = config_map("default", "large", "a");
    large["data"]["k"] = "x".repeat(LIST).into();
    env.api.store().put(large)?;
    let mut answers = JoinSet::new();
    for _ in 0..count {
        let request = Request::get("http://x/api/v1/configmaps").body(Full::default())?;
        let mut sender = sender.clone();
        sender.ready().await?;
        answers.spawn(async move { Ok(sender.send_request(request).await?) });
    }
    Ok(answers)
}

#[tokio::test]
async fn bodies_that_are_kept_to_be_sent_again_are_bounded() -> anyhow::Result<()> {
    const WRITES: usize = 600;
    let env = TestEnv::start(vec![]).await?;
    let gate = Gate::new();
    let held = Rule::new(Fault::HoldResponse(gate.clone())).verb("create");
    env.api.faults().add(held);
    let sender = connect(TcpStream::connect(env.sidecar.api_address()).await?, WIDE).await?;
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    let body = Bytes::from(vec![b'x'; BODY]);
    let mut answers = JoinSet::new();
    for _ in 0..WRITES {
        let request = Request::post("http://x/api/v1/namespaces/default/configmaps").body(Full::new(body.clone()))?;
        let mut sender = sender.clone();
        sender.ready().await?;
        answers.spawn(async move { read_response(sender.send_request(request).await?).await });
    }
    gate.wait_for_arrivals(WRITES).await?;
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
    assert!(answers.try_join_next().is_none(), "none is refused");
    gate.open();
    while let Some(answer) = answers.join_next().await {
        assert_eq!(answer??.0, 400, "no request was cut, and none of the bodies is JSON");
    }
    Ok(())
}

#[tokio::test]
async fn responses_for_which_a_client_gives_no_window_are_bounded() -> anyhow::Result<()> {
    const LISTS: usize = 600;
    let env = TestEnv::start_with(vec![], &["--workers", "1"]).await?;
    let sender = connect(TcpStream::connect(env.sidecar.api_address()).await?, 0).await?;
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    let mut answers = ask_for_lists(&env, &sender, LISTS).await?;
    let mut unread = Vec::new();
    while let Some(answer) = answers.join_next().await {
        unread.push(answer??);
    }
    // The earlier responses have arrived once another client has read this much.
    for _ in 0..20 {
        assert_eq!(env.client().get("/api/v1/configmaps").await?.names(), ["large"]);
    }
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
    drop(unread);
    Ok(())
}

#[tokio::test]
async fn responses_that_a_client_does_not_read_from_its_socket_are_bounded() -> anyhow::Result<()> {
    const LISTS: usize = 400;
    let env = TestEnv::start_with(vec![], &["--workers", "1"]).await?;
    let is_deaf = Arc::new(AtomicBool::new(false));
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let deaf = NonReadingClient {
        stream,
        is_deaf: Arc::clone(&is_deaf),
    };
    let sender = connect(deaf, WIDE).await?;
    assert_eq!(ask_for_lists(&env, &sender, 1).await?.join_all().await.len(), 1);
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    is_deaf.store(true, Ordering::Relaxed);
    let answers = ask_for_lists(&env, &sender, LISTS).await?;
    wait_until("all lists have been asked for", || async {
        Ok(env.api.requests().total() > LISTS as u64)
    })
    .await?;
    for _ in 0..20 {
        assert_eq!(env.client().get("/api/v1/configmaps").await?.names(), ["large"]);
    }
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
    drop(answers);
    Ok(())
}

#[tokio::test]
async fn uploads_that_the_api_server_does_not_read_are_refused_beyond_the_bound_of_all() -> anyhow::Result<()> {
    const CONNECTIONS: usize = 60;
    const UPLOADS: usize = 16;
    // The bound for all requests, what is kept to be sent again, and a frame or two of each upload. The attack sends 240 MiB.
    const MOST: usize = 120 << 20;
    let env = TestEnv::start(vec![]).await?;
    let gate = Gate::new();
    env.api.faults().add(Rule::new(Fault::Hold(gate.clone())));
    env.sidecar.forget_peak_memory()?;
    let before = env.sidecar.peak_memory()?;
    let body = Bytes::from(vec![b'x'; BODY]);
    let mut answers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let sender = connect(TcpStream::connect(env.sidecar.api_address()).await?, WIDE).await?;
        for _ in 0..UPLOADS {
            let request =
                Request::post("http://x/api/v1/namespaces/default/configmaps").body(Full::new(body.clone()))?;
            let mut sender = sender.clone();
            sender.ready().await?;
            answers.spawn(async move { read_response(sender.send_request(request).await?).await });
        }
    }
    let (code, body) = answers.join_next().await.context("some are refused")???;
    assert_eq!((code, &status_of(&body)["reason"]), (503, &"ServiceUnavailable".into()));
    let grown = env.sidecar.peak_memory()?.saturating_sub(before);
    assert!(grown < MOST, "{} MiB", grown >> 20);
    gate.open();
    drop(answers);
    wait_until("it was given back", || async {
        let written = config_map("default", "small", "a").to_string();
        let client = env.client().with_header("content-type", "application/json");
        let written = client.send(http::Method::POST, "/api/v1/namespaces/default/configmaps", written);
        Ok(matches!(written.await?.status, 201 | 409))
    })
    .await
}

/// A stream that can cease to be read.
struct NonReadingClient {
    stream: TcpStream,
    is_deaf: Arc<AtomicBool>,
}

impl AsyncRead for NonReadingClient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_deaf.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for NonReadingClient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A body whose end does not come.
struct Unfinished(Option<Bytes>);

impl http_body::Body for Unfinished {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}
