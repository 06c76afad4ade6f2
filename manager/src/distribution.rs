//! From the custom resources of a namespace to the ConfigMaps that its sidecars mount, and back: what sidecars say goes into
//! the objects' status.
//!
//! Flow: `world` watches; a change of anything leads to a pass over its namespace (`reconcile`), which reads the objects
//! (`read`), compiles them (`wanted`), asks the sidecars (`poll`), takes the next step towards what is wanted
//! ([`crate::hand_over`]), writes it (`slots`, `write`) and tells the objects about it (`report`, `status`).
//!
//! Guarantees:
//! - A pass writes nothing if nothing has changed; it can be begun again at any point, by another manager.
//! - What can't be read or makes no sense keeps what it had, and holds up nothing else.
//! - A chain that somebody spoiled is written again.

mod carried;
mod fleet;
mod key;
mod memory;
mod outcome;
mod poll;
mod read;
mod reconcile;
mod report;
mod restart;
mod slots;
mod status;
mod stored;
mod unreachable;
mod wanted;
mod world;
mod write;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;

use crate::context::Context;
use crate::error::Error;
use crate::oci::Plugins;
use reconcile::Distributor;
pub use report::FINALIZER;
pub use slots::NoRoom;
use world::World;

/// What it does at the API server, by part.
pub const RULES: &[&[crate::rbac::Rule]] = &[
    world::RULES,
    key::RULES,
    write::RULES,
    status::RULES,
    report::RULES,
    restart::RULES,
];

/// Namespaces that are looked at at a time.
const CONCURRENCY: u16 = 16;
/// Namespaces that wait to be looked at because of a plugin; more than that are held back by who fetches.
const FETCHED: usize = 64;
/// Until a pass that failed is begun again.
const RETRY: Duration = Duration::from_secs(1);

/// What is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Chains written.
    pub written: Counter,
    /// Passes over a namespace.
    pub passes: Counter,
    /// Passes that failed.
    pub failed: Counter,
    /// Statuses that the API server did not take.
    pub status_failed: Counter,
    /// Hand-overs that went on without pods that could not be reached.
    pub overtaken: Counter,
    /// Pods evicted, to see what their shard shows now.
    pub evicted: Counter,
    /// Evictions that were refused.
    pub evictions_refused: Counter,
}

impl Metrics {
    /// Under their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("chains_written", "Chains written", self.written.clone());
        registry.register("passes", "Passes over a namespace", self.passes.clone());
        registry.register(
            "passes_failed",
            "Passes over a namespace that failed",
            self.failed.clone(),
        );
        registry.register(
            "status_failed",
            "Statuses that the API server did not take",
            self.status_failed.clone(),
        );
        registry.register(
            "handovers_overtaken",
            "Hand-overs that went on without pods that could not be reached",
            self.overtaken.clone(),
        );
        registry.register(
            "pods_evicted",
            "Pods evicted, to see what their shard shows now",
            self.evicted.clone(),
        );
        registry.register(
            "evictions_refused",
            "Evictions that were refused",
            self.evictions_refused.clone(),
        );
    }
}

/// Runs until it shall stop; passes that have begun are finished.
///
/// # Errors
/// There is no key for chains.
pub async fn run(context: Context) -> Result<(), Error> {
    let key = key::load(&context).await?;
    let (world, triggers) = World::watch(&context.client);
    let (changed, fetched) = mpsc::channel(FETCHED);
    let (plugins, worker) = Plugins::of(&context, changed);
    let triggers = stream::select(triggers, namespaces(fetched));
    let (stop, debounce) = (context.stop.clone(), context.args.debounce());
    let fetching = worker.run(stop.clone());
    let client = context.client.clone();
    let distributor = Arc::new(Distributor::new(context, world, key, plugins).map_err(Error::Http)?);
    let controller = Controller::new(Api::<Namespace>::all(client), watcher::Config::default())
        .with_config(Config::default().debounce(debounce).concurrency(CONCURRENCY))
        .reconcile_on(triggers)
        .graceful_shutdown_on(stop.cancelled_owned());
    let passes = controller.run(
        pass,
        |namespace, error, distributor| failed(&namespace, error, &distributor),
        distributor,
    );
    let passing = async {
        passes.for_each(async |_| ()).await;
        Ok(())
    };
    tokio::try_join!(passing, fetching).map(drop)
}

/// Namespaces whose plugins have another resolution than before.
fn namespaces(fetched: mpsc::Receiver<String>) -> impl Stream<Item = ObjectRef<Namespace>> {
    stream::unfold(fetched, async |mut fetched| {
        let namespace = fetched.recv().await?;
        Some((ObjectRef::new(&namespace), fetched))
    })
}

async fn pass(namespace: Arc<Namespace>, distributor: Arc<Distributor>) -> Result<Action, Error> {
    // When the controller ends so do its watches, and what was not seen by then never will be.
    tokio::select! {
        () = distributor.context.stop.cancelled() => return Ok(Action::await_change()),
        () = distributor.world.ready() => {}
    }
    distributor.context.metrics.distribution.passes.inc();
    distributor.reconcile(&namespace).await
}

fn failed(namespace: &Namespace, error: &Error, distributor: &Distributor) -> Action {
    distributor.context.metrics.distribution.failed.inc();
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    // Another manager, or somebody, has written meanwhile: what they wrote is seen before the next pass.
    if matches!(error, Error::Api(kube::Error::Api(status)) if status.code == 409) {
        tracing::debug!(%error, namespace = name, "a pass is begun again");
        return Action::requeue(Duration::from_millis(200));
    }
    tracing::warn!(%error, namespace = name, "a pass has failed and is begun again");
    Action::requeue(RETRY)
}
