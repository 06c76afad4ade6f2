//! Floods of HTTP/2 requests whose bodies do not arrive, or arrive faster than they are decided. As soon as one request is
//! answered, its sender begins another.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use ctrlmesh_testkit::{Fault, Gate, Rule};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::frames::Frames;
use super::reviews::Server;
use super::starvation::{IN_TIME, namespace_review, review};
use super::{Client, wait_for};
use crate::webhook::routes::{MUTATE_NAMESPACE, MUTATE_RESOURCE};

const SOURCES: [[u8; 4]; 3] = [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4]];
const API_SERVER: [u8; 4] = [127, 0, 0, 1];
/// Connections of one source: together they have more heads than half of the memory for bodies takes (2,048).
const CONNECTIONS: usize = 40;
const HEADS: usize = 64;

/// The part of each request that is sent.
#[derive(Clone, Copy)]
enum Sent {
    Head,
    /// The head, and this part of the body.
    Begun(&'static [u8]),
    /// A review of an object in an unknown namespace.
    Review,
}

/// A flood from a thread of its own, as a real sender has a machine of its own. Ends when it is dropped.
struct Flood {
    answered: Arc<AtomicUsize>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Fills all places from `sources` sources.
    async fn start(server: &Server, sources: usize, sent: Sent) -> Self {
        let answered = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let (client, address) = (Client::with_protocols(&server.bundle, &["h2"]), server.address);
        let sending = send(client, address, &SOURCES[..sources], sent, Arc::clone(&answered));
        let until = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(until.run_until_cancelled(sending));
        });
        let flood = Self {
            answered,
            stop,
            thread: Some(thread),
        };
        flood.wait_for_responses().await;
        flood
    }

    /// Waits until heads have been answered, because there is no room for all, and others have been sent instead.
    async fn wait_for_responses(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        wait_for(|| self.answered.load(Ordering::Relaxed) > before + CONNECTIONS * HEADS).await;
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn send(client: Client, address: SocketAddr, sources: &[[u8; 4]], sent: Sent, answered: Arc<AtomicUsize>) {
    let mut senders = JoinSet::new();
    for source in sources.iter().flat_map(|source| [*source; CONNECTIONS]) {
        let (client, answered) = (client.clone(), Arc::clone(&answered));
        senders.spawn(async move {
            loop {
                if let Ok(frames) = Frames::connect(&client, source.into(), address).await {
                    let _ = hold_stream(frames, sent, &answered).await;
                }
            }
        });
    }
    senders.join_all().await;
}

async fn hold_stream(mut frames: Frames, sent: Sent, answered: &AtomicUsize) -> std::io::Result<()> {
    let (path, review) = (MUTATE_RESOURCE, unknown_namespace_review());
    let mut begin = HEADS;
    loop {
        for stream in frames.send_heads(path, begin).await? {
            match sent {
                Sent::Head => {}
                Sent::Begun(part) => frames.send(stream, part).await?,
                Sent::Review => frames.send_body(stream, review.as_bytes()).await?,
            }
        }
        frames.answer().await?;
        answered.fetch_add(1, Ordering::Relaxed);
        begin = 1;
    }
}

fn unknown_namespace_review() -> String {
    let request = json!({
        "uid": "u-1", "userInfo": {}, "operation": "CREATE", "namespace": "unknown",
        "object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "unknown"}},
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
        "resource": {"group": "", "version": "v1", "resource": "configmaps"},
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

async fn reviews_are_answered_in_time(server: &Server, flood: &Flood) {
    for _ in 0..10 {
        let took = review(server).await;
        assert!(took < IN_TIME, "{took:?}");
    }
    flood.wait_for_responses().await;
    let took = review(server).await;
    assert!(took < IN_TIME, "{took:?}");
}

#[tokio::test]
async fn review_is_answered_in_time_beside_flood_of_heads_without_bodies() {
    let server = Server::start(&[]).await;
    let flood = Flood::start(&server, 2, Sent::Head).await;
    reviews_are_answered_in_time(&server, &flood).await;
}

#[tokio::test]
async fn review_is_answered_in_time_beside_flood_of_bodies_that_have_begun() {
    let server = Server::start(&[]).await;
    // One source of such bodies does not quite fill its half.
    let flood = Flood::start(&server, 3, Sent::Begun(b"{")).await;
    reviews_are_answered_in_time(&server, &flood).await;
}

/// Each takes a second to decide, because the API server does not answer the request for its namespace.
#[tokio::test]
async fn review_is_answered_in_time_beside_flood_of_whole_reviews() {
    let server = Server::start(&[]).await;
    let held = Rule::new(Fault::Hold(Gate::new())).verb("list").resource("namespaces");
    server.env.server.faults().add(held);
    let flood = Flood::start(&server, 2, Sent::Review).await;
    reviews_are_answered_in_time(&server, &flood).await;
}

/// This many may be in flight at a time: an API server writes all their heads, then their bodies.
#[tokio::test]
async fn two_hundred_reviews_at_once_are_answered_in_time_beside_flood() {
    const REVIEWS: usize = 100;
    let server = Server::start(&[]).await;
    let flood = Flood::start(&server, 2, Sent::Head).await;
    let body = namespace_review();
    let client = Client::with_protocols(&server.bundle, &["h2"]);
    let source = IpAddr::from(API_SERVER);
    let mut connections = Vec::new();
    for _ in 0..2 {
        connections.push(Frames::connect(&client, source, server.address).await.unwrap());
    }
    let begun = Instant::now();
    let mut streams = Vec::new();
    for connection in &mut connections {
        streams.push(connection.send_heads(MUTATE_NAMESPACE, REVIEWS).await.unwrap());
    }
    for (connection, streams) in connections.iter_mut().zip(streams) {
        for stream in streams {
            connection.send_body(stream, body.as_bytes()).await.unwrap();
        }
    }
    for connection in &mut connections {
        for response in 0..REVIEWS {
            assert!(connection.answer().await.unwrap(), "{response}");
        }
    }
    let took = begun.elapsed();
    assert!(took < IN_TIME, "{took:?}");
    flood.wait_for_responses().await;
}
