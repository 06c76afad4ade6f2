//! The sidecar: every request and response of a controller passes a chain of WebAssembly plugins.
//!
//! The rooms, top to bottom. A room imports only rooms below it (a test holds this against ARCHITECTURE.md, which also says what
//! each one imports). A room's top file begins with a table of what is in it.
//!
//! | room | holds |
//! |---|---|
//! | `app` | makes every part, binds ports, starts threads, drains |
//! | `config` | flags and environment variables |
//! | `commands` | besides the sidecar: `wait-ready` and `init`, which kubelet runs, and `precompile` |
//! | `listen` | client connections: accepted, dealt to worker threads, served |
//! | `external` | calls to other services: three ways in, where they may go, tunnels |
//! | `error` | what keeps the sidecar from starting, or stops it |
//! | `request` | one request to the API server, top to bottom; start in `handler` |
//! | `stream` | bodies on their way: counted, renamed, shaped; watches ended when their view changes |
//! | `observe` | metrics, the record of one request, the admin port, logs |
//! | `controller_state` | what is remembered of the controller between requests: list views, leader locks, who leads |
//! | `chain` | which plugins see which requests, their calls, reusable verdicts, how a new chain comes into force |
//! | `wasm` | engine, compiler, precompiled artifacts, plugin instances, functions of the host that plugins may call |
//! | `respond` | every error as a Kubernetes `Status`; the only place that picks a status code for a controller |
//! | `connection` | what a request shares with the client connection that it came on |
//! | `plugin` | plain types for what plugins are given and what they return |
//! | `upstream` | connections to the API server and to other servers |
//! | `memory_shares` | divides the memory limit among plugins and clients |
//! | `timestamp` | times as `/status` shows them |
//! | `lock` | locks of data that worker threads share |

pub mod app;
pub mod chain;
pub mod commands;
pub mod config;
mod connection;
mod controller_state;
pub mod error;
mod external;
mod listen;
mod lock;
mod memory_shares;
pub mod observe;
pub mod plugin;
mod request;
mod respond;
mod stream;
mod timestamp;
pub mod upstream;
pub mod wasm;

pub use error::Error;
pub use wasm::harness;
