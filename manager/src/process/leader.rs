//! Runs the controllers while this manager is the leader. Several managers may run; one leads.
//!
//! A leader that can't reach the lease stops before the lease expires: it steps down after two thirds of the lease's duration,
//! counted from the start of the last renewal on its own clock. The controllers have the rest to stop.
//!
//! Caveat: the lease says who should lead, not who does: for a moment an old leader may still write. Objects that must not be
//! written by two (the chain) are written with the version that was read.

mod lease_state;

use std::time::Duration;

use ctrlmesh_manager_api::FIELD_MANAGER;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::certificates::{mesh_ca, webhook_ca};
use crate::cluster::{Context, Error, RbacRule, Scope};
use crate::controllers::{distribution, labels, manager_state, shards};
use lease_state::LeaseState;

/// Name of the Lease; KusionStack's manager has the same.
const LOCK: &str = "ctrlmesh-manager";

/// Maximum time for controllers to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before the lease is requested again, if there was no response.
const LEASE_RETRY: Duration = Duration::from_secs(1);

/// Permissions for the lease.
pub const RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Namespace,
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Namespace,
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "patch"],
        names: &[LOCK],
    },
];

/// Waits for the lease, leads while it is held, and waits again, until the process stops. Releases the lease at the end.
///
/// # Errors
/// The lease can't be used, or a controller failed.
pub async fn run(context: Context) -> Result<(), Error> {
    let time = Duration::from_secs(context.args.lease_seconds);
    let (renewed, seen) = watch::channel(None);
    let Some(lock) = reach_lease(&context, renewed).await? else {
        return Ok(());
    };
    let (is_leader, renewing) = lock.watch().await;
    let mut lock = LeaseState::new(is_leader, seen, time * 2 / 3);
    let outcome = loop {
        tokio::select! {
            () = context.stop.cancelled() => break Ok(()),
            is_held = lock.wait_until_held() => if !is_held { break Ok(()) },
        }
        tracing::info!("started leading");
        context.metrics.leader.set(1);
        let ended = run_controllers(&context, &mut lock, STOP_TIMEOUT.min(time / 3)).await;
        context.metrics.leader.set(0);
        tracing::info!("stopped leading");
        if ended.is_err() || context.stop.is_cancelled() {
            break ended;
        }
    };
    drop(lock);
    let released = renewing.await?;
    outcome.and(released.map(drop).map_err(Error::from))
}

/// The lease, once the API server has answered. An unreachable API server is waited for: if the process exited, it would only be
/// restarted with growing pauses. `None`: the process stops.
async fn reach_lease(
    context: &Context,
    renewed: watch::Sender<Option<Instant>>,
) -> Result<Option<LeaseManager>, Error> {
    loop {
        let error = match build_lease_manager(context, renewed.clone()).await {
            Ok(lock) => return Ok(Some(lock)),
            Err(error) => error,
        };
        // A response of the API server, for example about permissions, is permanent.
        if matches!(&error, Error::Lease(LeaseManagerError::KubeError(kube::Error::Api(_)))) {
            return Err(error);
        }
        tracing::warn!(%error, "failed to reach the lease; retrying");
        tokio::select! {
            () = context.stop.cancelled() => return Ok(None),
            () = sleep(LEASE_RETRY) => {}
        }
    }
}

async fn build_lease_manager(
    context: &Context,
    renewed: watch::Sender<Option<Instant>>,
) -> Result<LeaseManager, Error> {
    let args = &context.args;
    // The lease is renewed this long before its end, so that a failed renewal is retried in time.
    let grace = args.lease_seconds - (args.lease_seconds / 5).max(1);
    let client = lease_state::with_lease_witness(&context.urgent, &args.pod_name, renewed);
    let builder = LeaseManagerBuilder::new(client, LOCK)
        .with_namespace(&args.namespace)
        .with_identity(&args.pod_name)
        .with_field_manager(format!("{FIELD_MANAGER}-{}", args.pod_name))
        .with_duration(args.lease_seconds)
        .with_grace(grace);
    Ok(builder.build().await?)
}

