//! The admission webhooks: validation of custom resources, labels of namespaces and objects, injection of sidecars.
//!
//! | file | holds |
//! |---|---|
//! | `routes` | paths, and reviews as JSON |
//! | `validating`, `overlap_warnings` | validation, and warnings that follow from other shards |
//! | `labelling`, `namespaces` | labels, and a cache of namespaces |
//! | `injection`, `api_server_version` | sidecars, and the release of the API server |
//! | `server`, `connections`, `bodies` | the TLS server and its limits |
//! | `serving_certificate`, `client_ca` | certificates of this replica and of its clients |
//!
//! Every replica serves them over TLS, with a certificate that the leader keeps ([`crate::certificates::webhook_ca`]) or that lies
//! in files. Validation fails closed and labels fail open (`deploy/webhook`): the back-fill labels objects that were missed here.
//! Pods that request a sidecar are not created without one; other pods do not need the manager.

mod api_server_version;
mod bodies;
mod client_ca;
mod connections;
mod injection;
mod labelling;
mod namespaces;
mod overlap_warnings;
pub mod routes;
mod server;
mod serving_certificate;
#[cfg(test)]
pub(crate) mod tests;
mod validating;

use std::sync::Arc;

use ctrlmesh_contract::names::CHAIN_KEY_SECRET;
use ctrlmesh_manager_planner::LabelKeys;
use ctrlmesh_manager_planner::labels::rules::OWN_GROUP;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::WEBHOOK_SECRET;
use crate::certificates::webhook_ca::bundles::{MUTATING, VALIDATING};
use crate::cluster::{Context, Error, RbacRule, Readiness, Scope};
use api_server_version::ApiServerVersion;
use bodies::Bodies;
use client_ca::Tls;
use namespaces::Namespaces;
use server::{Bounds, Shutdown};
use serving_certificate::ServingCertificate;

/// Maximum bytes of the bodies of all reviews at a time. The largest review takes a ninth of it.
const MAX_BODIES: usize = 64 << 20;

const ADMISSION: &str = "admissionregistration.k8s.io";

/// Permissions at the API server. The leader creates the Secret and writes bundles; every replica reads.
pub const RULES: &[RbacRule] = &[
    cluster_rule(Scope::Namespace, "", &["secrets"], &["create"], &[]),
    cluster_rule(
        Scope::Namespace,
        "",
        &["secrets"],
        &["list", "update", "watch"],
        &[WEBHOOK_SECRET],
    ),
    cluster_rule(
        Scope::Cluster,
        ADMISSION,
        &["mutatingwebhookconfigurations"],
        &["list", "patch", "watch"],
        &[MUTATING],
    ),
    cluster_rule(
        Scope::Cluster,
        ADMISSION,
        &["validatingwebhookconfigurations"],
        &["list", "patch", "watch"],
        &[VALIDATING],
    ),
    cluster_rule(Scope::Cluster, "", &["namespaces"], &["list", "watch"], &[]),
    cluster_rule(
        Scope::Cluster,
        OWN_GROUP,
        &["shardingconfigs", "circuitbreakers", "faultinjections"],
        &["list"],
        &[],
    ),
    cluster_rule(Scope::Namespace, "", &["secrets"], &["get"], &[CHAIN_KEY_SECRET]),
];

const fn cluster_rule(
    scope: Scope,
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    names: &'static [&'static str],
) -> RbacRule {
    RbacRule {
        scope,
        group,
        resources,
        verbs,
        names,
    }
}

/// State that the decisions on reviews need.
pub(crate) struct Reviewer {
    context: Context,
    keys: LabelKeys,
    namespaces: Namespaces,
    bodies: Bodies,
    /// Permits for searches for overlapping shards.
    searches: Arc<Semaphore>,
    api_server_version: ApiServerVersion,
    bounds: Bounds,
}

impl Reviewer {
    /// Whether clients must show a certificate.
    fn knows_clients(&self) -> bool {
        self.context.args.webhook_client_ca_file.is_some()
    }
}

/// Serves until `stop`. Starts when there is a certificate, and is ready then. When the manager `goes`, connected API servers are
/// sent to other replicas.
///
/// # Errors
/// One of its tasks failed.
pub async fn run(
    context: Context,
    listener: TcpListener,
    readiness: Readiness,
    goes: CancellationToken,
) -> Result<(), Error> {
    run_within(context, listener, readiness, goes, Bounds::default()).await
}

async fn run_within(
    context: Context,
    listener: TcpListener,
    readiness: Readiness,
    goes: CancellationToken,
    bounds: Bounds,
) -> Result<(), Error> {
    let (namespaces, known) = Namespaces::new(context.client.clone());
    let reviewer = Reviewer {
        keys: context.args.label_keys(),
        bodies: Bodies::new(MAX_BODIES),
        searches: Arc::new(Semaphore::new(1)),
        api_server_version: ApiServerVersion::default(),
        context: context.clone(),
        namespaces,
        bounds,
    };
    let served = Arc::new(ServingCertificate::default());
    let tls = Tls::new(&context.args, &served).await?;
    let mut parts = JoinSet::new();
    parts.spawn(served.clone().follow_certificate(context.clone()));
    parts.spawn(tls.clone().follow_file(served.clone(), context.clone()));
    parts.spawn(namespaces::follow_namespaces(known, context.clone()));
    parts.spawn(async move {
        tokio::select! {
            () = context.stop.cancelled() => return,
            () = served.wait_for_certificate() => readiness.set(true),
        }
        let router = routes::router(Arc::new(reviewer));
        let failed = context.metrics.webhook.failed_handshakes.clone();
        let stop = context.stop.clone();
        server::serve(listener, tls, router, failed, bounds, Shutdown { goes, stop }).await;
    });
    while let Some(ended) = parts.join_next().await {
        ended?;
    }
    Ok(())
}
