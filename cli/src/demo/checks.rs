//! The checks of the demo: each is a counted number and the bound that it must meet.

use std::fmt;

use serde::{Serialize, Serializer};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Check {
    pub(crate) step: usize,
    #[serde(rename = "claim")]
    pub(crate) text: &'static str,
    pub(crate) expected: Expected,
    pub(crate) counted: u64,
    /// Whether `counted` meets `expected`.
    pub(crate) holds: bool,
    /// The check does not hold, but is inconclusive: it depends on the speed of the machine, and this one was too slow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_inconclusive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Holds,
    /// At least one check fails.
    Fails,
    /// No check fails, but at least one is inconclusive.
    Inconclusive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Exactly(u64),
    AtLeast(u64),
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

/// The checks of a run, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checks(Vec<Check>);

impl Checks {
    pub(crate) fn record_count(&mut self, step: usize, text: &'static str, expected: Expected, counted: u64) {
        self.record_count_at_speed(step, text, expected, counted, false);
    }

    /// Records a check that depends on the speed of the machine. `is_slow`: the machine was too slow meanwhile.
    pub(crate) fn record_count_at_speed(
        &mut self,
        step: usize,
        text: &'static str,
        expected: Expected,
        counted: u64,
        is_slow: bool,
    ) {
        let holds = match expected {
            Expected::Exactly(number) => counted == number,
            Expected::AtLeast(number) => counted >= number,
            Expected::AtMost(number) => counted <= number,
        };
        self.0.push(Check {
            step,
            text,
            expected,
            counted,
            holds,
            is_inconclusive: is_slow && !holds,
        });
    }

    pub(crate) fn as_slice(&self) -> &[Check] {
        &self.0
    }

    /// The outcome of all checks. A run without checks fails.
    pub(crate) fn outcome(&self) -> Outcome {
        if self.0.is_empty() {
            return Outcome::Fails;
        }
        outcome_of(self.0.iter())
    }

    pub(crate) fn outcome_in(&self, step: usize) -> Outcome {
        outcome_of(self.0.iter().filter(|check| check.step == step))
    }

    /// Whether a count exceeds what may ever be seen, which no slow machine excuses.
    pub(crate) fn are_contradicted(&self) -> bool {
        outcome_of(self.0.iter()) == Outcome::Fails
    }
}

fn outcome_of<'c>(checks: impl Iterator<Item = &'c Check>) -> Outcome {
    let missed: Vec<&Check> = checks.filter(|check| !check.holds).collect();
    match missed.iter().all(|check| check.is_inconclusive) {
        _ if missed.is_empty() => Outcome::Holds,
        true => Outcome::Inconclusive,
        false => Outcome::Fails,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_fails_when_one_check_fails() {
        let mut checks = Checks::default();
        checks.record_count(2, "handled by two", Expected::Exactly(0), 0);
        checks.record_count(3, "moved", Expected::AtLeast(50), 51);
        assert_eq!(checks.outcome(), Outcome::Holds);
        checks.record_count(3, "failed", Expected::Exactly(0), 1);
        assert_eq!(checks.outcome(), Outcome::Fails);
        assert_eq!(
            (checks.outcome_in(2), checks.outcome_in(3)),
            (Outcome::Holds, Outcome::Fails)
        );
    }

    #[test]
    fn speed_check_is_inconclusive_when_machine_is_slow() {
        let mut checks = Checks::default();
        checks.record_count_at_speed(7, "waited", Expected::AtLeast(40), 41, true);
        assert_eq!(checks.outcome(), Outcome::Holds, "what holds holds on any machine");
        checks.record_count_at_speed(7, "waited", Expected::AtLeast(40), 3, true);
        assert_eq!(checks.outcome(), Outcome::Inconclusive);
        assert!(!checks.are_contradicted());
        checks.record_count_at_speed(7, "waited", Expected::AtLeast(40), 3, false);
        assert_eq!(checks.outcome(), Outcome::Fails, "this machine was fast enough");
        let mut checks = Checks::default();
        checks.record_count_at_speed(7, "waited", Expected::AtLeast(40), 3, true);
        checks.record_count(7, "failed", Expected::Exactly(0), 1);
        assert_eq!(checks.outcome_in(7), Outcome::Fails);
        assert!(checks.are_contradicted());
    }

    #[test]
    fn check_fails_when_count_is_out_of_bounds() {
        let mut checks = Checks::default();
        checks.record_count(1, "too few", Expected::AtLeast(2), 1);
        checks.record_count(1, "too many", Expected::Exactly(2), 3);
        checks.record_count(1, "over the limit", Expected::AtMost(2), 3);
        checks.record_count(1, "at the limit", Expected::AtMost(2), 2);
        assert_eq!(
            checks.as_slice().iter().map(|check| check.holds).collect::<Vec<_>>(),
            [false, false, false, true]
        );
    }

    #[test]
    fn outcome_fails_without_checks() {
        assert_eq!(Checks::default().outcome(), Outcome::Fails);
    }
}
