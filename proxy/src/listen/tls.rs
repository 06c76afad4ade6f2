//! TLS for the controller's connections: certificate and key from a directory, reloaded when it changes.
//!
//! Kubernetes publishes a Secret by swapping the `..data` link, so the directory is watched, not the files. If a new certificate cannot be
//! read, the last good one stays in use, and a warning is logged.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::chain::DirectoryWatch;
use crate::error::Error;

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The certificate in use; without one, TLS clients are refused.
#[derive(Clone, Default)]
pub(crate) struct ServerTls(Arc<ArcSwapOption<Served>>);

struct Served {
    config: Arc<ServerConfig>,
    digest: Digest,
}

impl ServerTls {
    /// Reads the directory, if one is configured.
    ///
    /// # Errors
    /// The certificate cannot be used. This is an error at the start only; later it is a warning.
    pub(crate) fn load(directory: Option<&Path>) -> Result<Self, Error> {
        let tls = Self::default();
        if let Some(directory) = directory {
            let files = Files::read(directory);
            tls.use_config(files.config(directory)?, files.digest());
        }
        Ok(tls)
    }

    pub(crate) fn current_acceptor(&self) -> Option<TlsAcceptor> {
        self.0
            .load()
            .as_ref()
            .map(|served| TlsAcceptor::from(Arc::clone(&served.config)))
    }

    /// Reloads the certificate when the directory changes, until `stop`.
    pub(crate) async fn follow_directory(self, directory: PathBuf, stop: CancellationToken) {
        let mut watch = DirectoryWatch::new([&directory]);
        let mut unusable = None;
        loop {
            tokio::select! {
                // Returns every half minute even without a change.
                () = watch.wait_for_change() => {}
                () = stop.cancelled() => return,
            }
            self.read_again(&directory, &mut unusable);
        }
    }

    /// Loads the current files. Logs only what differs from the certificate in use, and from what was `unusable` before.
    fn read_again(&self, directory: &Path, unusable: &mut Option<Digest>) {
        let files = Files::read(directory);
        let digest = files.digest();
        let is_served = self.0.load().as_ref().is_some_and(|served| served.digest == digest);
        if is_served || *unusable == Some(digest) {
            return;
        }
        match files.config(directory) {
            Ok(config) => {
                self.use_config(config, digest);
                *unusable = None;
                tracing::info!("TLS certificate reloaded");
            }
            Err(error) => {
                *unusable = Some(digest);
                tracing::warn!(%error, "new TLS certificate is unusable; keeping the last good one");
            }
        }
    }

    fn use_config(&self, config: ServerConfig, digest: Digest) {
        let config = Arc::new(config);
        self.0.store(Some(Arc::new(Served { config, digest })));
    }
}

/// Digest of the files' content, or of the error that keeps them from being read.
type Digest = [u8; 32];

/// The content of both files at one time.
struct Files {
    certificate: io::Result<Vec<u8>>,
    key: io::Result<Vec<u8>>,
}

impl Files {
    fn read(directory: &Path) -> Self {
        Self {
            certificate: std::fs::read(directory.join(CERTIFICATE)),
            key: std::fs::read(directory.join(KEY)),
        }
    }

    fn digest(&self) -> Digest {
        let mut hasher = Sha256::new();
        for file in [&self.certificate, &self.key] {
            match file {
                Ok(bytes) => hasher.update(Sha256::digest(bytes)),
                Err(error) => hasher.update(error.to_string()),
            }
        }
        hasher.finalize().into()
    }

    fn config(&self, directory: &Path) -> Result<ServerConfig, Error> {
        let unusable = |file: &str, why: String| Error::Tls {
            path: directory.join(file),
            why,
        };
        let bytes = |file: &str, read: &'_ io::Result<Vec<u8>>| match read {
            Ok(bytes) => Ok(bytes.clone()),
            Err(error) => Err(unusable(file, error.to_string())),
        };
        let chain = CertificateDer::pem_slice_iter(&bytes(CERTIFICATE, &self.certificate)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unusable(CERTIFICATE, error.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_slice(&bytes(KEY, &self.key)?).map_err(|error| unusable(KEY, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|error| unusable(CERTIFICATE, error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(directory.join(CERTIFICATE), made.cert.pem()).unwrap();
        std::fs::write(directory.join(KEY), made.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn certificate_is_replaced_and_logged_only_when_changed() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path());
        let tls = ServerTls::load(Some(directory.path())).unwrap();
        let mut unusable = None;
        let served = || tls.0.load_full().unwrap();
        let mut is_replaced = || {
            let before = served();
            tls.read_again(directory.path(), &mut unusable);
            !Arc::ptr_eq(&before, &served())
        };
        assert!(!is_replaced(), "nothing has changed");
        write(directory.path());
        assert!(is_replaced());
        assert!(!is_replaced(), "nothing has changed since");
        std::fs::write(directory.path().join(KEY), "no key").unwrap();
        assert!(!is_replaced(), "the last good certificate is kept");
        let reported = unusable;
        assert!(reported.is_some());
        tls.read_again(directory.path(), &mut unusable);
        assert_eq!(unusable, reported);
        write(directory.path());
        tls.read_again(directory.path(), &mut unusable);
        assert_eq!(unusable, None, "a good one again");
    }
}
