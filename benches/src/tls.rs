//! The origin's certificate and the CA that issued it, as files that every process and every other proxy can read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The protocols that an API server offers, in its order.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A folder with a CA, a certificate for 127.0.0.1 and its key.
#[derive(Debug, Clone)]
pub(crate) struct TlsFolder(PathBuf);

impl TlsFolder {
    pub(crate) fn create(path: PathBuf) -> anyhow::Result<Self> {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca.distinguished_name.push(DnType::CommonName, "ctrlmesh bench CA");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let mut leaf = CertificateParams::new(vec!["localhost".to_owned()])?;
        leaf.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &ca)?;
        let folder = Self(path);
        std::fs::create_dir_all(&folder.0)?;
        std::fs::write(folder.ca_path(), ca.pem())?;
        std::fs::write(folder.certificate_path(), certificate.pem())?;
        std::fs::write(folder.key_path(), key.serialize_pem())?;
        Ok(folder)
    }

    /// A folder that another process has created.
    pub(crate) const fn open(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn ca_path(&self) -> PathBuf {
        self.0.join("ca.crt")
    }

    fn certificate_path(&self) -> PathBuf {
        self.0.join("tls.crt")
    }

    fn key_path(&self) -> PathBuf {
        self.0.join("tls.key")
    }

    pub(crate) fn server_config(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let chain = CertificateDer::pem_file_iter(self.certificate_path())?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(self.key_path())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).into();
        Ok(Arc::new(config))
    }
}

/// Settings of a client that trusts this CA and speaks HTTP/2 alone.
pub(crate) fn client_config(ca: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    #[tokio::test]
    async fn client_trusts_server_and_agrees_on_http2() {
        let files = tempfile::tempdir().unwrap();
        let folder = TlsFolder::create(files.path().join("tls")).unwrap();
        let acceptor = TlsAcceptor::from(TlsFolder::open(folder.path().to_owned()).server_config().unwrap());
        let connector = TlsConnector::from(client_config(&folder.ca_path()).unwrap());
        let (client, server) = tokio::io::duplex(1 << 14);
        let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
        let (client, server) = tokio::join!(connector.connect(name, client), acceptor.accept(server));
        server.unwrap();
        assert_eq!(client.unwrap().get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    }
}
