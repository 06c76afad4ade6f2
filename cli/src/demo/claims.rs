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
    /// It does not hold, but says nothing: it is about what a machine of some speed brings about, and this one was too slow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_inconclusive: bool,
}

/// What came of some claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All hold.
    Holds,
    /// One does not.
    Fails,
    /// None fails, but one says nothing.
    Inconclusive,
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
        self.count_at_speed(step, claim, expected, counted, false);
    }

    /// Notes what was counted of something that takes a machine of some speed. `is_slow`: this one was too slow meanwhile.
    pub(crate) fn count_at_speed(
        &mut self,
        step: usize,
        claim: &'static str,
        expected: Expected,
        counted: u64,
        is_slow: bool,
    ) {
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
            is_inconclusive: is_slow && !holds,
        });
    }

    /// The claims in the order in which they were counted.
    pub(crate) fn all(&self) -> &[Claim] {
        &self.0
    }

    /// What came of all. No claims at all are no success.
    pub(crate) fn outcome(&self) -> Outcome {
        if self.0.is_empty() {
            return Outcome::Fails;
        }
        outcome(self.0.iter())
    }

    /// What came of those of one step.
    pub(crate) fn outcome_in(&self, step: usize) -> Outcome {
        outcome(self.0.iter().filter(|claim| claim.step == step))
    }

    /// Whether something was counted that must not be.
    pub(crate) fn are_contradicted(&self) -> bool {
        outcome(self.0.iter()) == Outcome::Fails
    }
}

fn outcome<'c>(claims: impl Iterator<Item = &'c Claim>) -> Outcome {
    let missed: Vec<&Claim> = claims.filter(|claim| !claim.holds).collect();
    match missed.iter().all(|claim| claim.is_inconclusive) {
        _ if missed.is_empty() => Outcome::Holds,
        true => Outcome::Inconclusive,
        false => Outcome::Fails,
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
        assert_eq!(claims.outcome(), Outcome::Holds);
        claims.count(3, "failed", Expected::Exactly(0), 1);
        assert_eq!(claims.outcome(), Outcome::Fails);
        assert_eq!(
            (claims.outcome_in(2), claims.outcome_in(3)),
            (Outcome::Holds, Outcome::Fails)
        );
    }

    #[test]
    fn claim_that_takes_speed_is_inconclusive_on_a_slow_machine_and_hides_no_failure() {
        let mut claims = Claims::default();
        claims.count_at_speed(7, "waited", Expected::AtLeast(40), 41, true);
        assert_eq!(claims.outcome(), Outcome::Holds, "what holds holds on any machine");
        claims.count_at_speed(7, "waited", Expected::AtLeast(40), 3, true);
        assert_eq!(claims.outcome(), Outcome::Inconclusive);
        assert!(!claims.are_contradicted());
        claims.count_at_speed(7, "waited", Expected::AtLeast(40), 3, false);
        assert_eq!(claims.outcome(), Outcome::Fails, "this machine was fast enough");
        let mut claims = Claims::default();
        claims.count_at_speed(7, "waited", Expected::AtLeast(40), 3, true);
        claims.count(7, "failed", Expected::Exactly(0), 1);
        assert_eq!(claims.outcome_in(7), Outcome::Fails);
        assert!(claims.are_contradicted());
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
        assert_eq!(Claims::default().outcome(), Outcome::Fails);
    }
}
