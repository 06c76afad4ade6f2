//! The labels that selectors of shards use, on namespaces and on the objects in them.
//!
//! Flow: [`rules`](ctrlmesh_manager_planner::labels) say which labels; `kinds` which kinds, from a ConfigMap that is watched. While this manager leads, all objects
//! of these kinds are looked at once, and then as they change; only what differs is written. What fails is tried again.
//!
//! Guarantees: objects are read page by page, as metadata only, and none is kept. Nothing is remembered over a restart: another
//! pass writes what is still missing. All requests take tokens of the one bucket ([`crate::cluster::rate`]), behind everybody else.
//!
//! Leaves new objects to admission ([`crate::webhook`] asks the rules, too); one that was missed there is labelled here.

mod contest;
mod controller;
mod labeller;
mod namespaces;
mod objects;
mod progress;
mod queue;
mod write;

use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_manager_planner::auto_shard::LabelKeys;
use tokio::sync::{Semaphore, mpsc};

use crate::cluster::{Context, Error, Rule, Scope};
use namespaces::Namespaces;
use progress::Report;

/// What it does at the API server. Kinds beyond the default list need a role of their own (`docs/labels.md`).
pub const RULES: &[Rule] = &[
    Rule {
        scope: Scope::Cluster,
        group: "",
        resources: &["namespaces"],
        verbs: &["get", "list", "watch", "patch"],
        names: &[],
    },
    Rule {
        scope: Scope::Cluster,
        group: "",
        resources: &["configmaps", "endpoints", "persistentvolumeclaims", "pods", "services"],
        verbs: &["list", "watch", "patch"],
        names: &[],
    },
    Rule {
        scope: Scope::Cluster,
        group: "apps",
        resources: &["controllerrevisions", "deployments", "replicasets", "statefulsets"],
        verbs: &["list", "watch", "patch"],
        names: &[],
    },
    Rule {
        scope: Scope::Cluster,
        group: "apps.kusionstack.io",
        // The kinds of KusionStack's operating (Kuperator) by name: `*` would be their subresources, too.
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

/// Writes that are under way at once, over all kinds: enough to use up the rate, and few enough that others wait for none.
const MAX_WRITES: usize = 8;
/// Reports that were not read yet.
const MAX_REPORTS: usize = 16;

/// How much of one kind is kept, and how long things are waited for.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Objects that wait to be written. Some three hundred bytes each.
    todo: usize,
    /// Objects that failed, and wait to be tried again.
    failed: usize,
    /// Until what failed is tried again; doubled each time.
    repeat: Duration,
    longest_repeat: Duration,
    /// Between two looks at what kinds the cluster has: a CRD may be installed at any time.
    discover: Duration,
}

const LIMITS: Limits = Limits {
    todo: 8192,
    failed: 1024,
    repeat: Duration::from_mins(1),
    longest_repeat: Duration::from_mins(15),
    discover: Duration::from_secs(30),
};

/// What all followers work with.
#[derive(Clone)]
struct Shared {
    context: Context,
    keys: LabelKeys,
    namespaces: Arc<Namespaces>,
    permits: Arc<Semaphore>,
    reports: mpsc::Sender<Report>,
    limits: Limits,
}

/// Labels namespaces and objects until it shall stop.
///
/// # Errors
/// One of its tasks is gone.
pub async fn run(context: Context) -> Result<(), Error> {
    run_within(context, LIMITS).await
}

async fn run_within(context: Context, limits: Limits) -> Result<(), Error> {
    let (reports, read) = mpsc::channel(MAX_REPORTS);
    let keys = context.args.label_keys();
    let shared = Shared {
        namespaces: Arc::new(Namespaces::new(keys.clone())),
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
