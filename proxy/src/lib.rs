//! The sidecar: every request and response of a controller passes a chain of WebAssembly plugins.
//!
//! Where to look for what:
//!
//! | room | what happens there |
//! |---|---|
//! | `app`, `config`, `main.rs` | parts are made, ports bound, threads started, drained |
//! | `listener`, `outage`, `connection`, `worker`, `descriptors`, `request_memory` | a connection is taken, its protocol found, served on a thread of its own |
//! | `memory_limit` | what the container may have; plugins share what the sidecar does not need itself |
//! | `handler`, `guarded` | **one request, top to bottom**: the short way, and the long way with plugins |
//! | `phases`, `instances` | which plugin is asked when; live instances; failure policy |
//! | `edit`, `renaming`, `ledger` | what plugins asked for is done to query, headers, names, views |
//! | `external` | calls to other services: three ways in, where they may go, tunnels; the same plugins |
//! | `leader_lock`, `leadership` | which requests are about the controller's own lock; who leads, as those tell |
//! | `watch`, `shape`, `body`, `signal` | bodies on their way |
//! | `ending`, `respond` | requests that end early; every error becomes a `Status`; the only place that picks a code |
//! | `upstream`, `upgrade` | the way to the API server |
//! | `chain` | the directory, the document, matching, quarantine |
//! | `wasm` | engine, compiler, instances, what guests may ask for |
//! | `admin`, `metrics`, `record`, `fate`, `readiness`, `telemetry`, `warning_rate` | what people see |
//! | `start_gate`, `redirect` | what kubelet runs besides: a hook that holds up a pod's other containers, rules that lead traffic here |
//! | `harness` | a plugin's shipped bytes in the real engine, for its author's tests |

pub mod app;
pub mod chain;
mod client;
pub mod commands;
pub mod config;
mod connection;
pub mod error;
mod external;
mod listen;
pub mod observe;
pub mod plugin;
mod request;
mod respond;
mod stream;
pub mod termination;
mod timestamp;
pub mod upstream;
pub mod wasm;

pub use error::Error;
pub use wasm::harness;
