//! Ports, protocols and limits of connections.

use http::StatusCode;
use tokio::net::TcpStream;

use crate::support::{CONFIGMAPS, Connection, PATIENCE, configmap, server_builder, start_server};

#[tokio::test]
async fn both_ports_speak_http1_and_http2() {
    let server = start_server().await;
    for (client, is_http2) in [
        (Connection::connect_http1(&server).await, false),
        (Connection::connect_h2c(&server).await, true),
        (Connection::connect_tls(&server, &["h2", "http/1.1"]).await, true),
        (Connection::connect_tls(&server, &["http/1.1"]).await, false),
        (Connection::connect_tls(&server, &[]).await, false),
    ] {
        assert_eq!(client.is_http2(), is_http2);
        assert_eq!(client.get("/version").await.status, StatusCode::OK);
        assert_eq!(
            client.get("/version").await.status,
            StatusCode::OK,
            "the connection is kept"
        );
    }
    assert_eq!(server.activity().accepted, 5);
    let http1 = server_builder().alpn(&["http/1.1"]).start().await.expect("started");
    assert!(!Connection::connect_tls(&http1, &["h2", "http/1.1"]).await.is_http2());
}

#[tokio::test]
async fn clients_learn_max_concurrent_streams() {
    let server = server_builder()
        .max_concurrent_streams(2)
        .start()
        .await
        .expect("started");
    let stream = TcpStream::connect(server.address()).await.expect("open");
    let (mut sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = http::Request::get("http://testkit/version")
        .body(())
        .expect("a request");
    let (answer, _) = sender.send_request(request, true).expect("sent");
    answer.await.expect("a response");
    assert_eq!(sender.current_max_send_streams(), 2);
}

#[tokio::test]
async fn stream_over_the_limit_waits_for_one_to_end() {
    let server = server_builder()
        .max_concurrent_streams(2)
        .start()
        .await
        .expect("started");
    let client = Connection::connect_h2c(&server).await;
    // The first answer makes sure that the client has read the server's settings.
    client.get("/version").await;
    let target = format!("{CONFIGMAPS}?watch=1");
    let (first, _second) = (client.watch(&target).await, client.watch(&target).await);
    let third = client.get("/version");
    let (third, ()) = tokio::join!(third, async { drop(first) });
    assert_eq!(third.status, StatusCode::OK);
}

#[tokio::test]
async fn watches_and_requests_share_one_connection() {
    let server = start_server().await;
    let client = Connection::connect_tls(&server, &["h2"]).await;
    let mut watches = Vec::new();
    for _ in 0..90 {
        watches.push(client.watch(&format!("{CONFIGMAPS}?watch=1")).await);
    }
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    for watch in &mut watches {
        watch.expect_event("ADDED", "a").await;
    }
    assert_eq!(server.activity().watches, 90);
}

#[tokio::test]
async fn clients_on_other_runtimes_are_served() {
    let server = start_server().await;
    let (sender, answered) = tokio::sync::oneshot::channel();
    let server = std::sync::Arc::new(server);
    let client_thread = std::thread::spawn({
        let server = std::sync::Arc::clone(&server);
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let client = Connection::connect_h2c(&server).await;
                let mut watch = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
                client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
                watch.expect_event("ADDED", "a").await;
            });
            sender.send(()).expect("a receiver");
        }
    });
    tokio::time::timeout(PATIENCE, answered)
        .await
        .expect("in time")
        .expect("a response");
    client_thread.join().expect("no panic");
    server.stop().await;
}
