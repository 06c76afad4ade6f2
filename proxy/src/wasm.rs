//! The plugin host: loads WebAssembly components, and runs them under limits.
//!
//! | file | holds |
//! |---|---|
//! | `harness` | runs a plugin without a sidecar, for tests of plugin authors |
//! | `metrics` | metrics of plugins and of their memory at `/metrics` |
//! | `compile`, `child` | from bytes to a plugin; the child process that compiles |
//! | `precompiled` | artifacts that come with an image |
//! | `component_bytes` | checks of a component before it is compiled, and names of its artifacts |
//! | `instance` | a live instance |
//! | `engine` | wasmtime's settings, and the plugins that are loaded |
//! | `plugin` | a loaded plugin |
//! | `exports` | the exports of a component, for each interface version |
//! | `v0_2` | the host functions of interface 0.2 |
//! | `entry_config` | the configuration with which an entry runs its plugin |
//! | `world`, `validate` | which interface a component was built for; the rules for a guest's results |
//! | `cache` | sealed artifacts on disk |
//! | `artifact` | compiled code as a component, the only `unsafe` |
//! | `sealed_file` | files in memory that nobody can change |
//! | `v0_1` | where interface 0.1 differs from 0.2 |
//! | `bindings` | generated from `wit/` |
//! | `wasi` | the part of WASI 0.2 that a guest gets |
//! | `host_state` | the host's state for one instance |
//! | `reads` | reads and effects of a call through the host |
//! | `stdio` | a guest's printed output |
//! | `deadline`, `ticker` | stops calls that take too long; the thread that counts milliseconds |
//! | `state` | of an entry, across instances: state, with metrics, reports and log |
//! | `plugin_metrics`, `reports`, `plugin_log` | its metrics; its reports in `/status`; its log |
//! | `clock` | the clock of plugins, which tests move by hand |
//! | `error` | errors before a plugin runs, and faults while it runs |
//! | `memory` | the memory that all plugins take together |
//!
//! Life of a plugin: [`Compiler::load`] checks the bytes, compiles them in a child process or takes the artifact from the cache, checks the
//! world, and resolves imports and exports once. The result is a [`Plugin`], shared by all threads. [`Instance::start`] creates an instance
//! for one thread and one entry and configures it. Then the chain calls it, request after request. After a [`Fault`] the instance is
//! dropped, and a fresh one is started from the same plugin. State that must survive a fault or a reload lives in the entry's
//! [`EntryState`].
//!
//! Leaves to the chain: which entry sees which request, the consequences of a fault, the effect of an edit.

mod artifact;
mod bindings;
mod cache;
mod child;
mod clock;
mod compile;
mod component_bytes;
mod deadline;
mod engine;
mod entry_config;
mod error;
mod exports;
pub mod harness;
mod host_state;
mod instance;
mod memory;
mod metrics;
mod plugin;
mod plugin_log;
mod plugin_metrics;
mod precompiled;
mod reads;
mod reports;
mod sealed_file;
mod state;
mod stdio;
mod ticker;
mod v0_1;
mod v0_2;
mod validate;
mod wasi;
mod world;

pub use child::{COMPILE_ARGUMENT, MEMORY_ARGUMENT, compile_child_main};
pub use clock::Clock;
pub use compile::{CompileMode, Compiler};
pub use ctrlmesh_contract::world::SUPPORTED_VERSIONS;
pub use engine::Engine;
pub use entry_config::{EntryConfig, InstanceInfo};
pub use error::{Error, Fault, Origin, Phase};
pub use instance::Instance;
pub use memory::{GuestMemory, OverLimit};
pub use metrics::{MemorySeries, PluginSeries};
pub use plugin::Plugin;
pub use plugin_log::{Level, LogLine, PluginLog};
pub(crate) use plugin_metrics::CounterHandle;
pub use plugin_metrics::{MAX_SERIES, Series, SeriesSet, SeriesValue};
pub use precompiled::precompile;
#[cfg(test)]
pub(crate) use reads::ReuseObstacle;
#[cfg(test)]
pub(crate) use reads::hooks as reads_hooks;
pub(crate) use reads::{Effects, Read, Seen, Step, Trace, Value, visible_header};
pub(crate) use state::{Ask, CountedOutcome};
pub use state::{Cell, Claim, EntryState, Grant, Rule, StateError, StateStore};
