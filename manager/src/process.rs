//! The process: order of start and stop, and what all parts share.
//!
//! | file | holds |
//! |---|---|
//! | `run` | starts and stops the parts, owns their tasks |
//! | `rbac` | all rules as roles; `make rbac` writes them to `deploy/rbac` |
//! | `leader` | runs the controllers while this manager leads |
//! | `admin` | `/healthz`, `/readyz` and `/metrics` |

pub mod admin;
pub mod leader;
pub mod rbac;
mod run;

pub use run::{log_to_stderr, run};
