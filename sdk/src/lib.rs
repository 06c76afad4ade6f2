//! For people who write ctrlmesh plugins: a safe [`Plugin`] trait over the WIT contract in `wit/`.
//!
//! A plugin is a struct that implements [`Plugin`], and one [`export_plugin!`] line. It compiles to a WebAssembly
//! component with `cargo build --target wasm32-wasip2`, and natively for unit tests, where the `testing` feature gives it
//! a fake host.
//!
//! ```
//! use ctrlmesh_sdk::{Host, InstanceInfo, MatchRule, Phases, Plugin, Refusal, Request, RequestVerdict, Subscription, Verb};
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! pub struct Settings {
//!     namespaces: Vec<String>,
//! }
//!
//! /// Refuses to delete the namespaces that its settings name.
//! pub struct Guard;
//!
//! impl Plugin for Guard {
//!     type Settings = Settings;
//!
//!     fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
//!         let rule = MatchRule::api().verbs([Verb::Delete]).groups([""]).resources(["namespaces"]).names(settings.namespaces);
//!         Ok((Guard, Subscription::new(Phases::ON_REQUEST, [rule])))
//!     }
//!
//!     fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
//!         RequestVerdict::refuse(Refusal::new(403, format!("namespace {} is protected", req.name())))
//!     }
//! }
//!
//! ctrlmesh_sdk::export_plugin!(Guard);
//! ```
//!
//! Modules: [`settings`] turns JSON into a struct and names the field that is wrong; `testing` (feature `testing`) is the
//! fake host. Host functions and verdicts are defined in `wit/`; the types here are generated from it, with constructors.
//!
//! | file | holds |
//! |---|---|
//! | `testing` | the fake host, and requests and responses for tests |
//! | `export` | what [`export_plugin!`] exports to the host |
//! | `check` | validation of settings in a native program |
//! | `plugin` | the trait [`Plugin`] |
//! | `host` | the trait [`Host`], and the one that calls the WIT imports |
//! | `request` | the traits [`Request`] and [`ResponseHead`] |
//! | `subscription` | constructors of match rules and subscriptions |
//! | `verdict` | constructors of verdicts, edits and body shapes |
//! | `outcomes` | constructors of outcome rules |
//! | `predicate` | constructors of predicates on objects |
//! | `object` | objects of a response: what a plugin reads of them, and constructors for tests |
//! | `refusal` | constructors of refusals and plain responses |
//! | `settings` | settings, and errors that name the field |
//! | `bindings` | the types and functions that are generated from `wit/` |

#![warn(missing_docs)]

pub mod bindings;
mod check;
mod export;
mod host;
mod object;
mod outcomes;
mod plugin;
mod predicate;
mod refusal;
mod request;
pub mod settings;
mod subscription;
#[cfg(feature = "testing")]
pub mod testing;
mod verdict;

pub use bindings::ctrlmesh::plugin::log::Level;
pub use bindings::ctrlmesh::plugin::metrics::Counted;
pub use bindings::ctrlmesh::plugin::report::Part;
pub use bindings::ctrlmesh::plugin::state::{
    Admission, Ask, Bucket, Cell, Claim, Error as StateError, Grant, Place, Shortage,
};
pub use bindings::ctrlmesh::plugin::types::{
    Answer, BodyShape, Cause, ConnectionFailures, Crossing, Details, Facts, Failure, Field, HashKey, HashRange,
    HashRanges, InstanceInfo, MatchRule, NameSet, ObjectController, ObjectMetadata, ObjectRefusal, ObjectRequirement,
    Outcome, OutcomeRule, OutcomeWindow, Phases, PredicateNode, Refusal, Rename, RequestAction, RequestEdit,
    RequestVerdict, Reset, ResponseAction, ResponseEdit, ResponsePlan, ResponseVerdict, Reuse, StatusRange,
    Subscription, TallyCounts, Threshold, Traffic, Verb,
};
pub use check::check;
#[doc(hidden)]
pub use export::Slot;
pub use host::Host;
pub use plugin::Plugin;
pub use predicate::ObjectPredicate;
pub use request::{Request, ResponseHead};
