//! Quarantine: an entry that keeps failing is not called for a while, longer each time.
//!
//! Each fault costs a fresh instance, and a missed deadline costs a worker thread's time, so a plugin that fails on every request must not
//! be called on every request. Shared by all worker threads. Asking is lock-free, and a healthy entry costs one atomic load per call; only
//! faults and the calls that end them take a short lock. Leaves the consequences of a refused call to the caller (the entry's failure
//! policy). See docs/adr/0007-quarantine.md.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock_unpoisoned;

/// This many faults lead to quarantine if no call succeeded between them, or if they happened within [`FAULT_WINDOW`]. Rare faults (one odd
/// object among thousands) do neither.
const QUARANTINE_FAULTS: usize = 5;
/// See [`QUARANTINE_FAULTS`].
const FAULT_WINDOW: Duration = Duration::from_secs(10);
/// Two faults or more also lead to quarantine if worker threads lost this much time to them …
const MAX_TIME_LOST: Duration = Duration::from_secs(3);
/// … within this number of seconds. Where CPU is short a call may run for ten times its timeout, so five faults may not be possible within
/// [`FAULT_WINDOW`].
const TIME_LOST_SECONDS: usize = 60;
/// The first quarantine; each next one is twice as long …
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// … up to this maximum: after the cause outside the plugin is fixed, users should not wait longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// A quarantine that begins this long after the end of the last one is short again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(10 * 60);
/// A probe that never reports back (its request was dropped) is replaced after this time.
const PROBE_LEASE: Duration = Duration::from_secs(5);
/// Longest text of a fault that is kept for status.
const MAX_TEXT_BYTES: usize = 1024;

const ACTIVE: u8 = 0;
const FAILING: u8 = 1;
const QUARANTINED: u8 = 2;

#[derive(Debug)]
pub struct Quarantine {
    start: Instant,
    state: AtomicU8,
    /// While quarantined: when the next call is let through. In nanoseconds since `start`.
    until: AtomicU64,
    faults: AtomicU64,
    history: Mutex<FaultHistory>,
}

#[derive(Debug, Default)]
struct FaultHistory {
    /// Times of the last faults, newest last; `None` for forgotten ones.
    recent: [Option<Instant>; QUARANTINE_FAULTS],
    time_lost: TimeLost,
    /// Faults since the last call that succeeded.
    consecutive: usize,
    /// Number of earlier quarantines in a row.
    level: u32,
    /// End of the last or the current quarantine.
    last_end: Option<Instant>,
    last_fault: Option<String>,
}

/// Faults and the time lost to them in each of the last [`TIME_LOST_SECONDS`], so that any number of faults takes the same memory.
#[derive(Debug)]
struct TimeLost {
    /// Second `n` is at `n % TIME_LOST_SECONDS`.
    seconds: [LostInSecond; TIME_LOST_SECONDS],
    newest: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct LostInSecond {
    faults: u32,
    time: Duration,
}

impl Default for TimeLost {
    fn default() -> Self {
        Self {
            seconds: [LostInSecond::default(); TIME_LOST_SECONDS],
            newest: 0,
        }
    }
}

impl TimeLost {
    /// Adds a fault. `second` counts from any fixed time.
    fn add(&mut self, second: u64, time: Duration) {
        // Threads may report a little out of order.
        let second = second.max(self.newest);
        for passed in (self.newest + 1..=second).rev().take(TIME_LOST_SECONDS) {
            if let Some(lost) = self.at(passed) {
                *lost = LostInSecond::default();
            }
        }
        self.newest = second;
        if let Some(lost) = self.at(second) {
            lost.faults = lost.faults.saturating_add(1);
            lost.time = lost.time.saturating_add(time);
        }
    }

    fn at(&mut self, second: u64) -> Option<&mut LostInSecond> {
        let index = second % TIME_LOST_SECONDS as u64;
        self.seconds.get_mut(usize::try_from(index).ok()?)
    }

    fn is_too_much(&self) -> bool {
        let faults = self.seconds.iter().map(|lost| lost.faults).fold(0, u32::saturating_add);
        let time = self
            .seconds
            .iter()
            .map(|lost| lost.time)
            .fold(Duration::ZERO, Duration::saturating_add);
        faults > 1 && time >= MAX_TIME_LOST
    }
}

impl FaultHistory {
    fn add(&mut self, at: Instant, second: u64, time_lost: Duration) {
        self.consecutive = self.consecutive.saturating_add(1);
        self.recent.rotate_left(1);
        if let Some(last) = self.recent.last_mut() {
            *last = Some(at);
        }
        self.time_lost.add(second, time_lost);
    }

