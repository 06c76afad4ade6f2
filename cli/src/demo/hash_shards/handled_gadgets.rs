//! Which replica handled which gadget when, from the controllers' reports. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// From the start of the first reconcile to the end of the last, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Period {
    began: u64,
    ended: u64,
}

impl Period {
    fn overlaps(self, other: Self) -> bool {
        self.began <= other.ended && other.began <= self.ended
    }
}

/// By name of the gadget, the periods of each replica that handled it.
#[derive(Debug, Default)]
pub(super) struct HandledGadgets(BTreeMap<String, BTreeMap<usize, Period>>);

impl HandledGadgets {
    pub(super) fn record_reconcile(&mut self, replica: usize, name: String, began: u64, ended: u64) {
        let periods = self.0.entry(name).or_default();
        let period = periods.entry(replica).or_insert(Period { began, ended });
        period.began = period.began.min(began);
        period.ended = period.ended.max(ended);
    }

    /// Gadgets that anybody handled.
    pub(super) fn gadgets(&self) -> u64 {
        self.0.len() as u64
    }

    /// Gadgets that exactly one replica handled.
    pub(super) fn handled_by_one(&self) -> u64 {
        self.count(|periods| periods.len() == 1)
    }

    /// Gadgets that both replicas handled, at whatever time.
    pub(super) fn handled_by_both(&self, one: usize, other: usize) -> u64 {
        self.count(|periods| periods.contains_key(&one) && periods.contains_key(&other))
    }

    /// Gadgets that a replica handled before another one was done with them.
    pub(super) fn with_two_owners(&self) -> u64 {
        self.count(|periods| {
            let mut pairs = periods.iter().flat_map(move |(replica, period)| {
                let later = periods.iter().filter(move |(other, _)| *other > replica);
                later.map(move |(_, other)| (*period, *other))
            });
            pairs.any(|(one, other)| one.overlaps(other))
        })
    }

    /// How many of these gadgets the replica has not handled yet.
    pub(super) fn not_handled_by(&self, replica: usize, names: &BTreeSet<String>) -> u64 {
        let is_missing = |name: &&String| {
            let periods = self.0.get(*name);
            !periods.is_some_and(|periods| periods.contains_key(&replica))
        };
        names.iter().filter(is_missing).count() as u64
    }

    fn count(&self, is_counted: impl Fn(&BTreeMap<usize, Period>) -> bool) -> u64 {
        self.0.values().filter(|periods| is_counted(periods)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handled(reconciles: &[(usize, &str, u64, u64)]) -> HandledGadgets {
        let mut handled = HandledGadgets::default();
        for (replica, name, began, ended) in reconciles {
            handled.record_reconcile(*replica, (*name).to_owned(), *began, *ended);
        }
        handled
    }

    #[test]
    fn gadget_that_changed_hands_has_one_owner_at_a_time() {
        let moved = handled(&[(0, "a", 1, 2), (0, "a", 3, 4), (2, "a", 5, 6), (1, "b", 1, 9)]);
        assert_eq!((moved.gadgets(), moved.handled_by_one()), (2, 1));
        assert_eq!((moved.handled_by_both(0, 2), moved.handled_by_both(0, 1)), (1, 0));
        assert_eq!(moved.with_two_owners(), 0);
    }

    #[test]
    fn overlapping_owners_and_owners_that_come_back_are_counted() {
        assert_eq!(handled(&[(0, "a", 1, 5), (2, "a", 4, 6)]).with_two_owners(), 1);
        assert_eq!(handled(&[(2, "a", 1, 5), (0, "a", 4, 6)]).with_two_owners(), 1);
        let back = handled(&[(0, "a", 1, 2), (1, "a", 3, 4), (0, "a", 5, 6)]);
        assert_eq!(back.with_two_owners(), 1);
    }

    #[test]
    fn gadgets_that_a_replica_has_yet_to_handle_are_counted() {
        let names: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
        let some = handled(&[(2, "a", 1, 2), (1, "b", 1, 2)]);
        assert_eq!(some.not_handled_by(2, &names), 2);
    }
}
