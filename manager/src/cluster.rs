//! The way to the cluster, and what every part of the manager works with.
//!
//! | file | holds |
//! |---|---|
//! | `context` | clients, flags and metrics that each part gets; whether the manager is ready |
//! | `rate` | how fast requests go to the API server, and which go first |
//! | `debounce` | changes that follow each other fast lead to one pass |
//! | `events` | Events of Kubernetes |
//! | `rule` | what a part may do at the API server |
//! | `error`, `error_text` | errors, and how they are told to people |
//! | `timestamp` | the time, as an API server writes it |

mod context;
mod debounce;
pub mod error;
mod error_text;
pub mod events;
pub mod rate;
mod rule;
pub(crate) mod timestamp;

pub use context::{Context, Readiness};
pub(crate) use context::{patch_params, post_params};
pub(crate) use debounce::debounce;
pub use error::Error;
pub(crate) use error_text::error_text;
pub use rule::{Rule, Scope};
