//! Sets the labels that selectors of shards use, on namespaces and on the objects in them.
//!
//! | file | holds |
//! |---|---|
//! | `controller` | one task for each kind that the ConfigMap names |
//! | `objects`, `namespaces` | the objects of a kind, or the namespaces: listed page by page, then watched |
//! | `labeller` | what a task does with an object or a namespace: queues it, writes it, tries again |
//! | `queue` | what waits to be written |
//! | `write` | one write |
//! | `managed_namespaces` | which namespaces are managed |
//! | `progress`, `write_limiter` | progress of the first pass; a limit for labels that somebody else keeps undoing. Pure |
//!
//! Flow: [`ctrlmesh_manager_planner::labels`] decides the labels, and which kinds the watched ConfigMap names. While this manager
//! leads, all objects of these kinds are checked once, and then as they change. Only differences are written. Failed writes are
//! retried.
//!
//! Guarantees: objects are read page by page, as metadata only, and none is kept. Nothing is remembered over a restart: another
//! pass writes what is still missing. All requests take tokens of the one bucket ([`crate::cluster::rate`]), behind all others.
//!
//! Admission labels new objects ([`crate::webhook`] uses the rules, too); objects that were missed there are labelled here.

mod controller;
mod labeller;
mod managed_namespaces;
mod namespaces;
mod objects;
mod progress;
mod queue;
mod write;
mod write_limiter;

use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_manager_planner::auto_shard::LabelKeys;
use tokio::sync::{Semaphore, mpsc};

use crate::cluster::{Context, Error, RbacRule, Scope};
use managed_namespaces::ManagedNamespaces;
use progress::Report;

/// Permissions at the API server. Kinds beyond the default list need a role of their own (`docs/labels.md`).
pub const RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["namespaces"],
        verbs: &["get", "list", "watch", "patch"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["configmaps", "endpoints", "persistentvolumeclaims", "pods", "services"],
        verbs: &["list", "watch", "patch"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "apps",
        resources: &["controllerrevisions", "deployments", "replicasets", "statefulsets"],
        verbs: &["list", "watch", "patch"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "apps.kusionstack.io",
        // The kinds of KusionStack's operating (Kuperator) by name, because `*` would include their subresources.
        resources: &[
            "collasets",
            "operationjobs",
            "poddecorations",
            "podtransitionrules",
            "resourcecontexts",
        ],
        verbs: &["list", "watch", "patch"],
        names: &[],
    },
];

/// Maximum concurrent writes, over all kinds: enough to use up the rate, and few enough that other work does not wait for them.
const MAX_WRITES: usize = 8;
/// Maximum reports that are not read yet.
const MAX_REPORTS: usize = 16;

/// Limits of queues, and pauses, for one kind.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Maximum objects that wait to be written, about 300 bytes each.
    todo: usize,
    /// Maximum objects whose write failed and is to be retried.
    failed: usize,
    /// Pause before failed writes are retried; it doubles.
    repeat: Duration,
    longest_repeat: Duration,
    /// Time between two discoveries of the cluster's kinds, because a CRD may be installed at any time.
    discover: Duration,
}

const LIMITS: Limits = Limits {
    todo: 8192,
    failed: 1024,
    repeat: Duration::from_mins(1),
    longest_repeat: Duration::from_mins(15),
    discover: Duration::from_secs(30),
};

/// Shared by the followers of all kinds.
#[derive(Clone)]
struct Shared {
    context: Context,
    keys: LabelKeys,
    namespaces: Arc<ManagedNamespaces>,
    permits: Arc<Semaphore>,
    reports: mpsc::Sender<Report>,
    limits: Limits,
}

/// Labels namespaces and objects until the manager stops.
///
/// # Errors
/// One of its tasks panicked.
pub async fn run(context: Context) -> Result<(), Error> {
    run_within(context, LIMITS).await
}

async fn run_within(context: Context, limits: Limits) -> Result<(), Error> {
    let (reports, read) = mpsc::channel(MAX_REPORTS);
    let keys = context.args.label_keys();
    let shared = Shared {
        namespaces: Arc::new(ManagedNamespaces::new(keys.clone())),
        permits: Arc::new(Semaphore::new(MAX_WRITES)),
        context,
        keys,
        reports,
        limits,
    };
    controller::run(shared, read).await
}

#[cfg(test)]
mod tests;
