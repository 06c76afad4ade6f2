//! Sets of names or namespaces: by exact name, by prefix and by pattern.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use regex::bytes::{RegexSet, RegexSetBuilder};

use super::PredicateError;
use crate::objects::hash::fnv1a_64;
use crate::objects::limits::{
    MAX_NAME_BYTES, MAX_NAMES, MAX_PATTERN_BYTES, MAX_PATTERN_PROGRAM_BYTES, MAX_PATTERN_SET_BYTES, MAX_PATTERNS,
};

/// Memory of the DFA that a search builds lazily, in bytes, for each thread that searches at the same time.
const PATTERN_CACHE_BYTES: usize = 1024 * 1024;

/// Limits of a set's program that are tried in turn, so that its size is known to a factor of four.
const PROGRAM_BYTES: [usize; 5] = [4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024, MAX_PATTERN_SET_BYTES];

/// Estimated memory of what searches keep, in bytes: names lead to few states of the DFA.
const SEARCH_BYTES: usize = 16 * 1024;

/// A set of names or namespaces. A clone shares the set.
///
/// A name is in the set if it is one of the exact names, begins with one of the prefixes, or is matched as a whole by
/// one of the patterns. The empty name is legal: it is the namespace of objects that have none.
///
/// Patterns have the syntax of crate `regex`, which is that of RE2 without its rarities, and are matched in linear
/// time. They see bytes: `.` is one byte, and classes such as `\w` are ASCII, as is all of a namespace.
#[derive(Debug, Clone)]
pub struct NameSet {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    names: HashSet<Box<str>>,
    /// Sorted; none begins with another one.
    prefixes: Box<[Box<str>]>,
    /// As they were given; sorted.
    patterns: Box<[String]>,
    /// `patterns`, each anchored at both ends; `None` if there are none.
    matcher: Option<Matcher>,
}

#[derive(Debug)]
struct Matcher {
    patterns: RegexSet,
    /// Largest size of the program of all patterns.
    program_bytes: usize,
}

impl NameSet {
    /// A set of exact names, prefixes and patterns.
    ///
    /// # Errors
    /// When there are too many names and prefixes ([`MAX_NAMES`]) or patterns ([`MAX_PATTERNS`]), one of them is too
    /// long, a prefix is empty, or a pattern does not compile.
    pub fn new(names: Vec<String>, prefixes: Vec<String>, patterns: Vec<String>) -> Result<Self, PredicateError> {
        if names.len().saturating_add(prefixes.len()) > MAX_NAMES {
            return Err(PredicateError::TooMany {
                parts: "names and prefixes",
                limit: MAX_NAMES,
            });
        }
        names
            .iter()
            .try_for_each(|name| check_length("name", name, MAX_NAME_BYTES))?;
        for prefix in &prefixes {
            check_length("prefix", prefix, MAX_NAME_BYTES)?;
            if prefix.is_empty() {
                return Err(PredicateError::EmptyPrefix);
            }
        }
        let patterns = sorted_and_deduplicated(patterns);
        let parts = Parts {
            names: names.into_iter().map(String::into_boxed_str).collect(),
            prefixes: shortest_prefixes(prefixes),
            matcher: compile_patterns(&patterns)?,
            patterns: patterns.into_boxed_slice(),
        };
        Ok(Self { parts: Arc::new(parts) })
    }

    /// A set of exact names.
    ///
    /// # Errors
    /// As [`NameSet::new`].
    pub fn of_names(names: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, PredicateError> {
        Self::new(names.into_iter().map(Into::into).collect(), Vec::new(), Vec::new())
    }

    /// Whether a name is in the set.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        let Parts { names, matcher, .. } = &*self.parts;
        names.contains(name)
            || self.has_prefix_of(name)
            || matcher
                .as_ref()
                .is_some_and(|matcher| matcher.patterns.is_match(name.as_bytes()))
    }

