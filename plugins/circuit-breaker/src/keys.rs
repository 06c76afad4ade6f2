//! Keys of the host's state for a rule and its breakers. They use names instead of list indices, so that an edit of another rule changes
//! nothing. A name has no line break.

/// Counters that are reset with each change of state.
pub(crate) const COUNTED: [&str; 5] = ["requests", "failures", "slow", "consecutive", "succeeded"];
/// The kinds of keys that a breaker has as long as it exists.
const KINDS: [&str; 7] = [
    "requests",
    "failures",
    "slow",
    "consecutive",
    "succeeded",
    "state",
    "tokens",
];

/// The keys of a rule without `key`, or of a key with an empty value, built once.
#[derive(Debug)]
pub(crate) struct RuleKeys {
    /// Key of the rule's reset marks.
    pub(crate) marks: String,
    /// By kind.
    keys: [(&'static str, String); KINDS.len()],
}

impl RuleKeys {
    pub(crate) fn new(rule: &str) -> Self {
        Self {
            marks: marks_key(rule),
            keys: KINDS.map(|kind| (kind, build_key(kind, rule, ""))),
        }
    }

    pub(crate) fn get(&self, kind: &str) -> Option<&str> {
        let known = self.keys.iter().find(|(known, _)| *known == kind);
        known.map(|(_, key)| key.as_str())
    }
}

/// The key of a breaker: of a rule, with a value of the rule's `key`.
pub(crate) fn build_key(kind: &str, rule: &str, value: &str) -> String {
    format!("{kind}\n{rule}\n{value}")
}

/// All keys that a breaker has as long as it exists.
pub(crate) fn keys_of_breaker(rule: &str, value: &str) -> impl Iterator<Item = String> {
    KINDS.into_iter().map(move |kind| build_key(kind, rule, value))
}

/// The key of a rule's reset marks.
pub(crate) fn marks_key(rule: &str) -> String {
    format!("rule\n{rule}")
}
