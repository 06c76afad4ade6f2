//! Finds the entries of a chain that want a request: first by (traffic, verb), then by the matchers of the remaining entries.
//!
//! A set of entries is a bit mask in one word, so nothing is allocated and the order of the chain is the order of the bits. Leaves entries
//! to `snapshot.rs` and rules to `matcher.rs`.

use ctrlmesh_contract::chain::MAX_ENTRIES_PER_POD;

use super::matcher::{MatchQuery, Matcher, TRAFFICS, VERBS, traffic_index, verb_index};
use crate::plugin::verdict::Phases;

/// Set of the entries that want a request; iterates in the order of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Matched(u64);

impl Matched {
    /// Whether no entry wants the request, so that no plugin runs.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Positions in the chain, in ascending order.
    pub fn positions(self) -> impl DoubleEndedIterator<Item = usize> {
        Positions(self.0)
    }

    #[cfg(test)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn insert(&mut self, at: usize) {
        self.0 |= 1 << at;
    }
}

/// The bits that have not been returned yet.
struct Positions(u64);

impl Iterator for Positions {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = self.0.trailing_zeros();
        // Clears the lowest bit, if there is one.
        self.0 &= self.0.checked_sub(1)?;
        Some(at as usize)
    }
}

impl DoubleEndedIterator for Positions {
    fn next_back(&mut self) -> Option<usize> {
        let at = self.0.checked_ilog2()?;
        self.0 ^= 1 << at;
        Some(at as usize)
    }
}

const _: () = assert!(
    MAX_ENTRIES_PER_POD <= u64::BITS as usize,
    "a set of entries is the bits of one word"
);

#[derive(Debug, Clone)]
pub(crate) struct Index {
    first_look: [Matched; TRAFFICS * VERBS.len()],
    on_request: Matched,
    on_response: Matched,
    on_complete: Matched,
}

impl Index {
    /// Builds the index from entries in the order of the chain; at most [`MAX_ENTRIES_PER_POD`] of them.
    pub(crate) fn new<'e>(entries: impl Iterator<Item = (&'e Matcher, Phases)>) -> Self {
        let none = Matched(0);
        let mut index = Self {
            first_look: [none; TRAFFICS * VERBS.len()],
            on_request: none,
            on_response: none,
            on_complete: none,
        };
        for (at, (matcher, phases)) in entries.enumerate().take(MAX_ENTRIES_PER_POD) {
            for (cell, matched) in index.first_look.iter_mut().enumerate() {
                if matcher.may_match(cell / VERBS.len(), cell % VERBS.len()) {
                    matched.insert(at);
                }
            }
            for (has_phase, matched) in [
                (phases.request, &mut index.on_request),
                (phases.response, &mut index.on_response),
                (phases.complete, &mut index.on_complete),
            ] {
                if has_phase {
                    matched.insert(at);
                }
            }
        }
        index
    }

    /// The entries that want this request. `matcher` returns the matcher at a position.
    pub(crate) fn matching_entries<'e>(
        &self,
        query: &MatchQuery<'_>,
        matcher: impl Fn(usize) -> Option<&'e Matcher>,
    ) -> Matched {
        let cell = traffic_index(query.traffic) * VERBS.len() + verb_index(query.verb);
        let mut matched = Matched(0);
        for at in self.first_look.get(cell).copied().unwrap_or_default().positions() {
            if matcher(at).is_some_and(|matcher| matcher.matches(query)) {
                matched.insert(at);
            }
        }
        matched
    }

    /// The matched entries that subscribe to `on-request`.
    pub(crate) const fn on_request(&self, matched: Matched) -> Matched {
        matched.intersection(self.on_request)
    }

    /// The matched entries that subscribe to `on-response`.
    pub(crate) const fn on_response(&self, matched: Matched) -> Matched {
        matched.intersection(self.on_response)
    }

    /// The matched entries that subscribe to `on-complete`.
    pub(crate) const fn on_complete(&self, matched: Matched) -> Matched {
        matched.intersection(self.on_complete)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::chain::matcher::tests::{matches_naively, subscription, words};
    use crate::plugin::verdict::{MatchRule, Subscription, Traffic};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn index_finds_same_entries_as_full_search(
            subscriptions in prop::collection::vec(subscription(), 0..8),
            words in words(),
        ) {
            let matchers: Vec<Matcher> = subscriptions.iter().map(Matcher::new).collect();
            let index = Index::new(matchers.iter().map(|matcher| (matcher, Phases::default())));
            let query = words.query();
            let found: Vec<usize> = index.matching_entries(&query, |at| matchers.get(at)).positions().collect();
            let expected: Vec<usize> = subscriptions
                .iter()
                .enumerate()
                .filter(|(_, subscription)| matches_naively(subscription, &query))
                .map(|(at, _)| at)
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    const ANY: MatchQuery<'_> = MatchQuery {
        traffic: Traffic::Api,
        verb: ctrlmesh_wire::Verb::Get,
        group: "",
        resource: "pods",
        subresource: "",
        namespace: "",
        name: "",
        path: "",
        host: "",
        user_agent: "",
    };

    #[test]
    fn sixty_four_entries_fit() {
        let any = Subscription {
            rules: vec![MatchRule::default()],
            ..Subscription::default()
        };
        let matchers = vec![Matcher::new(&any); MAX_ENTRIES_PER_POD];
        let index = Index::new(matchers.iter().map(|matcher| (matcher, Phases::default())));
        let matched = index.matching_entries(&ANY, |at| matchers.get(at));
        assert_eq!(matched.len(), 64);
        assert!(matched.positions().eq(0..64));
        assert!(matched.positions().rev().eq((0..64).rev()));
    }

    #[test]
    fn phases_select_among_matched_entries() {
        let any = Subscription {
            rules: vec![MatchRule::default()],
            ..Subscription::default()
        };
        let matcher = Matcher::new(&any);
        let phases = [
            Phases {
                request: true,
                ..Phases::default()
            },
            Phases {
                response: true,
                complete: true,
                ..Phases::default()
            },
            Phases {
                request: true,
                complete: true,
                ..Phases::default()
            },
        ];
        let index = Index::new(phases.iter().map(|phases| (&matcher, *phases)));
        let matched = index.matching_entries(&ANY, |_| Some(&matcher));
        assert!(index.on_request(matched).positions().eq([0, 2]));
        assert!(index.on_response(matched).positions().eq([1]));
        assert!(index.on_complete(matched).positions().eq([1, 2]));
        assert!(index.on_request(Matched::default()).is_empty());
    }
}