    /// Call it right after [`Self::add`].
    fn is_one_too_many(&self, now: Instant) -> bool {
        let is_frequent = self
            .recent
            .iter()
            .all(|fault| fault.is_some_and(|at| now.saturating_duration_since(at) <= FAULT_WINDOW));
        self.consecutive >= QUARANTINE_FAULTS || is_frequent || self.time_lost.is_too_much()
    }

    fn forget_faults(&mut self) {
        self.recent = [None; QUARANTINE_FAULTS];
        self.time_lost = TimeLost::default();
        self.consecutive = 0;
    }
}

/// Whether an entry's plugin may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    Call,
    /// The plugin may be called, and the outcome decides whether the quarantine ends.
    Probe,
    /// The plugin may not be called: the failure policy applies.
    Quarantined,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuarantineState {
    /// The last call succeeded.
    Active,
    /// The last call failed.
    Failing,
    /// The entry is not called until the quarantine ends, and then with a single probe first.
    Quarantined {
        /// End of the quarantine.
        until: Instant,
    },
}

impl Quarantine {
    /// The state of an entry without any calls yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            start: now,
            state: AtomicU8::new(ACTIVE),
            until: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            history: Mutex::default(),
        }
    }

    /// Whether the plugin may be called. The clock is read only while the entry is quarantined.
    pub fn admit(&self, now: impl FnOnce() -> Instant) -> Admission {
        if self.state.load(Ordering::Acquire) != QUARANTINED {
            return Admission::Call;
        }
        let now = self.nanoseconds(now());
        let until = self.until.load(Ordering::Acquire);
        let lease = now.saturating_add(nanoseconds(PROBE_LEASE));
        // Only one of the callers after the end becomes the probe; the others see its lease.
        if now >= until
            && self
                .until
                .compare_exchange(until, lease, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            Admission::Probe
        } else {
            Admission::Quarantined
        }
    }

    /// Whether the last call failed, so that the next one shows whether the plugin works again.
    pub(super) fn is_failing(&self) -> bool {
        self.state.load(Ordering::Acquire) == FAILING
    }

    /// Records that an admitted call succeeded. The clock is read only if that ends a quarantine.
    pub fn record_ok(&self, admission: Admission, now: impl FnOnce() -> Instant) {
        // A call that began before the quarantine is no evidence about it.
        let ends = match self.state.load(Ordering::Acquire) {
            ACTIVE => return,
            FAILING => true,
            _ => admission == Admission::Probe,
        };
        if ends {
            let mut history = self.history();
            if admission == Admission::Probe {
                history.forget_faults();
                history.last_end = Some(now());
                self.state.store(ACTIVE, Ordering::Release);
            } else if self
                .state
                .compare_exchange(FAILING, ACTIVE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                // No quarantine began in between.
                history.consecutive = 0;
            }
        }
    }

    /// Records that an admitted call failed at `now`, after it had kept its thread for `time_lost`. Returns the length of the quarantine if
    /// this fault causes one.
    pub fn record_fault(
        &self,
        admission: Admission,
        now: Instant,
        time_lost: Duration,
        text: &str,
    ) -> Option<Duration> {
        self.faults.fetch_add(1, Ordering::Relaxed);
        let mut history = self.history();
        history.last_fault = Some(text.chars().take(MAX_TEXT_BYTES / 4).collect());
        if admission == Admission::Probe {
            return Some(self.quarantine(&mut history, now));
        }
        if self.state.load(Ordering::Acquire) == QUARANTINED {
            return None;
        }
        self.state.store(FAILING, Ordering::Release);
        let second = now.saturating_duration_since(self.start).as_secs();
        history.add(now, second, time_lost);
        history.is_one_too_many(now).then(|| self.quarantine(&mut history, now))
    }

    #[must_use]
    pub fn state(&self, now: Instant) -> QuarantineState {
        match self.state.load(Ordering::Acquire) {
            ACTIVE => QuarantineState::Active,
            FAILING => QuarantineState::Failing,
            _ => {
                let until = self.start + Duration::from_nanos(self.until.load(Ordering::Acquire));
                QuarantineState::Quarantined { until: until.max(now) }
            }
        }
    }

    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn last_fault(&self) -> Option<String> {
        self.history().last_fault.clone()
    }

    /// `until` is stored before `state`: otherwise a reader could take an old end for the new one.
    fn quarantine(&self, history: &mut FaultHistory, now: Instant) -> Duration {
        let again = history
            .last_end
            .is_some_and(|end| now.saturating_duration_since(end) < FORGIVEN_AFTER);
        history.level = if again { history.level.saturating_add(1) } else { 0 };
        let length = 2u32
            .checked_pow(history.level)
            .and_then(|factor| FIRST_PAUSE.checked_mul(factor))
            .unwrap_or(LONGEST_PAUSE);
        let length = length.min(LONGEST_PAUSE);
        history.last_end = Some(now + length);
        self.until.store(self.nanoseconds(now + length), Ordering::Release);
        self.state.store(QUARANTINED, Ordering::Release);
        length
    }

    /// No code panics while it holds the lock, so a poisoned lock still guards consistent data.
    fn history(&self) -> MutexGuard<'_, FaultHistory> {
        lock_unpoisoned(&self.history)
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        nanoseconds(at.saturating_duration_since(self.start))
    }
}

