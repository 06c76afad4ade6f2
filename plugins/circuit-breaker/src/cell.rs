//! The encoding of a breaker's state in the host: a few bytes after a version, so that a later build of this plugin recognizes it. An
//! unreadable state counts as closed.

const VERSION: u8 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Closed,
    Opened,
    HalfOpen,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    #[default]
    None,
    OverLimit,
    Errors,
    Slow,
    Consecutive,
    Probe,
}

/// Requests in the window when the state changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u32,
    pub(crate) failures: u32,
    pub(crate) slow: u32,
}

/// The state of one breaker. The default is a breaker that never opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) state: State,
    pub(crate) cause: Cause,
    /// Number of the change to this state. Requests admitted before it say nothing about this state.
    pub(crate) epoch: u32,
    /// When the state began, on the monotonic clock.
    pub(crate) since_ms: u64,
    /// When the sleeping window ends; 0 if only a new `recover` value ends it.
    pub(crate) recovers_ms: u64,
    pub(crate) counts: Counts,
    /// Consecutive failed probes, each at the end of a sleeping window.
    pub(crate) failed_probes: u32,
}

impl Status {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            State::Closed => 0,
            State::Opened => 1,
            State::HalfOpen => 2,
        };
        let cause = match self.cause {
            Cause::None => 0,
            Cause::OverLimit => 1,
            Cause::Errors => 2,
            Cause::Slow => 3,
            Cause::Consecutive => 4,
            Cause::Probe => 5,
        };
        let mut bytes = vec![VERSION, state, cause];
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.since_ms.to_le_bytes());
        bytes.extend(self.recovers_ms.to_le_bytes());
        let Counts {
            requests,
            failures,
            slow,
        } = self.counts;
        for count in [requests, failures, slow, self.failed_probes] {
            bytes.extend(count.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let ([VERSION, state, cause], rest) = bytes.split_first_chunk()? else {
            return None;
        };
        let mut numbers = Numbers(rest);
        let status = Self {
            state: match state {
                0 => State::Closed,
                1 => State::Opened,
                2 => State::HalfOpen,
                _ => return None,
            },
            cause: match cause {
                0 => Cause::None,
                1 => Cause::OverLimit,
                2 => Cause::Errors,
                3 => Cause::Slow,
                4 => Cause::Consecutive,
                5 => Cause::Probe,
                _ => return None,
            },
            epoch: numbers.read_u32()?,
            since_ms: numbers.read_u64()?,
            recovers_ms: numbers.read_u64()?,
            counts: Counts {
                requests: numbers.read_u32()?,
                failures: numbers.read_u32()?,
                slow: numbers.read_u32()?,
            },
            failed_probes: numbers.read_u32()?,
        };
        numbers.0.is_empty().then_some(status)
    }
}

/// Reads little-endian numbers one after another.
pub(crate) struct Numbers<'a>(pub(crate) &'a [u8]);

impl Numbers<'_> {
    pub(crate) fn read_u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    pub(crate) fn read_u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }
}
