//! Why a predicate was refused.

use crate::SelectorError;
use crate::objects::limits::{MAX_PATTERN_PROGRAM_BYTES, MAX_PATTERN_SET_BYTES, MAX_PREDICATE_DEPTH};

/// Why a predicate or a set of names was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PredicateError {
    /// The predicate is deeper than [`MAX_PREDICATE_DEPTH`].
    #[error(
        "the predicate has more than {MAX_PREDICATE_DEPTH} levels; join those that are nested in one of their kind"
    )]
    TooDeep,
    /// The predicate has more parts of a kind than are evaluated.
    #[error("the predicate has more than {limit} {parts}; make it smaller")]
    TooMany {
        /// The kind of the parts, in the plural.
        parts: &'static str,
        /// Most parts of this kind.
        limit: usize,
    },
    /// A name, a prefix or a pattern is too long.
    #[error("a {part} has {bytes} bytes; at most {limit} are allowed")]
    TooLong {
        /// `name`, `prefix` or `pattern`.
        part: &'static str,
        /// Length of the text.
        bytes: usize,
        /// Most bytes of such a text.
        limit: usize,
    },
    /// An empty prefix, which each name begins with.
    #[error("an empty prefix matches all names; remove it, or use the pattern `.*` if that is meant")]
    EmptyPrefix,
    /// A pattern is no regular expression.
    #[error("invalid pattern {pattern:?}: {problem}")]
    Pattern {
        /// The refused pattern.
        pattern: String,
        /// The reason why it is invalid.
        problem: String,
    },
    /// The program of a pattern is larger than [`MAX_PATTERN_PROGRAM_BYTES`].
    #[error("pattern {0:?} needs more than {MAX_PATTERN_PROGRAM_BYTES} bytes once compiled; lower its repetitions")]
    PatternTooLarge(String),
    /// The program of all patterns of a set is larger than [`MAX_PATTERN_SET_BYTES`].
    #[error(
        "the patterns of a set need more than {MAX_PATTERN_SET_BYTES} bytes once compiled; use fewer or shorter ones"
    )]
    PatternsTooLarge,
    /// A label selector or the key of a label is invalid.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// Ranges that [`Predicate::hash_ranges`](super::Predicate::hash_ranges) would have merged.
    #[error("hash ranges must be sorted and must neither overlap nor touch each other")]
    RangesNotMerged,
}
