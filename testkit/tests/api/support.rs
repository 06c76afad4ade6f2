//! Clients for the tests: plain HTTP/1.1 and HTTP/2 over both ports, and kube-rs on top of each.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_testkit::{ApiServer, Builder, Resource};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Timeout of every wait: generous, because loaded machines are slow, and never reached by a passing test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A server with the kind `widgets.example.com`, which has a status subresource.
pub(crate) async fn start_server() -> ApiServer {
    server_builder().start().await.expect("the server starts")
}

pub(crate) fn server_builder() -> Builder {
    ApiServer::builder().resource(Resource::namespaced("example.com", "v1", "widgets", "Widget").with_status())
}

/// A ConfigMap with one label, `app`.
pub(crate) fn configmap(namespace: &str, name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace, "labels": { "app": app } },
        "data": { "key": "value" },
    })
}

pub(crate) fn widget(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "size": 1 },
    })
}

pub(crate) const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// A response with its complete body.
#[derive(Debug)]
pub(crate) struct ReceivedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Connection {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Full<Bytes>>>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Connection {
    /// HTTP/2 with prior knowledge.
    pub(crate) async fn connect_h2c(server: &ApiServer) -> Self {
        let stream = TcpStream::connect(server.address()).await.expect("the port is open");
        Self::http2(stream).await
    }

    /// Connects without TLS.
    pub(crate) async fn connect_http1(server: &ApiServer) -> Self {
        let stream = TcpStream::connect(server.address()).await.expect("the port is open");
        Self::http1(stream).await
    }

    /// TLS, with what ALPN comes to.
    pub(crate) async fn connect_tls(server: &ApiServer, alpn: &[&str]) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(server.ca_pem().as_bytes()).expect("the CA is PEM");
        roots.add(ca).expect("the CA is a certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(server.tls_address())
            .await
            .expect("the port is open");
        let name = ServerName::IpAddress(server.tls_address().ip().into());
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .expect("the handshake succeeds");
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Self::http2(stream).await,
            _ => Self::http1(stream).await,
        }
    }

    async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.expect("the server speaks HTTP/2");
        tokio::spawn(connection);
        Self::Http2(sender)
    }

    async fn http1(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.expect("the server speaks HTTP/1.1");
        tokio::spawn(connection.with_upgrades());
        Self::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
    }

    pub(crate) fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// Sends a request and returns the head of the response.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let sending = async {
            match self {
                Self::Http2(sender) => sender.clone().send_request(request).await,
                Self::Http1(sender) => {
                    let mut sender = sender.lock().await;
                    sender.ready().await?;
                    sender.send_request(request).await
                }
            }
        };
        tokio::time::timeout(PATIENCE, sending)
            .await
            .expect("a response in time")
    }

    /// Sends a JSON request and reads the whole response.
    pub(crate) async fn call(&self, method: Method, target: &str, body: Option<&Value>) -> ReceivedResponse {
        let content_type = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        self.call_with(method, target, &[(CONTENT_TYPE.as_str(), content_type)], body)
            .await
    }

    pub(crate) async fn call_with(
        &self,
        method: Method,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> ReceivedResponse {
        let body = body.map(Value::to_string).unwrap_or_default();
        let response = self
            .send(build_request(method, target, headers, body))
            .await
            .expect("a response");
        read_response(response).await.expect("a whole body")
    }

    pub(crate) async fn get(&self, target: &str) -> ReceivedResponse {
        self.call(Method::GET, target, None).await
    }

    /// Creates an object; panics if that fails.
    pub(crate) async fn create(&self, collection: &str, object: &Value) -> Value {
        let answer = self.call(Method::POST, collection, Some(object)).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.body);
        answer.body
    }

    /// Opens a watch; panics if that fails.
    pub(crate) async fn watch(&self, target: &str) -> WatchLines {
        let response = self
            .send(build_request(Method::GET, target, &[], String::new()))
            .await
            .expect("a response");
        assert_eq!(response.status(), StatusCode::OK, "{target}");
        WatchLines::from_response(response)
    }
}

pub(crate) fn build_request(
    method: Method,
    target: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Request<Full<Bytes>> {
    let uri: Uri = format!("http://testkit{target}").parse().expect("a URI");
    let mut request = Request::builder().method(method).uri(uri).header("host", "testkit");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::from(body))).expect("a request")
}

/// Reads the whole response; a body that is no JSON becomes a string.
pub(crate) async fn read_response(response: Response<Incoming>) -> hyper::Result<ReceivedResponse> {
    let (parts, body) = response.into_parts();
    let bytes = tokio::time::timeout(PATIENCE, body.collect())
        .await
        .expect("a body in time")?
        .to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(ReceivedResponse {
        status: parts.status,
        headers: parts.headers,
        body,
    })
}

#[derive(Debug)]
pub(crate) struct WatchLines {
    body: Incoming,
    left: Vec<u8>,
}

impl WatchLines {
    pub(crate) fn from_response(response: Response<Incoming>) -> Self {
        Self {
            body: response.into_body(),
            left: Vec::new(),
        }
    }

    /// The next event; `None` at a clean end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.left.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.left.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("a line of JSON"));
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame())
                .await
                .expect("an event in time")?;
            self.left
                .extend_from_slice(&frame.expect("a whole stream").into_data().expect("no trailers"));
        }
    }

    /// Type and name of the next event; a bookmark has no name.
    pub(crate) async fn next_type_and_name(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }

    /// Asserts type and object of the next event.
    pub(crate) async fn expect_event(&mut self, kind: &str, name: &str) {
        assert_eq!(self.next_type_and_name().await, (kind.to_owned(), name.to_owned()));
    }
}

pub(crate) fn item_names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("a list");
    items
        .iter()
        .map(|item| item["metadata"]["name"].as_str().expect("a name"))
        .collect()
}

pub(crate) async fn kube_client(kubeconfig: &str) -> kube::Client {
    let kubeconfig = kube::config::Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .expect("a configuration");
    kube::Client::try_from(config).expect("a client")
}

/// A kube-rs client over one connection, because its own connector does not speak HTTP/2.
pub(crate) fn kube_client_over(connection: Connection) -> kube::Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let connection = connection.clone();
        async move {
            let (mut parts, body) = request.into_parts();
            let target = parts.uri.path_and_query().expect("a target").clone();
            parts.uri = format!("http://testkit{target}").parse().expect("a URI");
            parts.headers.insert("host", "testkit".parse().expect("a value"));
            let body = body.collect().await?.to_bytes();
            let response = connection.send(Request::from_parts(parts, Full::new(body))).await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(response)
        }
    });
    kube::Client::new(service, "default")
}

/// The `Accept` header for JSON in a form of `meta.k8s.io/v1`.
pub(crate) fn accept_form(form: &str) -> [(&'static str, String); 1] {
    [(
        ACCEPT.as_str(),
        format!("application/json;as={form};v=v1;g=meta.k8s.io"),
    )]
}
