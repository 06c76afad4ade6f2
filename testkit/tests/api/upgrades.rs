//! Tunnels: 101 and an echo.

use bytes::Bytes;
use ctrlmesh_testkit::{Fault, Rule};
use http::{Method, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{CONFIGMAPS, Connection, PATIENCE, start_server};

const EXEC: &str = "/api/v1/namespaces/default/pods/p/exec?command=sh";

fn test_pod() -> serde_json::Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": "default" } })
}

#[tokio::test]
async fn tunnel_echoes_bytes_and_half_closes() {
    let server = start_server().await;
    server.store().put(test_pod()).expect("stored");
    for (method, subresource) in [
        (Method::POST, "exec"),
        (Method::GET, "attach"),
        (Method::POST, "portforward"),
    ] {
        let stream = TcpStream::connect(server.address()).await.expect("open");
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.expect("HTTP/1.1");
        tokio::spawn(connection.with_upgrades());
        let request = http::Request::builder()
            .method(method)
            .uri(format!("/api/v1/namespaces/default/pods/p/{subresource}"))
            .header("host", "testkit")
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1")
            .body(Empty::<Bytes>::new())
            .expect("a request");
        let response = sender.send_request(request).await.expect("a response");
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
        let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.expect("a tunnel"));
        server
            .wait_until(|activity| activity.tunnels == 1)
            .await
            .expect("one tunnel");
        tunnel.write_all(b"any bytes \x00\xff").await.expect("written");
        tunnel.shutdown().await.expect("half closed");
        let mut echoed = Vec::new();
        let reading = tunnel.read_to_end(&mut echoed);
        tokio::time::timeout(PATIENCE, reading)
            .await
            .expect("an end in time")
            .expect("read");
        assert_eq!(echoed, b"any bytes \x00\xff");
        server
            .wait_until(|activity| activity.tunnels == 0)
            .await
            .expect("no tunnel");
    }
}

#[tokio::test]
async fn tunnel_requires_pod_upgrade_and_http1() {
    let server = start_server().await;
    let h1 = Connection::connect_http1(&server).await;
    let upgrade = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    assert_eq!(
        h1.call_with(Method::POST, EXEC, &upgrade, None).await.status,
        StatusCode::NOT_FOUND
    );
    server.store().put(test_pod()).expect("stored");
    assert_eq!(h1.call(Method::POST, EXEC, None).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        Connection::connect_h2c(&server)
            .await
            .call(Method::POST, EXEC, None)
            .await
            .status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn websocket_watch_is_rejected_and_list_is_served() {
    let server = start_server().await;
    let client = Connection::connect_http1(&server).await;
    let headers = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
    ];
    let target = format!("{CONFIGMAPS}?watch=1");
    assert_eq!(
        client.call_with(Method::GET, &target, &headers, None).await.status,
        StatusCode::NOT_IMPLEMENTED
    );
    assert_eq!(
        client.call_with(Method::GET, CONFIGMAPS, &headers, None).await.status,
        StatusCode::OK
    );
    server.faults().add(Rule::new(Fault::Tunnel).verb("watch"));
    assert_eq!(
        client.call(Method::GET, &target, None).await.status,
        StatusCode::BAD_REQUEST,
        "nobody asked for another protocol"
    );
    assert_eq!(
        client.call_with(Method::GET, &target, &headers, None).await.status,
        StatusCode::SWITCHING_PROTOCOLS
    );
}
