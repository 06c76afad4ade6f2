//! Counts the requests in flight under each chain, so that `/status` can report when the last one of an earlier chain has ended.
//!
//! Each chain has [`InFlightCounts`], and each worker thread its own part of them: a request costs two additions to memory that no other
//! thread writes, no lock and no allocation. `ChainHandle::enter` ensures that no request is missed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ctrlmesh_contract::status::InFlight;
use tokio::time::Instant;

/// Number of parts for worker threads. More threads than this share parts, which only costs time.
const WORKER_COUNTS: usize = 16;

/// A lost write counts for this long after the API server has given it up: etcd ends what it received by then within its own limit
/// (`ReqTimeout` in `server/config/config.go`: 5 s and two election timeouts of 1 s).
pub(crate) const UNSETTLED_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    /// A list, from its head to the end of its response.
    List,
    /// A watch, from its head to the end of its stream.
    Watch,
}

/// The requests in flight under one chain.
#[derive(Debug)]
pub(crate) struct InFlightCounts {
    since: Instant,
    workers: [WorkerCounts; WORKER_COUNTS],
}

/// One thread's part. Two cache lines long, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerCounts {
    writes: AtomicU64,
    lists: AtomicU64,
    watches: AtomicU64,
    /// Milliseconds since the counts began, until which a lost write may still be carried out.
    unsettled: AtomicU64,
}

impl InFlightCounts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            workers: Default::default(),
        })
    }

    /// Counts for the writes of an ended process. Its connections broke when it ended, so the API server gives up the writes it was
    /// carrying out for it.
    pub(crate) fn left_behind() -> Arc<Self> {
        let counts = Self::new();
        Counter::new(0).count(&counts, Kind::Write).give_up(Instant::now());
        counts
    }

    /// Number of requests in flight. Of lost writes, each worker counts only the last.
    ///
    /// The parts are read one after the other, not at one moment. Once no request can be added any more, a request that is still in flight
    /// at the end of this call is always included.
    pub(crate) fn sum(&self) -> InFlight {
        let now = self.milliseconds_at(Instant::now());
        let mut sum = InFlight::default();
        for worker in &self.workers {
            sum.lists += worker.lists.load(Ordering::Acquire);
            sum.watches += worker.watches.load(Ordering::Acquire);
            sum.writes += worker.writes.load(Ordering::Acquire);
            // Read after the count: a request that leaves the count as lost has set this before.
            sum.writes += u64::from(worker.unsettled.load(Ordering::Acquire) > now);
        }
        sum
    }

    fn milliseconds_at(&self, at: Instant) -> u64 {
        u64::try_from((at - self.since).as_millis()).unwrap_or(u64::MAX)
    }
}

/// A worker thread's access to the counts of all chains.
#[derive(Debug)]
pub(crate) struct Counter {
    index: usize,
    /// Counter of the chain that was used last: the next request finds it without touching memory that threads share.
    recent: RefCell<Option<Rc<WorkerCounter>>>,
}

/// A worker thread's part of the counts of one chain.
#[derive(Debug)]
struct WorkerCounter {
    counts: Arc<InFlightCounts>,
    index: usize,
}

impl Counter {
    pub(crate) const fn new(worker: usize) -> Self {
        Self {
            index: worker % WORKER_COUNTS,
            recent: RefCell::new(None),
        }
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn count(&self, counts: &Arc<InFlightCounts>, kind: Kind) -> InFlightGuard {
        let guard = InFlightGuard {
            counter: self.counter_for(counts),
            kind,
        };
        if let Some(count) = guard.count() {
            count.fetch_add(1, Ordering::Relaxed);
        }
        guard
    }

    fn counter_for(&self, counts: &Arc<InFlightCounts>) -> Rc<WorkerCounter> {
        let mut known = self.recent.borrow_mut();
        if let Some(counter) = known.as_ref().filter(|counter| Arc::ptr_eq(&counter.counts, counts)) {
            return Rc::clone(counter);
        }
        let counts = Arc::clone(counts);
        let counter = Rc::new(WorkerCounter {
            counts,
            index: self.index,
        });
        *known = Some(Rc::clone(&counter));
        counter
    }
}

/// A request that counts as in flight until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard {
    counter: Rc<WorkerCounter>,
    kind: Kind,
}

impl InFlightGuard {
    fn worker_counts(&self) -> Option<&WorkerCounts> {
        self.counter.counts.workers.get(self.counter.index)
    }

    fn count(&self) -> Option<&AtomicU64> {
        self.worker_counts().map(|worker| match self.kind {
            Kind::Write => &worker.writes,
            Kind::List => &worker.lists,
            Kind::Watch => &worker.watches,
        })
    }

    /// Marks a request that was sent and whose outcome is unknown: it may be carried out until some time after the API server has given it
    /// up.
    pub(crate) fn give_up(self, given_up: Instant) {
        let until = self.counter.counts.milliseconds_at(given_up + UNSETTLED_TIME);
        if let Some(worker) = self.worker_counts() {
            worker.unsettled.fetch_max(until, Ordering::Release);
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if let Some(count) = self.count() {
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(writes: u64, lists: u64, watches: u64) -> InFlight {
        InFlight {
            writes,
            lists,
            watches,
            ..InFlight::default()
        }
    }

    #[test]
    fn requests_count_while_their_guards_live_on_any_number_of_workers() {
        let counts = InFlightCounts::new();
        let guards: Vec<InFlightGuard> = (0..3 * WORKER_COUNTS)
            .flat_map(|worker| {
                let counter = Counter::new(worker);
                let kinds = [
                    Kind::Write,
                    Kind::Write,
                    Kind::Write,
                    Kind::List,
                    Kind::List,
                    Kind::Watch,
                ];
                kinds.map(|kind| counter.count(&counts, kind))
            })
            .collect();
        let workers = 3 * WORKER_COUNTS as u64;
        assert_eq!(counts.sum(), in_flight(3 * workers, 2 * workers, workers));
        drop(guards);
        assert_eq!(counts.sum(), InFlight::default());
    }

    #[test]
    fn requests_count_only_under_their_own_chain() {
        let (first, second) = (InFlightCounts::new(), InFlightCounts::new());
        let counter = Counter::new(0);
        let early = counter.count(&first, Kind::Write);
        let late = counter.count(&second, Kind::Watch);
        let again = counter.count(&first, Kind::Watch);
        assert_eq!((first.sum(), second.sum()), (in_flight(1, 0, 1), in_flight(0, 0, 1)));
        drop((early, late, again));
        assert_eq!((first.sum(), second.sum()), (InFlight::default(), InFlight::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_is_lost_counts_until_it_must_be_over() {
        let counts = InFlightCounts::new();
        let counter = Counter::new(3);
        tokio::time::advance(Duration::from_secs(100)).await;
        let lose = |given_up| counter.count(&counts, Kind::Write).give_up(given_up);
        lose(Instant::now());
        assert_eq!(counts.sum(), in_flight(1, 0, 0));
        let soon = Duration::from_secs(5);
        lose(Instant::now() + soon);
        lose(Instant::now());
        tokio::time::advance(soon).await;
        tokio::time::advance(UNSETTLED_TIME - Duration::from_millis(1)).await;
        assert_eq!(counts.sum(), in_flight(1, 0, 0));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(counts.sum(), InFlight::default());
    }
}
