//! Lists, tables and watches in CBOR (RFC 8949), as apimachinery writes them (`pkg/runtime/serializer/cbor`): a
//! self-described tag at the start of a document, and byte strings for keys and texts. Text strings, indefinite lengths
//! and any order of keys are read too.
//!
//! | module | holds |
//! |---|---|
//! | `watch` | leaves out events of a watch |
//! | `list` | leaves out objects of a list, and rows of a table |
//! | `dropped` | finds the fields that are left out of kept objects |
//! | `metadata` | reads an object's metadata, and edits a list's |
//! | `reader` | reads the parts of an item that is complete |
//! | `scanner` | finds the end of an item whose bytes come in chunks |
//! | `head` | the head of an item: reads and writes it |

mod dropped;
mod head;
mod list;
mod metadata;
mod reader;
mod scanner;
mod watch;

pub use list::CborListFilter;
pub use watch::CborWatchFilter;

#[cfg(test)]
mod tests;
