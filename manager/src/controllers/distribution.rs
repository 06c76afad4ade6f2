//! Distributes the custom resources of a namespace as a signed chain to its sidecars, and reports back in the objects' status.
//!
//! | file | what it holds |
//! |---|---|
//! | `distribution.rs` | the controller: one pass over a namespace is observe → decide → act → status |
//! | `observe.rs` | fills an [`Observation`](ctrlmesh_manager_rollout::observation::Observation) with everything that a pass decides on; watch caches |
//! | `observe/named_plugins.rs` | what the plugin references of ShardingConfigs resolve to |
//! | `observe/sidecar_poller.rs` | background tasks that poll sidecars, and trigger passes |
//! | `act.rs` | all writes but status: ConfigMaps, nudges, evictions, finalizers |
//! | `status.rs` | the one writer of objects' status, and of Events about it |
//! | `signing_key.rs` | the key that chains are signed with |
//!
//! [`ctrlmesh_manager_rollout::decide`] decides in between. It is pure, and lies in a crate that can't reach a cluster.
//!
//! # Walk: somebody edits a ShardingConfig
//!
//! 1. A watch cache sees the edit and triggers a pass over its namespace.
//! 2. `observe` reads objects, ConfigMaps and pods from the caches, and takes the last report of each sidecar.
//! 3. `decide` compiles the objects, plans the next step of the hand-over, and lists what has to be written.
//! 4. `act` writes plugins and the chain, and nudges pods, so that kubelet syncs their volumes now.
//! 5. `status` patches the conditions of the objects that say something new.
//! 6. `sidecar_poller` notices that a sidecar runs the new chain, and triggers the next pass, until nothing is left to do.
//!
//! # Guarantees
//! - A pass writes nothing if nothing has changed. Any manager can start it again at any point.
//! - A pass waits for no sidecar. It works with their last reports.
//! - Objects that are unreadable or invalid keep what they had, and hold up no others.
//! - A damaged chain is written again.

