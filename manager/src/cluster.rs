//! Access to the cluster, and what every part of the manager uses. [`RbacRule`] is a permission of a part at the API server.
//!
//! | file | holds |
//! |---|---|
//! | `status` | the one function that patches a status; the time, as an API server writes it |
//! | `events` | Events of Kubernetes |
//! | `context` | clients, flags and metrics that each part gets; whether the manager is ready |
//! | `rate` | the rate of requests to the API server, and their priorities |
//! | `debounce` | merges changes that follow each other fast into one pass |
//! | `passes` | runs the passes of a controller until it stops |
//! | `error`, `error_text` | errors, and their texts for people |
//! | `lock` | locks of data that tasks share |

mod context;
mod debounce;
pub mod error;
mod error_text;
pub mod events;
mod lock;
mod passes;
pub mod rate;
pub(crate) mod status;

pub use context::{Context, Readiness};
pub(crate) use context::{patch_params, post_params};
pub(crate) use debounce::debounce;
pub use error::Error;
pub(crate) use error_text::error_text;
pub(crate) use lock::{lock_unpoisoned, read_unpoisoned, write_unpoisoned};
pub(crate) use passes::run_passes;

/// The part of a cluster to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cluster,
    /// The manager's namespace.
    Namespace,
}

/// Requests that a part of the manager sends. They stand beside the part's code as `RULES`; `process::rbac` makes roles of them.
#[derive(Clone, Copy, Debug)]
pub struct RbacRule {
    pub scope: Scope,
    /// API group; "" is the core group.
    pub group: &'static str,
    pub resources: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Names of objects; empty: any. Names can't restrict `create`. They restrict `list` and `watch` only for one object, selected
    /// by its name.
    pub names: &'static [&'static str],
}
