//! The sidecar's own identity towards the API server, kept up to date: the `Authorization` header and the TLS settings.
//!
//! The `kube` crate knows how to authenticate (token files, exec plugins, basic, bearer, client certificates). This file only calls it
//! again at the right times and publishes the result without locks. The caller decides which requests get the header.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use futures_util::{TryFutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::AUTHORIZATION};
use http_body_util::Empty;
use kube::client::{ConfigExt, middleware::AuthLayer};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tower::{Layer, ServiceExt, service_fn};

use super::error::{BoxError, Error};

/// Maximum delay until a rotated token is noticed. kubelet rotates at 80 % of a token's life: minutes before its end.
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum interval between refreshes on demand: a storm of 401 must not become a storm of exec plugins.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// TLS settings with the sidecar's client certificate, if there is one.
#[derive(Debug)]
pub(super) struct Identity {
    /// Offers HTTP/2 and HTTP/1.1.
    pub(super) negotiated: Arc<rustls::ClientConfig>,
    /// Offers HTTP/1.1 only: for upgrades.
    pub(super) http1: Arc<rustls::ClientConfig>,
    /// Grows when the certificate changes; connections made under an older one take no new requests.
    pub(super) generation: u64,
}

/// The header and TLS settings in force. Cheap to read from any thread.
#[derive(Debug)]
pub struct Credentials {
    published: Arc<Published>,
    impersonation: Vec<(HeaderName, HeaderValue)>,
    _refresh: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug, Default)]
struct Published {
    authorization: ArcSwapOption<HeaderValue>,
    identity: Option<ArcSwap<Identity>>,
    asked: Notify,
    failures: AtomicU64,
    refreshes: AtomicU64,
}

impl Identity {
    /// Builds both variants of these settings.
    pub(super) fn new(mut negotiated: rustls::ClientConfig, generation: u64) -> Self {
        let mut http1 = negotiated.clone();
        negotiated.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self {
            negotiated: Arc::new(negotiated),
            http1: Arc::new(http1),
            generation,
        }
    }
}

impl Credentials {
    /// No identity at all. `tls` has no client certificate; it is `None` for plain HTTP.
    pub(super) fn without_identity(tls: Option<Arc<Identity>>) -> Self {
        Self {
            published: Arc::new(Published {
                identity: tls.map(ArcSwap::new),
                ..Published::default()
            }),
            impersonation: Vec::new(),
            _refresh: None,
        }
    }

    /// Gets the credentials for the first time, and refreshes them on the current runtime until dropped.
    pub(super) async fn start(config: kube::Config) -> Result<Self, Error> {
        let url = config.cluster_url.to_string();
        let failed = |source: BoxError| Error::Credentials {
            url: url.clone(),
            source,
        };
        let impersonation = impersonation_headers(&config).await.map_err(failed)?;
        let identity = if config.cluster_url.scheme() == Some(&http::uri::Scheme::HTTPS) {
            let identity = load_identity(&config, 0).await.map_err(failed)?;
            let identity = identity.map_err(|source| Error::Tls {
                url: url.clone(),
                source: Box::new(source),
            })?;
            Some(ArcSwap::from_pointee(identity))
        } else {
            None
        };
        let layer = load_layer(&config).await.map_err(failed)?;
        let published = Arc::new(Published {
            identity,
            ..Published::default()
        });
        let refresh = Refresh {
            certificate: certificate_times(&config),
            config,
            layer,
            published: Arc::clone(&published),
        };
        refresh.publish_header().await.map_err(failed)?;
        let task = refresh
            .can_change()
            .then(|| AbortOnDropHandle::new(tokio::spawn(refresh.run())));
        Ok(Self {
            published,
            impersonation,
            _refresh: task,
        })
    }

    /// The `Authorization` header in force, marked sensitive; `None` if the sidecar authenticates by certificate or not at all. When a
    /// refresh fails, the last good one stays in force.
    #[must_use]
    pub fn current_header(&self) -> Option<HeaderValue> {
        self.published.authorization.load().as_deref().cloned()
    }

    /// Adds the sidecar's identity to a request: `Authorization`, and the `Impersonate-*` headers if the kubeconfig has them (`as`).
    pub fn apply(&self, headers: &mut HeaderMap) {
        if let Some(authorization) = self.current_header() {
            headers.insert(AUTHORIZATION, authorization);
        }
        if !self.impersonation.is_empty() {
            // The kubeconfig defines the impersonated user; impersonation headers of the client must not be added to it.
            let others: Vec<_> = headers
                .keys()
                .filter(|name| name.as_str().starts_with("impersonate-"))
                .cloned()
                .collect();
            for name in others {
                headers.remove(name);
            }
        }
        for (name, value) in &self.impersonation {
            headers.append(name, value.clone());
        }
    }

    /// Requests a refresh. Call it when the API server answered 401 to the sidecar's own header: the token file is read, or the exec plugin
    /// run again, at once (at most once a second). Does not wait.
    pub fn refresh_now(&self) {
        self.published.asked.notify_one();
    }

