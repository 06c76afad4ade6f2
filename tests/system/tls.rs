//! TLS towards the controller on the same port, with a certificate that may change.

use std::sync::Arc;

use ctrlmesh_tests::{Stand, wait_until};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::drain::{ends_soon, is_taken};

/// A self-signed certificate for localhost, written as a Secret is mounted.
fn write_certificate(directory: &std::path::Path) -> anyhow::Result<CertificateDer<'static>> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    std::fs::write(directory.join("tls.key"), made.signing_key.serialize_pem())?;
    std::fs::write(directory.join("tls.crt"), made.cert.pem())?;
    Ok(made.cert.der().clone())
}

async fn get(stand: &Stand, trusted: &CertificateDer<'static>, protocol: &str) -> anyhow::Result<u16> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(stand.sidecar.api()).await?;
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
async fn one_port_speaks_tls_and_plain_and_rotates_its_certificate() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let first = write_certificate(directory.path())?;
    let path = directory.path().display().to_string();
    let stand = Stand::start_with(vec![], &["--tls-dir", &path]).await?;
    for protocol in ["h2", "http/1.1"] {
        assert_eq!(get(&stand, &first, protocol).await?, 200);
    }
    assert_eq!(stand.client().get("/api/v1/configmaps").await?.status, 200);
    std::fs::write(directory.path().join("tls.crt"), "no certificate")?;
    assert_eq!(get(&stand, &first, "h2").await?, 200, "the last good one goes on");
    let second = write_certificate(directory.path())?;
    wait_until("the new certificate is served", || async {
        Ok(get(&stand, &second, "h2").await.is_ok())
    })
    .await
}

#[tokio::test]
async fn without_a_certificate_tls_is_turned_away() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let certificate = write_certificate(directory.path())?;
    let stand = Stand::start(vec![]).await?;
    assert!(get(&stand, &certificate, "h2").await.is_err());
    assert_eq!(stand.client().get("/api/v1/configmaps").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_handshake_that_goes_no_further_holds_nothing_up() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    write_certificate(directory.path())?;
    let path = directory.path().display().to_string();
    let mut stand = Stand::start_with(vec![], &["--tls-dir", &path]).await?;
    let mut stalled = TcpStream::connect(stand.sidecar.api()).await?;
    // The head of a record that does not come.
    stalled.write_all(&[0x16, 3, 1, 1, 0]).await?;
    is_taken(&stand.sidecar).await?;
    ends_soon(&mut stand.sidecar).await
}
