//! Serves the connections and requests of a registry.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::mishap::{AffectedRequests, Mishap};
use super::{Request, Shared, digest};

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Answer = Response<Body>;

/// From an older version of the distribution specification, but every registry sends it.
const DIGEST: &str = "docker-content-digest";

/// Serves connections until `ended`.
pub(super) async fn accept_connections(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    ended: CancellationToken,
) {
    while let Some(accepted) = ended.run_until_cancelled(listener.accept()).await {
        let Ok((stream, _)) = accepted else { continue };
        let (acceptor, shared, ended) = (acceptor.clone(), Arc::clone(&shared), ended.clone());
        tasks.spawn(async move {
            let served = async {
                match acceptor {
                    None => serve_connection(stream, "http", shared).await,
                    Some(acceptor) => match acceptor.accept(stream).await {
                        Ok(stream) => serve_connection(stream, "https", shared).await,
                        Err(error) => tracing::debug!(%error, "no TLS"),
                    },
                }
            };
            ended.run_until_cancelled(served).await;
        });
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin, scheme: &'static str, shared: Arc<Shared>) {
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer_request(&request, scheme, &shared).await) }
    });
    if let Err(error) = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer_request(request: &http::Request<Incoming>, scheme: &str, shared: &Shared) -> Answer {
    let seen = record_request(request);
    let path = request.uri().path();
    let kind = request_kind(path);
    shared
        .requests
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(seen.clone());
    let mishap = shared.plan.next(kind);
    match mishap {
        Some(Mishap::Silence) => return std::future::pending().await,
        Some(Mishap::Status { code, retry_after }) => {
            let mut answer = empty_response(StatusCode::from_u16(code).unwrap_or_default());
            if let Some(value) = retry_after.and_then(|text| text.parse().ok()) {
                answer.headers_mut().insert(RETRY_AFTER, value);
            }
            return answer;
        }
        Some(Mishap::Redirect(location)) => {
            let mut answer = empty_response(StatusCode::TEMPORARY_REDIRECT);
            if let Ok(value) = location.replace("{path}", path).parse() {
                answer.headers_mut().insert(LOCATION, value);
            }
            return answer;
        }
        _ => {}
    }
    let right = correct_response(&seen, path, request.uri().query().unwrap_or_default(), scheme, shared);
    apply_fault(right, mishap, *request.method() == Method::HEAD)
}

fn record_request(request: &http::Request<Incoming>) -> Request {
    let header = |name| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    Request {
        method: request.method().to_string(),
        target: request.uri().to_string(),
        host: header(HOST),
        authorization: header(AUTHORIZATION),
    }
}

fn request_kind(path: &str) -> AffectedRequests {
    if path == "/token" {
        AffectedRequests::Token
    } else if path.contains("/manifests/") {
        AffectedRequests::Manifest
    } else if path.contains("/blobs/") {
        AffectedRequests::Blob
    } else {
        AffectedRequests::Any
    }
}

/// The answer of a registry without faults.
fn correct_response(seen: &Request, path: &str, query: &str, scheme: &str, shared: &Shared) -> Response<Bytes> {
    let login = shared.login.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if path == "/token" {
        return match login.token_response(&seen.authorization, query) {
            Some(token) => content_response("application/json", token.into()),
            None => status_response(StatusCode::UNAUTHORIZED),
        };
    }
    if let Some(challenge) = login.challenge(&seen.authorization, scheme, &seen.host) {
        let mut answer = status_response(StatusCode::UNAUTHORIZED);
        if let Ok(value) = challenge.parse() {
            answer.headers_mut().insert(WWW_AUTHENTICATE, value);
        }
        return answer;
    }
    let content = shared.content.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = path.strip_prefix("/v2/") else {
        return status_response(StatusCode::NOT_FOUND);
    };
    let blob = path.split_once("/blobs/");
    let manifest = path.split_once("/manifests/");
    let held = match (manifest, blob) {
        (Some((repository, reference)), _) => content.find_manifest(repository, reference),
        (_, Some((repository, digest))) => content
            .find_blob(repository, digest)
            .map(|bytes| ("application/octet-stream".to_owned(), bytes)),
        _ => None,
    };
    match held {
        Some((media_type, bytes)) => content_response(&media_type, bytes),
        None if path.is_empty() => status_response(StatusCode::OK),
        None => status_response(StatusCode::NOT_FOUND),
    }
}

fn status_response(code: StatusCode) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    *answer.status_mut() = code;
    answer
}

fn content_response(media_type: &str, bytes: Bytes) -> Response<Bytes> {
    let digest = digest(&bytes);
    let mut answer = Response::new(bytes);
    if let (Ok(media_type), Ok(digest)) = (media_type.parse(), digest.parse()) {
        answer.headers_mut().insert(CONTENT_TYPE, media_type);
        answer.headers_mut().insert(DIGEST, digest);
    }
    answer
}

fn empty_response(code: StatusCode) -> Answer {
    status_response(code).map(|bytes| Full::new(bytes).map_err(io::Error::other).boxed_unsync())
}

/// The correct answer, with the mishap applied.
fn apply_fault(answer: Response<Bytes>, mishap: Option<Mishap>, is_head: bool) -> Answer {
    let (mut head, mut bytes) = answer.into_parts();
    match &mishap {
        Some(Mishap::Digest(digest)) => {
            if let Ok(value) = digest.parse() {
                head.headers.insert(DIGEST, value);
            }
        }
        Some(Mishap::NoDigest) => {
            head.headers.remove(DIGEST);
        }
        Some(Mishap::Body(other)) => bytes = other.clone(),
        _ => {}
    }
    if !matches!(mishap, Some(Mishap::Endless)) {
        head.headers.insert(CONTENT_LENGTH, bytes.len().into());
    }
    if is_head {
        bytes.clear();
    }
    let half = bytes.slice(..bytes.len() / 2);
    let frame = |bytes| Ok::<_, io::Error>(Frame::data(bytes));
    let body = match mishap {
        Some(Mishap::Stall) => {
            StreamBody::new(stream::once(async move { frame(half) }).chain(stream::pending())).boxed_unsync()
        }
        Some(Mishap::Cut) => {
            let cut = stream::iter([frame(half), Err(io::Error::other("cut"))]);
            StreamBody::new(cut).boxed_unsync()
        }
        Some(Mishap::Endless) => {
            let zeros = Bytes::from_static(&[0; 16 * 1024]);
            let rest = stream::repeat_with(move || frame(zeros.clone()));
            StreamBody::new(stream::once(async move { frame(bytes) }).chain(rest)).boxed_unsync()
        }
        _ => Full::new(bytes).map_err(io::Error::other).boxed_unsync(),
    };
    Response::from_parts(head, body)
}
