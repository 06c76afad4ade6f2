//! Connections to registries: redirects, TLS, proxies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ctrlmesh_plugins_builtin::{RATE_LIMIT, SHARD_SELECTOR};
use ctrlmesh_testkit::registry::{AffectedRequests, Login, Mishap, Registry};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::test_env::{request_for, test_env, test_env_with};
use crate::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[tokio::test]
async fn redirected_blob_is_fetched_without_credentials() {
    let mut env = test_env().await;
    let bucket = Registry::start().await.unwrap();
    for registry in [&bucket, &env.registry] {
        registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    }
    env.registry.require(Login::Basic {
        user: "me".to_owned(),
        password: "hunter2".to_owned(),
    });
    env.put_secret("right", "me", "hunter2");
    let elsewhere = format!("http://{}{{path}}?signature=s3cret", bucket.host());
    env.registry
        .plan_mishap(AffectedRequests::Blob, Mishap::Redirect(elsewhere));
    let request = ResolveRequest {
        pull_secret: Some("right".to_owned()),
        ..env.request_for("1.0")
    };
    env.manager.resolve_ready(&request).await;
    let requests = bucket.requests();
    assert_eq!(requests.len(), 2);
    assert!(
        requests.iter().all(|request| request.authorization.is_empty()),
        "{requests:?}"
    );
    // The URL of a redirect grants access, so messages do not contain it.
    bucket.stop().await;
    env.registry.put_component("you/plugin", "2.0", RATE_LIMIT);
    let other = ResolveRequest {
        pull_secret: Some("right".to_owned()),
        ..env.request_for("2.0")
    };
    let (reason, message) = env.manager.resolve_failed(&other).await;
    assert_eq!(reason, FailureReason::RegistryUnavailable);
    assert!(!message.contains("s3cret"), "{message}");
}

#[tokio::test]
async fn redirect_into_managers_pod_is_refused() {
    let mut env = test_env_with(|settings, _| {
        settings.hosts = vec![("registry.test".to_owned(), HERE), ("inside.test".to_owned(), HERE)];
    })
    .await;
    let inside = Registry::start().await.unwrap();
    let port = inside.host().split_once(':').map(|(_, port)| port.to_owned()).unwrap();
    let (_, registry_port) = env
        .registry
        .host()
        .split_once(':')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    for (tag, location) in [
        ("ip", format!("http://127.0.0.1:{port}/")),
        ("name", format!("http://inside.test:{port}/")),
        ("metadata", "http://169.254.169.254/latest/meta-data".to_owned()),
        ("file", "file:///etc/passwd".to_owned()),
    ] {
        env.registry
            .plan_mishap(AffectedRequests::Manifest, Mishap::Redirect(location));
        let request = request_for(&format!("oci://registry.test:{registry_port}/you/plugin:{tag}"));
        let (reason, message) = env.manager.resolve_failed(&request).await;
        assert_eq!(reason, FailureReason::UnsafeRedirect, "{tag}: {message}");
        env.registry.clear_mishaps();
    }
    assert_eq!(inside.requests(), []);
}

#[tokio::test]
async fn redirects_are_limited() {
    let mut env = test_env().await;
    env.registry.plan_mishap(
        AffectedRequests::Manifest,
        Mishap::Redirect("/v2/you/plugin/manifests/1.0".to_owned()),
    );
    let (reason, message) = env.manager.resolve_failed(&env.request_for("1.0")).await;
    assert_eq!(reason, FailureReason::UnsafeRedirect);
    assert!(message.contains("in a circle"), "{message}");
    assert_eq!(env.registry.requests().len(), 6);
}

#[tokio::test]
async fn private_authority_is_trusted_once_configured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    std::fs::write(&path, "").unwrap();
    let mut env = test_env_with(|settings, _| settings.ca_file = Some(path.clone())).await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let request = request_for(&format!("oci://{}/you/plugin:1.0", env.registry.tls_host()));
    let (reason, message) = env.manager.resolve_failed(&request).await;
    assert_eq!(reason, FailureReason::RegistryUnavailable);
    assert!(message.contains("certificate"), "{message}");
    // A mounted volume that is filled or renewed needs no restart.
    std::fs::write(&path, env.registry.ca_pem()).unwrap();
    env.manager
        .resolve_until(&request, |resolution| matches!(resolution, Resolution::Ready(_)))
        .await;
    // A registry that is not configured as insecure is never contacted without TLS.
    let plain = super::test_env::request_for(&format!(
        "oci://localhost:{}/you/plugin:1.0",
        env.registry.host().split_once(':').unwrap().1
    ));
    let (reason, message) = env.manager.resolve_failed(&plain).await;
    assert_eq!(reason, FailureReason::RegistryUnavailable);
    assert!(message.ends_with("name it with --insecure-registry"), "{message}");
}

/// A proxy that opens tunnels (RFC 9110 §9.3.6) to one address, whatever the request names. Sends the first request line.
async fn proxy(to: SocketAddr) -> (SocketAddr, oneshot::Receiver<String>) {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, request_line) = oneshot::channel();
    tokio::spawn(async move {
        let mut tell = Some(tell);
        while let Ok((mut client, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            let line = String::from_utf8(head).unwrap().lines().next().unwrap().to_owned();
            if let Some(tell) = tell.take() {
                tell.send(line).unwrap();
            }
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut server = TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    (address, request_line)
}

#[tokio::test]
async fn proxy_is_used_for_hosts_without_exception() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    let registry = Registry::start().await.unwrap();
    std::fs::write(&path, registry.ca_pem()).unwrap();
    registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let (tunnel, request_line) = proxy(registry.tls_host().parse().unwrap()).await;
    let mut env = test_env_with(|settings, direct| {
        settings.ca_file = Some(path.clone());
        settings.proxies = Proxies {
            https: Some(format!("http://{tunnel}")),
            // A registry answers requests for another host, so it can act as a proxy for plain HTTP.
            http: Some(format!("http://{}", registry.host())),
            except: Some("127.0.0.1,.svc".to_owned()),
        };
        settings.insecure.insert("plain.invalid".to_owned());
        settings.insecure.insert(direct.host());
    })
    .await;
    env.manager
        .resolve_ready(&request_for("oci://localhost/you/plugin:1.0"))
        .await;
    assert_eq!(request_line.await.unwrap(), "CONNECT localhost:443 HTTP/1.1");
    env.manager
        .resolve_ready(&request_for("oci://plain.invalid/you/plugin:1.0"))
        .await;
    assert_eq!(registry.count("http://plain.invalid/v2/you/plugin/manifests/1.0"), 1);
    let before = registry.requests().len();
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    env.manager.resolve_ready(&env.request_for("1.0")).await;
    assert_eq!(registry.requests().len(), before);
}
