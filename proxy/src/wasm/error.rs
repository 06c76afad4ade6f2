//! What can go wrong with a plugin: before it runs ([`Error`]) and while it runs ([`Fault`]).
//!
//! Leaves to others what follows from it: the chain keeps its last good generation, the entry follows its failure policy.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::memory::OverBudget;
use super::{MAX_WASM_BYTES, SUPPORTED_VERSIONS};

/// Why a plugin could not be loaded. Nothing of it has run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine itself could not be made.
    #[error("the WebAssembly engine could not be started: {0}")]
    Engine(String),
    /// No bytes at all.
    #[error("the plugin is empty (0 bytes): was it written completely?")]
    Empty,
    /// More bytes than a plugin may have.
    #[error(
        "the plugin has {bytes} bytes, at most {MAX_WASM_BYTES} are allowed: build it with `--profile plugin` (optimised and stripped)"
    )]
    TooLarge { bytes: usize },
    /// The bytes are something else.
    #[error("{digest} is not WebAssembly: it does not start with the magic bytes `\\0asm`")]
    NotWasm {
        /// Digest of the bytes.
        digest: String,
    },
    /// A core module where a component is needed.
    #[error(
        "{digest} is a core WebAssembly module, but a plugin is a component: build it with `cargo build --target wasm32-wasip2`, or wrap it with `wasm-tools component new`"
    )]
    CoreModule {
        /// Digest of the bytes.
        digest: String,
    },
    /// A component, but not of our world.
    #[error(
        "{digest} is not a ctrlmesh plugin: {missing}; a plugin implements the world `ctrlmesh:plugin/plugin` (see the crate ctrlmesh-sdk)"
    )]
    WrongWorld {
        /// Digest of the bytes.
        digest: String,
        /// What is missing or has another type.
        missing: String,
    },
    /// Built against a version of the interface that this host does not speak.
    #[error(
        "{digest} was built against ctrlmesh:plugin@{version}, this sidecar supports {SUPPORTED_VERSIONS}: rebuild the plugin with a matching ctrlmesh-sdk, or update the sidecar"
    )]
    Version {
        /// Digest of the bytes.
        digest: String,
        /// The version that it wants.
        version: String,
    },
    /// It wants what no plugin gets.
    #[error(
        "{digest} imports {import}, which a plugin is not given: remove what needs it (files, sockets and HTTP are not there)"
    )]
    Import {
        /// Digest of the bytes.
        digest: String,
        /// Name of the interface.
        import: String,
    },
    /// The compiler refused it, or died of it.
    #[error("{digest} could not be compiled: {detail}")]
    Compile {
        /// Digest of the bytes.
        digest: String,
        /// What the compiler said.
        detail: String,
    },
    /// Compiling took longer than it may.
    #[error("{digest} could not be compiled within {} s: make the plugin smaller, or give the sidecar more CPU", limit.as_secs())]
    CompileDeadline {
        /// Digest of the bytes.
        digest: String,
        limit: Duration,
    },
    /// The compiler needed more memory than it was given.
    #[error(
        "{digest} could not be compiled within {} MiB, which is what the sidecar's memory limit leaves for that: make the plugin smaller, \
         or raise the container's memory limit (and --memory-limit, if it is set)",
        limit_bytes >> 20
    )]
    CompileMemory {
        /// Digest of the bytes.
        digest: String,
        /// What the compiler was given.
        limit_bytes: usize,
        /// Other plugins had so much that it may be enough another time.
        is_contended: bool,
    },
    /// There is no memory for its machine code.
    #[error("the machine code of {digest} needs {over}")]
    CodeMemory {
        /// Digest of the bytes.
        digest: String,
        /// The budget that it exceeds.
        over: OverBudget,
    },
    /// The cache directory can't be used.
    #[error("the compile cache {path} can't be used: {reason}")]
    CacheDirectory { path: PathBuf, reason: String },
    /// A file operation failed.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

impl Error {
    /// A closed set of words for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Engine(_) => "engine",
            Self::Empty | Self::TooLarge { .. } => "size",
            Self::NotWasm { .. } | Self::CoreModule { .. } => "format",
            Self::WrongWorld { .. } => "world",
            Self::Version { .. } => "version",
            Self::Import { .. } => "import",
            Self::Compile { .. } => "compile",
            Self::CompileDeadline { .. } => "compile_deadline",
            Self::CompileMemory { .. } => "compile_memory",
            Self::CodeMemory { .. } => "memory",
            Self::CacheDirectory { .. } | Self::Io { .. } => "cache",
        }
    }
}

/// Which call of which plugin failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `sha256:<hex>` of the plugin.
    pub digest: String,
    /// Name of the chain entry.
    pub entry: String,
    pub phase: Phase,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "plugin {} of entry {} in {}",
            self.digest,
            self.entry,
            self.phase.as_str()
        )
    }
}

/// The calls that a host makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Instantiate,
    Configure,
    OnRequest,
    OnResponse,
    OnComplete,
}

impl Phase {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiate",
            Self::Configure => "configure",
            Self::OnRequest => "on-request",
            Self::OnResponse => "on-response",
            Self::OnComplete => "on-complete",
        }
    }
}

/// Why a call gave no answer that counts. The instance is spent: drop it and start a fresh one.
///
/// [`Fault::Settings`] is the plugin's own word and no malfunction; everything else is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It trapped: a panic, an abort, a stack overflow, a bad access, an exit.
    #[error("{origin} trapped: {detail}")]
    Trap {
        origin: Box<Origin>,
        /// The trap, and what the plugin wrote to stderr.
        detail: String,
    },
    /// It did not return in time.
    #[error("{origin} did not return within {} ms", limit.as_millis())]
    Deadline { origin: Box<Origin>, limit: Duration },
    /// It trapped after it was refused more memory.
    #[error("{origin} needs more than the {limit_bytes} bytes of memory that its entry may have")]
    Memory { origin: Box<Origin>, limit_bytes: usize },
    /// It trapped after it was refused memory that all plugins together may not have.
    #[error("{origin} needs {over}")]
    ProcessMemory {
        origin: Box<Origin>,
        /// The budget that it exceeds.
        over: OverBudget,
    },
    /// Its answer breaks a rule of the interface.
    #[error("{origin} gave an invalid answer: {what}")]
    Invalid { origin: Box<Origin>, what: String },
    /// It refused its settings.
    #[error("{origin} refused its settings: {message}")]
    Settings { origin: Box<Origin>, message: String },
}

impl Fault {
    /// A closed set of words for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Trap { .. } => "trap",
            Self::Deadline { .. } => "deadline",
            Self::Memory { .. } | Self::ProcessMemory { .. } => "memory",
            Self::Invalid { .. } => "invalid",
            Self::Settings { .. } => "settings",
        }
    }

    #[must_use]
    pub fn origin(&self) -> &Origin {
        match self {
            Self::Trap { origin, .. }
            | Self::Deadline { origin, .. }
            | Self::Memory { origin, .. }
            | Self::ProcessMemory { origin, .. }
            | Self::Invalid { origin, .. }
            | Self::Settings { origin, .. } => origin,
        }
    }
}
