//! Loads a mounted directory into a snapshot; checks everything before it changes anything.
//!
//! Order: the signature is checked before anything is parsed, namespace and generation before anything is loaded, all entries before any is
//! used. Leaves when to read again to `reload.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ctrlmesh_contract::signature::PublicKeys;
use ctrlmesh_contract::{Chain, Digest};

use super::build::Host;
use super::directory::{self, Document, Fingerprint, Version};
use super::error::Error;
use super::labels::{self, MAX_LABELS_BYTES};
use super::predecessors::PredecessorRecord;
use super::snapshot::Snapshot;

/// How often a directory is read again at once, because it changed meanwhile. Kubelet swaps once a minute at most; a person who edits files
/// may be faster.
const MAX_READS: usize = 5;

/// Location and identity that a chain is loaded for.
#[derive(Debug, Clone)]
pub struct ChainLocation {
    /// Directory with the document and the plugins.
    pub directory: PathBuf,
    pub labels: Labels,
    /// Keys that may sign a document; `None` disables the check of signatures.
    pub public_keys: Option<PublicKeys>,
    /// The pod's namespace; a document for another is refused.
    pub namespace: String,
}

/// Source of the pod's labels.
#[derive(Debug, Clone)]
pub enum Labels {
    /// A file as kubelet writes it for a downward-API volume; read again each time.
    File(PathBuf),
    /// Labels that never change, for a sidecar outside a pod.
    Fixed(BTreeMap<String, String>),
}

pub struct Source {
    location: ChainLocation,
    host: Host,
    predecessors: PredecessorRecord,
}

/// Result of reading the directory, which may hold a new chain.
pub(super) struct LoadAttempt {
    /// The input that was read; the same input leads to the same result.
    pub(super) seen: SeenFiles,
    /// The document's generation, as far as it can be trusted.
    pub(super) generation: Option<u64>,
    /// A new snapshot, `None` if the directory holds the chain in force, or the reason for refusing it.
    pub(super) result: Result<Option<Arc<Snapshot>>, Error>,
}

/// The input on which a [`LoadAttempt`] depends. Errors are kept as text: a different error is reported again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SeenFiles {
    fingerprint: Fingerprint,
    document: Result<(Digest, Option<Vec<u8>>), String>,
    labels: Result<BTreeMap<String, String>, String>,
}

impl Source {
    #[must_use]
    pub const fn new(location: ChainLocation, host: Host, predecessors: PredecessorRecord) -> Self {
        Self {
            location,
            host,
            predecessors,
        }
    }

    /// Reads the directory once. Returns `Ok(None)` if it holds the chain that is in force.
    ///
    /// Blocks, maybe for as long as compiling takes; see [`super::reload::run`] for the loop around it.
    ///
    /// # Errors
    /// The reason why the chain in the directory cannot come into force.
    pub fn load(&self, previous: &Snapshot) -> Result<Option<Arc<Snapshot>>, Error> {
        self.load_if_changed(previous, None)
            .map_or(Ok(None), |attempt| attempt.result)
    }

    /// Like [`Self::load`], but returns `None` if the directory holds only what was seen before.
    pub(super) fn load_if_changed(&self, previous: &Snapshot, before: Option<&SeenFiles>) -> Option<LoadAttempt> {
        let mut attempt = self.attempt_load(previous, before)?;
        for _ in 1..MAX_READS {
            if !matches!(attempt.result, Err(Error::Changing { .. })) {
                break;
            }
            attempt = self.attempt_load(previous, before)?;
        }
        Some(attempt)
    }

    fn attempt_load(&self, previous: &Snapshot, before: Option<&SeenFiles>) -> Option<LoadAttempt> {
        let version = Version::current_version(&self.location.directory);
        let fingerprint = version.fingerprint();
        let document = version.document();
        let labels = self.labels();
        let seen = SeenFiles {
            fingerprint,
            document: document
                .as_ref()
                .map(|document| (Digest::of(&document.bytes), document.signature.clone()))
                .map_err(ToString::to_string),
            labels: labels.as_ref().cloned().map_err(ToString::to_string),
        };
        if before == Some(&seen) {
            return None;
        }
        let mut generation = None;
        let mut result =
            document.and_then(|document| self.check(&document, labels?, &version, previous, &mut generation));
        // The result is invalid if it was read from two versions.
        if !version.is_current() {
            result = Err(Error::Changing {
                directory: self.location.directory.clone(),
            });
        }
        Some(LoadAttempt {
            seen,
            generation,
            result,
        })
    }

    fn check(
        &self,
        document: &Document,
        labels: BTreeMap<String, String>,
        version: &Version,
        previous: &Snapshot,
        generation: &mut Option<u64>,
    ) -> Result<Option<Arc<Snapshot>>, Error> {
        if let Some(keys) = &self.location.public_keys {
            let signature = document.signature.as_ref().ok_or(ctrlmesh_contract::Error::NotSigned)?;
            keys.verify(&document.bytes, signature)?;
        }
        let chain = Chain::parse(&document.bytes)?;
        *generation = Some(chain.generation);
        if chain.namespace != self.location.namespace {
            return Err(Error::Namespace {
                document: chain.namespace,
                pod: self.location.namespace.clone(),
            });
        }
        let digest = Digest::of(&document.bytes);
        let in_force = previous.generation;
        if chain.generation < in_force {
            return Err(Error::Older {
                generation: chain.generation,
                in_force,
            });
        }
        if chain.generation == in_force && previous.document != Some(digest) {
            return Err(Error::SameGeneration { generation: in_force });
        }
        let Some(mut snapshot) = self.host.build(&chain, digest, &labels, version, previous)? else {
            return Ok(None);
        };
        snapshot.other_entries = chain.entries.len().saturating_sub(snapshot.entries().len());
        snapshot.without_labels = matches!(&self.location.labels, Labels::Fixed(labels) if labels.is_empty());
        snapshot.is_first = previous.document.is_none() && self.predecessors.is_same(&snapshot);
        self.predecessors.record(&snapshot);
        Ok(Some(Arc::new(snapshot)))
    }

    fn labels(&self) -> Result<BTreeMap<String, String>, Error> {
        let path = match &self.location.labels {
            Labels::Fixed(labels) => return Ok(labels.clone()),
            Labels::File(path) => path,
        };
        let malformed = |problem: String| Error::Labels {
            path: path.clone(),
            problem,
        };
        let bytes =
            directory::read_bounded(path, MAX_LABELS_BYTES)?.ok_or_else(|| malformed("it is not there".to_owned()))?;
        let text = String::from_utf8(bytes).map_err(|_| malformed("it is not UTF-8".to_owned()))?;
        labels::parse(&text).map_err(malformed)
    }

    pub(super) const fn location(&self) -> &ChainLocation {
        &self.location
    }

    pub(super) const fn host(&self) -> &Host {
        &self.host
    }
}
