//! TLS, invalid bodies, and shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Client, TestEnv, wait_for};
use crate::certificates::ca::{Credential, Stored};
use crate::certificates::lifetimes::{Schedule, WEBHOOKS};
use crate::webhook::bodies::{Bodies, read_body};
use crate::webhook::connections::Source;
use crate::webhook::routes::{MUTATE_NAMESPACE, MUTATE_POD, MUTATE_RESOURCE, VALIDATE};
use crate::webhook::serving_certificate::ServingCertificate;

const LIFE: Duration = Duration::from_secs(24 * 3600);

fn issue_credential(env: &TestEnv) -> Credential {
    let schedule = Schedule { life: LIFE, ..WEBHOOKS };
    Credential::issue(&env.context.args.webhook_names(), SystemTime::now(), &schedule).unwrap()
}

fn stored_ca(env: &TestEnv) -> Stored {
    Stored {
        current: Some(issue_credential(env)),
        ..Stored::default()
    }
}

#[tokio::test]
async fn request_without_review_is_rejected() {
    let mut env = TestEnv::start(&[]).await;
    env.bounds.body = Duration::from_millis(200);
    let stored = stored_ca(&env);
    env.put_secret(&stored);
    let (address, _running) = env.start_server().await;
    let client = Client::with_bundle(&stored.trust_bundle());
    for path in VALIDATE
        .into_iter()
        .chain([MUTATE_NAMESPACE, MUTATE_RESOURCE, MUTATE_POD])
    {
        for body in [
            "",
            "{}",
            "[]",
            "{\"apiVersion\":\"v1\",\"kind\":\"AdmissionReview\"}",
            "\u{0}",
        ] {
            let (status, response) = client.post(address, path, body).await.unwrap();
            assert_eq!(status, 400, "{path} {body:?}: {response}");
            assert!(response.contains("AdmissionReview"), "{path} {body:?}: {response}");
        }
        let unfinished = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n{{");
        assert_eq!(client.send(address, &unfinished).await.unwrap().0, 408, "{path}");
        assert_eq!(client.get(address, path).await.unwrap().0, 405, "{path}");
    }
    assert_eq!(client.get(address, "/elsewhere").await.unwrap().0, 404);
    let metrics = env.context.metrics.render().unwrap();
    let counted = "webhook_reviews_total{webhook=\"Validate\",outcome=\"NoReview\"} 18";
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn body_above_limit_is_rejected() {
    let bodies = Bodies::new(64 << 20);
    let permit = || bodies.begin_body(Source::from_address([127, 0, 0, 1].into())).unwrap();
    let most = 7 << 20;
    for (size, expected) in [(most, None), (most + 1, Some(StatusCode::PAYLOAD_TOO_LARGE))] {
        let body = Body::from("x".repeat(size));
        let read = read_body(body, &permit(), Duration::from_secs(10)).await;
        assert_eq!(read.err().map(|(status, _)| status), expected, "{size}");
    }
}

/// Otherwise an API server would use one replica for ever.
#[tokio::test]
async fn old_http2_connection_ends() {
    let mut env = TestEnv::start(&[]).await;
    env.bounds.age = Duration::from_millis(100);
    let stored = stored_ca(&env);
    env.put_secret(&stored);
    let (address, _running) = env.start_server().await;
    wait_for_goaway(&mut http2(&stored, address).await).await;
}

/// Otherwise an API server would get the old sidecar's image from it for as long as it answers.
#[tokio::test]
async fn connections_end_during_shutdown_and_new_ones_are_served() {
    let mut env = TestEnv::start(&[]).await;
    env.bounds.late = Duration::from_millis(100);
    let stored = stored_ca(&env);
    env.put_secret(&stored);
    let (address, _running) = env.start_server().await;
    let client = Client::with_bundle(&stored.trust_bundle());
    let (mut before, mut plain) = (http2(&stored, address).await, client.connect(address).await.unwrap());
    env.goes.cancel();
    wait_for_goaway(&mut before).await;
    assert_eq!(plain.read(&mut [0; 16]).await.unwrap(), 0, "it is closed");
    assert_eq!(client.get(address, "/healthz").await.unwrap().0, 200);
    wait_for_goaway(&mut http2(&stored, address).await).await;
}

/// Sends the preface, and SETTINGS without a setting.
async fn http2(stored: &Stored, address: SocketAddr) -> TlsStream<TcpStream> {
    let client = Client::with_protocols(&stored.trust_bundle(), &["h2"]);
    let mut stream = client.connect(address).await.unwrap();
    let opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(opening).await.unwrap();
    stream
}

/// Waits for the GOAWAY frame, after which no requests are taken.
async fn wait_for_goaway(stream: &mut TlsStream<TcpStream>) {
    const GOAWAY: u8 = 7;
    let frame = async {
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.unwrap();
            let mut rest = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut rest).await.unwrap();
            if head[3] == GOAWAY {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), frame).await.unwrap();
}

#[tokio::test]
async fn slow_handshake_times_out() {
    let mut env = TestEnv::start(&[]).await;
    env.bounds.handshake = Duration::from_millis(100);
    let stored = stored_ca(&env);
    env.put_secret(&stored);
    let (address, _running) = env.start_server().await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut bytes = [0; 16];
    let closed = tokio::time::timeout(Duration::from_secs(4), silent.read(&mut bytes)).await;
    assert_eq!(closed.unwrap().unwrap(), 0, "it is closed");
    assert!(
        Client::with_bundle(&issue_credential(&env).ca)
            .get(address, "/healthz")
            .await
            .is_err()
    );
    assert_eq!(
        Client::with_bundle(&stored.trust_bundle())
            .get(address, "/healthz")
            .await
            .unwrap()
            .0,
        200
    );
    assert_eq!(env.context.metrics.webhook.failed_handshakes.get(), 2);
}

#[tokio::test]
async fn review_in_flight_is_answered_before_server_stops() {
    let env = TestEnv::start(&[]).await;
    let stored = stored_ca(&env);
    env.put_secret(&stored);
    let (address, running) = env.start_server().await;
    let client = Client::with_bundle(&stored.trust_bundle());
    let mut stream = client.connect(address).await.unwrap();
    let head = "POST /mutate-namespace HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The handler reads the body: the review is in flight.
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100"));
    env.context.stop.cancel();
    stream.write_all(b"{}").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 400"), "{response}");
    running.await.unwrap().unwrap();
    assert!(client.connect(address).await.is_err());
}

#[tokio::test]
async fn certificate_files_are_served_and_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let flag = format!("--webhook-cert-dir={}", folder.path().display());
    let env = TestEnv::start(&[&flag]).await;
    let write = |credential: &Credential| {
        std::fs::write(folder.path().join("tls.key"), &credential.key).unwrap();
        std::fs::write(folder.path().join("tls.crt"), &credential.certificate).unwrap();
    };
    let (first, second) = (issue_credential(&env), issue_credential(&env));
    let served = Arc::new(ServingCertificate::default());
    let chain = || served.key.load_full().map(|key| key.cert.clone());
    let mut last = None;
    let mut read = async || served.read_files(&env.context, folder.path(), &mut last).await;
    assert!(read().await.is_err());
    assert_eq!(chain(), None, "there are no files yet");
    write(&first);
    read().await.unwrap();
    let first = Some(first.certified_key().unwrap().cert);
    assert_eq!(chain(), first);
    // One of the two files is written first.
    std::fs::write(folder.path().join("tls.key"), &second.key).unwrap();
    read().await.unwrap();
    assert_eq!(chain(), first);

    let (context, followed, directory) = (env.context.clone(), served.clone(), folder.path().to_owned());
    let following = tokio::spawn(async move {
        followed
            .follow_files(&context, &directory, Duration::from_millis(5))
            .await
    });
    write(&second);
    let second = Some(second.certified_key().unwrap().cert);
    wait_for(|| chain() == second).await;
    // Configurations and Secrets are not changed.
    let leader = tokio::spawn(crate::certificates::webhook_ca::run(env.context.clone()));
    env.context.stop.cancel();
    following.await.unwrap();
    leader.await.unwrap().unwrap();
    assert_eq!(env.server.requests().recent().len(), 0);
}
