//! Pulls plugins from OCI registries: from `oci://host/repository:tag` to verified bytes that sidecars may run.
//!
//! | module | holds |
//! |---|---|
//! | `pull` | one pull |
//! | `cache` | which references are held, and when each is due again. Pure |
//! | `resolution` | a plugin that is to be resolved, and the result |
//! | `artifact` | a checked and packed component. Pure |
//! | `http`, `login`, `clients`, `address_policy` | requests to a registry: tokens, TLS and proxies, addresses that are allowed |
//! | `pull_secret` | credentials from Secrets |
//! | `component`, `signature`, `layout`, `reference` | parsers: imports of a component, its signatures, its manifest, the name of its image |
//! | `retries` | retries of a request, and the pauses between them |
//! | `settings`, `failure` | how registries are reached, and why a pull failed |
//!
//! Flow: [`Plugins::resolve`] answers at once from the cache and remembers the namespace. [`Worker::run`] pulls new references,
//! resolves tags again, and reports namespaces whose plugins resolve differently than before.
//!
//! Guarantees: a plugin that is Ready has the digest that its manifest and the registry's blob agree on, the signature that the
//! object asks for, and the world of a plugin. A tag is resolved once; the result is pinned in the object's status, and a new
//! manager fetches the pinned manifest. A failure never removes an earlier result (`last`). Only the manager talks to registries.
//!
//! Assumes that callers resolve the plugins of a namespace again when it is reported, and that they write the status.

mod address_policy;
mod artifact;
mod cache;
mod clients;
mod component;
mod failure;
mod http;
mod layout;
mod login;
mod pull;
mod pull_secret;
mod reference;
mod resolution;
mod retries;
mod settings;
mod signature;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Client;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use artifact::{Artifact, pack};
pub use component::interface_version;
pub use failure::FailureReason;
pub use resolution::{Resolution, ResolveRequest};
pub use settings::{Proxies, Settings, Times};

use cache::{Cache, Key};
use failure::Failure;
use pull::Puller;

/// Maximum number of pulls at a time. Each holds a component and its packed form in memory.
const MAX_PULLS: usize = 4;

/// The outcome of a pull.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pulls: Family<Outcome, Counter>,
    bytes: Gauge,
    references: Gauge,
}

impl Metrics {
    /// Creates one series in each metric with labels.
    pub fn add_sample(&self) {
        drop(self.pulls.get_or_create(&Outcome { outcome: "Pulled" }));
    }

    pub fn register(&self, registry: &mut Registry) {
        let pulls = "Lookups and pulls of plugins from registries, by how they ended";
        registry.register("plugin_pulls", pulls, self.pulls.clone());
        registry.register(
            "plugin_cache_bytes",
            "Packed plugins that are held, bytes",
            self.bytes.clone(),
        );
        registry.register(
            "plugin_references",
            "References to plugins that are kept",
            self.references.clone(),
        );
    }
}

struct Shared {
    cache: Mutex<Cache>,
    wake: Notify,
}

impl Shared {
    fn lock_cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves plugins of all objects. Cheap to clone.
#[derive(Clone)]
pub struct Plugins(Arc<Shared>);

/// Fetches the references that [`Plugins`] is asked for.
pub struct Worker {
    shared: Arc<Shared>,
    puller: Arc<Puller>,
    changed: mpsc::Sender<String>,
    metrics: Metrics,
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plugins")
    }
}

impl Plugins {
    /// Nothing is fetched until the worker runs. The worker sends the namespaces whose plugins resolve differently than before to
    /// `changed`.
    #[must_use]
    pub fn new(client: Client, settings: Settings, changed: mpsc::Sender<String>, metrics: Metrics) -> (Self, Worker) {
        let shared = Arc::new(Shared {
            cache: Mutex::new(Cache::new(settings.clone())),
            wake: Notify::new(),
        });
        let worker = Worker {
            shared: Arc::clone(&shared),
            puller: Arc::new(Puller::new(client, settings)),
            changed,
            metrics,
        };
        (Self(shared), worker)
    }

    /// Returns the current resolution without waiting. If it changes, the worker reports the namespace.
    #[must_use]
    pub fn resolve(&self, request: &ResolveRequest) -> Resolution {
        let key = match Key::new(request) {
            Ok(key) => key,
            Err(Failure { reason, message, .. }) => {
                let last = None;
                return Resolution::Failed { reason, message, last };
            }
        };
        let (resolution, is_new) = self.0.lock_cache().look_up(key, &request.namespace, Instant::now());
        if is_new {
            self.0.wake.notify_one();
        }
        resolution
    }
}

type Pulled = (Key, Result<Arc<Artifact>, Failure>);

impl Worker {
    /// Runs until `stop`, or until the receiver of `changed` is dropped.
    ///
    /// # Errors
    /// A pull has panicked.
    pub async fn run(self, stop: CancellationToken) -> Result<(), JoinError> {
        let mut pulls: JoinSet<Pulled> = JoinSet::new();
        let mut changed_namespaces: BTreeSet<String> = BTreeSet::new();
        let ended = loop {
            let next = self.start_due(&mut pulls, &mut changed_namespaces);
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                () = self.shared.wake.notified() => {}
                () = sleep_until(next) => {}
                Some(pulled) = pulls.join_next() => match pulled {
                    Ok(pulled) => changed_namespaces.extend(self.finish(pulled)),
                    Err(error) => break Err(error),
                },
                room = self.changed.reserve(), if !changed_namespaces.is_empty() => match (room, changed_namespaces.pop_first()) {
                    (Ok(room), Some(namespace)) => room.send(namespace),
                    _ => break Ok(()),
                },
            }
        };
        pulls.shutdown().await;
        ended
    }

    /// Starts the pulls that are due. Returns when to check again.
    fn start_due(&self, pulls: &mut JoinSet<Pulled>, changed_namespaces: &mut BTreeSet<String>) -> Option<Instant> {
        let now = Instant::now();
        let mut cache = self.shared.lock_cache();
        changed_namespaces.extend(cache.sweep(now));
        let free = MAX_PULLS.saturating_sub(pulls.len());
        for job in cache.take(now, free) {
            let puller = Arc::clone(&self.puller);
            pulls.spawn(async move {
                let outcome = puller.pull(&job).await;
                (job.key, outcome)
            });
        }
        let (bytes, references) = cache.size();
        self.metrics.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.metrics
            .references
            .set(i64::try_from(references).unwrap_or(i64::MAX));
        // While all permits are in use, the end of a pull triggers the next one.
        if pulls.len() >= MAX_PULLS { None } else { cache.next() }
    }

    fn finish(&self, (key, outcome): Pulled) -> BTreeSet<String> {
        let label = match &outcome {
            Ok(_) => "Pulled",
            Err(failure) => failure.reason.as_str(),
        };
        self.metrics.pulls.get_or_create(&Outcome { outcome: label }).inc();
        let image = key.image.manifest_reference(&key.image.target);
        match &outcome {
            Ok(artifact) => tracing::debug!(%image, digest = %artifact.digest, "plugin pulled"),
            Err(failure) => {
                tracing::warn!(%image, reason = %failure.reason, problem = %failure.message, "failed to pull plugin")
            }
        }
        self.shared
            .lock_cache()
            .finish_job(&key, outcome, Instant::now(), retries::random_jitter())
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