mod act;
mod observe;
mod signing_key;
mod status;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ctrlmesh_contract::signature::{PublicKeys, SigningKey};
use ctrlmesh_manager_rollout::pass_state::{MAX_UNPOLLED_WAIT, PassState};
use ctrlmesh_manager_rollout::{decide, known_uninjected};
use futures_util::{Stream, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use tokio::sync::mpsc;

use crate::cluster::lock_unpoisoned;
use crate::cluster::{Context, Error, debounce, run_passes};
use crate::controllers::plugins;
use observe::sidecar_poller::{DirtyNamespaces, SidecarPoller, StatusClient};
use observe::{Caches, Observer};
pub(crate) use signing_key::public_key;

/// Permissions by part.
pub const RULES: &[&[crate::cluster::RbacRule]] = &[
    observe::RULES,
    signing_key::RULES,
    act::RULES,
    status::RULES,
    act::FINALIZER_RULES,
    act::RESTART_RULES,
];

/// Namespaces that are reconciled at a time.
const CONCURRENCY: u16 = 16;
/// Queue of namespaces whose plugins were fetched. The fetcher waits when it is full.
const FETCHED_QUEUE: usize = 64;
/// Maximum time that a start waits for custom resources. A kind whose definition is missing would never be synced.
const CRD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause until the caches are checked again for our last writes, if no watch triggers a pass before.
const UNSEEN_WRITE_REQUEUE: Duration = Duration::from_millis(200);
/// Pause after objects of a namespace that is being deleted were released.
const RELEASE_REQUEUE: Duration = Duration::from_secs(1);
/// Pause after a write conflict. The other write is seen by then.
const CONFLICT_REQUEUE: Duration = Duration::from_millis(200);

/// Runs until the process stops or another manager leads. Passes that have started are finished.
///
/// # Errors
/// The key that chains are signed with can't be read or created.
pub async fn run(context: Context) -> Result<(), Error> {
    run_with(context, CRD_TIMEOUT).await
}

async fn run_with(context: Context, crd_timeout: Duration) -> Result<(), Error> {
    let key = signing_key::load_key(&context).await?;
    let (caches, triggers) = Caches::watch(&context.client, crd_timeout);
    let (changed, fetched) = mpsc::channel(FETCHED_QUEUE);
    let (plugins, worker) = plugins::start_fetching(&context, changed);
    let dirty = Arc::new(DirtyNamespaces::default());
    let triggers = stream::select(
        triggers,
        stream::select(fetched_namespaces(fetched), dirty.namespaces()),
    );
    let triggers = debounce(triggers, context.args.debounce_time());
    let stop = context.stop.clone();
    let fetching = worker.run(stop.clone());
    let fetching = async { fetching.await.map_err(Error::from) };
    let controller = Controller::new(
        Api::<Namespace>::all(context.client.clone()),
        watcher::Config::default(),
    )
    .with_config(Config::default().concurrency(CONCURRENCY))
    .reconcile_on(triggers)
    .graceful_shutdown_on(stop.cancelled_owned());
    let metrics = Arc::clone(&context.metrics);
    let client = StatusClient::new(context.args.sidecar_port).map_err(Error::Http)?;
    let longest = Duration::from_secs(context.args.poll_seconds);
    let poller = SidecarPoller::new(client, longest, dirty, Arc::clone(&metrics));
    let keys = PublicKeys::from(key.public_key());
    let (namespaces, stop) = (controller.store(), context.stop.clone());
    let distributor = Arc::new(Distributor {
        observer: Observer::new(context.clone(), caches, poller, plugins, keys),
        namespaces: namespaces.clone(),
        pass_states: Mutex::default(),
        key,
        context,
    });
    let passes = controller.run(
        reconcile_namespace,
        |namespace, error, distributor| requeue_after_error(&namespace, error, &distributor),
        distributor,
    );
    let passing = async {
        run_passes(passes, &namespaces, &stop).await;
        Ok(())
    };
    let ended = tokio::try_join!(passing, fetching).map(drop);
    metrics.distribution.clear();
    ended
}

/// Namespaces whose plugins resolve to something else than before.
fn fetched_namespaces(fetched: mpsc::Receiver<String>) -> impl Stream<Item = ObjectRef<Namespace>> {
    stream::unfold(fetched, async |mut fetched| {
        let namespace = fetched.recv().await?;
        Some((ObjectRef::new(&namespace), fetched))
    })
}

async fn reconcile_namespace(namespace: Arc<Namespace>, distributor: Arc<Distributor>) -> Result<Action, Error> {
    // The watches end with the controller, so caches that are not synced by then never will be.
    tokio::select! {
        () = distributor.context.stop.cancelled() => return Ok(Action::await_change()),
        () = distributor.observer.caches.wait_until_synced() => {}
    }
    distributor.context.metrics.distribution.passes.inc();
    distributor.forget_deleted_namespaces();
    let name = namespace.name_any();
    if namespace.metadata.deletion_timestamp.is_some() {
        return Ok(distributor.release_namespace(&name).await);
    }
    distributor.run_pass(&name).await
}

fn requeue_after_error(namespace: &Namespace, error: &Error, distributor: &Distributor) -> Action {
    distributor.context.metrics.distribution.passes_failed.inc();
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    if error.is_conflict() {
        tracing::debug!(%error, namespace = name, "write conflict; retrying");
        return Action::requeue(CONFLICT_REQUEUE);
    }
    let delay = distributor.pass_state(name).retry_delay();
    tracing::warn!(%error, namespace = name, ?delay, "failed to distribute; retrying");
    Action::requeue(delay)
}

struct Distributor {
    context: Context,
    observer: Observer,
    key: SigningKey,
    namespaces: Store<Namespace>,
    pass_states: Mutex<HashMap<String, PassState>>,
}

impl Distributor {
    async fn run_pass(&self, namespace: &str) -> Result<Action, Error> {
        let pass_state = self.pass_state(namespace);
        let cached = self.observer.cached(namespace);
        if cached.documents.is_empty() && pass_state.is_idle(&cached.config_maps) {
            self.observer.poller.retain(|other| other != namespace);
            return Ok(Action::await_change());
        }
        if pass_state.has_unseen_writes(&cached.config_maps, Instant::now()) {
            return Ok(Action::requeue(UNSEEN_WRITE_REQUEUE));
        }
        let mut observation = self
            .observer
            .observe(namespace, cached, pass_state.remembered())
            .await?;
        match known_uninjected(&observation, &pass_state) {
            Some(known) => observation.fleet.uninjected = known,
            None => self.observer.list_uninjected(&mut observation).await,
        }

        let (decision, mut pass_state) = decide(&observation, pass_state);
        let Some(decision) = decision else {
            self.remember(namespace, pass_state);
            return Ok(Action::requeue(MAX_UNPOLLED_WAIT));
        };

        if let Some(pod) = &decision.states.rolled_back_by {
            let stored = observation.config_maps.chain.as_ref();
            tracing::warn!(
                namespace,
                generation = stored.map(|chain| chain.generation),
                pod,
                "sidecar runs a later chain than the stored one; all shards give up what they show, and get it again"
            );
        }
        if let Some(pods) = &decision.awaited {
            self.observer.poller.prioritize(namespace, pods);
        }
        let (outcome, written) = act::carry_out(&self.context, &self.key, &observation, &decision).await;
        pass_state.record(&observation, &decision, &outcome, Instant::now());
        let retry = (outcome.nudges_failed > 0).then(|| pass_state.retry_delay());
        self.remember(namespace, pass_state);

        // Reports that are still missing would make conditions flap.
        if !decision.states.awaits_reports {
            let done = act::update_finalizers(&self.context, &observation, &decision).await;
            status::publish_all(&self.context, &observation, &decision, &outcome, &done).await;
        }
        written?;
        let longest = Duration::from_secs(self.context.args.poll_seconds);
        let pauses = [decision.requeue_after, retry].into_iter().flatten();
        Ok(Action::requeue(pauses.fold(longest, Duration::min)))
    }

    /// Releases the objects of a namespace that is being deleted. They go before its pods, which keep their chain to the end.
    async fn release_namespace(&self, namespace: &str) -> Action {
        self.observer.poller.retain(|other| other != namespace);
        let documents = self.observer.caches.documents(namespace);
        if act::release_all(&self.context, namespace, &documents).await {
            Action::requeue(RELEASE_REQUEUE)
        } else {
            Action::await_change()
        }
    }

    fn pass_states(&self) -> MutexGuard<'_, HashMap<String, PassState>> {
        lock_unpoisoned(&self.pass_states)
    }

    fn pass_state(&self, namespace: &str) -> PassState {
        self.pass_states().get(namespace).cloned().unwrap_or_default()
    }

    fn remember(&self, namespace: &str, pass_state: PassState) {
        let mut all = self.pass_states();
        all.insert(namespace.to_owned(), pass_state);
        let gauges = all.values().map(|pass_state| &pass_state.gauges);
        let metrics = &self.context.metrics.distribution;
        metrics.update_gauges(gauges, &self.observer.caches.unsynced_kinds());
    }

    /// Forgets namespaces that no longer exist.
    fn forget_deleted_namespaces(&self) {
        let is_there = |name: &str| self.namespaces.get(&ObjectRef::new(name)).is_some();
        self.pass_states().retain(|name, _| is_there(name));
        self.observer.poller.retain(is_there);
    }
}
