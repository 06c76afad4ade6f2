//! Closes connections whose clients read nothing of their responses, if unsent responses take most of their memory.
//!
//! Connections that read have room for as long as the bound is not reached (`connection::unsent`), but less the more others hold. Nothing is
//! checked while there is enough.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::handle::Connection;
use super::unsent::ResponseMemory;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A client that reads nothing in so many checks may be closed. A controller that waits for CPU reads something in this time.
const MAX_STALLED: u32 = 5;

/// Number of such checks if the bound is reached, so that others wait.
const MAX_STALLED_WHEN_FULL: u32 = 2;

/// If the bound is reached in so many checks in a row, the connection that holds most is closed although it reads a little.
const MAX_FULL: u32 = 10;

/// The connections of one worker thread.
#[derive(Debug, Default)]
pub(crate) struct ResponseReaders {
    /// Tracked connections, oldest first.
    connections: RefCell<Vec<Weak<Connection>>>,
    /// Number of tracked connections at which ended ones are forgotten.
    forget_at: Cell<usize>,
    /// Checks in a row that found the bound reached.
    full: Cell<u32>,
}

impl ResponseReaders {
    /// Fewer ended connections are not worth a search.
    const MIN_TRACKED: usize = 64;

    pub(crate) fn track(&self, connection: &Rc<Connection>) {
        let mut connections = self.connections.borrow_mut();
        if connections.len() >= self.forget_at.get().max(Self::MIN_TRACKED) {
            connections.retain(|connection| connection.strong_count() > 0);
            self.forget_at.set(2 * connections.len());
        }
        connections.push(Rc::downgrade(connection));
    }

    /// Closes connections whenever memory is scarce. Does not return.
    pub(crate) async fn close_stalled(&self, memory: &ResponseMemory) {
        loop {
            let exhausted = memory.exhausted();
            if !is_scarce(memory.unsent(), memory) {
                exhausted.await;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
            let closed = self.close_over_bound(memory);
            if closed > 0 {
                tracing::warn!(
                    closed,
                    unsent_bytes = memory.unsent(),
                    limit_bytes = memory.bound(),
                    "closing connections of clients that do not read their responses: unsent responses take most of their memory"
                );
            }
        }
    }

    /// Returns how many connections were closed.
    fn close_over_bound(&self, memory: &ResponseMemory) -> usize {
        let mut holders = self.holders();
        let is_full = memory.unsent() >= memory.bound();
        self.full.set(if is_full { self.full.get() + 1 } else { 0 });
        let most = if is_full { MAX_STALLED_WHEN_FULL } else { MAX_STALLED };
        // Older ones stay first among equals.
        holders.sort_by_key(|holder| Reverse(holder.stalled_checks()));
        let mut left = memory.unsent();
        let mut closed = 0;
        for holder in holders.iter().filter(|holder| holder.stalled_checks() >= most) {
            if !is_scarce(left, memory) {
                break;
            }
            left = left.saturating_sub(holder.unsent_bytes());
            holder.close();
            closed += 1;
        }
        if closed == 0 && self.full.get() >= MAX_FULL {
            self.full.set(0);
            let largest = holders.iter().max_by_key(|holder| holder.unsent_bytes());
            closed = usize::from(largest.is_some());
            largest.into_iter().for_each(|holder| holder.close());
        }
        closed
    }

    /// The connections with unsent bytes, which were checked for progress.
    fn holders(&self) -> Vec<Rc<Connection>> {
        let connections = self.connections.borrow();
        let alive = connections.iter().filter_map(Weak::upgrade);
        alive.filter(|connection| connection.check_progress()).collect()
    }
}

/// Whether three quarters of the memory are used.
fn is_scarce(unsent: usize, memory: &ResponseMemory) -> bool {
    unsent >= memory.bound() / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::handle::Disposition;

    const BOUND: usize = 1 << 20;

    fn tracked_connections(readers: &ResponseReaders, memory: &ResponseMemory, count: usize) -> Vec<Rc<Connection>> {
        let one = || {
            let connection = Rc::new(Connection::counting(memory.clone()));
            readers.track(&connection);
            connection
        };
        std::iter::repeat_with(one).take(count).collect()
    }

    fn is_closed(connection: &Connection) -> bool {
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        connection.poll_disposition(&cx) == Disposition::Close
    }

    /// Runs for so many seconds; `each` is called in each of them.
    async fn run_for(readers: &ResponseReaders, memory: &ResponseMemory, seconds: u32, each: impl Fn()) {
        tokio::select! {
            () = readers.close_stalled(memory) => {}
            () = async {
                for _ in 0..seconds {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                    each();
                }
            } => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_connections_are_closed_oldest_first_until_memory_is_not_scarce() {
        let (readers, memory) = (ResponseReaders::default(), ResponseMemory::within(BOUND));
        let all = tracked_connections(&readers, &memory, 9);
        let (reads, stalled) = all.split_first().unwrap();
        all.iter().for_each(|connection| connection.unsent().add(BOUND / 10));
        let read_some = || {
            reads.unsent().written(1);
            reads.unsent().add(1);
        };
        run_for(&readers, &memory, 4, read_some).await;
        assert!(
            !all.iter().any(|connection| is_closed(connection)),
            "they have some time"
        );
        run_for(&readers, &memory, 3, read_some).await;
        let closed: Vec<_> = stalled.iter().map(|connection| is_closed(connection)).collect();
        assert_eq!(closed, [true, true, false, false, false, false, false, false]);
        assert!(!is_closed(reads));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_connections_are_kept_while_memory_is_not_scarce() {
        let (readers, memory) = (ResponseReaders::default(), ResponseMemory::within(BOUND));
        let all = tracked_connections(&readers, &memory, 7);
        all.iter().for_each(|connection| connection.unsent().add(BOUND / 10));
        run_for(&readers, &memory, 600, || {}).await;
        assert!(!all.iter().any(|connection| is_closed(connection)));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_connections_are_closed_sooner_if_others_wait() {
        let (readers, memory) = (ResponseReaders::default(), ResponseMemory::within(BOUND));
        let all = tracked_connections(&readers, &memory, 8);
        all.iter().for_each(|connection| connection.unsent().add(BOUND / 8));
        run_for(&readers, &memory, MAX_STALLED_WHEN_FULL + 1, || {}).await;
        let closed = all.iter().filter(|connection| is_closed(connection)).count();
        assert_eq!(closed, 3, "until less than three quarters are used");
    }

    #[tokio::test(start_paused = true)]
    async fn largest_holder_is_closed_if_bound_stays_reached_although_all_read() {
        let (readers, memory) = (ResponseReaders::default(), ResponseMemory::within(BOUND));
        let all = tracked_connections(&readers, &memory, 2);
        all[0].unsent().add(BOUND / 4);
        all[1].unsent().add(BOUND);
        let read_some = || {
            for connection in &all {
                connection.unsent().written(1);
                connection.unsent().add(1);
            }
        };
        run_for(&readers, &memory, MAX_FULL + 1, read_some).await;
        assert_eq!(
            [&all[0], &all[1]].map(|connection| is_closed(connection)),
            [false, true]
        );
    }
}
