//! The sidecar: every request and response of a controller passes a chain of WebAssembly plugins.
//!
//! The rooms, top to bottom. A room imports only rooms below it (a test holds this against ARCHITECTURE.md, which also says what
//! each one imports). A room's top file begins with a table of what is in it.
//!
//! | room | what is in it |
//! |---|---|
//! | `app` | makes every part, binds ports, starts threads, drains |
//! | `config` | flags and environment variables |
//! | `commands` | commands besides the sidecar: `wait-ready` and `init`, which kubelet runs, and `precompile` |
//! | `listen` | client connections: accepted, distributed to worker threads, served |
//! | `external` | calls to other services: three ways in, where they may go, tunnels |
//! | `error` | errors that keep the sidecar from starting, or stop it |
//! | `request` | **start here**: one request to the API server, top to bottom, in `request::handler` |
//! | `stream` | bodies in transit: counted, renamed, shaped, watches ended when their view changes |
//! | `observe` | metrics, the record of one request, the admin port, logs |
//! | `controller_state` | what is remembered of the controller between requests: list views, leader locks, the leader |
//! | `chain` | which plugins see which requests; their calls; how a new chain comes into force |
//! | `wasm` | engine, compiler, plugin instances, functions for guests |
//! | `respond` | every error as a Kubernetes `Status`: the only place that picks a status code |
//! | `connection` | the client connection as its requests see it |
//! | `plugin` | the input and output of plugins, as plain types |
//! | `upstream` | connections to the API server and to other servers |
//! | `memory_shares` | divides the memory limit among plugins and clients |
//! | `timestamp` | times in the format of `/status` |
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
