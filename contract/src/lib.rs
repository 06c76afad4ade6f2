//! What the manager writes and the sidecar reads: the chain document, its signature, the names of plugin files, what
//! `/status` answers, what a plugin may import, which addresses neither may be led to, and every name that both sides must spell alike.
//!
//! Pure: no files, no network, no clock. Reading the directory is the sidecar's matter (`ctrlmesh-proxy`, `chain/`),
//! writing ConfigMaps the manager's.

#![warn(missing_docs)]

pub mod addresses;
pub mod chain;
pub mod digest;
pub mod error;
pub mod names;
pub mod plugin_file;
pub mod selector;
pub mod signature;
pub mod status;
pub mod suggest;
pub mod support;
pub mod world;
pub mod yaml;

pub use chain::{Chain, Entry, FailurePolicy, Origin, Settings};
pub use digest::Digest;
pub use error::{Error, Mistake, Mistakes};
pub use selector::{LabelSelector, Operator, Requirement};
