//! Errors of a plugin: before it runs ([`Error`]) and while it runs ([`Fault`]).
//!
//! Leaves the consequences to others: the chain keeps its last good generation, the entry follows its failure policy.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;

use super::SUPPORTED_VERSIONS;
use super::memory::OverLimit;

/// Why a plugin could not be loaded. None of its code has run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine itself could not be created.
    #[error("the WebAssembly engine could not be started: {0}")]
    Engine(String),
    /// There are no bytes.
    #[error("the plugin is empty (0 bytes): was it written completely?")]
    Empty,
    /// The plugin exceeds the maximum size.
    #[error(
        "the plugin has {bytes} bytes, at most {MAX_PLUGIN_BYTES} are allowed: build it with `cargo build --release` and strip it"
    )]
    TooLarge { bytes: usize },
    /// The bytes are not WebAssembly.
    #[error("{digest} is not WebAssembly: it does not start with the magic bytes `\\0asm`")]
    NotWasm {
        /// Digest of the bytes.
        digest: String,
    },
    /// The bytes are a core module instead of a component.
    #[error(
        "{digest} is a core WebAssembly module, but a plugin is a component: build it with `cargo build --target wasm32-wasip2`, or wrap it with `wasm-tools component new`"
    )]
    CoreModule {
        /// Digest of the bytes.
        digest: String,
    },
    /// The component does not implement our world.
    #[error(
        "{digest} is not a ctrlmesh plugin: {missing}; a plugin implements the world `ctrlmesh:plugin/plugin` (see the crate ctrlmesh-sdk)"
    )]
    WrongWorld {
        /// Digest of the bytes.
        digest: String,
        /// The export that is missing or has another type.
        missing: String,
    },
    /// The plugin was built against an interface version that this host does not support.
    #[error(
        "{digest} was built against ctrlmesh:plugin@{version}, this sidecar supports {SUPPORTED_VERSIONS}: rebuild the plugin with a matching ctrlmesh-sdk, or update the sidecar"
    )]
    Version {
        /// Digest of the bytes.
        digest: String,
        /// The version that the plugin needs.
        version: String,
    },
    /// The plugin imports an interface that plugins do not get.
    #[error(
        "{digest} imports {import}, which a plugin is not given: remove what needs it (files, sockets and HTTP are not there)"
    )]
    Import {
        /// Digest of the bytes.
        digest: String,
        /// Name of the interface.
        import: String,
    },
    /// The compiler refused the plugin, or crashed.
    #[error("{digest} could not be compiled: {detail}")]
    Compile {
        /// Digest of the bytes.
        digest: String,
        /// Output of the compiler.
        detail: String,
    },
    /// Compiling took longer than allowed.
    #[error("{digest} could not be compiled within {} s: make the plugin smaller, or give the sidecar more CPU", limit.as_secs())]
    CompileDeadline {
        /// Digest of the bytes.
        digest: String,
        limit: Duration,
    },
    /// The compiler needed more memory than its limit.
    #[error(
        "{digest} could not be compiled within {} MiB, which is what the sidecar's memory limit leaves for that: make the plugin smaller, \
         or raise the container's memory limit (and --memory-limit, if it is set)",
        limit_bytes >> 20
    )]
    CompileMemory {
        /// Digest of the bytes.
        digest: String,
        limit_bytes: usize,
        /// Whether the limit may be higher another time, because other plugins used much memory.
        is_contended: bool,
    },
    /// There is no memory for the plugin's machine code.
    #[error("the machine code of {digest} needs {over}")]
    CodeMemory {
        /// Digest of the bytes.
        digest: String,
        over: OverLimit,
    },
    /// The cache directory is unusable.
    #[error("the compile cache {path} can't be used: {reason}")]
    CacheDirectory { path: PathBuf, reason: String },
    /// A file operation failed.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

impl Error {
    /// Error codes of a closed set, for metrics.
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

/// The plugin and the call that failed.
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
        write!(f, "plugin {} of entry {}", self.digest, self.entry)
    }
}

/// The calls that the host makes to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Instantiate,
    Configure,
    OnRequest,
    OnResponse,
    OnObjects,
    OnComplete,
    OnCrossed,
}

impl Phase {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiate",
            Self::Configure => "configure",
            Self::OnRequest => "on-request",
            Self::OnResponse => "on-response",
            Self::OnObjects => "on-objects",
            Self::OnComplete => "on-complete",
            Self::OnCrossed => "on-crossed",
        }
    }
}

/// Why a call returned no valid result. The instance is unusable: drop it and start a fresh one.
///
/// [`Fault::Settings`] is a refusal of the plugin's own and no malfunction; all others are malfunctions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The plugin trapped: a panic, an abort, a stack overflow, a bad access, an exit.
    #[error("{origin} trapped in {}: {detail}", origin.phase.as_str())]
    Trap {
        origin: Box<Origin>,
        /// The trap, and the plugin's output to stderr.
        detail: String,
    },
    /// The plugin did not return in time.
    #[error("{origin} did not return from {} within {} ms", origin.phase.as_str(), limit.as_millis())]
    Deadline { origin: Box<Origin>, limit: Duration },
    /// The plugin trapped after the limit of its entry had denied it more memory.
    #[error(
        "{origin} needs more memory in {} than the {limit_bytes} bytes that its entry may have",
        origin.phase.as_str()
    )]
    Memory { origin: Box<Origin>, limit_bytes: usize },
    /// The plugin trapped after the limit of all plugins together had denied it memory.
    #[error("{origin} needs, in {}, {over}", origin.phase.as_str())]
    ProcessMemory { origin: Box<Origin>, over: OverLimit },
    /// The plugin's verdict violates a rule of the interface.
    #[error("{origin} returned an invalid result from {}: {what}", origin.phase.as_str())]
    Invalid { origin: Box<Origin>, what: String },
    /// The plugin decided differently although nothing that it had read was changed. The instance is fine, but verdicts of the entry are
    /// not repeated any more.
    #[error(
        "{origin} marked a verdict of {} as reusable that depends on more than it read through the host: {contradiction}. Its \
         verdicts are not repeated any more; mark it as reusable only if it depends on nothing else",
        origin.phase.as_str()
    )]
    Impure { origin: Box<Origin>, contradiction: String },
    /// The plugin refused its settings.
    #[error("{origin} refused its settings: {message}")]
    Settings { origin: Box<Origin>, message: String },
}

impl Fault {
    /// Codes of a closed set, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Trap { .. } => "trap",
            Self::Deadline { .. } => "deadline",
            Self::Memory { .. } | Self::ProcessMemory { .. } => "memory",
            Self::Invalid { .. } => "invalid",
            Self::Impure { .. } => "impure",
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
            | Self::Impure { origin, .. }
            | Self::Settings { origin, .. } => origin,
        }
    }
}
