//! References to components in OCI registries: from `oci://host/repository:tag` to bytes that sidecars may run.
//!
//! Flow: [`Plugins::resolve`] answers at once with what is known, and remembers who asked. [`Worker::run`] fetches what is new,
//! looks again where that makes sense, and names the namespaces that see something else than before.
//!
//! Guarantees: what is Ready has the digest that its manifest and the registry's blob agree on, the signature that the object
//! asks for, and the world of a plugin. A tag is resolved once; what it led to is pinned in the object's status, and a new
//! manager fetches that. A failure never takes away what was resolved before (`last`). Registries are asked by the manager alone.
//!
//! Assumes that each object's plugins are asked for again when their namespace is named, and that the status is written.

mod artifact;
mod cache;
mod clients;
mod component;
mod failure;
mod http;
mod layout;
mod login;
mod objects;
mod pull;
mod pull_secret;
mod reach;
mod reference;
mod settings;
mod signature;
mod tries;

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
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use artifact::{Artifact, pack};
pub(crate) use component::interface;
pub use failure::Reason;
pub use objects::Found;
pub use settings::{Proxies, Settings, Times};
pub use signature::VerificationKey;

use crate::api::plugin::{PluginStatus, PullPolicy};
use crate::context::Context;
use crate::error::Error;
use crate::rbac::{Rule, Scope};
use cache::{Cache, Key};
use failure::Failure;
use pull::Puller;

/// What it does at the API server: reads the Secrets that `pullSecret` names. One by one: nothing is listed or watched.
pub const RULES: &[Rule] = &[Rule {
    scope: Scope::Cluster,
    group: "",
    resources: &["secrets"],
    verbs: &["get"],
    names: &[],
}];

/// Pulls at a time: each holds a component, and its packed form, in memory.
const MAX_PULLS: usize = 4;

/// A plugin of an object, to be resolved.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Namespace of the object; the Secret is there too.
    pub namespace: String,
    /// `spec.plugins[].image`.
    pub image: String,
    /// `spec.plugins[].pullPolicy`.
    pub pull_policy: PullPolicy,
    /// `spec.plugins[].pullSecret`.
    pub pull_secret: Option<String>,
    /// `spec.plugins[].verificationKey`.
    pub verification_key: Option<String>,
    /// What the object's status says of it.
    pub pinned: Option<PluginStatus>,
}

/// What is known of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Not yet.
    Pending,
    /// It can be distributed.
    Ready(Arc<Artifact>),
    /// It can't.
    Failed {
        /// For a condition.
        reason: Reason,
        /// For people.
        message: String,
        /// What it was before, for the same reference: goes on being run.
        last: Option<Arc<Artifact>>,
    },
}

/// How a pull ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// What is counted.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pulls: Family<Outcome, Counter>,
    bytes: Gauge,
    references: Gauge,
}

impl Metrics {
    /// Under their names.
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
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The plugins of all objects. Cheap to clone.
#[derive(Clone)]
pub struct Plugins(Arc<Shared>);

/// Fetches what [`Plugins`] are asked for.
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
    /// Nothing is fetched before the worker runs. It sends the names of namespaces whose plugins have another resolution than
    /// before to `changed`.
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

    /// With the flags and the environment of a manager.
    #[must_use]
    pub fn of(context: &Context, changed: mpsc::Sender<String>) -> (Self, Worker) {
        let settings = Settings::new(&context.args, |name| std::env::var(name).ok());
        Self::new(context.client.clone(), settings, changed, context.metrics.oci.clone())
    }

    /// What is known now. Never waits; the namespace is named once there is more to know.
    #[must_use]
    pub fn resolve(&self, ask: &Ask) -> Resolution {
        let key = match Key::new(ask) {
            Ok(key) => key,
            Err(Failure { reason, message, .. }) => {
                let last = None;
                return Resolution::Failed { reason, message, last };
            }
        };
        let (resolution, is_new) = self.0.cache().ask(key, &ask.namespace, Instant::now());
        if is_new {
            self.0.wake.notify_one();
        }
        resolution
    }
}

type Pulled = (Key, Result<Arc<Artifact>, Failure>);

impl Worker {
    /// Runs until it shall stop, or nobody listens.
    ///
    /// # Errors
    /// A pull has panicked.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let mut pulls: JoinSet<Pulled> = JoinSet::new();
        let mut told: BTreeSet<String> = BTreeSet::new();
        let ended = loop {
            let next = self.start_due(&mut pulls, &mut told);
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                () = self.shared.wake.notified() => {}
                () = at(next) => {}
                Some(pulled) = pulls.join_next() => match pulled {
                    Ok(pulled) => told.extend(self.finish(pulled)),
                    Err(error) => break Err(error.into()),
                },
                room = self.changed.reserve(), if !told.is_empty() => match (room, told.pop_first()) {
                    (Ok(room), Some(namespace)) => room.send(namespace),
                    _ => break Ok(()),
                },
            }
        };
        pulls.shutdown().await;
        ended
    }

    /// Starts what is due, and says when to look again.
    fn start_due(&self, pulls: &mut JoinSet<Pulled>, told: &mut BTreeSet<String>) -> Option<Instant> {
        let now = Instant::now();
        let mut cache = self.shared.cache();
        told.extend(cache.sweep(now));
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
        // While all are busy, the next one starts when one of them ends.
        if pulls.len() >= MAX_PULLS { None } else { cache.next() }
    }

    fn finish(&self, (key, outcome): Pulled) -> BTreeSet<String> {
        let label = match &outcome {
            Ok(_) => "Pulled",
            Err(failure) => failure.reason.as_str(),
        };
        self.metrics.pulls.get_or_create(&Outcome { outcome: label }).inc();
        let image = key.image.at(&key.image.target);
        match &outcome {
            Ok(artifact) => tracing::debug!(%image, digest = %artifact.digest, "plugin is there"),
            Err(failure) => tracing::warn!(%image, reason = %failure.reason, problem = %failure.message, "no plugin"),
        }
        self.shared.cache().done(&key, outcome, Instant::now(), tries::random())
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
