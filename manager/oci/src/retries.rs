//! Retries of a request: how many, and with which pauses.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::failure::{Failure, Retry};
use super::settings::Times;

/// Maximum attempts of one request.
const MAX_ATTEMPTS: u32 = 4;

/// The value of `Retry-After`, in seconds or as a date (RFC 9110 §10.2.3).
pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(Duration::try_from(then.duration_since(now)).unwrap_or_default())
}

/// Counts the attempts of one request.
pub(super) struct Attempts<'a> {
    times: &'a Times,
    made: u32,
}

impl<'a> Attempts<'a> {
    pub(super) const fn new(times: &'a Times) -> Self {
        Self { times, made: 0 }
    }

    /// The pause before the next attempt, or the failure if there is none. `random` spreads it over the second half of the pause,
    /// so that many pulls do not retry together.
    pub(super) fn next_pause(&mut self, failure: Failure, random: u16) -> Result<Duration, Failure> {
        self.made += 1;
        let pause = with_jitter(self.times.pause.saturating_mul(1 << self.made.min(16)) / 2, random);
        match failure.again {
            _ if self.made >= MAX_ATTEMPTS => Err(failure),
            Retry::Soon => Ok(pause),
            Retry::After(asked) if asked <= self.times.max_retry_after => Ok(asked.max(pause)),
            Retry::After(_) | Retry::Later => Err(failure),
        }
    }
}

/// Spreads a pause between half of its length and all of it.
pub(super) fn with_jitter(pause: Duration, random: u16) -> Duration {
    let half = pause / 2;
    half + half * u32::from(random) / u32::from(u16::MAX)
}

/// If no random number can be had, all pulls wait the same time, which is harmless.
pub(super) fn random_jitter() -> u16 {
    let mut bytes = [0; 2];
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u16::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests;
