//! The labels that selectors of shards use. [`rules`] says which labels namespaces and objects carry, [`kinds`] which kinds of
//! objects carry them.

pub mod kinds;
pub mod rules;

use kube_core::ObjectMeta;

pub use rules::{Changes, patch_for_namespace, patch_for_object};

/// Whether an object carries a label, whatever its value.
pub(crate) fn has_label(metadata: &ObjectMeta, label: &str) -> bool {
    metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(label))
}
