//! Predicates on objects, as JSON.

use ctrlmesh_sdk::{HashRange, NameSet, ObjectPredicate};
use serde::Deserialize;

/// The end of the last range of hashes, 2^64.
const END_OF_HASHES: &str = "0x10000000000000000";

/// Objects that match all fields that are set; without fields, all objects.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct PredicateText {
    namespaces: Option<Vec<String>>,
    namespace_prefixes: Option<Vec<String>>,
    namespace_patterns: Option<Vec<String>>,
    names: Option<Vec<String>>,
    name_prefixes: Option<Vec<String>>,
    name_patterns: Option<Vec<String>>,
    labels: Option<String>,
    uid_ranges: Option<Vec<RangeText>>,
    all: Option<Vec<PredicateText>>,
    any: Option<Vec<PredicateText>>,
    not: Option<Box<PredicateText>>,
}

/// `["0x0000000000000000", "0x8000000000000000"]`: the start is in the range, the end is not.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "(String, String)")]
struct RangeText {
    start: u64,
    end: Option<u64>,
}

impl TryFrom<(String, String)> for RangeText {
    type Error = String;

    fn try_from((start, end): (String, String)) -> Result<Self, String> {
        let start = parse_hash(&start)?;
        let end = if end == END_OF_HASHES {
            None
        } else {
            Some(parse_hash(&end)?)
        };
        Ok(Self { start, end })
    }
}

fn parse_hash(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x");
    let hash = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    hash.ok_or_else(|| format!("{text:?} is no hash: write `0x` and up to 16 hexadecimal digits"))
}

impl From<RangeText> for HashRange {
    fn from(RangeText { start, end }: RangeText) -> Self {
        Self { start, end }
    }
}

impl From<PredicateText> for ObjectPredicate {
    fn from(text: PredicateText) -> Self {
        let namespaces = name_set([text.namespaces, text.namespace_prefixes, text.namespace_patterns]);
        let names = name_set([text.names, text.name_prefixes, text.name_patterns]);
        let set = [
            namespaces.map(ObjectPredicate::namespaces),
            names.map(ObjectPredicate::names),
            text.labels.map(ObjectPredicate::labels),
            text.uid_ranges.map(ObjectPredicate::uid_ranges),
            text.all
                .map(|all| ObjectPredicate::all(all.into_iter().map(Into::into))),
            text.any
                .map(|any| ObjectPredicate::any(any.into_iter().map(Into::into))),
            text.not.map(|not| ObjectPredicate::from(*not).negate()),
        ];
        ObjectPredicate::all(set.into_iter().flatten())
    }
}

fn name_set(texts: [Option<Vec<String>>; 3]) -> Option<NameSet> {
    if texts.iter().all(Option::is_none) {
        return None;
    }
    let [names, prefixes, patterns] = texts.map(Option::unwrap_or_default);
    Some(NameSet {
        names,
        prefixes,
        patterns,
    })
}
