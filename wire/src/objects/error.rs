//! Why a body cannot be filtered.

/// Why a response body cannot be filtered. The response has to end with an error then, because the client must not get
/// the rest unfiltered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The body violates its encoding.
    #[error("the {format} is malformed: {problem}, {position} bytes into its item")]
    Malformed {
        /// `JSON`, `protobuf` or `CBOR`.
        format: &'static str,
        /// The violation, as a phrase.
        problem: &'static str,
        /// Number of bytes before the violation, from the start of the object or event.
        position: usize,
    },
    /// An object or event is larger than [`MAX_OBJECT_BYTES`](super::MAX_OBJECT_BYTES).
    #[error("an object is larger than {} MiB", super::MAX_OBJECT_BYTES >> 20)]
    TooLarge,
    /// An object without metadata, about which nothing can be decided.
    #[error("an object has no metadata")]
    NoMetadata,
    /// The body is neither a list, nor a table, nor a Status.
    #[error("the body is no list")]
    NotList,
    /// A watch event has a type that apimachinery does not know.
    #[error("a watch event has an unknown type")]
    UnknownEvent,
    /// Fields are to be dropped that the encoding of the body has at other places in each kind
    /// ([`DroppedFields::supports`](super::DroppedFields::supports)).
    #[error("fields are dropped that have other numbers in each kind in protobuf")]
    UndroppableFields,
    /// The body ended in the middle.
    #[error("the body ended before it was complete")]
    Unfinished,
}
