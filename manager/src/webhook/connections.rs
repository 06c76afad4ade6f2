//! Connections of the webhook server, and which of them is closed for a new one.
//!
//! Guarantees: a client that opens connections and keeps them idle takes no place from an API server. At the limit, an idle
//! connection is closed, in this order:
//!
//! 1. connections that are older than a handshake may take, and had no review answered;
//! 2. connections that had one answered;
//! 3. young connections, which an API server may be about to use.
//!
//! Young connections are closed before used ones when there are many of one source, or in all. So new connections neither displace
//! those of API servers nor become the only ones that stay. Within a group, the source with the most connections loses its oldest
//! or least recently used one. A source has a limit of its own; at this limit only its own connections are closed.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::cluster::lock_unpoisoned;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum connections. An API server opens one for each webhook; the rest is reserve.
pub(super) const MAX_CONNECTIONS: usize = 512;
/// Maximum connections of one source. Several API servers may have one address, behind a proxy (konnectivity) or a NAT.
pub(super) const MAX_OF_SOURCE: usize = 128;

/// Number of young connections that one source may have before they are closed first. An API server opens one for each webhook at
/// its start, and several may have one address.
const YOUNG_OF_SOURCE: usize = 16;

/// The source of a connection: an IPv4 address, or an IPv6 network, because one host can use any address of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn from_address(address: IpAddr) -> Self {
        const NETWORK: u128 = !(u64::MAX as u128);
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// The open connections of all sources.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    of_source: usize,
    /// Time for which a connection is young.
    young: Duration,
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
    /// Reviews that were read and are not answered yet.
    reviews: usize,
    /// A review was answered.
    is_used: bool,
    /// Time of its accept or last use.
    since: Instant,
    gives_way: CancellationToken,
}

impl Connections {
    pub(super) fn new(most: usize, of_source: usize, young: Duration) -> Arc<Self> {
        Arc::new(Self {
            most,
            of_source,
            young,
            open: Mutex::default(),
        })
    }

    fn lock_open(&self) -> MutexGuard<'_, Open> {
        lock_unpoisoned(&self.open)
    }

    /// A place for a new connection. `None`: there is none, and no idle connection can be closed.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Peer>> {
        let source = Source::from_address(address);
        let mut open = self.lock_open();
        let of_source = open.by_id.values().filter(|entry| entry.source == source).count();
        if of_source >= self.of_source {
            open.evict_idle(self.young, |entry| entry.source == source)?;
        } else if open.by_id.len() >= self.most {
            open.evict_idle(self.young, |_| true)?;
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

/// In the order in which they are closed, unless too many are young.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Stale,
    Used,
    Young,
}

impl Entry {
    fn eviction_group(&self, young: Duration) -> Group {
        if self.is_used {
            Group::Used
        } else if self.since.elapsed() > young {
            Group::Stale
        } else {
            Group::Young
        }
    }
}

/// Idle connections of one source and group.
#[derive(Debug, Default)]
struct Idle {
    count: usize,
    oldest: Option<(Instant, u64)>,
}

impl Open {
    /// Closes an idle connection for a new one. `None`: there is none.
    fn evict_idle(&mut self, young: Duration, may_go: impl Fn(&Entry) -> bool) -> Option<()> {
        let may_go: Vec<(&u64, &Entry)> = self.by_id.iter().filter(|(_, entry)| may_go(entry)).collect();
        let mut idle: BTreeMap<Group, BTreeMap<Source, Idle>> = BTreeMap::new();
        for &(&id, entry) in may_go.iter().filter(|(_, entry)| entry.reviews == 0) {
            let sources = idle.entry(entry.eviction_group(young)).or_default();
            let of_source = sources.entry(entry.source).or_default();
            of_source.count += 1;
            let oldest = of_source.oldest.get_or_insert((entry.since, id));
            *oldest = (*oldest).min((entry.since, id));
        }
        let largest = |group| {
            idle.get(&group)?
                .values()
                .max_by_key(|it| (it.count, Reverse(it.oldest)))
        };
        let all_young: usize = idle
            .get(&Group::Young)
            .into_iter()
            .flat_map(BTreeMap::values)
            .map(|it| it.count)
            .sum();
        let of_one = largest(Group::Young).map_or(0, |it| it.count);
        let are_too_many_young = all_young > may_go.len() / 2 || of_one > YOUNG_OF_SOURCE;
        let young_first = are_too_many_young.then_some(Group::Young);
        let order = [Some(Group::Stale), young_first, Some(Group::Used), Some(Group::Young)];
        let (_, id) = order.into_iter().flatten().find_map(largest)?.oldest?;
        let entry = self.by_id.remove(&id)?;
        entry.gives_way.cancel();
        Some(())
    }
}

/// A connection, as its requests see it.
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
    pub(super) fn begin_request(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// A review was read. The connection keeps its place until the response is ready.
    pub(super) fn begin_review(self: Arc<Self>) -> Reviewing {
        if let Some(entry) = self.connections.lock_open().by_id.get_mut(&self.id) {
            entry.reviews += 1;
        }
        Reviewing(self)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connections.lock_open().by_id.remove(&self.id);
    }
}

