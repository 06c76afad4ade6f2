//! Counts the requests in flight under each chain, so that `/status` can report when the last one of an earlier chain has ended.
//!
//! Each chain has a [`Tally`], and each worker thread a lane in it: a request costs two additions to memory that no other thread writes, no
//! lock and no allocation. `ChainHandle::enter` ensures that no request is missed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ctrlmesh_contract::status::InFlight;
use tokio::time::Instant;

/// Lanes of a tally. More worker threads than this share lanes, which only costs time.
const LANES: usize = 16;

/// A lost write counts for this long after the API server has given it up: etcd ends what it received by then within its own limit
/// (`ReqTimeout` in `server/config/config.go`: 5 s and two election timeouts of 1 s).
pub(crate) const UNSETTLED: Duration = Duration::from_secs(10);

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
pub(crate) struct Tally {
    since: Instant,
    lanes: [Lane; LANES],
}

/// One thread's share. Two cache lines long, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane {
    writes: AtomicU64,
    lists: AtomicU64,
    watches: AtomicU64,
    /// Milliseconds of the tally's clock until which a lost write may still be carried out.
    unsettled: AtomicU64,
}

impl Tally {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            lanes: Default::default(),
        })
    }

    /// A tally for the writes of an ended process. Its connections broke when it ended, so the API server gives up the writes it was
    /// carrying out for it.
    pub(crate) fn left_behind() -> Arc<Self> {
        let tally = Self::new();
        Counter::new(0).count(&tally, Kind::Write).give_up(Instant::now());
        tally
    }

    /// Number of requests in flight. Of lost writes, each lane counts only the last.
    ///
    /// Lanes are read one after the other, not at one moment. Once no request can be added any more, a request that is still in flight at
    /// the end of this call is always included.
    pub(crate) fn sum(&self) -> InFlight {
        let now = self.milliseconds_at(Instant::now());
        let mut sum = InFlight::default();
        for lane in &self.lanes {
            sum.lists += lane.lists.load(Ordering::Acquire);
            sum.watches += lane.watches.load(Ordering::Acquire);
            sum.writes += lane.writes.load(Ordering::Acquire);
            // Read after the count: a request that leaves the count as lost has set this before.
            sum.writes += u64::from(lane.unsettled.load(Ordering::Acquire) > now);
        }
        sum
    }

    fn milliseconds_at(&self, at: Instant) -> u64 {
        u64::try_from((at - self.since).as_millis()).unwrap_or(u64::MAX)
    }
}

/// A worker thread's access to the tallies.
#[derive(Debug)]
pub(crate) struct Counter {
    lane: usize,
    /// Seat in the tally that was used last: the next request finds it without touching memory that threads share.
    seat: RefCell<Option<Rc<Seat>>>,
}

/// A worker's lane in one tally.
#[derive(Debug)]
struct Seat {
    tally: Arc<Tally>,
    lane: usize,
}

impl Counter {
    pub(crate) const fn new(worker: usize) -> Self {
        Self {
            lane: worker % LANES,
            seat: RefCell::new(None),
        }
    }

    /// Counts a request until the ticket is dropped.
    pub(crate) fn count(&self, tally: &Arc<Tally>, kind: Kind) -> Ticket {
        let ticket = Ticket {
            seat: self.seat_for(tally),
            kind,
        };
        if let Some(count) = ticket.count() {
            count.fetch_add(1, Ordering::Relaxed);
        }
        ticket
    }

    fn seat_for(&self, tally: &Arc<Tally>) -> Rc<Seat> {
        let mut known = self.seat.borrow_mut();
        if let Some(seat) = known.as_ref().filter(|seat| Arc::ptr_eq(&seat.tally, tally)) {
            return Rc::clone(seat);
        }
        let tally = Arc::clone(tally);
        let seat = Rc::new(Seat { tally, lane: self.lane });
        *known = Some(Rc::clone(&seat));
        seat
    }
}

/// A request that counts as in flight until this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    seat: Rc<Seat>,
    kind: Kind,
}

impl Ticket {
    fn current_lane(&self) -> Option<&Lane> {
        self.seat.tally.lanes.get(self.seat.lane)
    }

    fn count(&self) -> Option<&AtomicU64> {
        self.current_lane().map(|lane| match self.kind {
            Kind::Write => &lane.writes,
            Kind::List => &lane.lists,
            Kind::Watch => &lane.watches,
        })
    }

    /// Marks a request that was sent and whose outcome is unknown: it may be carried out until some time after the API server has given it
    /// up.
    pub(crate) fn give_up(self, given_up: Instant) {
        let until = self.seat.tally.milliseconds_at(given_up + UNSETTLED);
        if let Some(lane) = self.current_lane() {
            lane.unsettled.fetch_max(until, Ordering::Release);
        }
    }
}

impl Drop for Ticket {
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
    fn requests_count_while_their_tickets_live_on_any_number_of_workers() {
        let tally = Tally::new();
        let tickets: Vec<Ticket> = (0..3 * LANES)
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
                kinds.map(|kind| counter.count(&tally, kind))
            })
            .collect();
        let workers = 3 * LANES as u64;
        assert_eq!(tally.sum(), in_flight(3 * workers, 2 * workers, workers));
        drop(tickets);
        assert_eq!(tally.sum(), InFlight::default());
    }

    #[test]
    fn requests_count_only_under_their_own_chain() {
        let (first, second) = (Tally::new(), Tally::new());
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
        let tally = Tally::new();
        let counter = Counter::new(3);
        tokio::time::advance(Duration::from_secs(100)).await;
        let lose = |given_up| counter.count(&tally, Kind::Write).give_up(given_up);
        lose(Instant::now());
        assert_eq!(tally.sum(), in_flight(1, 0, 0));
        let soon = Duration::from_secs(5);
        lose(Instant::now() + soon);
        lose(Instant::now());
        tokio::time::advance(soon).await;
        tokio::time::advance(UNSETTLED - Duration::from_millis(1)).await;
        assert_eq!(tally.sum(), in_flight(1, 0, 0));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(tally.sum(), InFlight::default());
    }
}
