//! The labels that selectors of shards use. [`rules`] says which labels namespaces and objects carry, [`kinds`] which kinds of
//! objects carry them.

pub mod kinds;
pub mod rules;

pub use rules::{Changes, patch_for_namespace, patch_for_object};
