//! Shards that are made from roots: `spec.root` in, one ShardingConfig for each shard out ([`ctrlmesh_manager_planner::auto_shard()`] says which).
//!
//! Flow: `caches` watches ShardingConfigs and namespaces; a change leads to a pass over its namespace (`reconcile`), which compares
//! what each root wants with what there is (`plan`, pure), writes the difference and tells the root about it (`status`).
//!
//! Guarantees:
//! - Shards are edited in place, never deleted and made again. A pass writes nothing if nothing has changed.
//! - Only what was made from the root is touched: same namespace, its label, owned by its uid. (Shards that KusionStack's manager
//!   made have no owner at all; they are taken over as they are.) As long as an object of somebody else has the name of a shard, the
//!   shards stay as they are.
//! - A root that can't be read or makes no sense keeps its shards.
//! - The finalizer goes onto a root before its first shard is made, and off after its last is gone. Nobody else touches it on a root.
//!
//! Safety. Shards are written one by one, and every order of that has moments that must not be enforced: a shard that is wider
//! already beside one that is not narrower yet (two owners of an object), or pods that are in a shard no more and in none yet.
//! Therefore each shard carries a mark of the whole set that it is a part of ([`SET`]), and distribution takes a set only when
//! it is whole ([`held_back`]): until then each shard keeps the entries that it had, and a new one has none. All of a set
//! reaches the chain at once, where [`ctrlmesh_manager_planner::hand_over`] takes care of the objects that move: a new shard
//! begins without objects, and gets them when those that lose them have acknowledged. A manager that dies half-way leaves
//! sidecars with what they had.

mod caches;
mod overlapping;
mod plan;
mod reconcile;
mod sets;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use kube::runtime::controller::{Action, Config, Controller};

use crate::cluster::{Context, Error, Rule, Scope, debounce};
use caches::{Caches, NamespaceMeta, Triggers};
use reconcile::Sharder;
pub(crate) use sets::held_back;

pub use ctrlmesh_manager_planner::auto_shard::SET;

/// What it does at the API server.
pub const RULES: &[Rule] = &[
    Rule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs"],
        verbs: &["list", "watch", "create", "patch", "delete"],
        names: &[],
    },
    Rule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs/status"],
        verbs: &["patch"],
        names: &[],
    },
    // Where OwnerReferencesPermissionEnforcement is on, who sets blockOwnerDeletion needs it.
    Rule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs/finalizers"],
        verbs: &["update"],
        names: &[],
    },
    Rule {
        scope: Scope::Cluster,
        group: "",
        resources: &["namespaces"],
        verbs: &["list", "watch"],
        names: &[],
    },
];

/// Namespaces that are looked at at a time.
const CONCURRENCY: u16 = 8;
/// Until a pass that failed is begun again.
const RETRY: Duration = Duration::from_secs(2);
/// Until a namespace is looked at again though nothing has changed.
const RESYNC: Duration = Duration::from_mins(5);

/// Runs until it shall stop; passes that have begun are finished.
///
/// # Errors
/// A part of it panicked; other failures are logged, and what failed is done again.
pub async fn run(context: Context) -> Result<(), Error> {
    let (caches, triggers) = Caches::watch(&context.client, context.args.label_keys());
    let roots = follow_roots(context.clone(), caches.clone(), triggers);
    tokio::try_join!(roots, overlapping::run(context, caches)).map(drop)
}

async fn follow_roots(context: Context, caches: Caches, triggers: Triggers) -> Result<(), Error> {
    let stop = context.stop.clone();
    let triggers = debounce(triggers, context.args.debounce());
    let reader = caches.namespaces();
    let controller = Controller::for_stream(stream::pending(), reader)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .reconcile_on(triggers)
        .graceful_shutdown_on(stop.cancelled_owned());
    let passes = controller.run(
        pass,
        |namespace, error, sharder| failed(&namespace, error, &sharder),
        Arc::new(Sharder { context, caches }),
    );
    passes.for_each(async |_| ()).await;
    Ok(())
}

async fn pass(namespace: Arc<NamespaceMeta>, sharder: Arc<Sharder>) -> Result<Action, Error> {
    tokio::select! {
        () = sharder.context.stop.cancelled() => return Ok(Action::await_change()),
        () = sharder.caches.ready() => {}
    }
    sharder.reconcile(&namespace).await
}

fn failed(namespace: &NamespaceMeta, error: &Error, sharder: &Sharder) -> Action {
    sharder.context.metrics.shards.failed.inc();
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    if error.is_conflict() {
        tracing::debug!(%error, namespace = name, "conflict while writing shards; retrying");
        return Action::requeue(Duration::from_millis(200));
    }
    tracing::warn!(%error, namespace = name, "failed to write shards; retrying");
    Action::requeue(RETRY)
}
