//! Durations in Go's notation, because the CRDs' fields are Go's: `300ms`, `1m30s`, `1.5h`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// Units of `time.ParseDuration`, in nanoseconds. Both letters that look like a micro sign are accepted, as Go does.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("μs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];
/// About 31 years: more must be a mistake, and sums stay far below the maximum of a `u64` of nanoseconds.
const MAX_NANOSECONDS: f64 = 1e18;

/// A duration in a plugin's settings. Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    /// Parses the text; `None` if Go would not, if it is negative or longer than 31 years.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text.strip_prefix('+').unwrap_or(text);
        if rest == "0" {
            return Some(Self::default());
        }
        let mut nanoseconds = 0.0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, tail) = rest.split_at_checked(end)?;
            let end = tail
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(tail.len());
            let (name, tail) = tail.split_at_checked(end)?;
            let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == name)?;
            nanoseconds += parse_decimal(number)? * unit;
            rest = tail;
        }
        let is_duration = text.ends_with(char::is_alphabetic) && nanoseconds <= MAX_NANOSECONDS;
        // Bounded just now: exact, and the sign is not lost.
        is_duration.then(|| Self(Duration::from_nanos(nanoseconds.round() as u64)))
    }

    /// Whole milliseconds, rounded up: a wait must not end before its time.
    #[must_use]
    pub fn as_millis_ceil(self) -> u64 {
        u64::try_from(self.0.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// Digits with at most one point and at least one digit.
fn parse_decimal(text: &str) -> Option<f64> {
    let has_digit = text.bytes().any(|byte| byte.is_ascii_digit());
    if has_digit { text.parse().ok() } else { None }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GoDurationVisitor)
    }
}

struct GoDurationVisitor;

impl de::Visitor<'_> for GoDurationVisitor {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number and a unit, such as 250ms, 1s or 1m30s")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
        GoDuration::parse(text).ok_or_else(|| {
            E::custom(format!(
                "{text:?} is no duration; write a number and a unit, such as 250ms, 1s or 1m30s"
            ))
        })
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<GoDuration, E> {
        Err(E::custom(format!(
            "is {number} without a unit; write {number}s if seconds are meant, {number}ms if milliseconds"
        )))
    }
}
