//! The state of one breaker in the host, shared by all instances: closed, open, half open, and the ways between them.

use ctrlmesh_sdk::{Ask, Claim, Host, Place, StateError};

use crate::breaker::{Breaker, Sleeping};
use crate::cell::{Cause, Counts, State, Status};
use crate::judgement::Judgement;
use crate::recovery::{next_epoch, reset_epoch};
use crate::snapshot;

/// Steps in which the window moves on.
const SLOTS: u32 = 10;
/// Others may change a state while it is shown, but rarely.
const MAX_TRIES: usize = 16;
/// A closed breaker of a key is forgotten after so long: answers from before it opened don't come any more, and namespaces go.
const FORGET_MS: u64 = 3_600_000;

/// What is counted in one state and forgotten in the next.
const COUNTED: [&str; 5] = ["requests", "failures", "slow", "consecutive", "succeeded"];

/// One breaker: a rule and a value of its key.
pub(crate) struct Circuit<'a> {
    pub(crate) breaker: &'a Breaker,
    pub(crate) value: String,
    host: &'a dyn Host,
}

/// A state as it was read: only who still finds it may replace it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Read {
    version: u64,
    pub(crate) status: Status,
}

impl<'a> Circuit<'a> {
    pub(crate) fn new(breaker: &'a Breaker, value: String, host: &'a dyn Host) -> Self {
        Self { breaker, value, host }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.host.monotonic_ns() / 1_000_000
    }

    /// Reads the state. What is older than the rule's last reset is closed.
    pub(crate) fn read(&self) -> Read {
        let reset = reset_epoch(self.host, &self.breaker.name);
        let read = self.stored();
        let (version, status) = (read.version, read.status);
        if status.epoch >= reset {
            return read;
        }
        let closed = Status {
            epoch: reset,
            ..Status::default()
        };
        let stored = Status {
            since_ms: self.now_ms(),
            ..closed
        };
        // A breaker that never opened has no cell, and needs none.
        let written = if version == 0 { None } else { self.write(read, stored) };
        match written {
            Some(version) => {
                self.host
                    .info(&format!("{} is closed by a reset of its rule", self.described()));
                Read {
                    version,
                    status: stored,
                }
            }
            None => Read {
                version,
                status: closed,
            },
        }
    }

    /// The state as it lies there.
    fn stored(&self) -> Read {
        match self.host.get(&self.key("state")) {
            Ok(Some(cell)) => Read {
                version: cell.version,
                status: Status::decode(&cell.value).unwrap_or_default(),
            },
            Ok(None) | Err(_) => Read::default(),
        }
    }

    /// Whether the sleeping window is over.
    pub(crate) fn is_due(&self, status: &Status) -> bool {
        status.state == State::Opened && status.recovers_ms != 0 && self.now_ms() >= status.recovers_ms
    }

    /// Lets probes through from now on. Somebody else may be faster; either way it is half open then.
    pub(crate) fn half_open(&self, read: Read) {
        let status = Status {
            state: State::HalfOpen,
            recovers_ms: 0,
            ..read.status
        };
        self.change(read, status);
    }

    /// Opens, and returns the state that there is then.
    pub(crate) fn open(&self, read: Read, cause: Cause, counts: Counts) -> Status {
        let failed_probes = match cause {
            Cause::Probe => read.status.failed_probes.saturating_add(1),
            _ => 0,
        };
        let recovers_ms = |sleeping: Sleeping| self.now_ms().saturating_add(sleeping.after_ms(failed_probes));
        let status = Status {
            state: State::Opened,
            cause,
            recovers_ms: self.breaker.sleeping.map_or(0, recovers_ms),
            counts,
            failed_probes,
            ..read.status
        };
        if self.change(read, status) {
            self.host.count("opened", &self.breaker.name, 1);
            self.host
                .warn(&format!("{} opens: {}", self.described(), snapshot::reason(&status)));
        }
        self.read().status
    }

    fn close(&self, read: Read) {
        let status = Status {
            state: State::Closed,
            ..Status::default()
        };
        if self.change(read, status) {
            self.host.count("closed", &self.breaker.name, 1);
            self.host
                .info(&format!("{} closes: its probes succeeded", self.described()));
        }
    }

    /// The token that a request costs while the breaker is closed.
    pub(crate) fn ask(&self) -> Option<Ask> {
        let claim = Claim {
            key: self.key("tokens"),
            bucket: self.breaker.bucket?,
            tokens: 1,
        };
        Some(Ask { claim, max_wait_ms: 0 })
    }

    /// The place of a probe. One for each time that the breaker is half open: a watch that was a probe keeps its own for long.
    pub(crate) fn probe(&self, status: &Status) -> Place {
        Place {
            key: self.key(&format!("probes {}", status.epoch)),
            max: self.breaker.probes,
        }
    }

