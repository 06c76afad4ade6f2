//! The API server of the benchmarks: plaintext HTTP/1.1 on one port, and on another TLS with HTTP/2 by ALPN, as kube-apiserver.
//!
//! It answers with a small object, a large list, or a watch (`response_body`), which may begin with all pods (`initial_events`).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

pub(crate) mod initial_events;
mod response_body;

use response_body::ResponseBody;
pub(crate) use response_body::{sent_at, since_epoch};

use crate::client::LocalExecutor;
use crate::process::announce_addresses;
use crate::stream::{JSON, PROTOBUF};
use crate::tls::TlsFolder;

/// One port of the origin, as proxies are told it.
#[derive(Debug, Clone)]
pub(crate) struct OriginPort {
    pub(crate) address: SocketAddr,
    /// The CA of its certificate; `None` for plaintext.
    pub(crate) ca: Option<PathBuf>,
}

impl OriginPort {
    /// The HTTP version that a client speaks with it which offers both by ALPN, and nothing else in plaintext.
    pub(crate) const fn best_http(&self) -> &'static str {
        if self.ca.is_some() { "2, TLS" } else { "1.1" }
    }

    /// The HTTP version of a client that speaks HTTP/1.1 only.
    pub(crate) const fn http1(&self) -> &'static str {
        if self.ca.is_some() { "1.1, TLS" } else { "1.1" }
    }

    pub(crate) fn describe(&self) -> &'static str {
        if self.ca.is_some() {
            "TLS upstream"
        } else {
            "plaintext upstream"
        }
    }
}

/// A list of all pods, with [`POD_LIST_PODS`] of them, in JSON or protobuf.
pub(crate) const POD_LIST: &str = "/api/v1/pods";
pub(crate) const POD_LIST_PODS: usize = 5000;
/// Size of a pod with one container and its status: about 5 KiB as JSON, two fifths of that as protobuf.
pub(crate) const JSON_POD_BYTES: usize = 5 << 10;
pub(crate) const PROTOBUF_POD_BYTES: usize = 2 << 10;

/// One event, and then nothing.
pub(crate) const QUIET_WATCH: &str = "/api/v1/namespaces/quiet/configmaps?watch=true";

/// The target of a watch with an event at this interval.
pub(crate) fn watch_target(every: Duration) -> String {
    format!("/api/v1/namespaces/every-{}ms/configmaps?watch=true", every.as_millis())
}

fn watch_interval(path: &str) -> Option<Duration> {
    let rest = path.strip_prefix("/api/v1/namespaces/every-")?;
    let (milliseconds, _) = rest.split_once("ms/")?;
    milliseconds.parse().ok().map(Duration::from_millis)
}

/// About the size of one small object.
const SMALL: &str = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":[{"metadata":{"name":"a","namespace":"b","labels":{"shard":"a"}}}]}"#;

/// kube-apiserver's default of `--http2-max-streams-per-connection`.
pub(crate) const MAX_STREAMS: u32 = 100;

pub(crate) async fn serve_origin(tls: &TlsFolder) -> anyhow::Result<()> {
    let plain = TcpListener::bind("127.0.0.1:0").await?;
    let encrypted = TcpListener::bind("127.0.0.1:0").await?;
    announce_addresses(&[plain.local_addr()?, encrypted.local_addr()?])?;
    serve_ports(plain, encrypted, tls).await
}

pub(crate) async fn serve_ports(plain: TcpListener, encrypted: TcpListener, tls: &TlsFolder) -> anyhow::Result<()> {
    let acceptor = TlsAcceptor::from(tls.server_config()?);
    loop {
        tokio::select! {
            accepted = plain.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                tokio::task::spawn_local(serve_http1(stream));
            }
            accepted = encrypted.accept() => {
                let (stream, _) = accepted?;
                stream.set_nodelay(true)?;
                tokio::task::spawn_local(serve_tls(stream, acceptor.clone()));
            }
        }
    }
}

async fn serve_tls(stream: TcpStream, acceptor: TlsAcceptor) {
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return serve_http1(stream).await;
    }
    // A client that goes away is how a measurement ends.
    let _ = http2::Builder::new(LocalExecutor)
        .max_concurrent_streams(MAX_STREAMS)
        .serve_connection(TokioIo::new(stream), service_fn(answer_request))
        .await;
}

async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S) {
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service_fn(answer_request))
        .await;
}

async fn answer_request(request: Request<Incoming>) -> Result<Response<ResponseBody>, Infallible> {
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let is_protobuf = request
        .headers()
        .get(ACCEPT)
        .is_some_and(|accept| accept.as_bytes() == PROTOBUF.as_bytes());
    let body = match request.uri().path() {
        POD_LIST if is_watch => ResponseBody::InitialEvents {
            rest: initial_events::shared_events(),
        },
        path if is_watch => {
            watch_interval(path).map_or(ResponseBody::QuietEvents { first: true }, ResponseBody::watch_events)
        }
        POD_LIST if is_protobuf => ResponseBody::large_list(POD_LIST_PODS * PROTOBUF_POD_BYTES),
        POD_LIST => ResponseBody::large_list(POD_LIST_PODS * JSON_POD_BYTES),
        _ => ResponseBody::Whole(Some(Bytes::from_static(SMALL.as_bytes()))),
    };
    let mut response = Response::new(body);
    if request.method() == Method::POST {
        *response.status_mut() = StatusCode::CREATED;
    }
    let content_type = if is_protobuf { PROTOBUF } else { JSON };
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_watch_is_in_its_target() {
        let every = Duration::from_millis(250);
        let target = watch_target(every);
        let (path, _) = target.split_once('?').unwrap();
        assert_eq!(watch_interval(path), Some(every));
        assert_eq!(watch_interval(QUIET_WATCH), None);
    }
}
