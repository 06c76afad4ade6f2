//! Ports, protocols and limits of connections.

use http::{Method, StatusCode};

use crate::support::{CONFIGMAPS, Connection, PATIENCE, builder, configmap, request, server};

#[tokio::test]
async fn one_port_speaks_http1_and_http2_the_other_the_same_over_tls() {
    let server = server().await;
    for (client, is_http2) in [
        (Connection::h1(&server).await, false),
        (Connection::h2c(&server).await, true),
        (Connection::tls(&server, &["h2", "http/1.1"]).await, true),
        (Connection::tls(&server, &["http/1.1"]).await, false),
        (Connection::tls(&server, &[]).await, false),
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
    let http1 = builder().alpn(&["http/1.1"]).start().await.expect("started");
    assert!(!Connection::tls(&http1, &["h2", "http/1.1"]).await.is_http2());
}

#[tokio::test]
async fn no_more_streams_are_served_at_once_than_the_server_allows() {
    let server = builder().max_concurrent_streams(2).start().await.expect("started");
    let client = Connection::h2c(&server).await;
    // The first answer makes sure that the client has read the server's settings.
    client.get("/version").await;
    let target = format!("{CONFIGMAPS}?watch=1");
    let (first, _second) = (client.watch(&target).await, client.watch(&target).await);
    let third = client.send(request(Method::GET, "/version", &[], String::new()));
    let mut third = std::pin::pin!(third);
    tokio::select! {
        biased;
        _ = &mut third => panic!("the third stream had to wait"),
        counted = server.wait_until(|activity| activity.watches == 2) => { counted.expect("two watches"); }
    }
    drop(first);
    assert_eq!(third.await.expect("an answer").status(), StatusCode::OK);
}

#[tokio::test]
async fn many_watches_and_requests_share_one_connection() {
    let server = server().await;
    let client = Connection::tls(&server, &["h2"]).await;
    let mut watches = Vec::new();
    for _ in 0..90 {
        watches.push(client.watch(&format!("{CONFIGMAPS}?watch=1")).await);
    }
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    for watch in &mut watches {
        watch.expect("ADDED", "a").await;
    }
    assert_eq!(server.activity().watches, 90);
}

#[tokio::test]
async fn clients_of_other_runtimes_are_served() {
    let server = server().await;
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
                let client = Connection::h2c(&server).await;
                let mut watch = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
                client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
                watch.expect("ADDED", "a").await;
            });
            sender.send(()).expect("a receiver");
        }
    });
    tokio::time::timeout(PATIENCE, answered)
        .await
        .expect("in time")
        .expect("an answer");
    client_thread.join().expect("no panic");
    server.stop().await;
}
