//! Whoever can reach the port, and keeps others from being answered: by connections that say nothing, and by bodies that do not come.

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

/// An API server waits two seconds for a label, and objects are made without it then.
const IN_TIME: Duration = Duration::from_secs(2);

/// Asks for a namespace's labels, and how long that takes.
async fn review(server: &Server) -> Duration {
    let begun = Instant::now();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let response: Value = server.create(MUTATE_NAMESPACE, &namespace).await;
    assert!(response["patch"].is_string(), "{response}");
    begun.elapsed()
}

/// Connections from these addresses of this host, that have made their handshakes and say nothing.
async fn idle(server: &Server, sources: &[IpAddr], each: usize) -> Vec<TlsStream<TcpStream>> {
    let mut connecting = JoinSet::new();
    for source in sources.iter().flat_map(|source| std::iter::repeat_n(*source, each)) {
        let (client, address) = (server.client.clone(), server.address);
        connecting.spawn(async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(source, 0)).unwrap();
            client.over(socket.connect(address).await.unwrap()).await
        });
    }
    // One that had to give way before its handshake was over is none.
    connecting.join_all().await.into_iter().filter_map(Result::ok).collect()
}

#[tokio::test]
async fn review_is_answered_in_time_beside_idle_connections_of_one_source() {
    let server = Server::start(&[]).await;
    let crowd = idle(&server, &[[127, 0, 0, 1].into()], 600).await;
    assert!(crowd.len() > 512, "{} have connected", crowd.len());
    let took = review(&server).await;
    assert!(took < IN_TIME, "{took:?}");
}

#[tokio::test]
async fn review_is_answered_in_time_beside_idle_connections_of_many_sources() {
    let server = Server::start_with(|stand| stand.bounds.connections = 64).await;
    let sources: Vec<IpAddr> = (1..=20).map(|last| [127, 0, 1, last].into()).collect();
    let crowd = idle(&server, &sources, 5).await;
    assert!(crowd.len() > 64, "{} have connected", crowd.len());
    let took = review(&server).await;
    assert!(took < IN_TIME, "{took:?}");
}

#[tokio::test]
async fn connection_without_a_request_is_closed_in_seconds() {
    let server = Server::start_with(|stand| stand.bounds.first_head = Duration::from_millis(100)).await;
    let mut silent = server.client.connect(server.address).await.unwrap();
    let mut bytes = [0; 16];
    let closed = tokio::time::timeout(Duration::from_secs(4), silent.read(&mut bytes)).await;
    assert!(matches!(closed.unwrap(), Ok(0) | Err(_)), "it is closed");
    assert!(Bounds::default().first_head <= Duration::from_secs(10));

    // One that has asked is kept: its client asks again.
    let mut used = server.client.connect(server.address).await.unwrap();
    for _ in 0..2 {
        used.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let read = used.read(&mut bytes).await.unwrap();
        assert!(bytes[..read].starts_with(b"HTTP/1.1 200"));
        // The rest of the answer, and longer than the first request may take.
        while tokio::time::timeout(Duration::from_millis(200), used.read(&mut bytes))
            .await
            .is_ok_and(|read| read.unwrap() > 0)
        {}
    }
}

#[tokio::test]
async fn bodies_that_are_announced_and_do_not_come_hold_nobody_up() {
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
