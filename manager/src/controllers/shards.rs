//! Makes shards of roots: `spec.root` in, one ShardingConfig for each shard out ([`ctrlmesh_manager_planner::auto_shard()`] decides
//! which).
//!
//! | file | holds |
//! |---|---|
//! | `reconcile` | one pass over a namespace |
//! | `overlapping` | the condition `Overlapping` of shards |
//! | `plan` | the desired shards of a root compared with the existing ones |
//! | `status` | the root's status |
//! | `caches` | watches of ShardingConfigs, namespaces and StatefulSets |
//!
//! Flow: a change in `caches` leads to a pass over its namespace, which compares the desired shards of each root with the existing
//! ones, writes the difference and reports it in the root's status.
//!
//! Guarantees:
//! - Shards are edited in place, never deleted and recreated. A pass writes nothing if nothing has changed.
//! - Only shards that were made from the root are changed: same namespace, its label, owned by its UID. (Shards that KusionStack's
//!   manager made have no owner at all; they are adopted as they are.) While a foreign object has the name of a shard, the
//!   shards stay as they are.
//! - An unreadable or invalid root keeps its shards. So does one that follows the replicas of its StatefulSet, while there is none or
//!   while it has 0 replicas.
//! - The finalizer is added to a root before its first shard is created, and removed after its last is gone. No other part changes
//!   it on a root.
//!
//! Safety. Shards are written one by one, and any order has moments that must not be enforced: one shard is wider already while
//! another is not narrower yet (two owners of an object), or pods have left one shard and are in no other yet. Therefore each shard
//! carries an annotation with its whole set ([`SET`]), and distribution uses a set only when it is complete ([`ctrlmesh_manager_planner::auto_shard::held_back`]). Until
//! then each shard keeps its entries, and a new one has none. The whole set reaches the chain at once, where
//! [`ctrlmesh_manager_planner::hand_over`] takes care of the objects that move: a new shard begins without objects, and gets them
//! when the losing shards have acknowledged. If a manager dies half-way, sidecars keep what they had.

mod caches;
mod overlapping;
mod plan;
mod reconcile;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use kube::runtime::controller::{Action, Config, Controller};

use crate::cluster::{Context, Error, RbacRule, Scope, debounce, run_passes};
use caches::{Caches, NamespaceMeta, Triggers};
use reconcile::Sharder;

pub use ctrlmesh_manager_planner::auto_shard::SET;

/// Permissions at the API server.
pub const RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs"],
        verbs: &["list", "watch", "create", "patch", "delete"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs/status"],
        verbs: &["patch"],
        names: &[],
    },
    // If OwnerReferencesPermissionEnforcement is enabled, setting blockOwnerDeletion needs this permission.
    RbacRule {
        scope: Scope::Cluster,
        group: "ctrlmesh.kusionstack.io",
        resources: &["shardingconfigs/finalizers"],
        verbs: &["update"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["namespaces"],
        verbs: &["list", "watch"],
        names: &[],
    },
    // For roots that follow the replicas of their StatefulSets.
    RbacRule {
        scope: Scope::Cluster,
        group: "apps",
        resources: &["statefulsets"],
        verbs: &["list", "watch"],
        names: &[],
    },
];

const MAX_CONCURRENT_PASSES: u16 = 8;
/// Pause before a failed pass is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Time after which a namespace is checked again although nothing has changed.
const RESYNC: Duration = Duration::from_mins(5);

/// Runs until the manager stops; passes that have begun are finished.
///
/// # Errors
/// A part panicked. Other failures are logged and retried.
pub async fn run(context: Context) -> Result<(), Error> {
    let (caches, triggers) = Caches::watch(&context.client, context.args.label_keys());
    let roots = follow_roots(context.clone(), caches.clone(), triggers);
    tokio::try_join!(roots, overlapping::run(context, caches)).map(drop)
}

async fn follow_roots(context: Context, caches: Caches, triggers: Triggers) -> Result<(), Error> {
    let stop = context.stop.clone();
    let triggers = debounce(triggers, context.args.debounce_time());
    let namespaces = caches.namespace_store();
    let controller = Controller::for_stream(stream::pending(), namespaces.clone())
        .with_config(Config::default().concurrency(MAX_CONCURRENT_PASSES))
        .reconcile_on(triggers)
        .graceful_shutdown_on(stop.clone().cancelled_owned());
    let passes = controller.run(
        run_pass,
        |namespace, error, sharder| requeue_failed(&namespace, error, &sharder),
        Arc::new(Sharder { context, caches }),
    );
    run_passes(passes, &namespaces, &stop).await;
    Ok(())
}

async fn run_pass(namespace: Arc<NamespaceMeta>, sharder: Arc<Sharder>) -> Result<Action, Error> {
    tokio::select! {
        () = sharder.context.stop.cancelled() => return Ok(Action::await_change()),
        () = sharder.caches.wait_until_ready() => {}
    }
    sharder.reconcile(&namespace).await
}

fn requeue_failed(namespace: &NamespaceMeta, error: &Error, sharder: &Sharder) -> Action {
    sharder.context.metrics.shards.failed.inc();
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    if error.is_conflict() {
        tracing::debug!(%error, namespace = name, "conflict while writing shards; retrying");
        return Action::requeue(Duration::from_millis(200));
    }
    tracing::warn!(%error, namespace = name, "failed to write shards; retrying");
    Action::requeue(RETRY_PAUSE)
}
