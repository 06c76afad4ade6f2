//! Floods of HTTP/2 requests whose bodies do not come: as soon as one is answered, its sender begins another.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::crowds::{IN_TIME, namespace_review, review};
use super::frames::Frames;
use super::reviews::Server;
use super::{Client, eventually};
use crate::webhook::routes::MUTATE_NAMESPACE;

const SOURCES: [[u8; 4]; 3] = [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 4]];
const API_SERVER: [u8; 4] = [127, 0, 0, 1];
/// Of one source: more heads together than half of the memory for bodies takes (2,048).
const CONNECTIONS: usize = 40;
const HEADS: usize = 64;

/// A thread of its own, as whoever sends it has a machine of its own. Ends when it is dropped.
struct Flood {
    answered: Arc<AtomicUsize>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Fills all places from so many sources, with this much of each body.
    async fn start(server: &Server, sources: usize, part: &'static [u8]) -> Self {
        let answered = Arc::new(AtomicUsize::new(0));
        let stop = CancellationToken::new();
        let (client, address) = (Client::speaking(&server.bundle, &["h2"]), server.address);
        let sending = send(client, address, &SOURCES[..sources], part, Arc::clone(&answered));
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
        flood.goes_on().await;
        flood
    }

    /// Waits until heads have been answered, for there is no room for all, and others have been sent instead.
    async fn goes_on(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        eventually(|| self.answered.load(Ordering::Relaxed) > before + CONNECTIONS * HEADS).await;
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn send(
    client: Client,
    address: SocketAddr,
    sources: &[[u8; 4]],
    part: &'static [u8],
    answered: Arc<AtomicUsize>,
) {
    let mut senders = JoinSet::new();
    for source in sources.iter().flat_map(|source| [*source; CONNECTIONS]) {
        let (client, answered) = (client.clone(), Arc::clone(&answered));
        senders.spawn(async move {
            loop {
                if let Ok(frames) = Frames::connect(&client, source.into(), address).await {
                    let _ = holds(frames, part, &answered).await;
                }
            }
        });
    }
    senders.join_all().await;
}

async fn holds(mut frames: Frames, part: &[u8], answered: &AtomicUsize) -> std::io::Result<()> {
    let mut begin = HEADS;
    loop {
        for stream in frames.begin(MUTATE_NAMESPACE, begin).await? {
            if !part.is_empty() {
                frames.send(stream, part).await?;
            }
        }
        frames.answer().await?;
        answered.fetch_add(1, Ordering::Relaxed);
        begin = 1;
    }
}

async fn reviews_are_answered_in_time(server: &Server, flood: &Flood) {
    for _ in 0..10 {
        let took = review(server).await;
        assert!(took < IN_TIME, "{took:?}");
    }
    flood.goes_on().await;
    let took = review(server).await;
    assert!(took < IN_TIME, "{took:?}");
}

#[tokio::test]
async fn review_is_answered_in_time_beside_flood_of_heads_without_bodies() {
    let server = Server::start(&[]).await;
    let flood = Flood::start(&server, 2, b"").await;
    reviews_are_answered_in_time(&server, &flood).await;
}

#[tokio::test]
async fn review_is_answered_in_time_beside_flood_of_bodies_that_have_begun() {
    let server = Server::start(&[]).await;
    // A source of such bodies does not quite fill its half.
    let flood = Flood::start(&server, 3, b"{").await;
    reviews_are_answered_in_time(&server, &flood).await;
}

/// So many may be under way at a time: an API server writes all their heads, then their bodies.
#[tokio::test]
async fn two_hundred_reviews_at_once_are_answered_in_time_beside_flood() {
    const REVIEWS: usize = 100;
    let server = Server::start(&[]).await;
    let flood = Flood::start(&server, 2, b"").await;
    let body = namespace_review();
    let client = Client::speaking(&server.bundle, &["h2"]);
    let source = IpAddr::from(API_SERVER);
    let mut connections = Vec::new();
    for _ in 0..2 {
        connections.push(Frames::connect(&client, source, server.address).await.unwrap());
    }
    let begun = Instant::now();
    let mut streams = Vec::new();
    for connection in &mut connections {
        streams.push(connection.begin(MUTATE_NAMESPACE, REVIEWS).await.unwrap());
    }
    for (connection, streams) in connections.iter_mut().zip(streams) {
        for stream in streams {
            connection.end(stream, body.as_bytes()).await.unwrap();
        }
    }
    for connection in &mut connections {
        for answer in 0..REVIEWS {
            assert!(connection.answer().await.unwrap(), "{answer}");
        }
    }
    let took = begun.elapsed();
    assert!(took < IN_TIME, "{took:?}");
    flood.goes_on().await;
}
