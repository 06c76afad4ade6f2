//! Asks plugins which objects of a response the client gets (WIT `on-objects`).
//!
//! Guarantees: an object is kept only if each plugin that asked about it has said so; after a failed call none is kept, whatever the entry's
//! failure policy, because what a plugin leaves out must not pass without it. A call has a bounded number of objects and bytes. Leaves
//! breaking off the response to the caller.

use std::sync::Arc;

use ctrlmesh_wire::objects::{MetadataFields, ObjectMetadata};

use super::{Attributed, Plugins};
use crate::chain::instances::Phase;
use crate::chain::touched::Effect;
use crate::chain::{Entry, EntryId};
use crate::plugin::object_metadata::{ObjectQuestion, ToldMetadata};
use crate::respond::Reply;

/// Most objects in one call (`on-objects` in wit/plugin.wit).
const MAX_BATCH_OBJECTS: usize = 256;

/// Most labels and annotations in one call with several objects: the plugin allocates twice for each.
const MAX_BATCH_PAIRS: usize = 4096;

/// Most bytes in one call with several objects ([`ToldMetadata::bytes`]), if the plugin has enough memory.
const MAX_BATCH_BYTES: usize = 256 << 10;

/// Most bytes of one object, if the plugin has enough memory. An API server takes requests of at most 3 MiB, and annotations of 256 KiB
/// (apimachinery `pkg/api/validation/objectmeta.go`); etcd takes 1.5 MiB.
const MAX_OBJECT_BYTES: usize = 2 << 20;

/// Limits on the metadata in one call. They depend on the plugin's memory, so that users cannot make a plugin fail by their objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CallLimits {
    /// Of one object.
    object_bytes: usize,
    /// Of several objects together.
    batch_bytes: usize,
}

/// An object that a plugin is asked about, and its flag.
type AskedObject<'o> = (ToldMetadata<'o>, &'o mut bool);

/// The plugins that are asked about the objects of a response, in the order of the chain, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectQuestions(Box<[(EntryId, ObjectQuestion)]>);

impl ObjectQuestions {
    pub(crate) fn of_edits(edits: &[Attributed]) -> Self {
        let mut questions: Vec<(EntryId, ObjectQuestion)> = Vec::new();
        for (entry, edit) in edits {
            let Some(question) = edit.question() else { continue };
            match questions.iter_mut().find(|(asked, _)| asked == entry) {
                Some((_, known)) => *known = known.union(question),
                None => questions.push((*entry, question.clone())),
            }
        }
        Self(questions.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The metadata that the plugins are told.
    pub(crate) fn fields(&self) -> MetadataFields {
        let fields = self.0.iter().map(|(_, question)| question.fields());
        fields.fold(MetadataFields::default(), MetadataFields::union)
    }
}

impl Plugins {
    /// Asks about objects of the response. Clears the flags of those that a plugin does not keep; about objects without a flag no plugin is
    /// asked. `are_kept` has a flag for each object.
    ///
    /// # Errors
    /// The reply that ends the response. The flags are unspecified then.
    pub(crate) fn ask_about_objects(
        &self,
        questions: &ObjectQuestions,
        objects: &[ObjectMetadata<'_>],
        are_kept: &mut [bool],
    ) -> Result<(), Reply> {
        for (id, question) in &questions.0 {
            let flagged = objects.iter().zip(are_kept.iter_mut());
            let flagged = flagged.filter(|(_, is_kept)| **is_kept);
            let mut asked: Vec<AskedObject<'_>> = flagged
                .map(|(object, is_kept)| (question.told_metadata_of(object), is_kept))
                .collect();
            if asked.is_empty() {
                continue;
            }
            let mut entries = self.snapshot.entries().iter();
            let Some(entry) = entries.find(|entry| entry.id == *id) else {
                return Err(Reply::undecided_objects(
                    "",
                    "",
                    "it is not in the chain of the request",
                ));
            };
            let limits = CallLimits::of_memory(entry.config.memory_bytes);
            let mut left = asked.as_mut_slice();
            while !left.is_empty() {
                let length = limits
                    .batch_length(left)
                    .map_err(|bytes| Reply::too_much_metadata(bytes, limits.object_bytes))?;
                let (batch, rest) = std::mem::take(&mut left).split_at_mut(length);
                self.ask_entry(entry, batch)?;
                left = rest;
            }
        }
        Ok(())
    }

    fn ask_entry(&self, entry: &Arc<Entry>, batch: &mut [AskedObject<'_>]) -> Result<(), Reply> {
        let objects: Vec<_> = batch.iter().map(|(told, _)| told.to_plugin_metadata()).collect();
        let called = self.instances.call(entry, Phase::Objects, |instance| {
            instance.on_objects(&self.view, objects)
        });
        // Rules are named for verdicts, of which there is none here.
        self.view.state.take_named_rules();
        match called {
            Ok(flags) => {
                for ((_, is_kept), flag) in batch.iter_mut().zip(flags) {
                    **is_kept = flag;
                }
                Ok(())
            }
            Err(error) => {
                self.record_touches(entry, [(String::new(), Effect::Failed)]);
                Err(Reply::undecided_objects(
                    &entry.name,
                    &entry.plugin.digest,
                    &error.to_string(),
                ))
            }
        }
    }
}

impl CallLimits {
    /// Limits for a plugin with so many bytes of memory, which it needs for other data as well.
    fn of_memory(memory_bytes: usize) -> Self {
        Self {
            object_bytes: MAX_OBJECT_BYTES.min(memory_bytes / 8),
            batch_bytes: MAX_BATCH_BYTES.min(memory_bytes / 16),
        }
    }

    /// The number of objects in the next call, which is not 0.
    ///
    /// # Errors
    /// The first object has so many bytes, which are too many.
    fn batch_length(self, objects: &[AskedObject<'_>]) -> Result<usize, usize> {
        let (mut bytes, mut pairs) = (0, 0);
        for (length, (told, _)) in objects.iter().enumerate() {
            let more = told.bytes();
            if length == 0 && more > self.object_bytes {
                return Err(more);
            }
            bytes += more;
            pairs += told.pair_count();
            let is_too_much = length == MAX_BATCH_OBJECTS || bytes > self.batch_bytes || pairs > MAX_BATCH_PAIRS;
            if length > 0 && is_too_much {
                return Ok(length);
            }
        }
        Ok(objects.len())
    }
}

#[cfg(test)]
mod tests;
