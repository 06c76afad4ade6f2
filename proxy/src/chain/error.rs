//! Why a chain did not come into force, in words that say what to do.
//!
//! Leaves what is wrong inside a document to `ctrlmesh-contract` and what is wrong with a plugin to `wasm/`.

use std::io;
use std::path::PathBuf;

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::chain::MAX_ENTRIES_PER_POD;
use ctrlmesh_contract::names::files;
use ctrlmesh_contract::plugin_file::{self, Encoding};

use crate::wasm;

/// Why a chain did not come into force. The one before it goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no document.
    #[error("there is no {} in {}: wait for the manager to write the chain, or check the pod's volume", files::CHAIN, directory.display())]
    NoDocument {
        /// Where it should be.
        directory: PathBuf,
    },
    /// A file can't be read.
    #[error("{} can't be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is larger than it may be.
    #[error("{} is larger than the {limit} bytes that it may have", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// The files changed faster than they could be read.
    #[error("the files in {} kept changing while they were read; it is tried again", directory.display())]
    Changing {
        /// Where.
        directory: PathBuf,
    },
    /// The document or its signature is wrong.
    #[error(transparent)]
    Document(#[from] ctrlmesh_contract::Error),
    /// The document is another namespace's.
    #[error(
        "the chain is for namespace {document}, but this pod runs in {pod}: each namespace needs a document of its own"
    )]
    Namespace {
        /// The document's.
        document: String,
        /// The pod's.
        pod: String,
    },
    /// The document is older than the one in force.
    #[error(
        "generation {generation} is older than generation {in_force}, which is in force: write a higher one to go back"
    )]
    Older {
        /// The document's.
        generation: u64,
        /// What is in force.
        in_force: u64,
    },
    /// The document was changed, its generation was not.
    #[error("generation {generation} is in force with other content: each change needs a higher generation")]
    SameGeneration {
        /// The document's.
        generation: u64,
    },
    /// The labels file is malformed.
    #[error("the pod's labels in {} can't be read: {problem}; mount metadata.labels of the downward API there", path.display())]
    Labels {
        /// The file.
        path: PathBuf,
        /// Which line, and what.
        problem: String,
    },
    /// Too many entries select the pod.
    #[error("{selected} entries select this pod, at most {MAX_ENTRIES_PER_POD} may: narrow their podSelectors")]
    TooManyEntries {
        /// How many.
        selected: usize,
    },
    /// A plugin's bytes are not there.
    #[error(
        "entry {entry} needs plugin {digest}, but there is neither {} nor {}: add the file, or check that all of the \
         ConfigMaps ctrlmesh-plugins-0 to -7 are mounted",
        plugin_file::name(digest, Encoding::Plain),
        plugin_file::name(digest, Encoding::Zstd)
    )]
    PluginMissing {
        /// The entry.
        entry: String,
        /// What it needs.
        digest: Digest,
    },
    /// A plugin's bytes are others than the name says.
    #[error(
        "{} has the digest {found} (unpacked), not {expected} as entry {entry} asks: the file is damaged, cut off or \
         misnamed; write it again",
        path.display()
    )]
    PluginDigest {
        /// The entry.
        entry: String,
        /// The file.
        path: PathBuf,
        /// What the chain says.
        expected: Digest,
        /// What the file holds.
        found: Digest,
    },
    /// A packed plugin can't be unpacked.
    #[error("{} is not a whole zstd stream: {problem}; pack it again with zstd", path.display())]
    PluginPacked {
        /// The file.
        path: PathBuf,
        /// What the decoder says.
        problem: String,
    },
    /// A plugin can't be loaded.
    #[error("entry {entry}: {source}")]
    Plugin {
        /// The entry.
        entry: String,
        /// Why.
        source: wasm::Error,
    },
    /// A plugin refuses its settings, or fails while it is configured.
    #[error("entry {entry}: {source}")]
    Configure {
        /// The entry.
        entry: String,
        /// Why.
        source: wasm::Fault,
    },
    /// Its plugins do not fit.
    #[error(
        "the chain's plugins need {} MiB to begin with, for {workers} instances of each and their machine code: {over}",
        needed_bytes.div_ceil(1 << 20)
    )]
    InitialMemory {
        /// Bytes of all of them.
        needed_bytes: usize,
        /// Instances of each entry.
        workers: usize,
        /// The budget that they exceed.
        over: wasm::OverBudget,
    },
    /// The worker threads could not take the chain over.
    #[error("the chain is good, but the worker threads could not take it over: {0}; it is tried again")]
    Prepare(String),
    /// A task of ours died.
    #[error("reading the chain was broken off: {0}; it is tried again")]
    Task(String),
}

impl Error {
    /// A closed set of words for metrics and for machines that read `/status`.
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

    /// Whether other plugins' instances have the memory that this needs.
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

    /// Whether trying the same files again may end otherwise.
    pub(crate) const fn is_transient(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Changing { .. } | Self::Prepare(_) | Self::Task(_) => true,
            Self::Plugin { source, .. } => match source {
                wasm::Error::CompileMemory { is_contended, .. } => *is_contended,
                wasm::Error::CompileDeadline { .. } | wasm::Error::CodeMemory { .. } | wasm::Error::Io { .. } => true,
                _ => false,
            },
            // A busy machine, not necessarily a slow plugin; or others that have the memory.
            Self::Configure { source, .. } => {
                matches!(source, wasm::Fault::Deadline { .. } | wasm::Fault::ProcessMemory { .. })
            }
            _ => false,
        }
    }
}
