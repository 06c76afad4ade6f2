//! Lists and watches in protobuf: leaves out objects by their metadata, which is read by field numbers
//! (`generated.proto` of k8s.io/apimachinery), without a schema of the objects.
//!
//! | module | holds |
//! |---|---|
//! | `list` | lists: objects that are left out become padding, so that all lengths stay |
//! | `watch` | watches, event by event |
//! | `dropped` | leaves fields out of kept objects |
//! | `metadata` | the metadata of an object |
//! | `padding` | fields that take the place of others in a list |

mod dropped;
mod list;
mod metadata;
mod padding;
mod watch;

pub use list::ProtobufListFilter;
pub use watch::ProtobufWatchFilter;

use std::borrow::Cow;
use std::ops::Range;

use super::{DroppedFields, FilterError};
use crate::WatchEncoding;
use crate::protobuf::{Field, WireError, fields};

/// The error of a filter that is to drop fields that no protobuf body tells apart.
fn support_error(dropped: &DroppedFields) -> Option<FilterError> {
    (!dropped.supports(WatchEncoding::Protobuf)).then_some(FilterError::UndroppableFields)
}

/// A field with its position in the object or event.
#[derive(Debug, Clone, Copy)]
struct PlacedField<'a> {
    field: Field<'a>,
    start: usize,
}

impl<'a> PlacedField<'a> {
    /// The content of a field that has to be length-delimited.
    fn content(&self) -> Result<&'a [u8], FilterError> {
        self.field.payload.ok_or(wrong_wire_type(self.start))
    }

    /// Where the field is, with its tag and its length.
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.field.whole.len()
    }

    /// The position of the content.
    fn content_start(&self) -> usize {
        let content_length = self.field.payload.map_or(0, <[u8]>::len);
        self.start + self.field.whole.len().saturating_sub(content_length)
    }

    fn text(&self) -> Result<&'a str, FilterError> {
        let content = self.content()?;
        std::str::from_utf8(content)
            .map_err(|error| malformed("a text that is not UTF-8", self.content_start() + error.valid_up_to()))
    }

    /// The text with replacement characters for what is not UTF-8. Go reads any bytes, so that an object with others
    /// can be stored: it must not break the lists in which it is.
    fn lossy_text(&self) -> Result<Cow<'a, str>, FilterError> {
        Ok(String::from_utf8_lossy(self.content()?))
    }

    fn flag(&self) -> Result<bool, FilterError> {
        let number = self.field.varint().ok_or(wrong_wire_type(self.start))?;
        Ok(number != 0)
    }
}

/// Iterates over the fields of a message that begins at `start`; ends after the first error.
fn placed_fields(message: &[u8], start: usize) -> impl Iterator<Item = Result<PlacedField<'_>, FilterError>> {
    let mut field_start = start;
    fields(message).map(move |read| match read {
        Ok(field) => {
            let placed = PlacedField {
                field,
                start: field_start,
            };
            field_start += field.whole.len();
            Ok(placed)
        }
        Err(WireError { problem, position }) => Err(malformed(problem, start + position)),
    })
}

/// The type of an object (`TypeMeta` in apimachinery's `pkg/runtime/generated.proto`).
#[derive(Default)]
struct TypeMeta<'a> {
    api_version: &'a str,
    kind: &'a str,
}

impl<'a> TypeMeta<'a> {
    /// Reads a message that begins at `start`.
    fn read(message: &'a [u8], start: usize) -> Result<Self, FilterError> {
        let mut read = Self::default();
        for field in placed_fields(message, start) {
            let field = field?;
            match field.field.number {
                1 => read.api_version = field.text()?,
                2 => read.kind = field.text()?,
                _ => {}
            }
        }
        Ok(read)
    }
}

fn wrong_wire_type(position: usize) -> FilterError {
    malformed("a known field of another wire type", position)
}

fn malformed(problem: &'static str, position: usize) -> FilterError {
    FilterError::Malformed {
        format: "protobuf",
        problem,
        position,
    }
}
