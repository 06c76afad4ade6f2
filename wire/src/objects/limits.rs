//! Bounds on predicates, and on what the filters hold in memory, the same in all encodings.

/// Largest object in a list, and largest event of a watch, in bytes. An API server takes requests of at most 3 MiB, and
/// Go's JSON encoder writes `<`, `>` and `&` as six bytes: this is 6 times 3 MiB, and an allowance for what the server
/// adds.
pub const MAX_OBJECT_BYTES: usize = 20 * 1024 * 1024;

/// Most objects that are decided on in one call.
pub(super) const MAX_BATCH: usize = 1024;

/// Most bytes that are buffered beside objects: what precedes the items of a list, the metadata of the list, and the
/// column definitions of a table. They take a few KiB. The longest text in them, a continue token, holds one key of
/// etcd.
pub(super) const MAX_BUFFERED_BYTES: usize = 64 * 1024;

/// Largest buffer that is kept while it is not needed: a thousand watches may be idle for hours. Most events fit, so that
/// they need no allocation.
pub(super) const MAX_IDLE_BYTES: usize = 8 * 1024;

/// Most labels of an object, and most annotations. A pair takes more memory once it is read than in the body.
pub(super) const MAX_PAIRS: usize = 64 * 1024;

/// Most levels of a predicate. One without [`All`](super::Predicate::All), [`Any`](super::Predicate::Any) and
/// [`Not`](super::Predicate::Not) has one level.
pub const MAX_PREDICATE_DEPTH: usize = 16;

/// Most parts of a predicate, each `all`, `any`, `not`, set, selector and list of ranges counted.
pub const MAX_PREDICATE_NODES: usize = 1024;

/// Most hash ranges of a predicate, once they are merged: as many as there are virtual ranges for shards.
pub const MAX_HASH_RANGES: usize = 1024;

/// Most exact names and prefixes of a predicate, and of one set.
pub const MAX_NAMES: usize = 65_536;

/// Longest exact name or prefix of a set, in bytes: the longest name of an object that is a DNS subdomain.
pub const MAX_NAME_BYTES: usize = 253;

/// Most patterns of a predicate, and of one set.
pub const MAX_PATTERNS: usize = 64;

/// Longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1024;

/// Largest program of one pattern, in bytes.
pub const MAX_PATTERN_PROGRAM_BYTES: usize = 64 * 1024;

/// Largest program of all patterns of a set, in bytes.
pub const MAX_PATTERN_SET_BYTES: usize = 1024 * 1024;
