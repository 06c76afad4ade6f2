//! The state of one breaker in the host, shared by all instances: closed, open, half open, and the transitions between them.

use std::borrow::Cow;

use ctrlmesh_sdk::{Ask, Cell, Claim, Crossing, Host, OutcomeRule, OutcomeWindow, Place, Threshold};

use crate::cell::{Cause, Counts, State, Status};
use crate::judgement::Judgement;
use crate::keys::{COUNTED, TALLY, build_key, keys_of_breaker};
use crate::recovery::{forget_reset, next_epoch, reset_epoch};
use crate::rule::{BreakerRule, SleepingWindow};
use crate::snapshot;

/// Number of steps in which the window advances.
const SLOTS: u32 = 10;
/// Other instances may change a state while it is published, but rarely.
const MAX_TRIES: usize = 16;
/// A keyed breaker is forgotten this long after it closed: namespaces get deleted.
const FORGET_MS: u64 = 3_600_000;

/// One breaker: a rule and a value of its key.
pub(crate) struct Breaker<'a> {
    pub(crate) rule: &'a BreakerRule,
    pub(crate) value: String,
    host: &'a dyn Host,
}

/// A state as read. It can be replaced only if it is still current (compare and swap).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VersionedState {
    version: u64,
    pub(crate) status: Status,
    /// Whether the host has returned it.
    pub(crate) is_known: bool,
}

impl VersionedState {
    fn from_cell(cell: Option<&Cell>) -> Self {
        let status = cell.and_then(|cell| Status::decode(&cell.value));
        Self {
            version: cell.map_or(0, |cell| cell.version),
            status: status.unwrap_or_default(),
            is_known: true,
        }
    }
}

