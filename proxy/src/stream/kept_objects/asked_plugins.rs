//! Plugins that decide which objects of a body a client gets.

use ctrlmesh_wire::objects::{MetadataFields, ObjectMetadata};

use crate::respond::Reply;

/// Clears the flags of objects that a plugin does not keep. Fails if a plugin does not decide.
type AskAboutObjects = dyn Fn(&[ObjectMetadata<'_>], &mut [bool]) -> Result<(), Reply>;

/// The plugins that are asked. Once one of them has failed, none is asked any more.
pub(crate) struct AskedPlugins {
    ask: Box<AskAboutObjects>,
    /// The metadata that they are told.
    fields: MetadataFields,
    has_failed: bool,
    /// Taken by the body that ends with it.
    failure: Option<Reply>,
}

impl AskedPlugins {
    /// `ask` clears the flags of objects that a plugin does not keep, and asks about no object without a flag.
    pub(crate) fn new(
        fields: MetadataFields,
        ask: impl Fn(&[ObjectMetadata<'_>], &mut [bool]) -> Result<(), Reply> + 'static,
    ) -> Self {
        Self {
            ask: Box::new(ask),
            fields,
            has_failed: false,
            failure: None,
        }
    }

    /// Clears the flags of objects that a plugin does not keep; all flags if one fails.
    pub(super) fn decide(&mut self, objects: &[ObjectMetadata<'_>], are_kept: &mut [bool]) {
        if !self.has_failed
            && let Err(reply) = (self.ask)(objects, are_kept)
        {
            self.has_failed = true;
            self.failure = Some(reply);
        }
        if self.has_failed {
            are_kept.fill(false);
        }
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn take_failure(&mut self) -> Option<Reply> {
        self.failure.take()
    }

    pub(super) const fn fields(&self) -> MetadataFields {
        self.fields
    }
}
