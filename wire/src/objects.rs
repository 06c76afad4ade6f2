//! The objects in responses: takes a list or a watch apart as its bytes come in, and leaves out objects that are not
//! kept.
//!
//! Guarantees: kept objects pass byte for byte, but for fields that are dropped; nothing of an object that is not kept
//! passes; at most one object is buffered; a body that cannot be read ends with an error, never unfiltered. Leaves to
//! callers: the decision on each object, compression, and the end of a response that cannot be filtered.
//!
//! | module | holds |
//! |---|---|
//! | `json` | lists, tables and watches in JSON |
//! | `protobuf` | lists and watches in protobuf |
//! | `cbor` | lists, tables and watches in CBOR |
//! | `rows` | the decision on a table event |
//! | `dropped_fields` | which fields are left out of kept objects |
//! | `predicate` | which objects are kept, as data |
//! | `hash` | the hash by which API servers shard lists, and ranges of it |
//! | `single` | the metadata of one object that was read by its name |
//! | `metadata` | the fields of an object's metadata that decide whether it is kept |
//! | `splice` | copies bytes of which parts are replaced |
//! | `keys` | keys about which decoders have to agree |
//! | `error` | why a body cannot be filtered |
//! | `limits` | bounds on predicates and on memory |

mod cbor;
mod dropped_fields;
mod error;
mod hash;
mod json;
mod keys;
mod limits;
mod metadata;
mod predicate;
mod protobuf;
mod rows;
mod single;
mod splice;

pub use cbor::{CborListFilter, CborWatchFilter};
pub use dropped_fields::{
    DroppedFields, DroppedFieldsError, MAX_DROPPED_PATH_BYTES, MAX_DROPPED_PATH_KEYS, MAX_DROPPED_PATHS,
};
pub use error::FilterError;
pub use hash::{HashRange, HashRangeError, VIRTUAL_RANGES, VirtualRanges, VirtualRangesError, fnv1a_64};
pub use json::{JsonListFilter, JsonWatchFilter};
pub use limits::{
    MAX_HASH_RANGES, MAX_NAME_BYTES, MAX_NAMES, MAX_OBJECT_BYTES, MAX_PATTERN_BYTES, MAX_PATTERN_PROGRAM_BYTES,
    MAX_PATTERN_SET_BYTES, MAX_PATTERNS, MAX_PREDICATE_DEPTH, MAX_PREDICATE_NODES,
};
pub use metadata::{Controller, MetadataFields, ObjectMetadata, TextPairs};
pub use predicate::{HashKey, NameSet, Predicate, PredicateError};
pub use protobuf::{ProtobufListFilter, ProtobufWatchFilter};
pub use single::object_metadata;

/// The API groups whose lists have values of metrics as items, which are no objects: they have no metadata
/// (`k8s.io/metrics`, `pkg/apis/custom_metrics` and `external_metrics`). No filter reads these lists.
pub const METRIC_VALUE_GROUPS: [&str; 2] = ["custom.metrics.k8s.io", "external.metrics.k8s.io"];

/// The metadata of a tombstone.
const TOMBSTONE_FIELDS: MetadataFields = MetadataFields {
    labels: false,
    annotations: false,
    controller: false,
    ..MetadataFields::ALL
};

/// The field that tells whether a bookmark has the metadata of an object.
const NAME_FIELD: MetadataFields = MetadataFields {
    namespace: false,
    uid: false,
    resource_version: false,
    ..TOMBSTONE_FIELDS
};

/// The members of a `Status` (apimachinery `pkg/apis/meta/v1/types.go`).
const STATUS_MEMBERS: [&str; 8] = [
    "kind",
    "apiVersion",
    "metadata",
    "status",
    "message",
    "reason",
    "details",
    "code",
];

/// Decides about objects of a list: gets those that are complete, in their order, and a flag for each, which is `true`
/// at first. An object whose flag is set to `false` is left out.
pub type DecideObjects<'d> = dyn FnMut(&[ObjectMetadata<'_>], &mut [bool]) + 'd;

/// Decides about the object of an event.
pub type DecideEvent<'d> = dyn FnMut(EventType, &ObjectMetadata<'_>) -> EventDecision + 'd;

/// The type of a watch event with an object (apimachinery `pkg/watch/watch.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// `ADDED`
    Added,
    /// `MODIFIED`
    Modified,
    /// `DELETED`
    Deleted,
}

impl EventType {
    /// The type in an event.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }

    /// The type with this text; none if it is another one, such as that of a bookmark.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let types = [Self::Added, Self::Modified, Self::Deleted];
        types.into_iter().find(|event_type| event_type.as_str() == text)
    }
}

/// The answer for an event: the client gets the event, another one in its place, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventDecision {
    /// The event as it is.
    Keep,
    /// The same object with another type of event.
    KeepAs(EventType),
    /// Nothing.
    Drop,
    /// A bookmark with the kind, the API version and the resource version of the object, so that the client's resource
    /// version does not become too old. A watch of tables gets nothing, because only a server can make a table's row.
    Bookmark,
    /// The event DELETED with the object's kind and API version and, of its metadata, name, namespace, uid and resource
    /// version alone: for an object that the client may know and must not see any more. An object without a name gives
    /// nothing. A watch of tables gets nothing, because its clients print the cells of rows.
    Tombstone,
}

#[cfg(test)]
mod tests;
