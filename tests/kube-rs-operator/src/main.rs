//! An ordinary operator as one writes it with kube-rs: it knows nothing of sidecars and shards.
//!
//! It does to ConfigMaps what tests/e2e/operator does: it handles every new step of each object once, as far as it alone can tell,
//! while it leads, and writes what it did as JSON lines to standard output, so that tests can count. The handling itself is in
//! `reconciler`.

mod reconciler;

use std::sync::Arc;

use clap::Parser;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{Controller, controller, watcher};
use kube::{Api, Client};
use kube_lease_manager::LeaseManagerBuilder;
use tokio::signal::unix::{SignalKind, signal};

use reconciler::{Journal, Reconciler};

/// How long the lock of a leader that died is valid, in seconds. Shorter than the default (30), so that a test sees a hand-over soon.
const LEASE: u64 = 8;

/// How long before that the lock is renewed, in seconds: two seconds after the last time.
const GRACE: u64 = 6;

#[derive(Parser)]
struct Args {
    /// Name of this replica
    #[arg(long)]
    id: String,
    /// Value of the label `app` of the ConfigMaps to handle
    #[arg(long)]
    app: String,
    /// Name of the leader-election lock
    #[arg(long)]
    lock: String,
    /// Namespace of the lock
    #[arg(long, default_value = "default")]
    lock_namespace: String,
    /// Objects handled at a time
    #[arg(long, default_value_t = 4)]
    workers: u16,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut terminate = signal(SignalKind::terminate())?;
    let client = Client::try_default().await?;
    let lock = LeaseManagerBuilder::new(client.clone(), &args.lock)
        .with_namespace(&args.lock_namespace)
        .with_identity(&args.id)
        .with_duration(LEASE)
        .with_grace(GRACE)
        .build()
        .await?;
    let (mut leads, renewing) = lock.watch().await;
    let is_leader = tokio::select! {
        leads = leads.wait_for(|leads| *leads) => leads.is_ok(),
        _ = terminate.recv() => false,
    };
    if is_leader {
        let journal = Journal { id: args.id.clone() };
        journal.write("leading", "", "", "");
        let mut lead = leads.clone();
        let ended = async move {
            tokio::select! {
                _ = lead.wait_for(|leads| !leads) => {}
                _ = terminate.recv() => {}
            }
        };
        run(client, &args, journal, ended).await;
    }
    // Nobody reads it any more: the lock is given back.
    drop(leads);
    renewing.await??;
    Ok(())
}

/// Handles objects until it is time to end, and finishes those in work.
async fn run(client: Client, args: &Args, journal: Journal, ended: impl Future<Output = ()> + Send + Sync + 'static) {
    let objects = Api::<ConfigMap>::all(client.clone());
    let reconciler = Arc::new(Reconciler { client, journal });
    Controller::new(objects, watcher::Config::default().labels(&format!("app={}", args.app)))
        .with_config(controller::Config::default().concurrency(args.workers))
        .graceful_shutdown_on(ended)
        .run(reconciler::reconcile, reconciler::retry, reconciler.clone())
        .for_each(async |outcome| match outcome {
            // It was deleted while it waited for its turn.
            Ok(_) | Err(controller::Error::ObjectNotFound(_)) => {}
            Err(failure) => reconciler.journal.write("failed", "", "", &failure.to_string()),
        })
        .await;
}
