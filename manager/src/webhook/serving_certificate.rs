//! The certificate that this replica serves, from the Secret or from files. It is swapped without a restart.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use ctrlmesh_logging::RepeatedError;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use crate::certificates::ca::{Credential, Error, Stored, not_after};
use crate::cluster::{Context, error_text};

/// Interval at which files are read again. cert-manager renews weeks before the end.
const FILES_EVERY: Duration = Duration::from_secs(10);
/// Maximum size of a file; a certificate and its key have a few kilobytes.
const MAX_FILE: u64 = 1 << 20;

/// The certificate and key for handshakes.
#[derive(Debug)]
pub(crate) struct ServingCertificate {
    pub(super) key: ArcSwapOption<CertifiedKey>,
    is_there: watch::Sender<bool>,
}

impl Default for ServingCertificate {
    fn default() -> Self {
        Self {
            key: ArcSwapOption::empty(),
            is_there: watch::Sender::new(false),
        }
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key.load_full()
    }
}

impl ServingCertificate {
    /// Serves this certificate from now on. Fails if it is invalid; then the last good one stays.
    pub(crate) fn set(&self, credential: &Credential) -> Result<Option<SystemTime>, Error> {
        let key = credential.certified_key()?;
        let end = key.cert.first().and_then(|der| not_after(der));
        self.key.store(Some(Arc::new(key)));
        self.is_there.send_replace(true);
        Ok(end)
    }

    /// Waits for the first certificate.
    pub(crate) async fn wait_for_certificate(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_there.subscribe().wait_for(|is_there| *is_there).await;
    }

    /// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1, aws-lc-rs. `clients` verifies certificates of clients; `None`: they need none.
    pub(crate) fn tls_config(
        self: &Arc<Self>,
        clients: Option<Arc<dyn ClientCertVerifier>>,
    ) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(Error::Pair)?;
        let builder = match clients {
            Some(clients) => builder.with_client_cert_verifier(clients),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Follows the Secret or the files until the manager stops.
    pub(crate) async fn follow_certificate(self: Arc<Self>, context: Context) {
        match &context.args.webhook_cert_dir {
            Some(directory) => self.follow_files(&context, directory, FILES_EVERY).await,
            None => self.follow_secret(&context).await,
        }
    }

    async fn follow_secret(&self, context: &Context) {
        let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.args.namespace);
        let secret = watch_object(secrets, &context.args.webhook_secret_name).default_backoff();
        let mut secret = std::pin::pin!(secret.take_until(context.stop.cancelled()));
        let mut served = None;
        while let Some(seen) = secret.next().await {
            match seen {
                Ok(Some(secret)) => self.swap_certificate(context, &mut served, Stored::from_secret(&secret).current),
                // The leader will create it again; the served certificate is still good.
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        error = error_text(&error),
                        "watch of the webhook certificate's Secret failed; retrying"
                    );
                }
            }
        }
    }

    pub(super) async fn follow_files(&self, context: &Context, directory: &Path, every: Duration) {
        let mut served = None;
        let mut failure = RepeatedError::default();
        loop {
            if let Some(error) = failure.record(self.read_files(context, directory, &mut served).await) {
                tracing::warn!(error, "failed to read the certificate in --webhook-cert-dir; retrying");
            }
            tokio::select! {
                () = context.stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    /// `served`: the certificate that was read last.
    pub(super) async fn read_files(
        &self,
        context: &Context,
        directory: &Path,
        served: &mut Option<Credential>,
    ) -> Result<(), Error> {
        let credential = read_files(directory).await?;
        self.swap_certificate(context, served, Some(credential));
        Ok(())
    }

    fn swap_certificate(&self, context: &Context, served: &mut Option<Credential>, credential: Option<Credential>) {
        if *served == credential {
            return;
        }
        let set = credential.as_ref().map(|credential| self.set(credential));
        match set {
            Some(Ok(end)) => {
                let seconds = end.and_then(|end| end.duration_since(SystemTime::UNIX_EPOCH).ok());
                let seconds = i64::try_from(seconds.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
                context.metrics.webhook.certificate_ends.set(seconds);
                tracing::info!(not_after = seconds, "serving webhook certificate");
            }
            Some(Err(error)) => tracing::warn!(%error, "webhook certificate is unusable; serving the previous one"),
            None => tracing::warn!("Secret holds no webhook certificate; serving the previous one"),
        }
        *served = credential;
    }
}

async fn read_files(directory: &Path) -> Result<Credential, Error> {
    let read = async |name: &str| {
        let path = directory.join(name);
        let failed = |source| Error::File {
            path: path.display().to_string(),
            source,
        };
        let size = tokio::fs::metadata(&path).await.map_err(failed)?.len();
        if size > MAX_FILE {
            return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
        }
        tokio::fs::read_to_string(&path).await.map_err(failed)
    };
    Ok(Credential {
        certificate: read("tls.crt").await?,
        key: read("tls.key").await?,
        ..Credential::default()
    })
}
