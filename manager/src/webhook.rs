//! What API servers ask before they store an object: whether one of ours is valid, and which labels another one carries.
//!
//! Served by every replica, over TLS with a certificate that the leader keeps ([`certificate`]) or that lies in files.
//! Validation fails closed and labels fail open (`deploy/webhook`): what was not labelled here is found by the back-fill. Pods
//! that ask for a sidecar are not made without; others need no manager.

mod bodies;
pub mod certificate;
mod client_ca;
mod connections;
mod injection;
mod labelling;
mod metrics;
mod namespaces;
mod neighbours;
pub mod routes;
mod served;
mod server;
#[cfg(test)]
pub(crate) mod tests;
mod validating;
mod version;
mod warning_rate;

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admin::Readiness;
use crate::context::Context;
use crate::error::Error;
use crate::labels::rules::OWN_GROUP;
use crate::rbac::{Rule, Scope};
use crate::{LabelKeys, admin, distribution};
use bodies::Bodies;
use certificate::bundles::{MUTATING, VALIDATING};
use client_ca::Tls;
pub use metrics::Metrics;
use namespaces::Namespaces;
use served::Served;
use server::{Bounds, End};
use version::Version;

/// The Secret of KusionStack's manager. One with another name (`SECRET_NAME`) needs a Role of its own.
pub(crate) const SECRET: &str = "ctrlmesh-webhook-certs";

/// Bodies of all reviews at the same time, in bytes. A review of the largest takes a ninth of it.
const MAX_BODIES: usize = 64 << 20;

const ADMISSION: &str = "admissionregistration.k8s.io";

/// What it does at the API server. The leader makes the Secret and writes bundles, every replica reads.
pub const RULES: &[Rule] = &[
    rule(Scope::Namespace, "", &["secrets"], &["create"], &[]),
    rule(
        Scope::Namespace,
        "",
        &["secrets"],
        &["list", "update", "watch"],
        &[SECRET],
    ),
    rule(
        Scope::Cluster,
        ADMISSION,
        &["mutatingwebhookconfigurations"],
        &["list", "patch", "watch"],
        &[MUTATING],
    ),
    rule(
        Scope::Cluster,
        ADMISSION,
        &["validatingwebhookconfigurations"],
        &["list", "patch", "watch"],
        &[VALIDATING],
    ),
    rule(Scope::Cluster, "", &["namespaces"], &["list", "watch"], &[]),
    rule(
        Scope::Cluster,
        OWN_GROUP,
        &["shardingconfigs", "circuitbreakers", "faultinjections"],
        &["list"],
        &[],
    ),
    rule(
        Scope::Namespace,
        "",
        &["secrets"],
        &["get"],
        &[distribution::KEY_SECRET],
    ),
];

const fn rule(
    scope: Scope,
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    names: &'static [&'static str],
) -> Rule {
    Rule {
        scope,
        group,
        resources,
        verbs,
        names,
    }
}

/// What decides about reviews.
pub(crate) struct Reviewer {
    context: Context,
    keys: LabelKeys,
    namespaces: Namespaces,
    bodies: Bodies,
    /// Searches for shards that overlap.
    searches: Arc<Semaphore>,
    version: Version,
    bounds: Bounds,
}

impl Reviewer {
    /// Whether whoever asks has shown a certificate of the authorities that are given.
    fn knows_clients(&self) -> bool {
        self.context.args.webhook_client_ca_file.is_some()
    }
}

/// Listens, so that a taken port stops the start.
///
/// # Errors
/// [`Error::Bind`].
pub async fn bind(context: &Context) -> Result<TcpListener, Error> {
    let address = (context.args.webhook_bind_address, context.args.webhook_port).into();
    admin::bind("--webhook-port (WEBHOOK_PORT)", address).await
}

/// Serves until it shall stop, from when there is a certificate; then it is ready. When the manager `goes`, API servers are sent
/// to others as far as they are still connected.
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
        version: Version::default(),
        context: context.clone(),
        namespaces,
        bounds,
    };
    let served = Arc::new(Served::default());
    let tls = Tls::new(&context.args, &served).await?;
    let mut parts = JoinSet::new();
    parts.spawn(served.clone().follow(context.clone()));
    parts.spawn(tls.clone().follow(served.clone(), context.clone()));
    parts.spawn(namespaces::follow(known, context.clone()));
    parts.spawn(async move {
        tokio::select! {
            () = context.stop.cancelled() => return,
            () = served.wait() => readiness.set(true),
        }
        let router = routes::router(Arc::new(reviewer));
        let failed = context.metrics.webhook.failed_handshakes.clone();
        let stop = context.stop.clone();
        server::serve(listener, tls, router, failed, bounds, End { goes, stop }).await;
    });
    while let Some(ended) = parts.join_next().await {
        ended?;
    }
    Ok(())
}
