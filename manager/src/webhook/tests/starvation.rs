//! Clients that try to keep others from being answered: by connections without requests, and by bodies that do not arrive.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::reviews::Server;
use crate::webhook::routes::MUTATE_NAMESPACE;
use crate::webhook::server::Bounds;

/// An API server waits two seconds for a label, and creates the object without it then.
pub(super) const IN_TIME: Duration = Duration::from_secs(2);

/// Requests a namespace's labels. Returns how long the response took.
pub(super) async fn review(server: &Server) -> Duration {
    let begun = Instant::now();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let response: Value = server.create(MUTATE_NAMESPACE, &namespace).await;
    assert!(response["patch"].is_string(), "{response}");
    begun.elapsed()
}

/// The body of a review of a namespace.
pub(super) fn namespace_review() -> String {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let request = json!({
        "uid": "u-1", "userInfo": {}, "operation": "CREATE", "object": namespace,
        "kind": {"group": "", "version": "v1", "kind": "Namespace"},
        "resource": {"group": "", "version": "v1", "resource": "namespaces"},
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// Sends this body, keeps the connection, and returns the response's status.
async fn post(stream: &mut TlsStream<TcpStream>, body: &str) -> std::io::Result<u16> {
    let length = body.len();
    let head = format!("POST {MUTATE_NAMESPACE} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(String::from_utf8_lossy(&status[9..]).parse().unwrap())
}

/// Idle connections from these addresses of this host, after their handshakes.
async fn idle_connections(server: &Server, sources: &[IpAddr], each: usize) -> Vec<TlsStream<TcpStream>> {
    let mut connecting = JoinSet::new();
    for source in sources.iter().flat_map(|source| std::iter::repeat_n(*source, each)) {
        let (client, address) = (server.client.clone(), server.address);
        connecting.spawn(async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(source, 0)).unwrap();
            client.connect_over(socket.connect(address).await.unwrap()).await
        });
    }
    // A connection that was closed before the end of its handshake does not count.
    connecting.join_all().await.into_iter().filter_map(Result::ok).collect()
}

#[tokio::test]
async fn review_is_answered_in_time_beside_idle_connections_of_one_source() {
    let server = Server::start(&[]).await;
    let crowd = idle_connections(&server, &[[127, 0, 0, 1].into()], 600).await;
    assert!(crowd.len() > 512, "{} have connected", crowd.len());
    let took = review(&server).await;
    assert!(took < IN_TIME, "{took:?}");
}

#[tokio::test]
async fn review_is_answered_in_time_beside_idle_connections_of_many_sources() {
    let server = Server::start_with(|env| env.bounds.connections = 64).await;
    let sources: Vec<IpAddr> = (1..=20).map(|last| [127, 0, 1, last].into()).collect();
    let crowd = idle_connections(&server, &sources, 5).await;
    assert!(crowd.len() > 64, "{} have connected", crowd.len());
    let took = review(&server).await;
    assert!(took < IN_TIME, "{took:?}");
}

#[tokio::test]
async fn connection_without_a_request_is_closed_in_seconds() {
    let server = Server::start_with(|env| env.bounds.first_head = Duration::from_millis(100)).await;
    let mut silent = server.client.connect(server.address).await.unwrap();
    let mut bytes = [0; 16];
    let closed = tokio::time::timeout(Duration::from_secs(4), silent.read(&mut bytes)).await;
    assert!(matches!(closed.unwrap(), Ok(0) | Err(_)), "it is closed");
    assert!(Bounds::default().first_head <= Duration::from_secs(10));

    // A connection that has sent a request is kept, because its client will send another.
    let mut used = server.client.connect(server.address).await.unwrap();
    for _ in 0..2 {
        used.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let read = used.read(&mut bytes).await.unwrap();
        assert!(bytes[..read].starts_with(b"HTTP/1.1 200"));
        // Reads the rest of the response, and waits longer than the first request may take.
        while tokio::time::timeout(Duration::from_millis(200), used.read(&mut bytes))
            .await
            .is_ok_and(|read| read.unwrap() > 0)
        {}
    }
}

#[tokio::test]
async fn announced_bodies_that_do_not_arrive_block_no_review() {
    let server = Server::start(&[]).await;
    let mut announced = Vec::new();
    for _ in 0..20 {
        let mut stream = server.client.connect(server.address).await.unwrap();
        let head =
            "POST /mutate-namespace HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 7340032\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // The handler reads the body.
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).await.unwrap();
        announced.push(stream);
    }
    let took = review(&server).await;
    assert!(took < IN_TIME, "{took:?}");
}

/// New connections from an attacker's sources, without a handshake: the cheapest flood.
#[tokio::test]
async fn new_connection_of_api_server_outlives_flood_of_new_ones() {
    const MOST: usize = 64;
    let server = Server::start_with(|env| env.bounds.connections = MOST).await;
    let mut opened = server.client.connect(server.address).await.unwrap();
    let mut closed = JoinSet::new();
    let sources = (2..10).map(|last| IpAddr::from([127, 0, 0, last]));
    for source in sources.flat_map(|source| [source; 40]) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(source, 0)).unwrap();
        let mut stream = socket.connect(server.address).await.unwrap();
        closed.spawn(async move { stream.read(&mut [0]).await });
    }
    // All connections but those that have a place.
    for _ in 0..320 - MOST {
        closed.join_next().await.unwrap().unwrap().unwrap();
    }
    assert_eq!(post(&mut opened, &namespace_review()).await.unwrap(), 200);
}

#[tokio::test]
async fn request_without_review_does_not_keep_its_connection_open() {
    let server = Server::start_with(|env| env.bounds.connections = 3).await;
    let mut reviewed = server.client.connect(server.address).await.unwrap();
    assert_eq!(post(&mut reviewed, &namespace_review()).await.unwrap(), 200);
    let mut others = Vec::new();
    for _ in 0..2 {
        let mut other = server.client.connect(server.address).await.unwrap();
        assert_eq!(post(&mut other, "{}").await.unwrap(), 400);
        others.push(other);
    }
    let _new = server.client.connect(server.address).await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(4), others[0].read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the oldest of those without a review gives way");
    let again = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    reviewed.write_all(again).await.unwrap();
    let mut responses = String::new();
    reviewed.read_to_string(&mut responses).await.unwrap();
    assert!(responses.ends_with("ok"), "{responses}");
}
