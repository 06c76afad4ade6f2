//! From a mounted directory to a snapshot: everything is checked before anything is changed.
//!
//! Order: signature before anything is parsed, namespace and generation before anything is loaded, all entries before any
//! is used. Leaves when to look again to `watch.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ctrlmesh_contract::signature::PublicKeys;
use ctrlmesh_contract::{Chain, Digest};

use super::build::Host;
use super::directory::{self, Document, Fingerprint, Version};
use super::error::Error;
use super::labels::{self, MAX_LABELS_BYTES};
use super::past::Past;
use super::snapshot::Snapshot;

/// How often a directory is read again at once, because it changed meanwhile. Kubelet swaps once a minute at most, but
/// an impatient hand is faster.
const ATTEMPTS: usize = 5;

/// Where a chain comes from.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directory with the document and the plugins.
    pub directory: PathBuf,
    pub labels: Labels,
    /// Who may sign a document; `None`: signatures are not looked at.
    pub public_keys: Option<PublicKeys>,
    /// The pod's namespace; a document for another is refused.
    pub namespace: String,
}

/// Where the pod's labels come from.
#[derive(Debug, Clone)]
pub enum Labels {
    /// A file as kubelet writes it for a downward-API volume; read anew each time.
    File(PathBuf),
    /// They are known and never change: no pod.
    Fixed(BTreeMap<String, String>),
}

pub struct Source {
    place: Place,
    host: Host,
    past: Past,
}

/// A look at the directory that may have brought a new chain.
pub(super) struct Look {
    /// What was seen; the same again means the same result.
    pub(super) seen: Seen,
    /// The document's generation, as far as it could be trusted.
    pub(super) generation: Option<u64>,
    /// A new snapshot, none if what is there is in force already, or why it is refused.
    pub(super) result: Result<Option<Arc<Snapshot>>, Error>,
}

/// What a look depends on. Errors as text: another error is something new to tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    fingerprint: Fingerprint,
    document: Result<(Digest, Option<Vec<u8>>), String>,
    labels: Result<BTreeMap<String, String>, String>,
}

impl Source {
    /// A source that loads plugins with this host.
    #[must_use]
    pub const fn new(place: Place, host: Host, past: Past) -> Self {
        Self { place, host, past }
    }

    /// Looks at the directory once. `Ok(None)`: what is there is in force already.
    ///
    /// Blocks, maybe for as long as compiling takes; see [`super::watch::run`] for the loop around it.
    ///
    /// # Errors
    /// Why what is there can't come into force.
    pub fn load(&self, previous: &Snapshot) -> Result<Option<Arc<Snapshot>>, Error> {
        self.look(previous, None).map_or(Ok(None), |look| look.result)
    }

    /// Like [`Self::load`]; `None` if there is nothing but what was seen before.
    pub(super) fn look(&self, previous: &Snapshot, before: Option<&Seen>) -> Option<Look> {
        let mut look = self.look_once(previous, before)?;
        for _ in 1..ATTEMPTS {
            if !matches!(look.result, Err(Error::Changing { .. })) {
                break;
            }
            look = self.look_once(previous, before)?;
        }
        Some(look)
    }

    fn look_once(&self, previous: &Snapshot, before: Option<&Seen>) -> Option<Look> {
        let version = Version::current(&self.place.directory);
        let fingerprint = version.fingerprint();
        let document = version.document();
        let labels = self.labels();
        let seen = Seen {
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
        // Whatever came out of it is worth nothing if it was read from two versions.
        if !version.is_current() {
            result = Err(Error::Changing {
                directory: self.place.directory.clone(),
            });
        }
        Some(Look {
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
        if let Some(keys) = &self.place.public_keys {
            let signature = document.signature.as_ref().ok_or(ctrlmesh_contract::Error::NotSigned)?;
            keys.verify(&document.bytes, signature)?;
        }
        let chain = Chain::parse(&document.bytes)?;
        *generation = Some(chain.generation);
        if chain.namespace != self.place.namespace {
            return Err(Error::Namespace {
                document: chain.namespace,
                pod: self.place.namespace.clone(),
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
        snapshot.is_first = previous.document.is_none() && self.past.is_same(&snapshot);
        self.past.note(&snapshot);
        Ok(Some(Arc::new(snapshot)))
    }

    fn labels(&self) -> Result<BTreeMap<String, String>, Error> {
        let path = match &self.place.labels {
            Labels::Fixed(labels) => return Ok(labels.clone()),
            Labels::File(path) => path,
        };
        let malformed = |problem: String| Error::Labels {
            path: path.clone(),
            problem,
        };
        let bytes = directory::read(path, MAX_LABELS_BYTES)?.ok_or_else(|| malformed("it is not there".to_owned()))?;
        let text = String::from_utf8(bytes).map_err(|_| malformed("it is not UTF-8".to_owned()))?;
        labels::parse(&text).map_err(malformed)
    }

    pub(super) const fn place(&self) -> &Place {
        &self.place
    }

    pub(super) const fn host(&self) -> &Host {
        &self.host
    }
}
