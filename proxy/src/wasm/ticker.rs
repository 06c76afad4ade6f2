//! The clock behind deadlines: a thread that advances the epoch every millisecond while plugins are called, and rests when none has been
//! called for a while.
//!
//! A thousand wake-ups a second cost 1 to 2 % of a core, too much for an idle sidecar. Guarantee: while a call runs, the epoch advances. A
//! call sets its flag *before* it checks whether the ticker rests; the ticker sets its own flag *before* it checks whether a call runs. So
//! at least one of them sees the other (all accesses are `SeqCst`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::error::Error;
use crate::lock::lock_unpoisoned;

/// Length of an epoch, which is the accuracy of deadlines. Shorter costs wake-ups, longer costs latency behind a plugin that spins.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// Number of ticks without a call after which the ticker rests. Waking it costs the next call a system call, so it should be rare.
const QUIET_TICKS: u32 = 100;

/// The ticking thread; it ends with its owner.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    rests: AtomicBool,
    /// Whether there was a call since the last tick.
    called: AtomicBool,
    /// One flag for each instance: whether a call of it runs.
    calls: Mutex<Vec<Weak<AtomicBool>>>,
}

/// An instance's flag that a call runs.
pub(crate) struct CallFlag {
    runs: Arc<AtomicBool>,
    shared: Arc<Shared>,
    ticker: Thread,
}

impl Ticker {
    /// Starts a thread that calls `tick` until it returns `false`, or until this is dropped.
    pub(crate) fn start(tick: impl FnMut() -> bool + Send + 'static) -> Result<Self, Error> {
        let shared = Arc::<Shared>::default();
        let thread = thread::Builder::new()
            .name("wasm-epoch".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || run(&shared, tick)
            })
            .map_err(|error| Error::Engine(format!("no thread for the epoch ticker: {error}")))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// A flag for one more instance. `None` if the thread is gone, so that no call runs without a deadline.
    pub(crate) fn add_flag(&self) -> Option<CallFlag> {
        let thread = self.thread.as_ref().filter(|thread| !thread.is_finished())?;
        let runs = Arc::<AtomicBool>::default();
        let mut calls = lock_unpoisoned(&self.shared.calls);
        calls.retain(|call| call.strong_count() > 0);
        calls.push(Arc::downgrade(&runs));
        Some(CallFlag {
            runs,
            shared: Arc::clone(&self.shared),
            ticker: thread.thread().clone(),
        })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread ends within a tick, and the panic hook would have reported a panic in it.
            let _ = thread.join();
        }
    }
}

impl CallFlag {
    /// Marks the start of a call: from here on the epoch advances.
    pub(crate) fn begin_call(&self) {
        self.runs.store(true, Ordering::SeqCst);
        if !self.shared.called.load(Ordering::SeqCst) {
            self.shared.called.store(true, Ordering::SeqCst);
        }
        if self.shared.rests.load(Ordering::SeqCst) {
            self.ticker.unpark();
        }
    }

    /// Marks the end of the call.
    pub(crate) fn end_call(&self) {
        self.runs.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn a_call_runs(&self) -> bool {
        lock_unpoisoned(&self.calls)
            .iter()
            .any(|call| call.upgrade().is_some_and(|call| call.load(Ordering::SeqCst)))
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

fn run(shared: &Shared, mut tick: impl FnMut() -> bool) {
    let mut quiet = 0;
    // One step per wake-up, even after a long pause: a guest must not pay for time in which the process was not scheduled (see
    // `deadline.rs` for a single thread).
    while !shared.is_stopped() && tick() {
        if shared.called.swap(false, Ordering::SeqCst) || shared.a_call_runs() {
            quiet = 0;
        } else {
            quiet += 1;
        }
        if quiet < QUIET_TICKS {
            thread::park_timeout(TICK);
            continue;
        }
        shared.rests.store(true, Ordering::SeqCst);
        while !shared.is_stopped() && !shared.called.load(Ordering::SeqCst) && !shared.a_call_runs() {
            thread::park();
        }
        shared.rests.store(false, Ordering::SeqCst);
        quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    use super::*;

    fn ticker() -> (Ticker, Arc<AtomicU64>) {
        let ticks = Arc::<AtomicU64>::default();
        let count = Arc::clone(&ticks);
        let ticker = Ticker::start(move || {
            count.fetch_add(1, Ordering::SeqCst);
            true
        });
        (ticker.expect("a thread"), ticks)
    }

    fn wait_until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "{what}");
            thread::yield_now();
        }
    }

    fn is_resting(ticker: &Ticker) -> bool {
        ticker.shared.rests.load(Ordering::SeqCst)
    }

    #[test]
    fn ticker_rests_when_idle_and_wakes_up_for_a_call() {
        let (ticker, ticks) = ticker();
        wait_until("it rests", || is_resting(&ticker));
        let at_rest = ticks.load(Ordering::SeqCst);
        assert!(at_rest >= u64::from(QUIET_TICKS));
        let flag = ticker.add_flag().expect("it ticks");
        flag.begin_call();
        wait_until("it ticks again", || ticks.load(Ordering::SeqCst) > at_rest + 3);
        flag.end_call();
        wait_until("it rests again", || is_resting(&ticker));
    }

    #[test]
    fn ticker_ticks_as_long_as_a_call_runs() {
        let (ticker, ticks) = ticker();
        let (flag, other) = (
            ticker.add_flag().expect("it ticks"),
            ticker.add_flag().expect("it ticks"),
        );
        flag.begin_call();
        other.begin_call();
        other.end_call();
        drop(other);
        wait_until("it ticks on", || {
            ticks.load(Ordering::SeqCst) > u64::from(5 * QUIET_TICKS)
        });
        assert!(!is_resting(&ticker));
        // An instance that is dropped during a call, by a panic, does not keep the ticker awake.
        drop(flag);
        wait_until("it rests", || is_resting(&ticker));
    }

    #[test]
    fn short_call_wakes_ticker() {
        let (ticker, ticks) = ticker();
        let flag = ticker.add_flag().expect("it ticks");
        for _ in 0..3 {
            wait_until("it rests", || is_resting(&ticker));
            let before = ticks.load(Ordering::SeqCst);
            flag.begin_call();
            flag.end_call();
            wait_until("it has ticked", || {
                ticks.load(Ordering::SeqCst) >= before + u64::from(QUIET_TICKS)
            });
        }
    }

    #[test]
    fn ticker_ends_with_its_owner_awake_or_at_rest() {
        let (awake, ticks) = ticker();
        drop(awake);
        assert_eq!(Arc::strong_count(&ticks), 1, "the thread that ticked has ended");
        let (resting, ticks) = ticker();
        wait_until("it rests", || is_resting(&resting));
        drop(resting);
        assert_eq!(Arc::strong_count(&ticks), 1, "the thread that rested has ended");
    }

    #[test]
    fn flag_is_denied_when_ticker_thread_is_gone() {
        let ticker = Ticker::start(|| false).expect("a thread");
        wait_until("it has ended", || {
            ticker.thread.as_ref().is_some_and(JoinHandle::is_finished)
        });
        assert!(ticker.add_flag().is_none());
    }
}
