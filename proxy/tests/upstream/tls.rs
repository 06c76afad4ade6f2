//! Over TLS: whom we trust, who we are, which protocol and which place.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use ctrlmesh_proxy::upstream::{ConnectError, Limits, SendError, Target, Upstream};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{RootCertStore, ServerConfig, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio_rustls::TlsAcceptor;

use crate::{
    get, post, read, run_on_worker,
    server::{Exchange, Http2, Server, raw_server},
    wait_until,
};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn new_authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn new_certificate(authority: &Authority, names: &[&str]) -> (rcgen::Certificate, KeyPair) {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let key = KeyPair::generate().unwrap();
    (
        CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, authority)
            .unwrap(),
        key,
    )
}

fn server_settings(authority: &Authority, names: &[&str], alpn: &[u8], clients: bool) -> Arc<ServerConfig> {
    let (certificate, key) = new_certificate(authority, names);
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = if clients {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        ServerConfig::builder()
            .with_client_cert_verifier(WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap())
    } else {
        ServerConfig::builder().with_no_client_auth()
    };
    let mut settings = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    settings.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(settings)
}

fn write_identity(directory: &Path, authority: &Authority) {
    let (certificate, key) = new_certificate(authority, &["controller"]);
    std::fs::write(directory.join("client.crt"), certificate.pem()).unwrap();
    std::fs::write(directory.join("client.key"), key.serialize_pem()).unwrap();
}

/// Writes a kubeconfig next to its certificate authority.
fn write_kubeconfig(directory: &Path, authority: &Authority, server: &str, user: &Value) -> std::path::PathBuf {
    std::fs::write(directory.join("ca.crt"), authority.pem()).unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, "certificate-authority": "ca.crt"}}],
        "users": [{"name": "u", "user": user}],
    });
    let path = directory.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

async fn answer_path(exchange: Exchange) {
    let uri = exchange.request.uri().to_string();
    exchange.answer(uri);
}

async fn serve_tls(authority: &Authority, clients: bool) -> Server {
    let tls = Some(server_settings(authority, &["localhost", "127.0.0.1"], b"h2", clients));
    Http2 {
        tls,
        ..Http2::default()
    }
    .serve(answer_path)
    .await
}

#[test]
fn servers_certificate_is_checked_and_its_url_may_have_path() {
    run_on_worker(async {
        let (authority, directory) = (new_authority(), tempfile::tempdir().unwrap());
        let server = serve_tls(&authority, false).await;
        let base = format!("https://localhost:{}/k8s/clusters/c-1", server.address.port());
        let path = write_kubeconfig(directory.path(), &authority, &format!("{base}/"), &json!({}));
        let upstream = Upstream::new(Target::infer(Some(&path), None).await.unwrap(), Limits::default());
        let answer = read(upstream.send(get("/api/v1/pods?limit=5")).await).await;
        assert_eq!(answer, (200, Bytes::from(format!("{base}/api/v1/pods?limit=5"))));
    });
}

#[test]
fn certificate_of_another_authority_is_refused_with_reason() {
    run_on_worker(async {
        let (ours, directory) = (new_authority(), tempfile::tempdir().unwrap());
        let server = serve_tls(&new_authority(), false).await;
        let url = format!("https://{}", server.address);
        let path = write_kubeconfig(directory.path(), &ours, &url, &json!({}));
        let upstream = Upstream::new(Target::infer(Some(&path), None).await.unwrap(), Limits::default());
        let failed = upstream.send(post("/", "x")).await.unwrap_err();
        assert!(!failed.maybe_executed());
        let SendError::Unreachable { source } = &failed else {
            panic!("{failed:?}")
        };
        assert!(matches!(**source, ConnectError::Tls { .. }), "{source:?}");
        let message = failed.to_string();
        assert!(
            message.contains("invalid peer certificate") && message.contains("certificate authority"),
            "{message}"
        );
        assert!(server.seen.borrow().is_empty());
    });
}

