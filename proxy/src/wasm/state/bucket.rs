//! A token bucket in exact integer arithmetic.
//!
//! The level is counted in tokens × `interval_ms`, so that one millisecond adds exactly `limit` units without rounding. All products fit: a
//! capacity is below 2⁶⁴ units, and 2⁶⁴ × 2⁶⁴ fits into `u128`.

use super::StateError;

/// Limits of a bucket (WIT `state.bucket`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Tokens that are refilled every interval.
    pub limit: u32,
    /// Length of the interval in milliseconds.
    pub interval_ms: u32,
    /// Maximum number of tokens; a new bucket is full.
    pub burst: u32,
}

impl Rule {
    /// Refuses limits that can never grant anything.
    pub(super) const fn check(self) -> Result<(), StateError> {
        if self.limit == 0 || self.interval_ms == 0 || self.burst == 0 {
            return Err(StateError::Invalid);
        }
        Ok(())
    }

    const fn capacity(self) -> u128 {
        self.burst as u128 * self.interval_ms as u128
    }

    const fn units(self, tokens: u64) -> u128 {
        tokens as u128 * self.interval_ms as u128
    }
}

/// A bucket and its fill level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    rule: Rule,
    level: u128,
    /// Tokens granted ahead of time; the level is 0 while there is debt.
    debt: u128,
    /// Time for which level and debt were computed.
    at_ms: u64,
}

impl Bucket {
    pub(super) const fn new(rule: Rule, now_ms: u64) -> Self {
        Self {
            rule,
            level: rule.capacity(),
            debt: 0,
            at_ms: now_ms,
        }
    }

    /// Refills up to `now_ms` by the old limits, then switches to `rule` and keeps the fill level in proportion.
    pub(super) fn advance(&mut self, rule: Rule, now_ms: u64) {
        self.refill(now_ms);
        if rule != self.rule {
            // `check` has refused a capacity of 0.
            let scaled = |units: u128| (units * rule.capacity()).checked_div(self.rule.capacity()).unwrap_or(0);
            self.level = scaled(self.level);
            self.debt = scaled(self.debt);
            self.rule = rule;
        }
    }

    /// Time until this many tokens are available, in milliseconds, rounded up; 0 if they are available now.
    ///
    /// Assumes that [`Bucket::advance`] has been called for this moment and that the number does not exceed the burst.
    pub(super) fn wait_ms(&self, tokens: u64) -> u64 {
        let missing = (self.rule.units(tokens) + self.debt).saturating_sub(self.level);
        if missing == 0 {
            // The usual case, and a division of 128 bits is slow.
            return 0;
        }
        u64::try_from(missing.div_ceil(u128::from(self.rule.limit))).unwrap_or(u64::MAX)
    }

    /// Takes tokens; missing ones become debt.
    pub(super) fn take(&mut self, tokens: u64) {
        let requested = self.rule.units(tokens);
        self.debt += requested.saturating_sub(self.level);
        self.level = self.level.saturating_sub(requested);
    }

    /// Whether the bucket is equal to an unused one.
    pub(super) fn is_full(&mut self, now_ms: u64) -> bool {
        self.refill(now_ms);
        self.level == self.rule.capacity()
    }

    fn refill(&mut self, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.at_ms);
        let earned = u128::from(elapsed) * u128::from(self.rule.limit);
        let left = earned.saturating_sub(self.debt);
        self.debt = self.debt.saturating_sub(earned);
        self.level = self.level.saturating_add(left).min(self.rule.capacity());
        // Two threads may read the clock in one order and get here in the other.
        self.at_ms = self.at_ms.max(now_ms);
    }
}