    /// A request that was admitted in this state is over.
    pub(crate) fn settle(&self, read: Read, judgement: Judgement, took_us: u64) {
        let is_slow = self
            .breaker
            .triggers
            .slow
            .is_some_and(|slow| took_us > slow.slower_than_us);
        match (read.status.state, judgement) {
            (_, Judgement::Silent) | (State::Opened, _) => {}
            (_, Judgement::GivenUp) if !is_slow => {}
            (State::Closed, _) => match self.counted(judgement, is_slow) {
                Ok(Some((cause, counts))) => {
                    self.open(read, cause, counts);
                }
                Ok(None) => self.forget_if_old(&read),
                Err(_) => self.host.count("keys_exhausted", "", 1),
            },
            (State::HalfOpen, Judgement::Success) if !is_slow => {
                let succeeded = self.host.add(&self.key("succeeded"), 1, None).ok().flatten();
                if succeeded.is_none_or(|succeeded| succeeded >= i64::from(self.breaker.probes)) {
                    self.close(read);
                }
            }
            (State::HalfOpen, _) => {
                self.open(read, Cause::Probe, read.status.counts);
            }
        }
    }

    /// Counts a request while closed; tells if that is too much.
    fn counted(&self, judgement: Judgement, is_slow: bool) -> Result<Option<(Cause, Counts)>, StateError> {
        let triggers = &self.breaker.triggers;
        let is_failure = judgement == Judgement::Failure;
        let mut counts = Counts::default();
        if triggers.error_percent.is_some() || triggers.slow.is_some() {
            counts = Counts {
                requests: self.window("requests", true)?,
                failures: self.window("failures", is_failure)?,
                slow: self.window("slow", is_slow)?,
            };
        }
        if let Some(most) = triggers.consecutive.filter(|_| judgement != Judgement::GivenUp) {
            // A counter never falls below 0.
            let by = if is_failure { 1 } else { -i64::from(u32::MAX) };
            let failed = self.host.add(&self.key("consecutive"), by, None)?.unwrap_or_default();
            if failed >= i64::from(most) {
                counts.failures = counts.failures.max(u32::try_from(failed).unwrap_or(u32::MAX));
                counts.requests = counts.requests.max(counts.failures);
                return Ok(Some((Cause::Consecutive, counts)));
            }
        }
        let exceeds =
            |part: u32, percent: u32| u64::from(part) * 100 >= u64::from(percent) * u64::from(counts.requests);
        let is_enough = counts.requests >= triggers.minimum;
        Ok(
            if is_enough
                && triggers
                    .error_percent
                    .is_some_and(|percent| exceeds(counts.failures, percent))
            {
                Some((Cause::Errors, counts))
            } else if is_enough && triggers.slow.is_some_and(|slow| exceeds(counts.slow, slow.percent)) {
                Some((Cause::Slow, counts))
            } else {
                None
            },
        )
    }

    fn window(&self, kind: &str, counts: bool) -> Result<u32, StateError> {
        let key = self.key(kind);
        let sum = self
            .host
            .window_add(&key, self.breaker.triggers.window_ms, SLOTS, u64::from(counts))?;
        Ok(u32::try_from(sum).unwrap_or(u32::MAX))
    }

    /// To another state, if it is still the one that was read.
    fn change(&self, read: Read, status: Status) -> bool {
        let Some(epoch) = next_epoch(self.host) else {
            self.host.count("keys_exhausted", "", 1);
            return false;
        };
        let since_ms = self.now_ms();
        self.write(
            read,
            Status {
                epoch,
                since_ms,
                ..status
            },
        )
        .is_some()
    }

    /// What was counted belongs to the state before. Returns the version, or `None` if somebody was faster.
    fn write(&self, read: Read, status: Status) -> Option<u64> {
        let bytes = status.encode();
        let swap = || self.host.compare_and_swap(&self.key("state"), read.version, &bytes);
        let mut written = swap();
        if written == Ok(None) {
            return None;
        }
        for kind in COUNTED {
            self.host.remove(&self.key(kind));
        }
        if written.is_err() {
            // A first state needs a key, and what was counted has just given some back.
            self.host.count("keys_exhausted", "", 1);
            written = swap();
        }
        let version = written.ok().flatten()?;
        self.show(Read { version, status });
        Some(version)
    }

    /// Shows a state. Another instance may change it and show that in between, and would be overwritten: who shows looks again.
    pub(crate) fn show(&self, mut read: Read) {
        for _ in 0..MAX_TRIES {
            snapshot::show(self, &read.status, self.host);
            let now = self.stored();
            if now.version == read.version {
                return;
            }
            read = now;
        }
    }

    fn forget_if_old(&self, read: &Read) {
        let age_ms = self.now_ms().saturating_sub(read.status.since_ms);
        if read.version != 0 && !self.value.is_empty() && age_ms > FORGET_MS {
            self.host.remove(&self.key("state"));
        }
    }

    fn key(&self, kind: &str) -> String {
        key(kind, &self.breaker.name, &self.value)
    }

    fn described(&self) -> String {
        match self.value.as_str() {
            "" => format!("circuit breaker {:?}", self.breaker.name),
            value => format!("circuit breaker {:?} for {value:?}", self.breaker.name),
        }
    }
}

/// By names and not by places in the list, so that an edit of another rule changes nothing. A name has no line break.
fn key(kind: &str, rule: &str, value: &str) -> String {
    format!("{kind}\n{rule}\n{value}")
}

/// The rule is gone: nothing of this breaker stays.
pub(crate) fn forget(host: &dyn Host, rule: &str, value: &str) {
    for kind in COUNTED.into_iter().chain(["state", "tokens"]) {
        host.remove(&key(kind, rule, value));
    }
}
