//! Configuration of a server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;

use super::{ApiServer, bind_listener, local_address};
use crate::Error;
use crate::activity::Gauges;
use crate::faults::Faults;
use crate::requests::{DEFAULT_REQUEST_LOG, RequestLog};
use crate::resource::{KindRegistry, Resource};
use crate::shared::Shared;
use crate::store::{DEFAULT_EVENT_LOG, Store};
use crate::tls::Identity;
use crate::watch_stream::Signals;

/// Namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// kube-apiserver's limit (apiserver `pkg/server/secure_serving.go`).
const MAX_CONCURRENT_STREAMS: u32 = 100;

/// Upstream's interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);

/// Configures a server; see [`ApiServer::builder`].
#[derive(Debug)]
pub struct Builder {
    address: IpAddr,
    port: u16,
    tls_port: u16,
    alpn: Vec<&'static str>,
    resources: Vec<Resource>,
    namespaces: Vec<String>,
    event_log: usize,
    request_log: usize,
    max_concurrent_streams: u32,
    bookmark_every: Duration,
    token: Option<String>,
    advertised: Vec<String>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            tls_port: 0,
            alpn: vec!["h2", "http/1.1"],
            resources: Vec::new(),
            namespaces: NAMESPACES.map(str::to_owned).to_vec(),
            event_log: DEFAULT_EVENT_LOG,
            request_log: DEFAULT_REQUEST_LOG,
            max_concurrent_streams: MAX_CONCURRENT_STREAMS,
            bookmark_every: BOOKMARK_EVERY,
            token: None,
            advertised: Vec::new(),
        }
    }
}

impl Builder {
    /// Ports to listen on, plaintext and TLS. Default: 0, which picks free ones.
    #[must_use]
    pub fn ports(mut self, plain: u16, tls: u16) -> Self {
        (self.port, self.tls_port) = (plain, tls);
        self
    }

    /// Protocols offered in the TLS handshake. Default: `h2` and `http/1.1`.
    #[must_use]
    pub fn alpn(mut self, protocols: &[&'static str]) -> Self {
        self.alpn = protocols.to_vec();
        self
    }

    #[must_use]
    pub fn resource(mut self, resource: Resource) -> Self {
        self.resources.push(resource);
        self
    }

    /// Creates a namespace besides `default` and the `kube-` ones.
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespaces.push(name.into());
        self
    }

    /// Changes kept per kind, for watches and past states. A watch that falls further behind ends with 410.
    #[must_use]
    pub fn event_log(mut self, changes: usize) -> Self {
        self.event_log = changes;
        self
    }

    /// Requests kept for [`ApiServer::requests`]; 0 keeps only counts, for benchmarks.
    #[must_use]
    pub fn request_log(mut self, requests: usize) -> Self {
        self.request_log = requests;
        self
    }

    /// Streams that a client may open on one HTTP/2 connection. Default: 100.
    #[must_use]
    pub fn max_concurrent_streams(mut self, streams: u32) -> Self {
        self.max_concurrent_streams = streams;
        self
    }

    /// Interval of bookmarks. Default: a minute.
    #[must_use]
    pub fn bookmark_every(mut self, interval: Duration) -> Self {
        self.bookmark_every = interval;
        self
    }

    /// Requires a bearer token, and writes it into the kubeconfig.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Host and port that `GET /api` names; the TLS port's own unless set. If there are several, each connection gets
    /// the next one, as if it led to another API server.
    #[must_use]
    pub fn advertise(mut self, address: &str) -> Self {
        self.advertised.push(address.into());
        self
    }

    /// Binds both ports and serves. The runtime needs time and I/O enabled; any flavour works.
    ///
    /// # Errors
    /// If a port is taken, a kind is registered twice, or a certificate can't be made.
    pub async fn start(self) -> Result<ApiServer, Error> {
        let registry = Arc::new(KindRegistry::new(self.resources)?);
        let store = Store::new(Arc::clone(&registry), self.event_log);
        for name in &self.namespaces {
            store.put(json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": { "name": name, "labels": { "kubernetes.io/metadata.name": name } },
                "spec": { "finalizers": ["kubernetes"] },
                "status": { "phase": "Active" },
            }))?;
        }
        let faults = Faults::default();
        if let Some(token) = &self.token {
            faults.require_tokens([token]);
        }
        let identity = Identity::new(self.address)?;
        let tls_config = identity.server_config(&self.alpn)?;
        let plain = bind_listener(SocketAddr::new(self.address, self.port)).await?;
        let tls = bind_listener(SocketAddr::new(self.address, self.tls_port)).await?;
        let tls_address = local_address(&tls, self.address)?;
        let shared = Shared {
            advertised: match self.advertised {
                none if none.is_empty() => vec![tls_address.to_string()],
                some => some,
            },
            connections: AtomicUsize::new(0),
            registry,
            store,
            faults,
            requests: RequestLog::new(self.request_log),
            gauges: Gauges::new(),
            signals: watch::Sender::new(Signals::default()),
            max_concurrent_streams: self.max_concurrent_streams,
            bookmark_every: self.bookmark_every,
        };
        let server = ApiServer {
            address: local_address(&plain, self.address)?,
            tls_address,
            identity,
            tls_config,
            token: self.token,
            shared: Arc::new(shared),
            running: Mutex::new(None),
        };
        server.spawn_listeners(plain, tls);
        Ok(server)
    }
}