#[test]
fn client_certificate_is_presented_and_its_renewal_noticed() {
    run_on_worker(async {
        let (authority, directory) = (new_authority(), tempfile::tempdir().unwrap());
        let server = serve_tls(&authority, true).await;
        let url = format!("https://{}", server.address);
        write_identity(directory.path(), &authority);
        let user = json!({"client-certificate": "client.crt", "client-key": "client.key"});
        let path = write_kubeconfig(directory.path(), &authority, &url, &user);
        let target = Target::infer(Some(&path), None).await.unwrap();
        let upstream = Upstream::new(Arc::clone(&target), Limits::default());
        assert_eq!(read(upstream.send(get("/")).await).await.0, 200);
        assert_eq!(read(upstream.send(get("/")).await).await.0, 200);
        assert_eq!(server.connections.get(), 1);
        assert!(target.credentials().current_header().is_none());

        write_identity(directory.path(), &authority);
        target.credentials().refresh_now();
        wait_until(|| target.credentials().refresh_count() > 0).await;
        assert_eq!(read(upstream.send(get("/")).await).await.0, 200);
        assert_eq!(server.connections.get(), 2, "a new certificate needs a new connection");
    });
}

#[test]
fn server_that_wants_client_certificate_and_gets_none_is_unreachable() {
    run_on_worker(async {
        let (authority, directory) = (new_authority(), tempfile::tempdir().unwrap());
        let server = serve_tls(&authority, true).await;
        let path = write_kubeconfig(
            directory.path(),
            &authority,
            &format!("https://{}", server.address),
            &json!({}),
        );
        let upstream = Upstream::new(Target::infer(Some(&path), None).await.unwrap(), Limits::default());
        let failed = upstream.send(get("/")).await.unwrap_err();
        assert!(matches!(failed, SendError::Unreachable { .. }), "{failed:?}");
        assert!(failed.to_string().contains("CertificateRequired"), "{failed}");
    });
}

#[test]
fn server_without_http2_is_spoken_to_in_http1() {
    run_on_worker(async {
        let (authority, directory) = (new_authority(), tempfile::tempdir().unwrap());
        let acceptor = TlsAcceptor::from(server_settings(&authority, &["localhost"], b"http/1.1", false));
        let server = raw_server(move |tcp, _| {
            let acceptor = acceptor.clone();
            async move {
                let mut stream = BufReader::new(acceptor.accept(tcp).await.unwrap());
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    stream.read_line(&mut line).await.unwrap();
                }
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none")
                    .await
                    .unwrap();
                let _ = stream.read_line(&mut line).await;
            }
        })
        .await;
        let url = format!("https://localhost:{}", server.address.port());
        let path = write_kubeconfig(directory.path(), &authority, &url, &json!({}));
        let upstream = Upstream::new(Target::infer(Some(&path), None).await.unwrap(), Limits::default());
        assert_eq!(read(upstream.send(get("/")).await).await, (200, Bytes::from("one")));
    });
}

#[test]
fn literal_ipv6_address_is_understood() {
    run_on_worker(async {
        let (authority, directory) = (new_authority(), tempfile::tempdir().unwrap());
        // Port 1: refused, or without IPv6 not even routed; that we got there is what counts.
        let path = write_kubeconfig(directory.path(), &authority, "https://[::1]:1", &json!({}));
        let upstream = Upstream::new(Target::infer(Some(&path), None).await.unwrap(), Limits::default());
        let failed = upstream.send(get("/")).await.unwrap_err();
        let SendError::Unreachable { source } = &failed else {
            panic!("{failed:?}")
        };
        let tried = "[::1]:1".parse().unwrap();
        assert!(
            matches!(**source, ConnectError::Connect { address, .. } if address == tried),
            "{source:?}"
        );
    });
}

#[test]
fn closed_port_is_unreachable_and_nothing_was_executed() {
    run_on_worker(async {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap();
        let upstream = Upstream::new(crate::target_of(format!("http://{free}")).await, Limits::default());
        let failed = upstream.send(post("/", "x")).await.unwrap_err();
        let SendError::Unreachable { source } = &failed else {
            panic!("{failed:?}")
        };
        assert!(
            matches!(**source, ConnectError::Connect { address, .. } if address == free),
            "{source:?}"
        );
        assert_eq!(upstream.stats().open_failures, 1);
    });
}
