//! A client that trusts only the given CAs. It makes a new connection for each request.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Clone)]
pub(crate) struct Client(TlsConnector);

impl Client {
    pub(crate) fn with_bundle(bundle: &str) -> Self {
        Self::with_protocols(bundle, &[])
    }

    /// A client with these protocols to choose from.
    pub(crate) fn with_protocols(bundle: &str, protocols: &[&str]) -> Self {
        Self::with_identity(bundle, protocols, None)
    }

    /// A client with this certificate and key, PEM.
    pub(crate) fn with_identity(bundle: &str, protocols: &[&str], identity: Option<(&str, &str)>) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config
                    .with_client_auth_cert(chain.map(Result::unwrap).collect(), key)
                    .unwrap()
            }
            None => config.with_no_client_auth(),
        };
        // A resumed session shows no certificate.
        config.resumption = Resumption::disabled();
        config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// Connects with the Service's name, as API servers do.
    pub(crate) async fn connect(&self, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_over(TcpStream::connect(address).await?).await
    }

    pub(crate) async fn connect_over(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from("ctrlmesh-manager-webhook.ctrlmesh.svc").unwrap();
        self.0.connect(name, stream).await
    }

    pub(crate) async fn get(&self, address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
        self.send(
            address,
            &format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        )
        .await
    }

    pub(crate) async fn post(&self, address: SocketAddr, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        self.send(address, &format!("{head}{body}")).await
    }

    /// Sends these bytes. Returns status and body of the response.
    pub(crate) async fn send(&self, address: SocketAddr, request: &str) -> std::io::Result<(u16, String)> {
        let mut stream = self.connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await?;
        let response = String::from_utf8(response).unwrap();
        let (head, body) = response
            .split_once("\r\n\r\n")
            .ok_or(std::io::ErrorKind::UnexpectedEof)?;
        Ok((head[9..12].parse().unwrap(), body.to_owned()))
    }
}
