//! The order in which the manager starts and stops, and who owns its tasks.

use std::sync::Arc;

use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::admin::{self, Readiness};
use crate::args::{Args, LogFormat};
use crate::context::Context;
use crate::error::Error;
use crate::leader;
use crate::metrics::Metrics;
use crate::webhook;

/// Logs go to standard error, as the flags say.
///
/// # Errors
/// [`Error::Log`].
pub fn log_to_stderr(args: &Args) -> Result<(), Error> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| Error::Log(error.to_string()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// Runs the manager until it is asked to stop, or one of its parts fails.
///
/// # Errors
/// Why it can't start, or which part failed.
pub async fn run(args: Args) -> Result<(), Error> {
    // Only fails if there is a provider already; then that one is used.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config = Config::infer().await.map_err(Error::Config)?;
    // Retries are requests, too: they are counted where the rate is.
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let (metrics, readiness) = (Arc::new(Metrics::default()), Readiness::default());
    let health = admin::bind("--health-probe-bind-address", args.health_probe_bind_address).await?;
    let counters = admin::bind("--metrics-bind-address", args.metrics_bind_address).await?;

    let stop = CancellationToken::new();
    let mut parts: JoinSet<Result<(), Error>> = JoinSet::new();
    let io = |result: std::io::Result<()>| result.map_err(|error| Error::Api(kube::Error::Service(error.into())));
    let (until, told) = (stop.clone(), readiness.clone());
    parts.spawn(async move { io(admin::serve_health(health, told, until).await) });
    let (until, shown) = (stop.clone(), metrics.clone());
    parts.spawn(async move { io(admin::serve_metrics(counters, shown, until).await) });
    let context = Context::new(&client, args, metrics, stop.clone());
    let webhooks = webhook::bind(&context).await?;
    parts.spawn(webhook::run(context.clone(), webhooks, readiness.clone()));
    parts.spawn(leader::run(context));

    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| Error::Api(kube::Error::Service(error.into())))?;
    let first = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
        Some(ended) = parts.join_next() => ended?,
    };
    readiness.set(false);
    tracing::info!("stopping");
    stop.cancel();
    while let Some(ended) = parts.join_next().await {
        ended??;
    }
    first
}