/// A review that is being decided.
#[derive(Debug)]
pub(super) struct Reviewing(Arc<Peer>);

impl Drop for Reviewing {
    fn drop(&mut self) {
        if let Some(entry) = self.0.connections.lock_open().by_id.get_mut(&self.0.id) {
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

    const YOUNG: Duration = Duration::from_secs(5);

    fn connections(most: usize, of_source: usize) -> Arc<Connections> {
        Connections::new(most, of_source, YOUNG)
    }

    fn evicted_peers(peers: &[Arc<Peer>]) -> Vec<bool> {
        peers.iter().map(|it| is_evicted(it)).collect()
    }

    fn answers_a_review(peer: &Arc<Peer>) {
        drop(Arc::clone(peer).begin_review());
    }

    #[tokio::test(start_paused = true)]
    async fn oldest_idle_connection_gives_way() {
        let all = connections(3, 3);
        let mut peers = Vec::new();
        for last in 0..3 {
            peers.push(all.admit(address(last)).unwrap());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // The first was used and the second is busy, so the third goes, although it is the youngest.
        answers_a_review(&peers[0]);
        let busy = Arc::clone(&peers[1]).begin_review();
        tokio::time::advance(YOUNG).await;
        let fourth = all.admit(address(3)).unwrap();
        assert_eq!(evicted_peers(&peers), [false, false, true]);
        answers_a_review(&fourth);
        let _fifth = all.admit(address(4)).unwrap();
        assert!(is_evicted(&peers[0]) && !is_evicted(&fourth), "used least recently");
        drop(busy);
    }

    /// A client that sends reviews of its own makes its connections used.
    #[tokio::test(start_paused = true)]
    async fn young_connection_stays_while_there_are_older_idle_ones() {
        let all = connections(8, 8);
        let used: Vec<_> = (0..7).map(|last| all.admit(address(last)).unwrap()).collect();
        used.iter().for_each(answers_a_review);
        let young = all.admit(address(100)).unwrap();
        let mut others = Vec::new();
        for last in 101..104 {
            let other = all.admit(address(last)).unwrap();
            answers_a_review(&other);
            others.push(other);
            assert!(!is_evicted(&young), "{last}");
        }
        assert_eq!(evicted_peers(&used).into_iter().filter(|it| *it).count(), 3);
        tokio::time::advance(YOUNG * 2).await;
        let _next = all.admit(address(110)).unwrap();
        assert!(is_evicted(&young), "it had its time");
    }

    #[tokio::test(start_paused = true)]
    async fn crowd_of_young_connections_evicts_itself_alone() {
        let all = connections(64, 64);
        let [used, young] = [100, 101].map(|last| all.admit(address(last)).unwrap());
        answers_a_review(&used);
        let mut crowd = Vec::new();
        for last in (0..4).cycle().take(1000) {
            crowd.push(all.admit(address(last)).unwrap());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(!is_evicted(&used) && !is_evicted(&young));
        assert_eq!(evicted_peers(&crowd).into_iter().filter(|it| *it).count(), 1000 - 62);
    }

    /// One connection for each source, so that none is a crowd of its own.
    #[tokio::test(start_paused = true)]
    async fn young_connections_of_many_sources_leave_half_to_used_ones() {
        let all = connections(64, 64);
        let used: Vec<_> = (100..132).map(|last| all.admit(address(last)).unwrap()).collect();
        used.iter().for_each(answers_a_review);
        let crowd: Vec<_> = (0..100).map(|last| all.admit(address(last)).unwrap()).collect();
        let gone = evicted_peers(&used).into_iter().filter(|it| *it).count();
        assert!(gone <= 1, "{gone} used connections had to go");
        assert!(is_evicted(&crowd[0]) && !is_evicted(&crowd[99]));
    }

    #[test]
    fn source_takes_places_from_itself_alone() {
        let all = connections(10, 2);
        let other = all.admit(address(1)).unwrap();
        let first = all.admit(address(2)).unwrap();
        let second = all.admit(address(2)).unwrap();
        let _third = all.admit(address(2)).unwrap();
        assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&other));
    }

    #[test]
    fn busy_connections_are_never_evicted() {
        let all = connections(1, 1);
        let peer = all.admit(address(1)).unwrap();
        let review = Arc::clone(&peer).begin_review();
        assert!(all.admit(address(2)).is_none());
        drop((review, peer));
        assert!(all.admit(address(2)).is_some());
    }

    #[test]
    fn host_is_one_source_with_all_its_addresses() {
        let source = |text: &str| Source::from_address(text.parse().unwrap());
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_eq!(source("fd00:0:0:1::1"), source("fd00:0:0:1:ffff::2"));
        assert_ne!(source("fd00:0:0:1::1"), source("fd00:0:0:2::1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
