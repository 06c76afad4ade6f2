//! TLS towards the controller: certificate and key from a directory, read again when it changes.
//!
//! Kubernetes publishes a Secret by swapping the `..data` link, so the directory is watched, not the files. A certificate
//! that can't be read leaves the last good one in place, with a warning.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::chain::DirectoryWatch;
use crate::error::Error;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The certificate in use; none: TLS clients are turned away.
#[derive(Clone, Default)]
pub(crate) struct ServerTls(Arc<ArcSwapOption<ServerConfig>>);

impl ServerTls {
    /// Reads the directory, if there is one.
    ///
    /// # Errors
    /// At the start a certificate that can't be used is an error; later it is a warning.
    pub(crate) fn load(directory: Option<&Path>) -> Result<Self, Error> {
        let tls = Self::default();
        if let Some(directory) = directory {
            tls.0.store(Some(Arc::new(read(directory)?)));
        }
        Ok(tls)
    }

    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.0.load_full().map(TlsAcceptor::from)
    }

    /// Follows the directory until `stop`.
    pub(crate) async fn follow(self, directory: PathBuf, stop: CancellationToken) {
        let mut watch = DirectoryWatch::new([&directory]);
        loop {
            tokio::select! {
                () = watch.changed() => {}
                () = stop.cancelled() => return,
            }
            match read(&directory) {
                Ok(config) => {
                    self.0.store(Some(Arc::new(config)));
                    tracing::info!("TLS certificate read again");
                }
                Err(error) => tracing::warn!(%error, "the new TLS certificate is unusable; the last good one goes on"),
            }
        }
    }
}

fn read(directory: &Path) -> Result<ServerConfig, Error> {
    let unusable = |file: &str, why: String| Error::Tls {
        path: directory.join(file),
        why,
    };
    let chain = CertificateDer::pem_file_iter(directory.join(CERTIFICATE))
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(CERTIFICATE, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(directory.join(KEY)).map_err(|error| unusable(KEY, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| unusable(CERTIFICATE, error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