    /// Number of failed refreshes since the start, for a metric.
    #[must_use]
    pub fn refresh_failures(&self) -> u64 {
        self.published.failures.load(Ordering::Relaxed)
    }

    /// Number of successful refreshes since the start, for a metric.
    #[must_use]
    pub fn refresh_count(&self) -> u64 {
        self.published.refreshes.load(Ordering::Relaxed)
    }

    pub(super) fn identity(&self) -> Option<Arc<Identity>> {
        self.published.identity.as_ref().map(ArcSwap::load_full)
    }

    /// Generation of the TLS settings in force; 0 for plain HTTP.
    pub(super) fn generation(&self) -> u64 {
        self.published
            .identity
            .as_ref()
            .map_or(0, |identity| identity.load().generation)
    }
}

/// State of the refresh task.
struct Refresh {
    config: kube::Config,
    layer: Option<AuthLayer>,
    certificate: Vec<Option<SystemTime>>,
    published: Arc<Published>,
}

impl Refresh {
    /// Whether the credentials can ever change: a fixed token, password or inline certificate cannot.
    const fn can_change(&self) -> bool {
        let info = &self.config.auth_info;
        info.token_file.is_some() || info.exec.is_some() || info.auth_provider.is_some() || !self.certificate.is_empty()
    }

    async fn run(mut self) {
        loop {
            let asked = tokio::select! {
                () = tokio::time::sleep(REFRESH_INTERVAL) => false,
                () = self.published.asked.notified() => true,
            };
            match self.refresh(asked).await {
                Ok(()) => {
                    self.published.refreshes.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    self.published.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "failed to refresh credentials; keeping the last good ones");
                }
            }
            if asked {
                tokio::time::sleep(MIN_REFRESH_INTERVAL).await;
            }
        }
    }

    async fn refresh(&mut self, asked: bool) -> Result<(), BoxError> {
        // kube's own cache would keep a token file for a minute and an exec plugin's token until it expires, even if the server has just
        // refused it: a new layer starts without a cache.
        if asked || self.config.auth_info.token_file.is_some() {
            self.layer = load_layer(&self.config).await?;
        }
        self.publish_header().await?;
        let certificate = certificate_times(&self.config);
        if certificate != self.certificate || (asked && self.config.auth_info.exec.is_some()) {
            self.publish_identity().await?;
            self.certificate = certificate;
        }
        Ok(())
    }

    async fn publish_header(&self) -> Result<(), BoxError> {
        let Some(layer) = &self.layer else { return Ok(()) };
        let header = header_of(layer).await?;
        self.published.authorization.store(header.map(|mut header| {
            header.set_sensitive(true);
            Arc::new(header)
        }));
        Ok(())
    }

    async fn publish_identity(&self) -> Result<(), BoxError> {
        if let Some(identity) = &self.published.identity {
            let generation = identity.load().generation.saturating_add(1);
            identity.store(Arc::new(load_identity(&self.config, generation).await??));
        }
        Ok(())
    }
}

/// Lets kube's layer add its headers to an empty request, and reads the result.
fn header_of(layer: &AuthLayer) -> BoxFuture<'static, Result<Option<HeaderValue>, BoxError>> {
    let authorized = layer
        .layer(service_fn(header_of_response))
        .oneshot(Request::new(Empty::new()));
    Box::pin(authorized.map_ok(Response::into_body))
}

async fn header_of_response(request: Request<Empty<Bytes>>) -> Result<Response<Option<HeaderValue>>, BoxError> {
    Ok(Response::new(request.headers().get(AUTHORIZATION).cloned()))
}

/// Runs on a thread for blocking work, because it reads files and may run an exec plugin.
async fn load_layer(config: &kube::Config) -> Result<Option<AuthLayer>, BoxError> {
    let config = config.clone();
    Ok(tokio::task::spawn_blocking(move || config.auth_layer()).await??)
}

/// Like [`load_layer`]. The outer error means that the thread failed, the inner one that the settings are wrong.
async fn load_identity(config: &kube::Config, generation: u64) -> Result<Result<Identity, kube::Error>, BoxError> {
    let config = config.clone();
    let load = move || Ok(Identity::new(config.rustls_client_config()?, generation));
    Ok(tokio::task::spawn_blocking(load).await?)
}

async fn impersonation_headers(config: &kube::Config) -> Result<Vec<(HeaderName, HeaderValue)>, BoxError> {
    let seen = service_fn(|request: Request<()>| async move { Ok::<_, BoxError>(request.headers().clone()) });
    let headers = config
        .extra_headers_layer()?
        .layer(seen)
        .oneshot(Request::new(()))
        .await?;
    Ok(headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect())
}

/// Modification times of the client certificate and key, if they are files; `None` for a file that does not exist.
fn certificate_times(config: &kube::Config) -> Vec<Option<SystemTime>> {
    let info = &config.auth_info;
    let files = [&info.client_certificate, &info.client_key];
    let time = |path: &String| {
        std::fs::metadata(PathBuf::from(path))
            .and_then(|meta| meta.modified())
            .ok()
    };
    files.into_iter().flatten().map(time).collect()
}
