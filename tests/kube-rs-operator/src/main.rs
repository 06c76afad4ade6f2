//! An ordinary operator written with kube-rs, unaware of sidecars and shards.
//!
//! It does the same to ConfigMaps as tests/e2e/operator: while it leads, it handles every new step of each object once, as far as it
//! alone can tell, and writes what it did as JSON lines to standard output, so that tests can count. `reconciler` handles the objects.

mod reconciler;

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{Controller, controller, watcher};
use kube::{Api, Client};
use kube_lease_manager::LeaseManagerBuilder;
use tokio::signal::unix::{SignalKind, signal};

use reconciler::{Journal, Reconciler};

/// Validity of a dead leader's lock, in seconds. Shorter than the default (30), so that tests see a hand-over soon.
const LEASE: u64 = 8;

/// Renewal margin before the expiry, in seconds: the lock is renewed two seconds after the last time.
const GRACE: u64 = 6;

#[derive(Parser)]
struct Args {
    /// Name of this replica
    #[arg(long)]
    id: String,
    /// Value of the label `app` of the ConfigMaps to handle; empty handles all
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
    /// Seconds between reconciliations of all objects; without it, objects are only reconciled when they change
    ///
    /// When kube-rs lists again, as after a hand-over, it reconciles the first objects before its cache has the new list
    /// (docs/sharding.md): as they were before, or not at all.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    reconcile_all_every: Option<u64>,
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
        journal.write_event("leading", "", "", "");
        let mut lead = leads.clone();
        let ended = async move {
            tokio::select! {
                _ = lead.wait_for(|leads| !leads) => {}
                _ = terminate.recv() => {}
            }
        };
        run_controller(client, &args, journal, ended).await;
    }
    // Standard output is closed: release the lock.
    drop(leads);
    renewing.await??;
    Ok(())
}

/// Handles objects until `ended`, and finishes those in progress.
async fn run_controller(
    client: Client,
    args: &Args,
    journal: Journal,
    ended: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let objects = Api::<ConfigMap>::all(client.clone());
    let reconciler = Arc::new(Reconciler { client, journal });
    let watched = if args.app.is_empty() {
        watcher::Config::default()
    } else {
        watcher::Config::default().labels(&format!("app={}", args.app))
    };
    let mut controller = Controller::new(objects, watched);
    if let Some(seconds) = args.reconcile_all_every {
        let mut interval = tokio::time::interval(Duration::from_secs(seconds));
        let ticks = stream::poll_fn(move |context| interval.poll_tick(context).map(|_| Some(())));
        controller = controller.reconcile_all_on(ticks);
    }
    controller
        .with_config(controller::Config::default().concurrency(args.workers))
        .graceful_shutdown_on(ended)
        .run(reconciler::reconcile, reconciler::retry_later, reconciler.clone())
        .for_each(async |outcome| match outcome {
            // The object was deleted while it was queued.
            Ok(_) | Err(controller::Error::ObjectNotFound(_)) => {}
            Err(failure) => reconciler.journal.write_event("failed", "", "", &failure.to_string()),
        })
        .await;
}
