//! The control plane: custom resources in, chains out.
//!
//! Its thinking is pure: [`validate::read`] turns a document into an object or says what is wrong with it; [`auto_shard()`] makes the shards of a
//! root; [`overlap()`] finds objects that two shards see, or none; [`compile()`] makes the chain of a namespace;
//! [`inject::inject()`] puts the sidecar into a pod.
//!
//! The rest moves data: [`process`] starts and stops, [`leader`] runs the controllers while this manager leads,
//! [`shards`] keeps the shards of roots; [`manager_state`] tells where the managers are; [`oci`] fetches plugins,
//! [`distribution`] writes chains and reads what sidecars say; [`mesh_ca`] gives them certificates; [`webhook`] answers API servers
//! on every replica.

pub mod admin;
pub mod api;
pub mod args;
pub mod auto_shard;
pub mod built_in;
pub mod certificate;
pub mod compile;
pub mod context;
pub mod crds;
pub mod distribution;
pub mod error;
pub mod events;
mod gather;
pub mod hand_over;
pub mod inject;
mod label_set;
pub mod labels;
pub mod leader;
pub mod manager_state;
pub mod mesh_ca;
pub mod metrics;
pub mod oci;
pub mod overlap;
mod plain;
pub mod process;
pub mod rate;
pub mod rbac;
#[cfg(test)]
mod samples;
mod schema;
mod settings;
pub mod shard_hash;
pub mod shards;
#[cfg(test)]
mod stand;
mod switches;
mod timestamp;
pub mod uninstall;
pub mod validate;
mod view;
pub mod webhook;

pub use auto_shard::{LabelKeys, auto_shard};
pub use built_in::BuiltIn;
pub use compile::{Compiled, Objects, Resolved, compile};
pub use error::Error;
pub use overlap::overlap;
pub use shard_hash::shard_hash;
pub use validate::{Findings, validate};
