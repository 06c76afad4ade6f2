//! Why a chain did not come into force, with messages that say what to do.
//!
//! Leaves errors inside a document to `ctrlmesh-contract` and errors of plugins to `wasm/`.

use std::io;
use std::path::PathBuf;

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::chain::MAX_ENTRIES_PER_POD;
use ctrlmesh_contract::names::files;
use ctrlmesh_contract::plugin_file::{self, Encoding};

use crate::wasm;

/// Why a chain did not come into force. The previous chain stays in force.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory has no document.
    #[error("there is no {} in {}: wait for the manager to write the chain, or check the pod's volume", files::CHAIN, directory.display())]
    NoDocument {
        /// Directory in which the document was expected.
        directory: PathBuf,
    },
    /// A file can't be read.
    #[error("{} can't be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// A file exceeds its size limit.
    #[error("{} is larger than the {limit} bytes that it may have", path.display())]
    TooLarge { path: PathBuf, limit: usize },
    /// The files changed faster than they could be read.
    #[error("the files in {} kept changing while they were read; retrying", directory.display())]
    Changing { directory: PathBuf },
    /// The document or its signature is wrong.
    #[error(transparent)]
    Document(#[from] ctrlmesh_contract::Error),
    /// The document belongs to another namespace.
    #[error(
        "the chain is for namespace {document}, but this pod runs in {pod}: each namespace needs a document of its own"
    )]
    Namespace { document: String, pod: String },
    /// The document is older than the one in force.
    #[error(
        "generation {generation} is older than generation {in_force}, which is in force: write a higher one to go back"
    )]
    Older {
        generation: u64,
        /// Generation in force.
        in_force: u64,
    },
    /// The document was changed without a new generation.
    #[error("generation {generation} is in force with other content: each change needs a higher generation")]
    SameGeneration { generation: u64 },
    /// The labels file is malformed.
    #[error("the pod's labels in {} can't be read: {problem}; mount metadata.labels of the downward API there", path.display())]
    Labels {
        path: PathBuf,
        /// The line and what is wrong with it.
        problem: String,
    },
    /// Too many entries select the pod.
    #[error("{selected} entries select this pod, at most {MAX_ENTRIES_PER_POD} may: narrow their podSelectors")]
    TooManyEntries { selected: usize },
    /// A plugin's file is missing.
    #[error(
        "entry {entry} needs plugin {digest}, but there is neither {} nor {}: add the file, or check that all of the \
         ConfigMaps ctrlmesh-plugins-0 to -7 are mounted",
        plugin_file::file_name(digest, Encoding::Plain),
        plugin_file::file_name(digest, Encoding::Zstd)
    )]
    PluginMissing { entry: String, digest: Digest },
    /// A plugin's bytes do not match the digest in the file's name.
    #[error(
        "{} has the digest {found} (unpacked), not {expected} as entry {entry} asks: the file is damaged, cut off or \
         misnamed; write it again",
        path.display()
    )]
    PluginDigest {
        entry: String,
        path: PathBuf,
        /// Digest according to the chain.
        expected: Digest,
        /// Digest of the file's content.
        found: Digest,
    },
    /// A packed plugin can't be unpacked.
    #[error("{} is not a whole zstd stream: {problem}; pack it again with zstd", path.display())]
    PluginPacked {
        path: PathBuf,
        /// Error of the decoder.
        problem: String,
    },
    /// A plugin can't be loaded.
    #[error("entry {entry}: {source}")]
    Plugin { entry: String, source: wasm::Error },
    /// A plugin refuses its settings, or fails while it is configured.
    #[error("entry {entry}: {source}")]
    Configure { entry: String, source: wasm::Fault },
    /// The chain's plugins do not fit into memory.
    #[error(
        "the chain's plugins need {} MiB to begin with, for {workers} instances of each and their machine code: {over}",
        needed_bytes.div_ceil(1 << 20)
    )]
    InitialMemory {
        /// Sum over all plugins.
        needed_bytes: usize,
        /// Instances of each entry.
        workers: usize,
        over: wasm::OverLimit,
    },
    /// The worker threads could not start the chain's instances.
    #[error("the chain is valid, but the worker threads failed to start it: {0}; retrying")]
    Prepare(String),
    /// An internal task panicked.
    #[error("reading the chain was aborted: {0}; retrying")]
    Task(String),
}

impl Error {
    /// Error codes of a closed set, for metrics and for programs that read `/status`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        use ctrlmesh_contract::Error as Document;
        match self {
            Self::NoDocument { .. } => "missing",
            Self::Io { .. } => "io",
            Self::TooLarge { .. } | Self::Document(Document::TooLarge { .. }) => "too_large",
            Self::Changing { .. } => "changing",
            Self::Document(Document::NotSigned | Document::SignatureForm { .. } | Document::SignatureMismatch) => {
                "signature"
            }
            Self::Document(_) => "document",
            Self::Namespace { .. } => "namespace",
            Self::Older { .. } | Self::SameGeneration { .. } => "generation",
            Self::Labels { .. } => "labels",
            Self::TooManyEntries { .. } => "too_many_entries",
            Self::PluginMissing { .. } => "plugin_missing",
            Self::PluginDigest { .. } => "digest",
            Self::PluginPacked { .. } => "packed",
            Self::Plugin { source, .. } => source.kind(),
            Self::Configure { source, .. } => source.kind(),
            Self::InitialMemory { .. } => "memory",
            Self::Prepare(_) => "prepare",
            Self::Task(_) => "task",
        }
    }

    /// Whether ending instances of other plugins could free the memory that this needs.
    pub(crate) const fn is_want_of_memory(&self) -> bool {
        matches!(
            self,
            Self::Plugin {
                source: wasm::Error::CompileMemory { is_contended: true, .. } | wasm::Error::CodeMemory { .. },
                ..
            } | Self::Configure {
                source: wasm::Fault::ProcessMemory { .. },
                ..
            }
        )
    }

    /// Whether another attempt with the same files may succeed.
    pub(crate) const fn is_transient(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Changing { .. } | Self::Prepare(_) | Self::Task(_) => true,
            Self::Plugin { source, .. } => match source {
                wasm::Error::CompileMemory { is_contended, .. } => *is_contended,
                wasm::Error::CompileDeadline { .. } | wasm::Error::CodeMemory { .. } | wasm::Error::Io { .. } => true,
                _ => false,
            },
            // The machine may be busy rather than the plugin slow, or other plugins hold the memory.
            Self::Configure { source, .. } => {
                matches!(source, wasm::Fault::Deadline { .. } | wasm::Fault::ProcessMemory { .. })
            }
            _ => false,
        }
    }
}
