//! Access to the cluster, and what every part of the manager uses.
//!
//! | file | holds |
//! |---|---|
//! | `status` | the one function that patches a status; the time, as an API server writes it |
//! | `events` | Events of Kubernetes |
//! | `context` | clients, flags and metrics that each part gets; whether the manager is ready |
//! | `rate` | the rate of requests to the API server, and their priorities |
//! | `debounce` | merges changes that follow each other fast into one pass |
//! | `passes` | runs the passes of a controller until it stops |
//! | `rbac_rule` | permissions of a part at the API server |
//! | `error`, `error_text` | errors, and their texts for people |

mod context;
mod debounce;
pub mod error;
mod error_text;
pub mod events;
mod passes;
pub mod rate;
mod rbac_rule;
pub(crate) mod status;

pub use context::{Context, Readiness};
pub(crate) use context::{patch_params, post_params};
pub(crate) use debounce::debounce;
pub use error::Error;
pub(crate) use error_text::error_text;
pub(crate) use passes::run_passes;
pub use rbac_rule::{RbacRule, Scope};
