//! From the custom resources of a namespace to the ConfigMaps that its sidecars mount, and back: what sidecars say goes into
//! the objects' status.
//!
//! Flow: `world` watches, `follow` asks the sidecars (`poll`); a change of anything, or dirty of a sidecar, leads to a pass over
//! its namespace (`reconcile`), which reads the objects (`read`), compiles them (`wanted`), takes the next step towards what is
//! wanted (`planned`: [`crate::hand_over`], but for what `settling` and `bare` hold back), writes it (`slots`, `write`) and tells the
//! objects about it (`report`, `status`).
//!
//! Guarantees:
//! - A pass writes nothing if nothing has changed; it can be begun again at any point, by another manager.
//! - A pass waits for no sidecar; it works with what they said last.
//! - What can't be read or makes no sense keeps what it had, and holds up nothing else.
//! - A chain that somebody spoiled is written again.

mod builtin_plugins;
mod bypassed;
mod caches;
mod config_maps;
mod decide;
mod deletion;
mod deliver;
mod desired;
mod dirty_namespaces;
mod fleet;
mod leading;
mod memory;
mod metrics;
mod next_chain;
mod nudges;
mod objects;
mod observe;
mod overlap_grace;
mod plugin_slots;
mod reconcile;
mod report;
mod restarts;
mod rollout;
mod sidecar_poller;
mod sidecar_support;
mod signing_key;
mod start_gate;
mod status;
mod status_client;
#[cfg(test)]
mod tests;
mod uninjected;
mod unreachable_pods;
mod write;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use tokio::sync::mpsc;

use crate::context::Context;
use crate::error::Error;
use crate::gather::gathered;
use crate::oci::Plugins;
use caches::Caches;
use dirty_namespaces::DirtyNamespaces;
pub use plugin_slots::NoRoom;
use reconcile::Distributor;
use sidecar_poller::SidecarPoller;
pub(crate) use signing_key::{SECRET as KEY_SECRET, public as public_key};
use status_client::StatusClient;

/// What it does at the API server, by part.
pub const RULES: &[&[crate::rbac::Rule]] = &[
    caches::RULES,
    signing_key::RULES,
    write::RULES,
    status::RULES,
    report::RULES,
    restarts::RULES,
];

/// Namespaces that are looked at at a time.
const CONCURRENCY: u16 = 16;
/// Namespaces that wait to be looked at because of a plugin; more than that are held back by who fetches.
const FETCHED: usize = 64;
/// How long custom resources are waited for at the start; one whose definition is missing would never come.
const CRD_TIMEOUT: Duration = Duration::from_secs(10);

pub use metrics::Metrics;

/// Runs until it shall stop; passes that have begun are finished.
///
/// # Errors
/// There is no key for chains.
pub async fn run(context: Context) -> Result<(), Error> {
    run_with(context, CRD_TIMEOUT).await
}

async fn run_with(context: Context, crd_timeout: Duration) -> Result<(), Error> {
    let key = signing_key::load(&context).await?;
    let (caches, triggers) = Caches::watch(&context.client, crd_timeout);
    let (changed, fetched) = mpsc::channel(FETCHED);
    let (plugins, worker) = Plugins::of(&context, changed);
    let dirty = Arc::new(DirtyNamespaces::default());
    let triggers = stream::select(triggers, stream::select(namespaces(fetched), dirty.namespaces()));
    let triggers = gathered(triggers, context.args.debounce());
    let stop = context.stop.clone();
    let fetching = worker.run(stop.clone());
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
    let namespaces = controller.store();
    let distributor = Arc::new(Distributor::new(context, caches, namespaces, key, plugins, poller));
    let passes = controller.run(
        pass,
        |namespace, error, distributor| failed(&namespace, error, &distributor),
        distributor,
    );
    let passing = async {
        passes.for_each(async |_| ()).await;
        Ok(())
    };
    let ended = tokio::try_join!(passing, fetching).map(drop);
    metrics.distribution.clear();
    ended
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
        () = distributor.caches.ready() => {}
    }
    distributor.context.metrics.distribution.passes.inc();
    distributor.reconcile(&namespace).await
}

fn failed(namespace: &Namespace, error: &Error, distributor: &Distributor) -> Action {
    distributor.context.metrics.distribution.failed.inc();
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    // Another manager, or somebody, has written meanwhile: what they wrote is seen before the next pass.
    if error.is_conflict() {
        tracing::debug!(%error, namespace = name, "a pass is begun again");
        return Action::requeue(Duration::from_millis(200));
    }
    let pause = distributor.pause(name);
    tracing::warn!(%error, namespace = name, ?pause, "a pass has failed and is begun again");
    Action::requeue(pause)
}
