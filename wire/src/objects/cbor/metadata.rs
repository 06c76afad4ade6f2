//! Reads the metadata of an object and the token in a list's metadata, and removes from a list's metadata what a
//! filtered list makes wrong.

use super::head::{BREAK, INDEFINITE_MAP, MAP, put_head};
use super::reader::Reader;
use super::scanner::ItemScanner;
use crate::objects::limits::MAX_PAIRS;
use crate::objects::{Controller, FilterError, MetadataFields, ObjectMetadata, TextPairs};

impl<'a> Reader<'a, '_> {
    /// The metadata of an object; `None` if it has none.
    pub(super) fn object_metadata(
        &mut self,
        fields: MetadataFields,
    ) -> Result<Option<ObjectMetadata<'a>>, FilterError> {
        let Some(mut entries) = self.enter_map()? else {
            return Ok(None);
        };
        let mut metadata = None;
        while let Some(key) = self.next_key(&mut entries)? {
            match &*key {
                "metadata" => metadata = self.metadata(fields)?,
                _ => self.skip_item()?,
            }
        }
        Ok(metadata)
    }

    /// The metadata of the object in a table's row; `None` if there is none.
    pub(super) fn row_metadata(&mut self, fields: MetadataFields) -> Result<Option<ObjectMetadata<'a>>, FilterError> {
        let Some(mut entries) = self.enter_map()? else {
            return Ok(None);
        };
        let mut metadata = None;
        while let Some(key) = self.next_key(&mut entries)? {
            match &*key {
                "object" => metadata = self.object_metadata(fields)?,
                _ => self.skip_item()?,
            }
        }
        Ok(metadata)
    }

    /// The value of `metadata`; `None` if it is no map.
    pub(super) fn metadata(&mut self, fields: MetadataFields) -> Result<Option<ObjectMetadata<'a>>, FilterError> {
        let Some(mut entries) = self.enter_map()? else {
            return Ok(None);
        };
        let mut metadata = ObjectMetadata::default();
        while let Some(key) = self.next_key(&mut entries)? {
            match &*key {
                "namespace" if fields.namespace => metadata.namespace = self.string_or_null()?,
                "name" if fields.name => metadata.name = self.string_or_null()?,
                "uid" if fields.uid => metadata.uid = self.string_or_null()?,
                "resourceVersion" if fields.resource_version => metadata.resource_version = self.string_or_null()?,
                "labels" if fields.labels => metadata.labels = self.string_pairs()?,
                "annotations" if fields.annotations => metadata.annotations = self.string_pairs()?,
                "ownerReferences" if fields.controller => metadata.controller = self.controller()?,
                _ => self.skip_item()?,
            }
        }
        Ok(Some(metadata))
    }

    fn string_pairs(&mut self) -> Result<TextPairs<'a>, FilterError> {
        let mut pairs = Vec::new();
        if self.take_null()? {
            return Ok(pairs);
        }
        let Some(mut entries) = self.enter_map()? else {
            return Err(self.malformed("labels or annotations that are no map"));
        };
        while let Some(key) = self.next_key(&mut entries)? {
            if pairs.len() == MAX_PAIRS {
                return Err(FilterError::TooLarge);
            }
            let value = self.string_or_null()?;
            pairs.push((key, value));
        }
        Ok(pairs)
    }

    fn controller(&mut self) -> Result<Option<Controller<'a>>, FilterError> {
        if self.take_null()? {
            return Ok(None);
        }
        let Some(mut elements) = self.enter_array()? else {
            return Err(self.malformed("owner references that are no array"));
        };
        let mut controller = None;
        while self.has_next_element(&mut elements) {
            if controller.is_none() {
                controller = self.owner_if_controller()?;
            } else {
                self.skip_item()?;
            }
        }
        Ok(controller)
    }

    fn owner_if_controller(&mut self) -> Result<Option<Controller<'a>>, FilterError> {
        if self.take_null()? {
            return Ok(None);
        }
        let Some(mut entries) = self.enter_map()? else {
            return Err(self.malformed("an owner reference that is no map"));
        };
        let mut owner = Controller::default();
        let mut is_controller = false;
        while let Some(key) = self.next_key(&mut entries)? {
            match &*key {
                "apiVersion" => owner.api_version = self.string_or_null()?,
                "kind" => owner.kind = self.string_or_null()?,
                "name" => owner.name = self.string_or_null()?,
                "uid" => owner.uid = self.string_or_null()?,
                "controller" => is_controller = self.boolean_or_null()?,
                _ => self.skip_item()?,
            }
        }
        Ok(is_controller.then_some(owner))
    }
}

/// The metadata of a list without `remainingItemCount` and `shardInfo`, which speak of the unfiltered list. `None` if
/// it has neither.
pub(super) fn without_list_counts(
    list_metadata: &[u8],
    skipper: &mut ItemScanner,
) -> Result<Option<Vec<u8>>, FilterError> {
    let mut reader = Reader::new(list_metadata, skipper);
    reader.skip_self_described_tags()?;
    let tags = list_metadata.get(..reader.position()).unwrap_or_default();
    let Some(mut entries) = reader.enter_map()? else {
        return Ok(None);
    };
    let count = entries.remaining();
    let mut removed_count = 0;
    let mut kept_entries = Vec::new();
    let mut entry_start = reader.position();
    while let Some(key) = reader.next_key(&mut entries)? {
        reader.skip_item()?;
        if matches!(&*key, "remainingItemCount" | "shardInfo") {
            removed_count += 1;
        } else {
            let entry = list_metadata.get(entry_start..reader.position()).unwrap_or_default();
            kept_entries.extend_from_slice(entry);
        }
        entry_start = reader.position();
    }
    if removed_count == 0 {
        return Ok(None);
    }
    let mut edited = tags.to_vec();
    match count {
        Some(count) => put_head(&mut edited, MAP, count.saturating_sub(removed_count)),
        None => edited.push(INDEFINITE_MAP),
    }
    edited.append(&mut kept_entries);
    if count.is_none() {
        edited.push(BREAK);
    }
    Ok(Some(edited))
}

/// The token of the next page in a list's metadata; empty if there is none.
pub(super) fn read_continue_token(list_metadata: &[u8], skipper: &mut ItemScanner) -> Result<String, FilterError> {
    let mut reader = Reader::new(list_metadata, skipper);
    let mut token = String::new();
    let Some(mut entries) = reader.enter_map()? else {
        return Ok(token);
    };
    while let Some(key) = reader.next_key(&mut entries)? {
        match &*key {
            "continue" => token = reader.string_or_null()?.into_owned(),
            _ => reader.skip_item()?,
        }
    }
    Ok(token)
}
