//! Metrics, status and logs of the sidecar.
//!
//! | file | what is in it |
//! |---|---|
//! | `admin` | the admin port: `/readyz`, `/livez`, `/metrics`, `/status` |
//! | `readiness` | the parts that are missing before `/readyz` answers 200 |
//! | `record` | one request: counted, logged and reported when it ends |
//! | `metrics` | every metric of requests and connections |
//! | `class` | the classes that requests are counted and logged by |
//! | `telemetry` | log set-up |

pub(crate) mod admin;
mod class;
pub(crate) mod metrics;
pub(crate) mod readiness;
pub(crate) mod record;
pub mod telemetry;

pub(crate) use class::{Class, ProxyForm};
