//! What the demo claims, and what it counted. A claim is a number that must be something; nothing is claimed that was not counted.

use std::fmt;

use serde::{Serialize, Serializer};

/// One claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    /// Number of the step that it is about.
    pub(crate) step: usize,
    /// What is counted.
    pub(crate) claim: &'static str,
    /// What must come out.
    pub(crate) expected: Expected,
    /// What came out.
    pub(crate) counted: u64,
    /// Whether that is what must.
    pub(crate) holds: bool,
}

/// What a count must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// This number.
    Exactly(u64),
    /// This number or more.
    AtLeast(u64),
    /// This number or less.
    AtMost(u64),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(number) => write!(f, "{number}"),
            Self::AtLeast(number) => write!(f, "≥ {number}"),
            Self::AtMost(number) => write!(f, "≤ {number}"),
        }
    }
}

impl Serialize for Expected {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The claims of a run, in the order of the story.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Vec<Claim>);

impl Claims {
    /// Notes what was counted.
    pub(crate) fn count(&mut self, step: usize, claim: &'static str, expected: Expected, counted: u64) {
        let holds = match expected {
            Expected::Exactly(number) => counted == number,
            Expected::AtLeast(number) => counted >= number,
            Expected::AtMost(number) => counted <= number,
        };
        self.0.push(Claim {
            step,
            claim,
            expected,
            counted,
            holds,
        });
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Claim] {
        &self.0
    }

    /// Whether every claim holds. No claims at all are no success.
    pub(crate) fn hold(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|claim| claim.holds)
    }

    /// Whether every claim of one step holds.
    pub(crate) fn hold_in(&self, step: usize) -> bool {
        self.0
            .iter()
            .filter(|claim| claim.step == step)
            .all(|claim| claim.holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_claim_that_fails_fails_all() {
        let mut claims = Claims::default();
        claims.count(2, "handled by two", Expected::Exactly(0), 0);
        claims.count(3, "moved", Expected::AtLeast(50), 51);
        assert!(claims.hold());
        claims.count(3, "failed", Expected::Exactly(0), 1);
        assert!(!claims.hold());
        assert!(claims.hold_in(2));
        assert!(!claims.hold_in(3));
    }

    #[test]
    fn too_few_and_too_many_fail() {
        let mut claims = Claims::default();
        claims.count(1, "too few", Expected::AtLeast(2), 1);
        claims.count(1, "too many", Expected::Exactly(2), 3);
        claims.count(1, "over the limit", Expected::AtMost(2), 3);
        claims.count(1, "at the limit", Expected::AtMost(2), 2);
        assert_eq!(
            claims.all().iter().map(|claim| claim.holds).collect::<Vec<_>>(),
            [false, false, false, true]
        );
    }

    #[test]
    fn nothing_counted_is_nothing_shown() {
        assert!(!Claims::default().hold());
    }
}
