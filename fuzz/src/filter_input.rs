//! Inputs of the filters: a first byte that selects the encoding, and from which the sizes of chunks and the decisions
//! follow; then the body.

use ctrlmesh_wire::WatchEncoding;
use ctrlmesh_wire::objects::{DroppedFields, MetadataFields, ObjectMetadata, fnv1a_64};
use serde_json::Value;

const ENCODINGS: [WatchEncoding; 3] = [WatchEncoding::Json, WatchEncoding::Protobuf, WatchEncoding::Cbor];

/// Fields that are dropped, as the keys of their paths. Protobuf can drop the first ones alone.
const DROPPED_KEYS: [&[&str]; 6] = [
    &["metadata", "managedFields"],
    &["metadata", "annotations"],
    &["metadata", "labels", "app"],
    &["spec"],
    &["status", "phase"],
    &["data", "metadata"],
];

const DROPPED_IN_PROTOBUF: usize = 3;

/// Longest body that is also cut into single bytes.
const MAX_SINGLE_BYTES: usize = 8 << 10;

#[derive(Clone, Copy)]
pub(crate) struct FilterInput<'a> {
    pub(crate) encoding: WatchEncoding,
    pub(crate) body: &'a [u8],
    seed: u8,
    drops_fields: bool,
}

impl<'a> FilterInput<'a> {
    /// `None` without a first byte.
    pub(crate) fn read(data: &'a [u8]) -> Option<Self> {
        let (choice, body) = data.split_first()?;
        let choice = usize::from(*choice);
        Some(Self {
            encoding: ENCODINGS[choice % ENCODINGS.len()],
            body,
            seed: u8::try_from(choice / ENCODINGS.len()).expect("a part of a byte"),
            drops_fields: false,
        })
    }

    /// The same choices for another body.
    pub(crate) fn with_body<'b>(&self, body: &'b [u8]) -> FilterInput<'b> {
        FilterInput {
            encoding: self.encoding,
            body,
            seed: self.seed,
            drops_fields: self.drops_fields,
        }
    }

    /// The same, with fields that are dropped or without.
    pub(crate) fn dropping_fields(self, drops_fields: bool) -> Self {
        Self { drops_fields, ..self }
    }

    pub(crate) fn dropped_fields(&self) -> DroppedFields {
        let count = match self.encoding {
            _ if !self.drops_fields => 0,
            WatchEncoding::Protobuf => DROPPED_IN_PROTOBUF,
            WatchEncoding::Json | WatchEncoding::Cbor => DROPPED_KEYS.len(),
        };
        let paths: Vec<String> = DROPPED_KEYS.iter().take(count).map(|keys| keys.join(".")).collect();
        let dropped = DroppedFields::parse(paths.iter().map(String::as_str)).expect("droppable fields");
        assert!(dropped.supports(self.encoding));
        dropped
    }

    /// The metadata of an object as text, without what may be dropped.
    pub(crate) fn object_text(&self, object: &ObjectMetadata<'_>) -> String {
        if !self.drops_fields {
            return format!("{object:?}");
        }
        let object = ObjectMetadata {
            labels: Vec::new(),
            annotations: Vec::new(),
            ..object.clone()
        };
        format!("{object:?}")
    }

    /// All fields, or the name alone: readers skip the others then.
    pub(crate) fn fields(&self) -> MetadataFields {
        if self.seed % 4 == 3 {
            MetadataFields {
                name: true,
                ..MetadataFields::default()
            }
        } else {
            MetadataFields::ALL
        }
    }

    /// A random number that is the same for the same object, however the body is cut.
    pub(crate) fn draw(&self, object: &str) -> u64 {
        fnv1a_64(&format!("{} {object}", self.seed)) >> 32
    }

    /// The body in chunks: of random sizes, and of single bytes if it is short.
    pub(crate) fn chunkings(&self) -> Vec<Vec<&'a [u8]>> {
        let mut chunkings = vec![self.random_chunks()];
        if self.body.len() <= MAX_SINGLE_BYTES {
            chunkings.push(self.body.chunks(1).collect());
        }
        chunkings
    }

    /// Fails if fields were not dropped that a filter must be able to drop: the structure of JSON was checked before.
    /// That of pairs in protobuf and of maps in CBOR may not have been.
    pub(crate) fn check_dropping_failed(&self) {
        assert!(self.encoding != WatchEncoding::Json, "an object is not read again");
    }

    fn random_chunks(&self) -> Vec<&'a [u8]> {
        let mut state = usize::from(self.seed);
        let most = 2 << (state % 10);
        let mut chunks = Vec::new();
        let mut rest = self.body;
        while !rest.is_empty() {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            let size = (state >> 16) % most + 1;
            let (chunk, behind) = rest.split_at(size.min(rest.len()));
            chunks.push(chunk);
            rest = behind;
        }
        chunks
    }
}

/// Removes the fields from an object in JSON that a filter drops.
pub(crate) fn remove_dropped_fields(object: &mut Value) {
    for keys in DROPPED_KEYS {
        let Some((last, before)) = keys.split_last() else {
            continue;
        };
        let parent = before.iter().try_fold(&mut *object, |value, key| value.get_mut(*key));
        if let Some(Value::Object(parent)) = parent {
            parent.remove(*last);
        }
    }
}