/// Runs every controller until one fails, the lease is lost, or the process stops.
async fn run_controllers(context: &Context, lock: &mut LeaseState, to_end: Duration) -> Result<(), Error> {
    let stop = context.stop.child_token();
    let context = context.with_stop(stop.clone());
    let mut controllers: JoinSet<Result<(), Error>> = JoinSet::new();
    controllers.spawn(distribution::run(context.clone()));
    controllers.spawn(labels::run(context.clone()));
    controllers.spawn(manager_state::run(context.clone()));
    controllers.spawn(shards::run(context.clone()));
    controllers.spawn(webhook_ca::run(context.clone()));
    controllers.spawn(mesh_ca::run(context.clone()));
    let first = tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = lock.wait_until_lost() => Ok(()),
        Some(ended) = controllers.join_next() => ended?,
    };
    stop.cancel();
    let ended = tokio::time::timeout(to_end, async {
        while let Some(ended) = controllers.join_next().await {
            ended??;
        }
        Ok(())
    });
    match ended.await {
        Ok(ended) => first.and(ended),
        // The next leader should not have to wait for them.
        Err(_) => {
            tracing::warn!(
                controllers = controllers.len(),
                "controllers did not stop in time; aborting them"
            );
            controllers.shutdown().await;
            first
        }
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_testkit::{Fault, Gate, Rule as FaultRule};

    use super::*;
    use crate::test_env;
    use crate::test_env::Running;

    async fn until_leader_is(context: &Context, leader: i64) {
        let waited = tokio::time::timeout(test_env::PATIENCE, async {
            while context.metrics.leader.get() != leader {
                tokio::task::yield_now().await;
            }
        });
        assert!(waited.await.is_ok(), "leader is {leader}");
    }

    #[tokio::test]
    async fn leader_without_its_lease_steps_down_before_the_lease_expires() {
        let server = test_env::builder().start().await.unwrap();
        let context = test_env::context(&server, &["--lease-seconds=6", "--pod-name=one"]).await;
        let running = Running::start(&context, run(context.clone()));
        until_leader_is(&context, 1).await;
        let (gate, start) = (Gate::new(), Instant::now());
        let rule = FaultRule::new(Fault::Hold(gate.clone())).resource("leases");
        let rule = server.faults().add(rule);
        until_leader_is(&context, 0).await;
        assert!(start.elapsed() < Duration::from_secs(6), "after {:?}", start.elapsed());
        server.faults().remove(rule);
        until_leader_is(&context, 1).await;
        running.stop().await;
        gate.open();
        server.store().read(|state| {
            let lease = state.list("leases.coordination.k8s.io").next().unwrap();
            assert_eq!(
                test_env::text(lease, "/spec/holderIdentity"),
                "",
                "the lock is given back"
            );
        });
    }

    #[tokio::test]
    async fn start_waits_for_unreachable_api_server() {
        let server = test_env::builder().start().await.unwrap();
        let context = test_env::context(&server, &["--lease-seconds=3", "--pod-name=one"]).await;
        let gate = Gate::new();
        let rule = FaultRule::new(Fault::Hold(gate.clone())).resource("leases");
        let rule = server.faults().add(rule);
        let running = Running::start(&context, run(context.clone()));
        while server.faults().times_applied(rule) < 2 {
            tokio::task::yield_now().await;
        }
        server.faults().remove(rule);
        until_leader_is(&context, 1).await;
        running.stop().await;
        gate.open();
    }

    #[tokio::test]
    async fn forbidden_lease_fails_at_once() {
        let server = test_env::builder().start().await.unwrap();
        let context = test_env::context(&server, &["--pod-name=one"]).await;
        let refused = Fault::Status {
            code: 403,
            retry_after: None,
        };
        server.faults().add(FaultRule::new(refused).resource("leases"));
        let ended = tokio::time::timeout(test_env::PATIENCE, run(context)).await.unwrap();
        let problem = ended.unwrap_err().to_string();
        assert!(problem.contains("check that the manager may write leases"), "{problem}");
    }
}