    /// The exact names, in no order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.names.iter().map(|name| &**name)
    }

    /// The prefixes, sorted, without those that begin with another one.
    pub fn prefixes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.prefixes.iter().map(|prefix| &**prefix)
    }

    /// The patterns as they were given, sorted.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.parts.patterns
    }

    /// Estimated memory in bytes. Clones share it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let Parts {
            names,
            prefixes,
            patterns,
            matcher,
        } = &*self.parts;
        // A table of names has about as much room again.
        let texts = names.iter().chain(prefixes.iter());
        let texts = texts.map(|text| 2 * size_of::<Box<str>>() + text.len());
        // The matcher has each pattern again, and a second program for searches from the end.
        let patterns = patterns.iter().map(|pattern| 2 * (size_of::<String>() + pattern.len()));
        let matcher = matcher.as_ref();
        let matcher = matcher.map_or(0, |matcher| 2 * matcher.program_bytes + SEARCH_BYTES);
        size_of::<Parts>() + texts.sum::<usize>() + patterns.sum::<usize>() + matcher
    }

    /// Whether one of the prefixes begins the name. Only the last prefix that does not sort behind the name can: each
    /// text that sorts between a prefix of the name and the name itself begins with that prefix too.
    fn has_prefix_of(&self, name: &str) -> bool {
        let prefixes = &self.parts.prefixes;
        let not_behind = prefixes.partition_point(|prefix| **prefix <= *name);
        let last = not_behind.checked_sub(1).and_then(|index| prefixes.get(index));
        last.is_some_and(|prefix| name.starts_with(&**prefix))
    }
}

impl PartialEq for NameSet {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (&*self.parts, &*other.parts);
        Arc::ptr_eq(&self.parts, &other.parts)
            || (ours.names == theirs.names && ours.prefixes == theirs.prefixes && ours.patterns == theirs.patterns)
    }
}

impl Eq for NameSet {}

impl Hash for NameSet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Parts {
            names,
            prefixes,
            patterns,
            ..
        } = &*self.parts;
        // Names have no order, so the sum of their hashes stands for them.
        let name_hashes = names.iter().map(|name| fnv1a_64(name));
        names.len().hash(state);
        name_hashes.fold(0_u64, u64::wrapping_add).hash(state);
        prefixes.hash(state);
        patterns.hash(state);
    }
}

fn check_length(part: &'static str, text: &str, limit: usize) -> Result<(), PredicateError> {
    let bytes = text.len();
    if bytes > limit {
        return Err(PredicateError::TooLong { part, bytes, limit });
    }
    Ok(())
}

fn sorted_and_deduplicated(mut texts: Vec<String>) -> Vec<String> {
    texts.sort_unstable();
    texts.dedup();
    texts
}

/// The prefixes that do not begin with another one, sorted.
fn shortest_prefixes(prefixes: Vec<String>) -> Box<[Box<str>]> {
    let mut prefixes = sorted_and_deduplicated(prefixes);
    prefixes.dedup_by(|longer, shorter| longer.starts_with(shorter.as_str()));
    prefixes.into_iter().map(String::into_boxed_str).collect()
}

fn compile_patterns(patterns: &[String]) -> Result<Option<Matcher>, PredicateError> {
    if patterns.is_empty() {
        return Ok(None);
    }
    if patterns.len() > MAX_PATTERNS {
        return Err(PredicateError::TooMany {
            parts: "patterns",
            limit: MAX_PATTERNS,
        });
    }
    let mut anchored = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        check_length("pattern", pattern, MAX_PATTERN_BYTES)?;
        let anchored_pattern = format!(r"\A(?:{pattern})\z");
        // A pattern that is legal on its own cannot close the group that anchors it, as `a)|(b` would.
        for text in [pattern, &anchored_pattern] {
            compile(std::slice::from_ref(text), MAX_PATTERN_PROGRAM_BYTES)
                .map_err(|error| pattern_error(pattern, &error))?;
        }
        anchored.push(anchored_pattern);
    }
    let matcher = PROGRAM_BYTES.into_iter().find_map(|program_bytes| {
        let patterns = compile(&anchored, program_bytes).ok()?;
        Some(Matcher {
            patterns,
            program_bytes,
        })
    });
    matcher.ok_or(PredicateError::PatternsTooLarge).map(Some)
}

fn compile(patterns: &[String], program_bytes: usize) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns)
        .unicode(false)
        .size_limit(program_bytes)
        .dfa_size_limit(PATTERN_CACHE_BYTES)
        .build()
}

fn pattern_error(pattern: &str, error: &regex::Error) -> PredicateError {
    let pattern = pattern.to_owned();
    if matches!(error, regex::Error::CompiledTooBig(_)) {
        return PredicateError::PatternTooLarge(pattern);
    }
    let text = error.to_string();
    // Before its last line the message draws the pattern, over several lines.
    let problem = text.rsplit("error: ").next().unwrap_or(&text).trim_end().to_owned();
    PredicateError::Pattern { pattern, problem }
}

#[cfg(test)]
mod tests;
