//! The API server and the identity towards it: made once from a kubeconfig or a pod's service account, shared by all threads.
//!
//! The `kube` crate reads the configuration. Leaves tokens and client certificates to `credentials.rs` and connecting to `connect.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::HeaderValue;
use http::uri::{Authority, PathAndQuery, Scheme};
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls::pki_types::{IpAddr, ServerName};

use super::{
    credentials::{Credentials, Identity},
    dial::Gate,
    error::Error,
};

/// Trust settings for TLS servers, without an identity of the sidecar. Shared by many targets.
#[derive(Debug, Clone)]
pub(crate) struct Trust(Arc<Identity>);

impl Trust {
    /// `settings` must verify certificates and have none of their own.
    pub(crate) fn new(settings: rustls::ClientConfig) -> Self {
        Self(Arc::new(Identity::new(settings, 0)))
    }
}

/// The API server that requests go to.
#[derive(Debug)]
pub struct Target {
    scheme: Scheme,
    authority: Authority,
    host: String,
    port: u16,
    server_name: Option<ServerName<'static>>,
    host_header: HeaderValue,
    prefix: String,
    credentials: Credentials,
    /// The same server without the client certificate; only if there is one.
    client_identity: Option<Arc<Self>>,
    /// Decides where connections may go; `None` allows every address of the name.
    gate: Option<Arc<Gate>>,
}

impl Target {
    /// Builds a target from the `kube` crate's configuration, with its TLS settings and its authentication.
    ///
    /// Call it on the control runtime: the task that keeps the credentials fresh stays there.
    ///
    /// # Errors
    /// A server URL without scheme or host, unusable certificates, or no credentials (an exec plugin that fails, a token file that cannot
    /// be read).
    pub async fn from_kube(config: kube::Config) -> Result<Arc<Self>, Error> {
        let client_identity = if may_present_certificate(&config.auth_info) {
            let mut anonymous = config.clone();
            anonymous.auth_info = kube::config::AuthInfo::default();
            Some(Arc::new(Self::connect_as(anonymous, None).await?))
        } else {
            None
        };
        Ok(Arc::new(Self::connect_as(config, client_identity).await?))
    }

    async fn connect_as(config: kube::Config, client_identity: Option<Arc<Self>>) -> Result<Self, Error> {
        let url = config.cluster_url.clone();
        let problem = |problem| Error::ServerUrl {
            url: url.to_string(),
            problem,
        };
        let scheme = url
            .scheme()
            .cloned()
            .ok_or_else(|| problem("it must begin with https:// or http://"))?;
        let authority = url.authority().cloned().ok_or_else(|| problem("it names no host"))?;
        let default_port = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return Err(problem("only https:// and http:// are supported")),
        };
        // A literal IPv6 address has brackets in a URL, but not in a socket address or certificate.
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let server_name = if scheme == Scheme::HTTPS {
            Some(
                ServerName::try_from(name)
                    .map_err(|_| problem("its host (or tls-server-name) can't be in a certificate"))?,
            )
        } else {
            None
        };
        let host_header =
            HeaderValue::from_str(authority.as_str()).map_err(|_| problem("its host can't stand in a header"))?;
        Ok(Self {
            host_header,
            port: authority.port_u16().unwrap_or(default_port),
            prefix: url.path().trim_end_matches('/').to_owned(),
            credentials: Credentials::start(config).await?,
            scheme,
            authority,
            host,
            server_name,
            client_identity,
            gate: None,
        })
    }

    /// A server towards which the sidecar has no identity, for external traffic. `trust` is `None` for plain HTTP.
    ///
    /// # Errors
    /// Host and port cannot be written in a URL.
    pub(crate) fn external(
        name: &ServerName<'static>,
        port: u16,
        trust: Option<&Trust>,
        gate: Arc<Gate>,
    ) -> Result<Arc<Self>, http::Error> {
        let host = name.to_str().into_owned();
        let shown = match name {
            ServerName::IpAddress(IpAddr::V6(_)) => format!("[{host}]"),
            _ => host.clone(),
        };
        let (scheme, default_port) = match trust {
            Some(_) => (Scheme::HTTPS, 443),
            None => (Scheme::HTTP, 80),
        };
        let authority = if port == default_port {
            Authority::try_from(shown.as_str())?
        } else {
            Authority::try_from(format!("{shown}:{port}"))?
        };
        Ok(Arc::new(Self {
            scheme,
            // All characters of an `Authority` are valid in a header.
            host_header: HeaderValue::from_str(authority.as_str())?,
            authority,
            host,
            port,
            server_name: trust.map(|_| name.clone()),
            prefix: String::new(),
            credentials: Credentials::without_identity(trust.map(|trust| Arc::clone(&trust.0))),
            client_identity: None,
            gate: Some(gate),
        }))
    }

    /// The target for requests with an identity of their own. The API server checks a client certificate before a token, so a connection
    /// with the sidecar's certificate would turn every caller into the sidecar.
    #[must_use]
    pub fn for_client_identity(self: &Arc<Self>) -> &Arc<Self> {
        self.client_identity.as_ref().unwrap_or(self)
    }

    /// Uses the given kubeconfig (its current context, or the named one), else the service account of the pod.
    ///
    /// Ignores `$KUBECONFIG` and `~/.kube/config`: a sidecar must not find a cluster by accident.
    ///
    /// # Errors
    /// The error says what is missing of either; see also [`Target::from_kube`].
    pub async fn infer(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Arc<Self>, Error> {
        let config = match (kubeconfig, context) {
            (Some(path), context) => read_kubeconfig(path, context).await?,
            (None, Some(context)) => {
                return Err(Error::ContextWithoutKubeconfig {
                    context: context.to_owned(),
                });
            }
            (None, None) => kube::Config::incluster_env().map_err(|source| Error::NotInCluster { source })?,
        };
        Self::from_kube(config).await
    }

    /// Host and port as in the server URL; the value of `Host` and `:authority`.
    #[must_use]
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Port of the API server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The sidecar's own identity, for requests without one.
    #[must_use]
    pub const fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub(super) const fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    pub(super) const fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    /// The host without the brackets of a URL.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn gate(&self) -> Option<&Gate> {
        self.gate.as_deref()
    }

    /// Name in the server's certificate; `None` for plain HTTP.
    pub(super) const fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    /// TLS settings for a new connection; `None` for plain HTTP.
    pub(super) fn identity(&self) -> Option<Arc<Identity>> {
        self.credentials.identity()
    }

    /// The path of a request on this server: the server URL may have a path of its own (Rancher, `kubectl proxy --api-prefix`).
    pub(super) fn request_path(&self, path: Option<PathAndQuery>) -> Result<PathAndQuery, http::uri::InvalidUri> {
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if self.prefix.is_empty() {
            Ok(path)
        } else {
            PathAndQuery::try_from(format!("{}{path}", self.prefix))
        }
    }
}

