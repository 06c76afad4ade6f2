//! Bounds on what the filters hold in memory, the same in all encodings.

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

/// Largest buffer that is kept while it is not needed: many watches are idle for hours.
pub(super) const MAX_IDLE_BYTES: usize = 64 * 1024;

/// Most labels of an object, and most annotations. A pair takes more memory once it is read than in the body.
pub(super) const MAX_PAIRS: usize = 64 * 1024;