/// Wraps after 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = SECOND.saturating_mul(60);

    /// Records faults until the entry is quarantined. Returns the quarantine's length.
    fn fail(quarantine: &Quarantine, now: Instant) -> Duration {
        for _ in 0..QUARANTINE_FAULTS - 1 {
            assert_eq!(
                quarantine.record_fault(quarantine.admit(|| now), now, Duration::ZERO, "trap"),
                None
            );
            assert_eq!(quarantine.state(now), QuarantineState::Failing);
        }
        quarantine
            .record_fault(quarantine.admit(|| now), now, Duration::ZERO, "last")
            .expect("one fault too many")
    }

    #[test]
    fn five_faults_in_ten_seconds_quarantine() {
        let now = Instant::now();
        let quarantine = Quarantine::new(now);
        assert_eq!(fail(&quarantine, now), FIRST_PAUSE);
        assert_eq!(
            quarantine.state(now),
            QuarantineState::Quarantined {
                until: now + FIRST_PAUSE
            }
        );
        assert_eq!(quarantine.admit(|| now), Admission::Quarantined);
        assert_eq!(
            (quarantine.faults(), quarantine.last_fault().as_deref()),
            (5, Some("last"))
        );
    }

    #[test]
    fn rare_faults_never_quarantine() {
        let start = Instant::now();
        let quarantine = Quarantine::new(start);
        for n in 0..100 {
            let now = start + SECOND * 3 * n;
            assert_eq!(
                quarantine.record_fault(quarantine.admit(|| now), now, Duration::ZERO, "trap"),
                None
            );
            assert_eq!(quarantine.state(now), QuarantineState::Failing);
            quarantine.record_ok(Admission::Call, || now);
            assert_eq!(quarantine.state(now), QuarantineState::Active);
        }
    }

    #[test]
    fn consecutive_faults_quarantine_regardless_of_time_between_them() {
        let start = Instant::now();
        let quarantine = Quarantine::new(start);
        let fault = |n: u32| {
            let now = start + MINUTE * 2 * n;
            quarantine.record_fault(quarantine.admit(|| now), now, Duration::ZERO, "deadline")
        };
        assert!((0..4).all(|n| fault(n).is_none()));
        assert_eq!(fault(4), Some(FIRST_PAUSE));
    }

    #[test]
    fn success_ends_row_of_consecutive_faults() {
        let start = Instant::now();
        let quarantine = Quarantine::new(start);
        for n in 0..20 {
            let now = start + MINUTE * 2 * n;
            if n % 5 == 4 {
                quarantine.record_ok(quarantine.admit(|| now), || now);
            } else {
                let quarantined = quarantine.record_fault(quarantine.admit(|| now), now, Duration::ZERO, "deadline");
                assert_eq!(quarantined, None, "{n}");
            }
        }
    }

    #[test]
    fn faults_that_lose_much_time_quarantine_although_calls_succeed_between_them() {
        let start = Instant::now();
        for (time_lost, apart, expected) in [
            (SECOND * 2, SECOND * 20, Some(2)),
            (SECOND, SECOND * 20, Some(3)),
            (SECOND, SECOND * 31, None),
            (MAX_TIME_LOST * 10, MINUTE + SECOND, None),
            (Duration::from_millis(500), SECOND * 3, Some(6)),
            (Duration::from_millis(150), SECOND * 3, Some(20)),
            (Duration::from_millis(149), SECOND * 3, None),
            (Duration::from_millis(100), SECOND * 3, None),
        ] {
            let quarantine = Quarantine::new(start);
            let quarantined_by = (1..50).find(|n| {
                let now = start + apart * *n;
                let quarantined = quarantine.record_fault(quarantine.admit(|| now), now, time_lost, "deadline");
                quarantine.record_ok(Admission::Call, || now);
                quarantined.is_some()
            });
            assert_eq!(quarantined_by, expected, "{time_lost:?} each {apart:?}");
        }
    }

    #[test]
    fn faults_before_successful_probe_lose_no_time_after_it() {
        let start = Instant::now();
        let quarantine = Quarantine::new(start);
        let fault = |now| quarantine.record_fault(quarantine.admit(|| now), now, MAX_TIME_LOST, "deadline");
        assert_eq!((fault(start), fault(start)), (None, Some(FIRST_PAUSE)));
        let end = start + FIRST_PAUSE;
        quarantine.record_ok(quarantine.admit(|| end), || end);
        assert_eq!(fault(end), None);
    }

    #[test]
    fn single_probe_decides_after_quarantine() {
        let start = Instant::now();
        let quarantine = Quarantine::new(start);
        let end = start + fail(&quarantine, start);
        assert_eq!(
            quarantine.admit(|| end - Duration::from_nanos(1)),
            Admission::Quarantined
        );
        assert_eq!(quarantine.admit(|| end), Admission::Probe);
        assert_eq!(quarantine.admit(|| end), Admission::Quarantined);
        quarantine.record_ok(Admission::Probe, || end);
        assert_eq!(quarantine.admit(|| end), Admission::Call);
        assert_eq!(quarantine.state(end), QuarantineState::Active);
    }

    #[test]
    fn quarantines_double_up_to_five_minutes() {
        let mut now = Instant::now();
        let quarantine = Quarantine::new(now);
        let mut lengths = vec![fail(&quarantine, now).as_secs()];
        for _ in 0..10 {
            let QuarantineState::Quarantined { until } = quarantine.state(now) else {
                panic!("must be quarantined")
            };
            now = until;
            let probe = quarantine.admit(|| now);
            assert_eq!(probe, Admission::Probe);
            lengths.push(
                quarantine
                    .record_fault(probe, now, Duration::ZERO, "trap")
                    .unwrap()
                    .as_secs(),
            );
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    #[test]
    fn repeated_quarantine_is_longer_until_entry_recovers() {
        let start = Instant::now();
        let quarantine = Quarantine::new(start);
        let mut now = start + fail(&quarantine, start);
        quarantine.record_ok(quarantine.admit(|| now), || now);
        now += SECOND;
        assert_eq!(fail(&quarantine, now), FIRST_PAUSE * 2, "a relapse");
        now += FIRST_PAUSE * 2;
        quarantine.record_ok(quarantine.admit(|| now), || now);
        now += FORGIVEN_AFTER;
        assert_eq!(fail(&quarantine, now), FIRST_PAUSE, "forgiven");
    }

    #[test]
    fn faults_before_successful_probe_do_not_count_after_it() {
        let start = Instant::now();
        let quarantine = Quarantine::new(start);
        let now = start + fail(&quarantine, start);
        quarantine.record_ok(quarantine.admit(|| now), || now);
        assert_eq!(
            quarantine.record_fault(quarantine.admit(|| now), now, Duration::ZERO, "trap"),
            None
        );
    }

    #[test]
    fn calls_that_began_earlier_do_not_change_quarantine() {
        let now = Instant::now();
        let quarantine = Quarantine::new(now);
        let early = quarantine.admit(|| now);
        let end = now + fail(&quarantine, now);
        quarantine.record_ok(early, || now);
        assert_eq!(quarantine.record_fault(early, now, Duration::ZERO, "late"), None);
        assert_eq!(quarantine.state(now), QuarantineState::Quarantined { until: end });
    }

    #[test]
    fn lost_probe_is_replaced() {
        let now = Instant::now();
        let quarantine = Quarantine::new(now);
        let end = now + fail(&quarantine, now);
        assert_eq!(quarantine.admit(|| end), Admission::Probe);
        assert_eq!(quarantine.admit(|| end + PROBE_LEASE), Admission::Probe);
    }

    #[test]
    fn healthy_entry_never_reads_clock() {
        let quarantine = Quarantine::new(Instant::now());
        let admission = quarantine.admit(|| panic!("the clock was read"));
        assert_eq!(admission, Admission::Call);
        quarantine.record_ok(admission, || panic!("the clock was read"));
    }
}
