//! A reverse proxy in front of the API server that cleans paths, as gateways do (nginx with `merge_slashes`, Rancher's prefix): it decodes
//! them, takes backslashes for slashes, merges slashes and resolves dot segments.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::Client;

/// The response to paths outside the prefix, as if they led to another cluster.
pub const OTHER_CLUSTER: &str = "objects of another cluster";

/// The proxy. Dropping this ends it.
pub struct PathCleaningProxy {
    address: SocketAddr,
    prefix: &'static str,
    arrived: Arc<Mutex<Vec<String>>>,
    _serving: JoinSet<()>,
}

impl PathCleaningProxy {
    /// Forwards requests below `prefix` to the API server.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(api: SocketAddr, prefix: &'static str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let mut serving = JoinSet::new();
        serving.spawn(accept_connections(listener, api, prefix, Arc::clone(&arrived)));
        Ok(Self {
            address,
            prefix,
            arrived,
            _serving: serving,
        })
    }

    /// A kubeconfig for the proxy, with a token.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        kubeconfig_for(&format!("http://{}{}", self.address, self.prefix))
    }

    /// The targets of all requests, as received.
    #[must_use]
    pub fn arrived_targets(&self) -> Vec<String> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A kubeconfig for a server URL, with the token `sidecars-own`.
#[must_use]
pub fn kubeconfig_for(server: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{ "name": "it", "cluster": { "server": server } }],
        "users": [{ "name": "it", "user": { "token": "sidecars-own" } }],
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
    })
    .to_string()
}

async fn accept_connections(
    listener: TcpListener,
    api: SocketAddr,
    prefix: &'static str,
    arrived: Arc<Mutex<Vec<String>>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let arrived = Arc::clone(&arrived);
        connections.spawn(async move {
            let service = service_fn(|request| forward_request(request, api, prefix, &arrived));
            let http = hyper::server::conn::http1::Builder::new();
            drop(http.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn forward_request(
    request: Request<Incoming>,
    api: SocketAddr,
    prefix: &str,
    arrived: &Mutex<Vec<String>>,
) -> anyhow::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    arrived
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(parts.uri.to_string());
    let path = clean_path(parts.uri.path());
    let Some(path) = path.strip_prefix(prefix) else {
        return Ok(Response::new(Full::new(Bytes::from_static(OTHER_CLUSTER.as_bytes()))));
    };
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let client = Client::http1(api).with_headers(end_to_end(parts.headers));
    let body = body.collect().await?.to_bytes();
    let answer = client.send(parts.method, &format!("{path}{query}"), body).await?;
    let mut response = Response::new(Full::new(answer.body));
    *response.status_mut() = answer.status.try_into()?;
    *response.headers_mut() = end_to_end(answer.headers);
    Ok(response)
}

fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in ["connection", "transfer-encoding", "content-length", "host"] {
        headers.remove(name);
    }
    headers
}

fn clean_path(path: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(path)
        .decode_utf8_lossy()
        .replace('\\', "/");
    let mut kept: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    let slash = if decoded.ends_with('/') && !kept.is_empty() {
        "/"
    } else {
        ""
    };
    let path = kept.join("/");
    // Encode the path again: escape all characters that are not allowed in a path.
    let encoded = percent_encoding::utf8_percent_encode(&path, NO_PATH);
    format!("/{encoded}{slash}")
}

const NO_PATH: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#');
