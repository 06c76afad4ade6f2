//! The upstream side against small servers on loopback, on one thread and one `LocalSet`, as in a worker.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]
#![allow(missing_docs, unreachable_pub, reason = "tests")]

mod credentials;
mod failures;
mod goaway;
mod http1;
mod http2;
mod server;
mod tls;
mod upgrade;

use std::{rc::Rc, sync::Arc};

use bytes::Bytes;
use ctrlmesh_proxy::upstream::{Limits, SendError, Target, Upstream, UpstreamBody};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use tokio::net::TcpStream;

use crate::server::{Exchange, Http2, Server, raw_server};

/// Runs a test as a worker thread runs.
pub fn run_on_worker(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(std::time::Duration::from_secs(30), test)
            .await
            .expect("the test hangs");
    });
}

/// HTTP/2 without TLS, the rest as in production.
pub fn h2c_limits() -> Limits {
    Limits {
        http2_prior_knowledge: true,
        ..Limits::default()
    }
}

pub async fn target_of(url: String) -> Arc<Target> {
    Target::from_kube(kube::Config::new(url.parse().unwrap()))
        .await
        .unwrap()
}

/// An HTTP/2 server, and what a worker has for it.
pub async fn http2<F>(handler: impl Fn(Exchange) -> F + 'static) -> (Server, Rc<Upstream>)
where
    F: Future<Output = ()> + 'static,
{
    let server = Http2::default().serve(handler).await;
    let upstream = server.upstream(h2c_limits()).await;
    (server, upstream)
}

/// A server that speaks by hand, and what a worker has for it, over HTTP/1.1.
pub async fn http1<F>(handle: impl Fn(TcpStream, usize) -> F + 'static) -> (Server, Rc<Upstream>)
where
    F: Future<Output = ()> + 'static,
{
    let server = raw_server(handle).await;
    let upstream = server.upstream(Limits::default()).await;
    (server, upstream)
}

/// The request was sent, and nobody knows what became of it.
#[track_caller]
pub fn assert_perhaps_executed(failed: &SendError) {
    let is_broken = matches!(
        failed,
        SendError::Broken {
            maybe_executed: true,
            ..
        }
    );
    assert!(is_broken, "{failed:?}");
}

pub fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(path).body(Empty::new()).unwrap()
}

pub fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(path).body(Full::new(body.into())).unwrap()
}

/// Status and whole body.
pub async fn read(response: Result<Response<UpstreamBody>, SendError>) -> (u16, Bytes) {
    let response = response.unwrap();
    (
        response.status().as_u16(),
        response.into_body().collect().await.unwrap().to_bytes(),
    )
}

/// Lets the other tasks run until something holds; bounded by the test's own time limit.
pub async fn wait_until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
    }
}
