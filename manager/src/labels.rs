//! The labels that selectors of shards use, on namespaces and on the objects in them.

pub mod rules;

pub use rules::{Changes, patch_for_namespace, patch_for_object};
