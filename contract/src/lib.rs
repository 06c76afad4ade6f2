//! The contract between the manager and the sidecar: the chain document, its signature, the names of plugin files, the JSON of
//! `/status`, the imports that a plugin may have, the addresses to which neither may be led, and every name that both sides must spell
//! alike.
//!
//! Pure: no files, no network, no clock. Reading the directory is the sidecar's matter (`ctrlmesh-proxy`, `chain/`),
//! writing ConfigMaps the manager's.
//!
//! | module | holds |
//! |---|---|
//! | [`status`] | the JSON of `/status` |
//! | [`support`] | chain documents and plugin interfaces that a sidecar supports |
//! | [`world`] | the world of a component, and what it may import |
//! | [`signature`] | signatures of chain documents |
//! | [`plugin_file`] | names of the files that carry plugins |
//! | [`chain`] | the chain document |
//! | [`yaml`] | messages of a YAML parser |
//! | [`selector`] | label selectors, evaluated against labels |
//! | [`digest`] | SHA-256 of a plugin |
//! | [`error`] | errors of a chain document, its signature or a name |
//! | [`suggest`] | the known word that a person may have meant |
//! | [`names`] | names that two parts of the system must spell alike |
//! | [`addresses`] | addresses that nobody should be sent to by accident |

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
