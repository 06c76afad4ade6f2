//! The cache of references: which are known, what pulling them led to, and when each is due again. Pure: time and randomness come
//! in, jobs and names of namespaces come out.
//!
//! Guarantees: a reference is fetched once at a time, however many objects name it; a resolved component stays until a checked one
//! replaces it; the number of references and the bytes held are bounded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_manager_api::plugin::PullPolicy;
use tokio::time::Instant;

use super::artifact::Artifact;
use super::failure::{Failure, FailureReason, Retry};
use super::reference::Image;
use super::resolution::{Resolution, ResolveRequest};
use super::retries::with_jitter;
use super::settings::Settings;

/// Maximum number of references. No cluster is expected to have so many plugins.
const MAX_REFERENCES: usize = 1024;
/// Longest `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Identifies a reference. Asks with equal keys are answered by one fetch.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) image: Image,
    /// Namespace and name: two namespaces with a Secret of the same name may have different rights.
    pub(super) secret: Option<(String, String)>,
    pub(super) verification_key: Option<String>,
    is_watched: bool,
}

impl Key {
    /// The key of a request. Its image is the pinned manifest, unless the image was changed or is always looked up.
    pub(super) fn new(request: &ResolveRequest) -> Result<Self, Failure> {
        let image = Image::parse(&request.image)?;
        let pinned = request.pinned.as_ref().filter(|pinned| {
            let is_digest = pinned.manifest.parse::<ctrlmesh_contract::Digest>().is_ok();
            pinned.image == request.image && is_digest && request.pull_policy == PullPolicy::IfNotPresent
        });
        let image = match pinned {
            Some(pinned) if !image.is_pinned() => image.with_digest(&pinned.manifest),
            _ => image,
        };
        Ok(Self {
            is_watched: request.pull_policy == PullPolicy::Always && !image.is_pinned(),
            secret: request
                .pull_secret
                .clone()
                .map(|name| (request.namespace.clone(), name)),
            verification_key: request.verification_key.clone(),
            image,
        })
    }

    /// Whether both keys have the same repository, credentials and signature check, so that an artifact of one may serve the other.
    fn is_alike(&self, other: &Self) -> bool {
        let place = |key: &Self| (key.image.registry.clone(), key.image.repository.clone());
        place(self) == place(other) && self.secret == other.secret && self.verification_key == other.verification_key
    }
}

/// A reference that is to be fetched or checked again now.
pub(super) struct Job {
    pub(super) key: Key,
    /// Artifacts that may serve this reference, by digest of their manifest.
    pub(super) known: HashMap<String, Arc<Artifact>>,
}

/// The state of one reference.
#[derive(Default)]
struct Entry {
    artifact: Option<Arc<Artifact>>,
    failure: Option<Failure>,
    /// Failures in a row.
    failures: u32,
    is_running: bool,
    /// When the reference is pulled or checked again; `None`: never.
    due: Option<Instant>,
    /// Namespaces that asked, and when each did last.
    asked: BTreeMap<String, Instant>,
    /// The namespaces were named once more, to see whether they still ask for the reference.
    is_doubted: bool,
}

impl Entry {
    fn last_asked(&self) -> Option<Instant> {
        self.asked.values().max().copied()
    }

    fn to_resolution(&self) -> Resolution {
        match (&self.failure, &self.artifact) {
            (Some(failure), last) => Resolution::Failed {
                reason: failure.reason,
                message: failure.message.clone(),
                last: last.clone(),
            },
            (None, Some(artifact)) => Resolution::Ready(Arc::clone(artifact)),
            (None, None) => Resolution::Pending,
        }
    }
}

pub(super) struct Cache {
    entries: HashMap<Key, Entry>,
    settings: Settings,
}

