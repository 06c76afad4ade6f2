//! Connections of the webhook server, and which of them gives its place to a new one.
//!
//! Guarantees: whoever opens connections and keeps them idle takes no place from an API server. At the bound, the one that goes is idle:
//! first those that never had a review answered, the oldest of them first, then the one that was used least recently. A source has a bound
//! of its own, within which it takes places from itself alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// An API server opens one for each webhook; the rest is reserve.
pub(super) const MAX_CONNECTIONS: usize = 512;
/// Of one source. Several API servers may have one address, behind a proxy (konnectivity) or a NAT.
pub(super) const MAX_OF_SOURCE: usize = 128;

/// Whom a connection comes from: an IPv4 address, or a network of IPv6, in which one host has as many addresses as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn of(address: IpAddr) -> Self {
        const NETWORK: u128 = !(u64::MAX as u128);
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// The connections that are open, of all sources.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    of_source: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    by_id: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    source: Source,
    /// Reviews whose body has arrived and that are not answered yet.
    reviews: usize,
    /// A review was answered.
    is_used: bool,
    /// When it came, or was used last.
    since: Instant,
    gives_way: CancellationToken,
}

impl Connections {
    pub(super) fn new(most: usize, of_source: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            of_source,
            open: Mutex::default(),
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. `None`: there is none, and nobody who could give way.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Peer>> {
        let source = Source::of(address);
        let mut open = self.open();
        let of_source = open.by_id.values().filter(|entry| entry.source == source).count();
        if of_source >= self.of_source {
            open.evict(|entry| entry.source == source)?;
        } else if open.by_id.len() >= self.most {
            open.evict(|_| true)?;
        }
        let gives_way = CancellationToken::new();
        let entry = Entry {
            source,
            reviews: 0,
            is_used: false,
            since: Instant::now(),
            gives_way: gives_way.clone(),
        };
        let id = open.next;
        open.next += 1;
        open.by_id.insert(id, entry);
        Some(Arc::new(Peer {
            id,
            source,
            gives_way,
            has_asked: AtomicBool::new(false),
            connections: Arc::clone(self),
        }))
    }
}

impl Open {
    fn evict(&mut self, may_go: impl Fn(&Entry) -> bool) -> Option<()> {
        let idle = self
            .by_id
            .iter()
            .filter(|(_, entry)| entry.reviews == 0 && may_go(entry));
        let (&id, _) = idle.min_by_key(|(id, entry)| (entry.is_used, entry.since, **id))?;
        let entry = self.by_id.remove(&id)?;
        entry.gives_way.cancel();
        Some(())
    }
}

/// One connection, as its requests know it.
#[derive(Debug)]
pub(super) struct Peer {
    id: u64,
    source: Source,
    gives_way: CancellationToken,
    has_asked: AtomicBool,
    connections: Arc<Connections>,
}

impl Peer {
    pub(super) const fn source(&self) -> Source {
        self.source
    }

    /// Waits until another connection needs the place.
    pub(super) async fn gives_way(&self) {
        self.gives_way.cancelled().await;
    }

    /// The head of a request has arrived.
    pub(super) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// A review is all there. The connection keeps its place until the answer is made.
    pub(super) fn reviewing(self: Arc<Self>) -> Reviewing {
        if let Some(entry) = self.connections.open().by_id.get_mut(&self.id) {
            entry.reviews += 1;
        }
        Reviewing(self)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connections.open().by_id.remove(&self.id);
    }
}

/// A review that is being decided.
#[derive(Debug)]
pub(super) struct Reviewing(Arc<Peer>);

impl Drop for Reviewing {
    fn drop(&mut self) {
        if let Some(entry) = self.0.connections.open().by_id.get_mut(&self.0.id) {
            entry.reviews = entry.reviews.saturating_sub(1);
            entry.is_used = true;
            entry.since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn is_evicted(peer: &Peer) -> bool {
        peer.gives_way.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_idle_connection_gives_way() {
        let all = Connections::new(3, 3);
        let mut peers = Vec::new();
        for last in 0..3 {
            peers.push(all.admit(address(last)).unwrap());
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        // The first was used, the second is busy: the third goes, though it is the youngest.
        drop(Arc::clone(&peers[0]).reviewing());
        let busy = Arc::clone(&peers[1]).reviewing();
        let fourth = all.admit(address(3)).unwrap();
        assert_eq!(
            peers.iter().map(|it| is_evicted(it)).collect::<Vec<_>>(),
            [false, false, true]
        );
        drop(Arc::clone(&fourth).reviewing());
        let _fifth = all.admit(address(4)).unwrap();
        assert!(is_evicted(&peers[0]) && !is_evicted(&fourth), "used least recently");
        drop(busy);
    }

    #[test]
    fn source_takes_places_from_itself_alone() {
        let all = Connections::new(3, 2);
        let other = all.admit(address(1)).unwrap();
        let first = all.admit(address(2)).unwrap();
        let second = all.admit(address(2)).unwrap();
        let _third = all.admit(address(2)).unwrap();
        assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&other));
    }

    #[test]
    fn busy_connections_are_never_evicted() {
        let all = Connections::new(1, 1);
        let peer = all.admit(address(1)).unwrap();
        let review = Arc::clone(&peer).reviewing();
        assert!(all.admit(address(2)).is_none());
        drop((review, peer));
        assert!(all.admit(address(2)).is_some());
    }

    #[test]
    fn host_is_one_source_with_all_its_addresses() {
        let source = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_eq!(source("fd00:0:0:1::1"), source("fd00:0:0:1:ffff::2"));
        assert_ne!(source("fd00:0:0:1::1"), source("fd00:0:0:2::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
