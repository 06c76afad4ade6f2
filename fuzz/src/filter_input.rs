//! Inputs of the filters: a first byte that selects the encoding, and from which the sizes of chunks and the decisions
//! follow; then the body.

use ctrlmesh_wire::WatchEncoding;
use ctrlmesh_wire::objects::{MetadataFields, fnv1a_64};

const ENCODINGS: [WatchEncoding; 3] = [WatchEncoding::Json, WatchEncoding::Protobuf, WatchEncoding::Cbor];

/// Longest body that is also cut into single bytes.
const MAX_SINGLE_BYTES: usize = 8 << 10;

#[derive(Clone, Copy)]
pub(crate) struct FilterInput<'a> {
    pub(crate) encoding: WatchEncoding,
    pub(crate) body: &'a [u8],
    seed: u8,
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
        })
    }

    /// The same choices for another body.
    pub(crate) fn with_body<'b>(&self, body: &'b [u8]) -> FilterInput<'b> {
        FilterInput {
            encoding: self.encoding,
            body,
            seed: self.seed,
        }
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