impl Cache {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            entries: HashMap::new(),
            settings,
        }
    }

    /// Returns what is known of a reference, and whether there is a new one to fetch.
    pub(super) fn look_up(&mut self, key: Key, namespace: &str, now: Instant) -> (Resolution, bool) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.asked.insert(namespace.to_owned(), now);
            entry.is_doubted = false;
            return (entry.to_resolution(), false);
        }
        if self.entries.len() >= MAX_REFERENCES {
            let message = format!(
                "the manager holds {MAX_REFERENCES} references to plugins and takes no more; remove some from ShardingConfigs"
            );
            let (reason, last) = (FailureReason::TooLarge, None);
            return (Resolution::Failed { reason, message, last }, false);
        }
        let artifact = self.known_artifacts(&key).remove(&key.image.target);
        let is_new = artifact.is_none();
        let entry = Entry {
            artifact,
            due: is_new.then_some(now),
            asked: [(namespace.to_owned(), now)].into(),
            ..Entry::default()
        };
        let resolution = entry.to_resolution();
        self.entries.insert(key, entry);
        (resolution, is_new)
    }

    /// Takes jobs that are due, `at_most` so many. Each counts as running until [`Cache::finish_job`].
    pub(super) fn take(&mut self, now: Instant, at_most: usize) -> Vec<Job> {
        let is_due = |entry: &Entry| !entry.is_running && entry.due.is_some_and(|due| due <= now);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        let keys: Vec<Key> = due.map(|(key, _)| key.clone()).take(at_most).collect();
        for key in &keys {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.is_running = true;
            }
        }
        let job = |key: Key| Job {
            known: self.known_artifacts(&key),
            key,
        };
        keys.into_iter().map(job).collect()
    }

    fn known_artifacts(&self, key: &Key) -> HashMap<String, Arc<Artifact>> {
        let alike = self.entries.iter().filter(|(other, _)| other.is_alike(key));
        let artifacts = alike.filter_map(|(_, entry)| entry.artifact.clone());
        artifacts
            .map(|artifact| (artifact.manifest.clone(), artifact))
            .collect()
    }

    /// Records the outcome of a job. Returns the namespaces whose resolution has changed.
    pub(super) fn finish_job(
        &mut self,
        key: &Key,
        outcome: Result<Arc<Artifact>, Failure>,
        now: Instant,
        random: u16,
    ) -> BTreeSet<String> {
        let outcome = outcome.and_then(|artifact| self.room_for(key, &artifact).map(|()| artifact));
        let times = &self.settings.times;
        let Some(entry) = self.entries.get_mut(key) else {
            return BTreeSet::new();
        };
        let before = entry.to_resolution();
        entry.is_running = false;
        match outcome {
            Ok(artifact) => {
                entry.artifact = Some(artifact);
                entry.failure = None;
                entry.failures = 0;
                entry.due = key.is_watched.then(|| now + with_jitter(times.tag_refresh, random));
            }
            Err(failure) => {
                let pause = times
                    .again
                    .saturating_mul(1 << entry.failures.min(16))
                    .min(times.again_at_most);
                let asked = match failure.again {
                    Retry::After(asked) => asked.min(MAX_RETRY_AFTER),
                    Retry::Soon | Retry::Later => Duration::ZERO,
                };
                entry.failures = entry.failures.saturating_add(1);
                entry.due = Some(now + with_jitter(pause, random).max(asked));
                entry.failure = Some(failure);
            }
        }
        if entry.to_resolution() == before {
            return BTreeSet::new();
        }
        entry.asked.keys().cloned().collect()
    }

    /// Fails if the cache has no room for this component in place of the one that the reference had.
    fn room_for(&self, key: &Key, artifact: &Arc<Artifact>) -> Result<(), Failure> {
        let others = self.entries.iter().filter(|(other, _)| *other != key);
        let held: HashMap<*const Artifact, usize> = others
            .filter_map(|(_, entry)| entry.artifact.as_ref())
            .chain([artifact])
            .map(|artifact| (Arc::as_ptr(artifact), artifact.packed.len()))
            .collect();
        let (bytes, limit) = (held.values().sum::<usize>(), self.settings.cache_bytes);
        if bytes <= limit {
            return Ok(());
        }
        let message = format!(
            "the manager would hold {bytes} bytes of packed plugins, at most {limit} are allowed; build plugins for size, use fewer, \
             or raise --plugin-cache-mib"
        );
        Err(Failure::new(FailureReason::TooLarge, message))
    }

    /// Forgets references that nobody has asked for lately. Failures and watched tags get a second chance: their namespaces are
    /// returned and should ask again.
    pub(super) fn sweep(&mut self, now: Instant) -> BTreeSet<String> {
        let idle = self.settings.times.idle;
        let mut doubted = BTreeSet::new();
        self.entries.retain(|key, entry| {
            let unwanted = entry
                .last_asked()
                .is_none_or(|last| now >= last + expiry_of(idle, entry.is_doubted));
            if !unwanted || entry.is_running {
                return true;
            }
            if entry.is_doubted || !(key.is_watched || entry.failure.is_some()) {
                return false;
            }
            entry.is_doubted = true;
            doubted.extend(entry.asked.keys().cloned());
            true
        });
        doubted
    }

    /// When the next reference is due or expires. Running jobs report by themselves.
    pub(super) fn next(&self) -> Option<Instant> {
        let idle = self.settings.times.idle;
        let entries = self.entries.values().filter(|entry| !entry.is_running);
        let times = entries.flat_map(|entry| {
            let unwanted = entry.last_asked().map(|last| last + expiry_of(idle, entry.is_doubted));
            [entry.due, unwanted]
        });
        times.flatten().min()
    }

    /// Bytes of packed components, and number of references.
    pub(super) fn size(&self) -> (usize, usize) {
        let artifacts = self.entries.values().filter_map(|entry| entry.artifact.as_ref());
        let held: HashMap<*const Artifact, usize> = artifacts
            .map(|artifact| (Arc::as_ptr(artifact), artifact.packed.len()))
            .collect();
        (held.values().sum(), self.entries.len())
    }
}

/// Time after the last request at which a reference expires. Namespaces that were named again get half as much on top.
fn expiry_of(idle: Duration, is_doubted: bool) -> Duration {
    if is_doubted { idle + idle / 2 } else { idle }
}

#[cfg(test)]
mod tests;
