//! The engine: one configuration for compiling and running plugins, and the ticker behind their deadlines.
//!
//! Leaves compiling to `compile.rs` and calls to `instance.rs`. Why these settings: docs/adr/0003-wasmtime.md.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, Weak};

use aws_lc_rs::digest;

use super::error::Error;
use super::memory::GuestMemory;
use super::plugin::Plugin;
use super::ticker::{CallFlag, Ticker};
use crate::lock::lock_unpoisoned;

/// Stack of a guest. Rust guests keep their data stack in linear memory, so this holds frames only. A worker thread's stack (2 MiB by
/// default) must have room for it and for the host function on top.
const MAX_GUEST_STACK_BYTES: usize = 256 * 1024;

/// Maximum number of frames in the text of a trap: enough to find the line, few enough for a log line.
const MAX_BACKTRACE_FRAMES: usize = 8;

/// The engine of this process, and its epoch ticker.
pub struct Engine {
    wasmtime: wasmtime::Engine,
    ticker: Ticker,
    memory: GuestMemory,
    /// The loaded plugins, so that entries (and generations) with the same bytes share one.
    loaded: Mutex<Vec<Weak<Plugin>>>,
}

impl Engine {
    /// Creates the engine and starts its ticker. A process needs one. The memory of plugins is limited for each instance, not in total.
    ///
    /// # Errors
    /// The processor or the kernel lacks a feature that the engine needs.
    pub fn new() -> Result<Arc<Self>, Error> {
        Self::with_memory(GuestMemory::unlimited())
    }

    /// Like [`Engine::new`], with a limit on the memory of all plugins together.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_memory(memory: GuestMemory) -> Result<Arc<Self>, Error> {
        let wasmtime = running_engine()?;
        let weak = wasmtime.weak();
        let ticker = Ticker::start(move || weak.upgrade().map(|engine| engine.increment_epoch()).is_some())?;
        Ok(Arc::new(Self {
            wasmtime,
            ticker,
            memory,
            loaded: Mutex::new(Vec::new()),
        }))
    }

    /// A flag by which one more instance signals a running call; `None` if deadlines are not enforced any more.
    pub(crate) fn call_flag(&self) -> Option<CallFlag> {
        self.ticker.add_flag()
    }

    /// Memory that plugins may use and do use.
    pub(crate) const fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    pub(crate) const fn wasmtime(&self) -> &wasmtime::Engine {
        &self.wasmtime
    }

    /// The plugin, if it is still in use.
    pub(crate) fn loaded_plugin(&self, digest: &str) -> Option<Arc<Plugin>> {
        let loaded = lock_unpoisoned(&self.loaded);
        loaded
            .iter()
            .filter_map(Weak::upgrade)
            .find(|plugin| plugin.digest == digest)
    }

    /// Remembers a plugin as long as it is in use.
    pub(crate) fn remember_plugin(&self, plugin: &Arc<Plugin>) {
        let mut loaded = lock_unpoisoned(&self.loaded);
        loaded.retain(|known| known.strong_count() > 0);
        loaded.push(Arc::downgrade(plugin));
    }
}

/// Identifies the artifacts that an engine of this build and configuration can run; part of an artifact's name. The processor is not part of
/// it: wasmtime refuses an artifact that needs an instruction which this one lacks.
pub(crate) fn compatibility_key(engine: &wasmtime::Engine) -> String {
    let mut hasher = DigestHasher(digest::Context::new(&digest::SHA256));
    // An engine without a compiler does not know the compiler's settings, which may change with a version of this program.
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    engine.precompile_compatibility_hash().hash(&mut hasher);
    let digest = hasher.0.finish();
    hex::encode(digest.as_ref().get(..8).unwrap_or_default())
}

/// Hashes with SHA-256. std's hashers may change with an update, but the same build must find its artifacts again after a restart.
struct DigestHasher(digest::Context);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finish();
        digest
            .as_ref()
            .first_chunk()
            .map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}

/// The processor that an artifact is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processor {
    /// The processor of this machine, with all of its instructions.
    Native,
    /// Any processor of this architecture.
    Baseline,
}

/// An engine that compiles and runs nothing. It has the settings of [`Engine`], because an artifact runs only in an engine with the same.
pub(crate) fn compiling_engine(processor: Processor) -> Result<wasmtime::Engine, Error> {
    let mut config = wasmtime_config();
    if processor == Processor::Baseline {
        // wasmtime infers the processor's features only if no target is named.
        let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        config.target(&target).map_err(engine_error)?;
    }
    wasmtime::Engine::new(&config).map_err(engine_error)
}

/// An engine that runs artifacts and does not compile. Without a compiler it takes less memory; it still compares the settings and processor
/// features of each artifact with its own.
fn running_engine() -> Result<wasmtime::Engine, Error> {
    wasmtime::Engine::new(wasmtime_config().enable_compiler(false)).map_err(engine_error)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn engine_error(error: wasmtime::Error) -> Error {
    Error::Engine(format!("{error:#}"))
}

fn wasmtime_config() -> wasmtime::Config {
    let mut config = wasmtime::Config::new();
    // A call costs 135 ns without it and 476 ns with it; we use no component-model async.
    config.concurrency_support(false);
    config.epoch_interruption(true);
    config.max_wasm_stack(MAX_GUEST_STACK_BYTES);
    config.wasm_backtrace_max_frames(std::num::NonZeroUsize::new(MAX_BACKTRACE_FRAMES));
    // Results are the same on every machine, and features that plugins do not need are off.
    config.wasm_relaxed_simd(false);
    config.wasm_memory64(false);
    config.wasm_multi_memory(false);
    config.wasm_wide_arithmetic(false);
    config.wasm_tail_call(false);
    // A trap's text names functions, for which nothing of this is needed. It would be a sixth of an artifact, all of which is resident.
    config.native_unwind_info(false);
    config.generate_address_map(false);
    // One core is enough for a compile off the request path, and limits what it takes from the traffic.
    config.parallel_compilation(false);
    config
}
