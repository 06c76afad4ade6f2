//! Finds the entries that are left out of a kept object.

use std::borrow::Cow;

use super::head::{MAP, put_head};
use super::reader::Reader;
use crate::objects::FilterError;
use crate::objects::dropped_fields::{DroppedKeys, DroppedValue};
use crate::objects::splice::Splice;

impl Reader<'_, '_> {
    /// Adds the entries of a map that are left out, and the head of a map of definite length that loses some. Another
    /// value is skipped.
    pub(super) fn find_dropped(
        &mut self,
        dropped: &DroppedKeys,
        splices: &mut Vec<Splice<'_>>,
    ) -> Result<(), FilterError> {
        self.skip_self_described_tags()?;
        let head_start = self.position();
        let Some(mut entries) = self.enter_map()? else {
            return Ok(());
        };
        let (head, count) = (head_start..self.position(), entries.remaining());
        let mut removed_count = 0;
        let mut entry_start = self.position();
        while let Some(key) = self.next_key(&mut entries)? {
            match dropped.get(&key) {
                Some(DroppedValue::Whole) => {
                    self.skip_item()?;
                    splices.push(Splice::removal(entry_start..self.position()));
                    removed_count += 1;
                }
                Some(DroppedValue::Parts(parts)) => self.find_dropped(parts, splices)?,
                None => self.skip_item()?,
            }
            entry_start = self.position();
        }
        if let Some(count) = count.filter(|_| removed_count > 0) {
            let mut with = Vec::new();
            put_head(&mut with, MAP, count.saturating_sub(removed_count));
            splices.push(Splice {
                range: head,
                with: Cow::Owned(with),
            });
        }
        Ok(())
    }

    /// [`Self::find_dropped`] for the object in a row of a table.
    pub(super) fn find_dropped_in_row(
        &mut self,
        dropped: &DroppedKeys,
        splices: &mut Vec<Splice<'_>>,
    ) -> Result<(), FilterError> {
        let Some(mut entries) = self.enter_map()? else {
            return Ok(());
        };
        while let Some(key) = self.next_key(&mut entries)? {
            match &*key {
                "object" => self.find_dropped(dropped, splices)?,
                _ => self.skip_item()?,
            }
        }
        Ok(())
    }
}
