//! Who leads runs the controllers. Several managers may run; one leads.
//!
//! Caveat: the lock says who should lead, not who does: for a moment an old leader may still write. What must not be written by
//! two (the chain) is written with the version that it was read at.

use std::time::Duration;

use kube_lease_manager::{LeaseManager, LeaseManagerBuilder};
use tokio::task::JoinSet;

use crate::context::{Context, FIELD_MANAGER};
use crate::distribution;
use crate::error::Error;
use crate::labels;
use crate::manager_state;
use crate::rbac::{Rule, Scope};
use crate::shards;
use crate::webhook::certificate;

/// Name of the Lease; KusionStack's manager has the same.
const LOCK: &str = "ctrlmesh-manager";

/// How long controllers may take to end.
const STOP: Duration = Duration::from_secs(5);

/// What the lock needs.
pub const RULES: &[Rule] = &[
    Rule {
        scope: Scope::Namespace,
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        names: &[],
    },
    Rule {
        scope: Scope::Namespace,
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "patch"],
        names: &[LOCK],
    },
];

/// Waits for the lock, leads while it is held, and waits again, until the process stops. Gives the lock back at the end.
///
/// # Errors
/// The lock can't be used, or a controller failed.
pub async fn run(context: Context) -> Result<(), Error> {
    let (mut is_leader, renewing) = lock(&context).await?.watch().await;
    let outcome = loop {
        if *is_leader.borrow_and_update() {
            tracing::info!("leading");
            context.metrics.leader.set(1);
            let ended = lead(&context, &mut is_leader).await;
            context.metrics.leader.set(0);
            tracing::info!("no longer leading");
            if ended.is_err() || context.stop.is_cancelled() {
                break ended;
            }
        }
        tokio::select! {
            () = context.stop.cancelled() => break Ok(()),
            changed = is_leader.changed() => if changed.is_err() { break Ok(()) },
        }
    };
    drop(is_leader);
    let released = renewing.await?;
    outcome.and(released.map(drop).map_err(Error::from))
}

async fn lock(context: &Context) -> Result<LeaseManager, Error> {
    let args = &context.args;
    let grace = (args.lease_seconds / 3).max(1);
    let builder = LeaseManagerBuilder::new(context.urgent.clone(), LOCK)
        .with_namespace(&args.namespace)
        .with_identity(&args.pod_name)
        .with_field_manager(format!("{FIELD_MANAGER}-{}", args.pod_name))
        .with_duration(args.lease_seconds)
        .with_grace(grace);
    Ok(builder.build().await?)
}

/// Runs every controller until one fails, the lock is lost, or the process stops.
async fn lead(context: &Context, is_leader: &mut tokio::sync::watch::Receiver<bool>) -> Result<(), Error> {
    let stop = context.stop.child_token();
    let context = context.until(stop.clone());
    let mut controllers: JoinSet<Result<(), Error>> = JoinSet::new();
    controllers.spawn(distribution::run(context.clone()));
    controllers.spawn(labels::run(context.clone()));
    controllers.spawn(manager_state::run(context.clone()));
    controllers.spawn(shards::run(context.clone()));
    controllers.spawn(certificate::run(context.clone()));
    let first = tokio::select! {
        () = stop.cancelled() => Ok(()),
        _ = is_leader.wait_for(|is_leader| !is_leader) => Ok(()),
        Some(ended) = controllers.join_next() => ended?,
    };
    stop.cancel();
    let ended = tokio::time::timeout(STOP, async {
        while let Some(ended) = controllers.join_next().await {
            ended??;
        }
        Ok(())
    });
    match ended.await {
        Ok(ended) => first.and(ended),
        // Whoever waits for the lock should not wait for them.
        Err(_) => {
            tracing::warn!(
                controllers = controllers.len(),
                "controllers did not end in time and are cut off"
            );
            controllers.shutdown().await;
            first
        }
    }
}
