//! Client authentication of the webhooks: a client certificate by a CA in `--webhook-client-ca-file`, with a common name in
//! `--webhook-client-name` if any is given. Without that file, any client is answered, and refusals leave out names of other
//! objects.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use ctrlmesh_logging::RepeatedError;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use super::serving_certificate::ServingCertificate;
use crate::args::{Args, FlagError};
use crate::certificates::ca::subject_common_name;
use crate::cluster::{Context, Error};

const FLAG: &str = "--webhook-client-ca-file (CTRLMESH_WEBHOOK_CLIENT_CA_FILE)";
/// Interval at which the file is read again. CAs are replaced while the manager runs.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum size of the file; a bundle has a few kilobytes.
const MAX_FILE: u64 = 1 << 20;

/// The TLS configuration of new handshakes, and the names that clients must have.
pub(super) struct Tls {
    config: ArcSwap<ServerConfig>,
    names: Vec<String>,
}

impl Tls {
    /// # Errors
    /// The file is given and can't be used, so no client could be authenticated.
    pub(super) async fn new(args: &Args, served: &Arc<ServingCertificate>) -> Result<Arc<Self>, Error> {
        let clients = match &args.webhook_client_ca_file {
            Some(path) => Some(build_verifier(&read_bundle(path).await?)?),
            None => None,
        };
        Ok(Arc::new(Self {
            config: ArcSwap::new(served.tls_config(clients)?),
            names: args.webhook_client_names.clone(),
        }))
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Whether a client may send requests after its handshake.
    pub(super) fn admits_client(&self, chain: Option<&[CertificateDer<'_>]>) -> bool {
        let name = || subject_common_name(chain?.first()?);
        self.names.is_empty() || name().is_some_and(|name| self.names.contains(&name))
    }

    /// Reads the file periodically until the manager stops. If it becomes invalid, the last good CAs stay in force.
    pub(super) async fn follow_file(self: Arc<Self>, served: Arc<ServingCertificate>, context: Context) {
        let Some(path) = &context.args.webhook_client_ca_file else {
            return;
        };
        let mut last = None;
        let mut failure = RepeatedError::default();
        loop {
            if let Some(error) = failure.record(self.read_again(path, &served, &mut last).await) {
                tracing::warn!(error, "failed to read webhook client CAs; keeping the previous ones");
            }
            tokio::select! {
                () = context.stop.cancelled() => return,
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            }
        }
    }

    /// `last`: the content that was read last. Sessions of clients with other CAs are not resumed, because each configuration has
    /// sessions of its own.
    pub(super) async fn read_again(
        &self,
        path: &Path,
        served: &Arc<ServingCertificate>,
        last: &mut Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let bytes = read_bundle(path).await?;
        if last.as_ref() == Some(&bytes) {
            return Ok(());
        }
        self.config.store(served.tls_config(Some(build_verifier(&bytes)?))?);
        *last = Some(bytes);
        Ok(())
    }
}

async fn read_bundle(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error: std::io::Error| -> Error { FlagError(FLAG, format!("{}: {error}", path.display())).into() };
    if tokio::fs::metadata(path).await.map_err(failed)?.len() > MAX_FILE {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    tokio::fs::read(path).await.map_err(failed)
}

fn build_verifier(pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let wrong = |problem: String| Error::from(FlagError(FLAG, problem));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| wrong(format!("is not a PEM file: {error}")))?;
        roots
            .add(certificate)
            .map_err(|error| wrong(format!("has a certificate that is not a CA: {error}")))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| wrong(format!("has no certificate of a CA: {error}")))
}
