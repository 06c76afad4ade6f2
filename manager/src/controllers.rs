//! The controllers, which run while the manager leads: each watches, compares and writes.
//!
//! | file | holds |
//! |---|---|
//! | `distribution` | from the objects of a namespace to the chain that its sidecars run, and back into the objects' status |
//! | `plugins` | plugins of registries: flags for `ctrlmesh-manager-oci`, and what it may do |
//! | `shards` | the shards of roots; overlaps |
//! | `labels` | labels of namespaces and objects |
//! | `manager_state` | the ManagerState object |

pub mod distribution;
pub mod labels;
pub mod manager_state;
pub mod plugins;
pub mod shards;
