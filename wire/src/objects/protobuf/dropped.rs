//! Leaves fields out of a kept object, and shortens the messages around them.

use std::borrow::Cow;

use super::metadata::read_entry;
use super::{PlacedField, placed_fields};
use crate::objects::FilterError;
use crate::objects::dropped_fields::{DroppedFields, DroppedKeys, DroppedValue};
use crate::objects::splice::Splice;
use crate::protobuf::put_head;

/// Fields that are left out of an object.
#[derive(Debug, Default)]
pub(super) struct FieldRemoval {
    pub(super) splices: Vec<Splice<'static>>,
    /// Number of bytes that they and the lengths around them take less. It is 0 if there are none, and otherwise at
    /// least 2, because each field takes as many.
    pub(super) saved: usize,
}

impl FieldRemoval {
    /// Finds the fields in an object that begins at `start`. All of them are in its metadata
    /// ([`DroppedFields::supports`]), which occur once.
    pub(super) fn find(object: &[u8], start: usize, dropped: &DroppedFields) -> Result<Self, FilterError> {
        let mut removal = Self::default();
        let Some(keys) = dropped.metadata_keys() else {
            return Ok(removal);
        };
        for field in placed_fields(object, start) {
            let metadata = field?;
            if metadata.field.number == 1 {
                removal.find_in_metadata(&metadata, keys)?;
                break;
            }
        }
        Ok(removal)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.saved == 0
    }

    /// Shortens the message around the one before, if that became shorter.
    pub(super) fn shorten(&mut self, message: &PlacedField<'_>) -> Result<(), FilterError> {
        if self.is_empty() {
            return Ok(());
        }
        let head = message.start..message.content_start();
        let length = message.content()?.len().saturating_sub(self.saved);
        let mut shorter = Vec::new();
        put_head(&mut shorter, message.field.number, length);
        self.saved += head.len().saturating_sub(shorter.len());
        self.splices.push(Splice {
            range: head,
            with: Cow::Owned(shorter),
        });
        Ok(())
    }

    fn find_in_metadata(&mut self, metadata: &PlacedField<'_>, keys: &DroppedKeys) -> Result<(), FilterError> {
        for field in placed_fields(metadata.content()?, metadata.content_start()) {
            let field = field?;
            if is_dropped(&field, keys)? {
                self.saved += field.field.whole.len();
                self.splices.push(Splice::removal(field.range()));
            }
        }
        self.shorten(metadata)
    }
}

/// Whether a field of an `ObjectMeta` is left out. Labels and annotations are fields with a pair each.
fn is_dropped(field: &PlacedField<'_>, keys: &DroppedKeys) -> Result<bool, FilterError> {
    let name = match field.field.number {
        11 => "labels",
        12 => "annotations",
        17 => "managedFields",
        _ => return Ok(false),
    };
    match keys.get(name) {
        None => Ok(false),
        Some(DroppedValue::Whole) => Ok(true),
        Some(DroppedValue::Parts(pairs)) => {
            let (key, _) = read_entry(field)?;
            Ok(pairs.get(&key).is_some())
        }
    }
}

#[cfg(test)]
mod tests;
