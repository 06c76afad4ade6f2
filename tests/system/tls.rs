//! TLS towards the controller on the same port, with a certificate that may be rotated.

use std::sync::Arc;

use ctrlmesh_tests::{TestEnv, wait_until};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::drain::{assert_ends_soon, wait_until_connected};

/// A self-signed certificate for localhost, written like a mounted Secret.
fn write_certificate(directory: &std::path::Path) -> anyhow::Result<CertificateDer<'static>> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    std::fs::write(directory.join("tls.key"), made.signing_key.serialize_pem())?;
    std::fs::write(directory.join("tls.crt"), made.cert.pem())?;
    Ok(made.cert.der().clone())
}

async fn get_over_tls(env: &TestEnv, trusted: &CertificateDer<'static>, protocol: &str) -> anyhow::Result<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(env.sidecar.api_address()).await?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost")?, stream)
        .await?;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
    let mut request = http::Request::get("https://localhost/api/v1/configmaps").body(Empty::<bytes::Bytes>::new())?;
    let response = if protocol == "h2" {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        sender.send_request(request).await?
    } else {
        let host = http::HeaderValue::from_static("localhost");
        request.headers_mut().insert(http::header::HOST, host);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        sender.send_request(request).await?
    };
    let status = response.status().as_u16();
    response.collect().await?;
    Ok(status)
}

#[tokio::test]
async fn port_serves_tls_and_plaintext_and_rotates_its_certificate() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let first = write_certificate(directory.path())?;
    let path = directory.path().display().to_string();
    let env = TestEnv::start_with(vec![], &["--tls-dir", &path]).await?;
    for protocol in ["h2", "http/1.1"] {
        assert_eq!(get_over_tls(&env, &first, protocol).await?, 200);
    }
    assert_eq!(env.client().get("/api/v1/configmaps").await?.status, 200);
    std::fs::write(directory.path().join("tls.crt"), "no certificate")?;
    assert_eq!(
        get_over_tls(&env, &first, "h2").await?,
        200,
        "the last good certificate is kept"
    );
    let second = write_certificate(directory.path())?;
    wait_until("the new certificate is served", || async {
        Ok(get_over_tls(&env, &second, "h2").await.is_ok())
    })
    .await
}

#[tokio::test]
async fn tls_is_refused_without_a_certificate() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let certificate = write_certificate(directory.path())?;
    let env = TestEnv::start(vec![]).await?;
    assert!(get_over_tls(&env, &certificate, "h2").await.is_err());
    assert_eq!(env.client().get("/api/v1/configmaps").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn unfinished_handshake_blocks_nothing() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    write_certificate(directory.path())?;
    let path = directory.path().display().to_string();
    let mut env = TestEnv::start_with(vec![], &["--tls-dir", &path]).await?;
    let mut stalled = TcpStream::connect(env.sidecar.api_address()).await?;
    // The head of a TLS record without its body.
    stalled.write_all(&[0x16, 3, 1, 1, 0]).await?;
    wait_until_connected(&env.sidecar).await?;
    assert_ends_soon(&mut env.sidecar).await
}
