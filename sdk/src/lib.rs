//! For people who write ctrlmesh plugins.
pub mod bindings;
