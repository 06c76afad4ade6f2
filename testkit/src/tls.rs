//! The test CA, the server's certificate, and kubeconfigs that trust them. Nothing is written to disk.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::Error;

/// DNS names of the certificate: those that in-cluster clients use.
const NAMES: [&str; 3] = ["localhost", "kubernetes.default.svc", "kubernetes.default"];

/// The token in the kubeconfig of a server that requires none: without one, kubectl would ask for a password.
const ANY_TOKEN: &str = "anyone";

/// A CA with one serving certificate, for the lifetime of a server.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) ca_pem: String,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivatePkcs8KeyDer<'static>>,
}

impl Identity {
    pub(crate) fn new(address: IpAddr) -> Result<Self, Error> {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        ca.distinguished_name.push(DnType::CommonName, "ctrlmesh testkit CA");
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

        let mut leaf = CertificateParams::new(NAMES.map(str::to_owned))?;
        leaf.subject_alt_names.push(SanType::IpAddress(address));
        leaf.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &ca)?;
        Ok(Self {
            ca_pem: ca.pem(),
            chain: vec![certificate.der().clone()],
            key: Arc::new(PrivatePkcs8KeyDer::from(key.serialize_der())),
        })
    }

    /// TLS 1.2 and 1.3, aws-lc-rs, the given ALPN names.
    pub(crate) fn server_config(&self, alpn: &[&str]) -> Result<Arc<ServerConfig>, Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), PrivateKeyDer::Pkcs8(self.key.clone_key()))?;
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// A kubeconfig for one of the two ports.
    pub(crate) fn kubeconfig(&self, address: SocketAddr, is_tls: bool, token: Option<&str>) -> String {
        let (scheme, ca) = if is_tls {
            let data = STANDARD.encode(&self.ca_pem);
            ("https", format!("\n    certificate-authority-data: {data}"))
        } else {
            ("http", String::new())
        };
        let token = token.unwrap_or(ANY_TOKEN);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: testkit\n\
             clusters:\n- name: testkit\n  cluster:\n    server: {scheme}://{address}{ca}\n\
             users:\n- name: testkit\n  user: {{ token: {token:?} }}\n\
             contexts:\n- name: testkit\n  context:\n    cluster: testkit\n    user: testkit\n    namespace: default\n"
        )
    }
}