/// The kubeconfig at a path: the file, or the single file in a directory, as kubelet mounts a `ConfigMap` with one key.
fn kubeconfig_file(path: &Path) -> Result<PathBuf, Error> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let wrong = |problem: String| Error::KubeconfigDirectory {
        path: path.to_owned(),
        problem,
    };
    let entries = std::fs::read_dir(path).map_err(|error| wrong(error.to_string()))?;
    let mut files = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| wrong(error.to_string()))?.file_name();
        // Kubelet's own files begin with two dots.
        if !name.as_encoded_bytes().starts_with(b"..") {
            files.push(path.join(name));
        }
        if files.len() > 1 {
            break;
        }
    }
    <[PathBuf; 1]>::try_from(files).map(|[file]| file).map_err(|files| {
        let count = if files.is_empty() { "no file" } else { "several files" };
        wrong(format!(
            "has {count}; write the path of one, or let the volume have one item"
        ))
    })
}

async fn read_kubeconfig(path: &Path, context: Option<&str>) -> Result<kube::Config, Error> {
    let path = &*kubeconfig_file(path)?;
    let wrong = |source| Error::Kubeconfig {
        path: path.to_owned(),
        source,
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(wrong)?;
    check_context(&kubeconfig, context).map_err(|problem| Error::KubeconfigContext {
        path: path.to_owned(),
        problem,
    })?;
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let proxied = uses_proxy(&kubeconfig, context);
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(wrong)?;
    if proxied {
        return Err(Error::ProxyUrl { path: path.to_owned() });
    }
    Ok(config)
}

/// Checks that the kubeconfig has the named context, or else its current one. The error says what to do. Any YAML mapping reads as a
/// kubeconfig, so a wrong file is one without contexts.
fn check_context(kubeconfig: &Kubeconfig, context: Option<&str>) -> Result<(), String> {
    let known: Vec<&str> = kubeconfig.contexts.iter().map(|named| named.name.as_str()).collect();
    if known.is_empty() {
        return Err("it has no contexts, so it is no kubeconfig; write the path of one".to_owned());
    }
    let listed = known.join(", ");
    match context.or(kubeconfig.current_context.as_deref()) {
        None | Some("") => Err(format!(
            "it has no current-context; write one of its contexts as --context (CTRLMESH_CONTEXT): {listed}"
        )),
        Some(name) if !known.contains(&name) => Err(format!("there is no context {name:?}; its contexts are {listed}")),
        Some(_) => Ok(()),
    }
}

/// Whether the chosen cluster names a forward proxy. (`kube::Config` also uses `$HTTPS_PROXY`, which does not apply here: a sidecar reaches
/// its API server directly.)
fn uses_proxy(kubeconfig: &Kubeconfig, context: Option<&str>) -> bool {
    let Some(name) = context.or(kubeconfig.current_context.as_deref()) else {
        return false;
    };
    let context = kubeconfig.contexts.iter().find(|named| named.name == name);
    let Some(context) = context.and_then(|named| named.context.as_ref()) else {
        return false;
    };
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster);
    cluster
        .and_then(|named| named.cluster.as_ref()?.proxy_url.as_deref())
        .is_some_and(|url| !url.is_empty())
}

/// Whether connections may carry the sidecar's client certificate. An exec plugin may return one.
fn may_present_certificate(auth: &kube::config::AuthInfo) -> bool {
    auth.client_certificate.is_some() || auth.client_certificate_data.is_some() || auth.exec.is_some()
}
