//! Keys of the host's state for a rule and its breakers. They use names instead of list indices, so that an edit of another rule changes
//! nothing. A name has no line break.

/// Kind of the tally in which the host counts outcomes while a breaker is closed.
pub(crate) const TALLY: &str = "tally";
/// Kinds of the keys that are reset with each change of state.
pub(crate) const COUNTED: [&str; 2] = [TALLY, "succeeded"];
/// The kinds of keys that a breaker has as long as it exists.
const KINDS: [&str; 4] = [TALLY, "succeeded", "state", "tokens"];

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

/// The rule and the value of the rule's `key` that a breaker's tally is for.
pub(crate) fn names_of_tally(key: &str) -> Option<(&str, &str)> {
    let names = key.strip_prefix(TALLY)?.strip_prefix('\n')?;
    names.split_once('\n')
}

/// All keys that a breaker has as long as it exists.
pub(crate) fn keys_of_breaker(rule: &str, value: &str) -> impl Iterator<Item = String> {
    KINDS.into_iter().map(move |kind| build_key(kind, rule, value))
}

/// The key of a rule's reset marks.
pub(crate) fn marks_key(rule: &str) -> String {
    format!("rule\n{rule}")
}
