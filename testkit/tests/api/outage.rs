//! The server goes down and comes back.

use ctrlmesh_testkit::{ApiServer, Error};
use http::StatusCode;
use tokio::net::TcpStream;

use crate::support::{CONFIGMAPS, Connection, configmap, item_names, start_server};

#[tokio::test]
async fn outage_cuts_connections_and_keeps_ports_objects_and_certificates() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    client.create(CONFIGMAPS, &configmap("default", "a", "x")).await;
    let _watch = client.watch(&format!("{CONFIGMAPS}?watch=1")).await;
    let version = server.store().resource_version();
    let (address, kubeconfig) = (server.address(), server.kubeconfig());

    server.stop().await;
    assert_eq!((server.activity().connections, server.activity().watches), (0, 0));
    TcpStream::connect(address).await.expect_err("the port is closed");
    server
        .store()
        .put(configmap("default", "b", "x"))
        .expect("the store is there");

    server.restart().await.expect("it comes back");
    assert_eq!((server.address(), server.kubeconfig()), (address, kubeconfig));
    let client = Connection::connect_tls(&server, &["h2"]).await;
    assert_eq!(item_names(&client.get(CONFIGMAPS).await.body), ["a", "b"]);
    let mut watch = client
        .watch(&format!("{CONFIGMAPS}?watch=1&resourceVersion={version}"))
        .await;
    watch.expect_event("ADDED", "b").await;
    assert!(matches!(server.restart().await, Err(Error::State(_))));
}

#[tokio::test]
async fn server_closes_its_port_when_dropped() {
    let server = start_server().await;
    let address = server.address();
    let client = Connection::connect_http1(&server).await;
    assert_eq!(client.get("/version").await.status, StatusCode::OK);
    drop(server);
    let closed = async { while TcpStream::connect(address).await.is_ok() {} };
    tokio::time::timeout(crate::support::PATIENCE, closed)
        .await
        .expect("the listener ends");
}

#[tokio::test]
async fn taken_port_is_reported() {
    let server = start_server().await;
    let second = ApiServer::builder().ports(server.address().port(), 0).start().await;
    assert!(matches!(second, Err(Error::Listen { address, .. }) if address == server.address()));
}