/// Reads the states of several breakers at one moment, in their order; an entry has few enough for one call.
pub(crate) fn read_states(breakers: &[&Breaker<'_>], host: &dyn Host) -> Vec<VersionedState> {
    let keys: Vec<String> = breakers.iter().flat_map(|breaker| breaker.cell_keys()).collect();
    let cells = host.get_all(&keys).unwrap_or_default();
    let mut pairs = cells.chunks_exact(2);
    let states = breakers.iter().map(|breaker| match pairs.next() {
        Some([marks, state]) => breaker.state_of_cells(marks.as_ref(), state.as_ref()),
        _ => VersionedState::default(),
    });
    states.collect()
}

impl<'a> Breaker<'a> {
    pub(crate) fn new(rule: &'a BreakerRule, value: String, host: &'a dyn Host) -> Self {
        Self { rule, value, host }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.host.monotonic_ns() / 1_000_000
    }

    /// Reads the state. A state from before the rule's last reset counts as closed.
    pub(crate) fn read_state(&self) -> VersionedState {
        let cells = self.host.get_all(&self.cell_keys());
        match cells.as_deref() {
            Ok([marks, state]) => self.state_of_cells(marks.as_ref(), state.as_ref()),
            _ => VersionedState::default(),
        }
    }

    /// The keys of the cells that [`Breaker::state_of_cells`] needs.
    fn cell_keys(&self) -> [String; 2] {
        [self.rule.keys.marks.clone(), self.state_key("state").into_owned()]
    }

    /// The state, from the cells of the rule's reset marks and of the breaker.
    fn state_of_cells(&self, marks: Option<&Cell>, state: Option<&Cell>) -> VersionedState {
        let reset = reset_epoch(marks);
        let read = VersionedState::from_cell(state);
        if read.status.epoch >= reset {
            return read;
        }
        let closed = VersionedState {
            status: Status {
                epoch: reset,
                ..Status::default()
            },
            ..read
        };
        // A breaker that never opened has no cell and needs none.
        if read.version == 0 {
            return closed;
        }
        let status = Status {
            since_ms: self.now_ms(),
            ..closed.status
        };
        match self.write_state(read, status) {
            Some(version) => {
                self.host
                    .info(&format!("{} is closed by a reset of its rule", self.description()));
                VersionedState {
                    version,
                    status,
                    is_known: true,
                }
            }
            None => closed,
        }
    }

    fn stored_state(&self) -> VersionedState {
        let cell = self.host.get(&self.state_key("state"));
        VersionedState::from_cell(cell.ok().flatten().as_ref())
    }

    /// Whether the sleeping window is over.
    pub(crate) fn is_due(&self, status: &Status) -> bool {
        status.state == State::Opened && status.recovers_ms != 0 && self.now_ms() >= status.recovers_ms
    }

    /// Lets probes through. If another instance is faster, the breaker is half open as well.
    pub(crate) fn half_open(&self, read: VersionedState) {
        let status = Status {
            state: State::HalfOpen,
            recovers_ms: 0,
            ..read.status
        };
        self.change_state(read, status);
    }

    /// Opens the breaker, and returns the resulting state.
    pub(crate) fn open(&self, read: VersionedState, cause: Cause, counts: Counts) -> Status {
        let failed_probes = match cause {
            Cause::Probe => read.status.failed_probes.saturating_add(1),
            _ => 0,
        };
        let recovers_ms = |sleeping: SleepingWindow| self.now_ms().saturating_add(sleeping.after_ms(failed_probes));
        let status = Status {
            state: State::Opened,
            cause,
            recovers_ms: self.rule.sleeping.map_or(0, recovers_ms),
            counts,
            failed_probes,
            ..read.status
        };
        if self.change_state(read, status) {
            self.host.count("opened", &self.rule.name, 1);
            self.host.warn(&format!(
                "{} opens: {}",
                self.description(),
                snapshot::reason_text(&status)
            ));
        }
        self.read_state().status
    }

    fn close(&self, read: VersionedState) {
        let status = Status {
            state: State::Closed,
            ..Status::default()
        };
        if self.change_state(read, status) {
            self.host.count("closed", &self.rule.name, 1);
            self.host
                .info(&format!("{} closes: its probes succeeded", self.description()));
        }
    }

    /// The token that a request takes while the breaker is closed.
    pub(crate) fn token_request(&self) -> Option<Ask> {
        let claim = Claim {
            key: self.state_key("tokens").into_owned(),
            bucket: self.rule.bucket?,
            tokens: 1,
        };
        Some(Ask { claim, max_wait_ms: 0 })
    }

    /// The place of a probe. Each half-open phase has its own, because a watch that was a probe keeps its place for long.
    pub(crate) fn probe_place(&self, status: &Status) -> Place {
        Place {
            key: self.state_key(&format!("probes {}", status.epoch)).into_owned(),
            max: self.rule.probes,
        }
    }

    /// How the host counts the outcome of a request that is admitted while the breaker is closed. Returns `None` if only the bucket opens
    /// the breaker. `at_head`: the request may last, so its response head is counted.
    pub(crate) fn outcome_rule(&self, at_head: bool) -> Option<OutcomeRule> {
        let triggers = &self.rule.triggers;
        let has_shares = triggers.error_percent.is_some() || triggers.slow.is_some();
        if !has_shares && triggers.consecutive.is_none() {
            return None;
        }
        let window = OutcomeWindow {
            length_ms: triggers.window_ms,
            slots: SLOTS,
            minimum_requests: triggers.minimum,
            failure_percent: triggers.error_percent,
            slow_percent: triggers.slow.map(|slow| slow.percent),
        };
        let judge = &self.rule.judge;
        let rule = OutcomeRule::new(self.state_key(TALLY))
            .at_head(at_head)
            .failing_statuses(judge.status_ranges().iter().copied())
            .failing_connections(judge.connection_failures());
        let rule = self.cell_keys().into_iter().fold(rule, OutcomeRule::cell);
        Some(OutcomeRule {
            slower_than_us: triggers.slow.map(|slow| slow.slower_than_us),
            window: has_shares.then_some(window),
            consecutive_failures: triggers.consecutive,
            ..rule
        })
    }

    /// Opens the breaker because its tally has reached a threshold, unless its state has changed since.
    pub(crate) fn open_by(&self, crossing: &Crossing) {
        let Ok(cells) = self.host.get_all(&self.cell_keys()) else {
            return;
        };
        let versions = cells.iter().map(|cell| cell.as_ref().map_or(0, |cell| cell.version));
        let [marks, state] = cells.as_slice() else { return };
        if !versions.eq(crossing.versions.iter().copied()) {
            return;
        }
        let read = self.state_of_cells(marks.as_ref(), state.as_ref());
        if read.status.state != State::Closed {
            return;
        }
        let mut counts = Counts {
            requests: crossing.counts.requests,
            failures: crossing.counts.failures,
            slow: crossing.counts.slow,
        };
        let cause = match crossing.threshold {
            Threshold::ConsecutiveFailures => {
                counts.failures = counts.failures.max(crossing.counts.consecutive_failures);
                counts.requests = counts.requests.max(counts.failures);
                Cause::Consecutive
            }
            Threshold::FailurePercent => Cause::Errors,
            Threshold::SlowPercent => Cause::Slow,
        };
        self.open(read, cause, counts);
    }

    /// Records the end of a probe of this half-open state.
    pub(crate) fn record_probe(&self, read: VersionedState, judgement: Judgement, took_us: u64) {
        let is_slow = self
            .rule
            .triggers
            .slow
            .is_some_and(|slow| took_us > slow.slower_than_us);
        match judgement {
            Judgement::Silent => {}
            Judgement::GivenUp if !is_slow => {}
            Judgement::Success if !is_slow => {
                let succeeded = self.host.add(&self.state_key("succeeded"), 1, None).ok().flatten();
                if succeeded.is_none_or(|succeeded| succeeded >= i64::from(self.rule.probes)) {
                    self.close(read);
                }
            }
            Judgement::Success | Judgement::Failure | Judgement::GivenUp => {
                self.open(read, Cause::Probe, read.status.counts);
            }
        }
    }

    /// Changes the state, if it is still the one that was read.
    fn change_state(&self, read: VersionedState, status: Status) -> bool {
        let Some(epoch) = next_epoch(self.host) else {
            self.host.count("keys_exhausted", "", 1);
            return false;
        };
        let since_ms = self.now_ms();
        self.write_state(
            read,
            Status {
                epoch,
                since_ms,
                ..status
            },
        )
        .is_some()
    }

    /// Writes the state and resets its counters. Returns the version, or `None` if another instance was faster.
    fn write_state(&self, read: VersionedState, status: Status) -> Option<u64> {
        let bytes = status.encode();
        let swap = || {
            self.host
                .compare_and_swap(&self.state_key("state"), read.version, &bytes)
        };
        let mut written = swap();
        if written == Ok(None) {
            return None;
        }
        for kind in COUNTED {
            self.host.remove(&self.state_key(kind));
        }
        if written.is_err() {
            // A new state needs a key, and resetting the counters has just freed some.
            self.host.count("keys_exhausted", "", 1);
            written = swap();
        }
        let version = written.ok().flatten()?;
        self.publish_state(VersionedState {
            version,
            status,
            is_known: true,
        });
        Some(version)
    }

    /// Publishes the state. Another instance may change and publish it in between and would be overwritten, so it is read again.
    pub(crate) fn publish_state(&self, mut read: VersionedState) {
        for _ in 0..MAX_TRIES {
            snapshot::publish_report(&self.rule.name, &self.value, &read.status, self.host);
            let now = self.stored_state();
            if now.version == read.version {
                return;
            }
            read = now;
        }
    }

    /// When a keyed breaker that closed is forgotten, on the monotonic clock; `None` if there is nothing to forget.
    pub(crate) fn forgotten_at_ms(&self, read: &VersionedState) -> Option<u64> {
        let is_kept = read.version == 0 || self.value.is_empty() || read.status.state != State::Closed;
        (!is_kept).then(|| read.status.since_ms.saturating_add(FORGET_MS + 1))
    }

    /// Forgets a keyed breaker that closed long ago. Returns whether it did.
    pub(crate) fn forget_if_old(&self, read: &VersionedState) -> bool {
        let is_old = self.forgotten_at_ms(read).is_some_and(|at_ms| self.now_ms() >= at_ms);
        if is_old {
            self.host.remove(&self.state_key("state"));
        }
        is_old
    }

    fn state_key(&self, kind: &str) -> Cow<'_, str> {
        let known = self.rule.keys.get(kind).filter(|_| self.value.is_empty());
        known.map_or_else(|| build_key(kind, &self.rule.name, &self.value).into(), Cow::from)
    }

    fn description(&self) -> String {
        match self.value.as_str() {
            "" => format!("circuit breaker {:?}", self.rule.name),
            value => format!("circuit breaker {:?} for {value:?}", self.rule.name),
        }
    }
}

/// Removes reports and state of all other rules.
pub(crate) fn keep_only(host: &dyn Host, rules: &[&str]) {
    for (rule, value) in snapshot::keep_reports_of(host, rules) {
        forget_state(host, &rule, &value);
        forget_reset(host, &rule);
    }
}

/// Deletes the state of a breaker whose rule was removed.
fn forget_state(host: &dyn Host, rule: &str, value: &str) {
    for key in keys_of_breaker(rule, value) {
        host.remove(&key);
    }
}
