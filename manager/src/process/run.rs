//! The order in which the manager starts and stops, and the owner of its tasks.
//!
//! Flow of shutdown: the manager is no longer ready, and its controllers stop at once. Webhooks are served a while longer, because
//! API servers call replicas that they knew a moment ago. Only new connections are served then: existing ones are closed, because
//! they would keep API servers away from another replica.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_logging::wants_colour;
use ctrlmesh_manager_inject::flags::LogFormat;
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::args::Args;
use crate::cluster::{Context, Error, Readiness};
use crate::metrics::Metrics;
use crate::process::{admin, leader};
use crate::webhook;

/// Logs to standard error, by the flags.
///
/// # Errors
/// [`Error::Log`].
pub fn log_to_stderr(args: &Args) -> Result<(), Error> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| Error::Log(error.to_string()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(wants_colour(
            std::io::stderr().is_terminal(),
            std::env::var_os("NO_COLOR").as_deref(),
        ));
    match args.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// Runs the manager until it is asked to stop, or one of its parts fails.
///
/// # Errors
/// The manager can't start, or a part failed.
pub async fn run(args: Args) -> Result<(), Error> {
    // Fails only if there is a provider already; then that one is used.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config = Config::infer().await.map_err(Error::Config)?;
    // Retries are requests, too, so they are made where the rate is limited.
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let context = Context::new(&client, args, Arc::new(Metrics::default()), CancellationToken::new());
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| Error::Api(kube::Error::Service(error.into())))?;
    let asked = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    run_until(&context, asked).await
}

/// `asked` resolves each time that somebody asks the manager to stop.
async fn run_until(context: &Context, mut asked: impl AsyncFnMut()) -> Result<(), Error> {
    let (args, readiness) = (&context.args, Readiness::default());
    let health = admin::bind_listener("--health-probe-bind-address", args.health_probe_bind_address).await?;
    let counters = admin::bind_listener("--metrics-bind-address", args.metrics_bind_address).await?;
    let webhooks = (args.webhook_bind_address, args.webhook_port).into();
    let webhooks = admin::bind_listener("--webhook-port (WEBHOOK_PORT)", webhooks).await?;

    // Servers stop after the manager's own work.
    let serving = context.with_stop(CancellationToken::new());
    let mut parts: JoinSet<Result<(), Error>> = JoinSet::new();
    let (until, reported_readiness) = (serving.stop.clone(), readiness.clone());
    parts.spawn(async move {
        admin::serve_health(health, reported_readiness, until).await;
        Ok(())
    });
    let (until, shown) = (serving.stop.clone(), context.metrics.clone());
    parts.spawn(async move {
        admin::serve_metrics(counters, shown, until).await;
        Ok(())
    });
    let goes = context.stop.clone();
    parts.spawn(webhook::run(serving.clone(), webhooks, readiness.clone(), goes));
    parts.spawn(leader::run(context.clone()));

    let first = tokio::select! {
        () = asked() => Ok(()),
        Some(ended) = parts.join_next() => ended?,
    };
    let was_ready = readiness.is_ready();
    readiness.set(false);
    tracing::info!("stopping");
    context.stop.cancel();
    if was_ready {
        tokio::select! {
            () = asked() => {}
            () = tokio::time::sleep(Duration::from_secs(args.shutdown_delay_seconds)) => {}
        }
    }
    serving.stop.cancel();
    while let Some(ended) = parts.join_next().await {
        ended??;
    }
    first
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use ctrlmesh_testkit::Resource;
    use k8s_openapi::ByteString;
    use tokio::sync::mpsc;

    use super::*;
    use crate::test_env;
    use crate::test_env::until;
    use crate::webhook::routes::MUTATE_NAMESPACE;
    use crate::webhook::tests::{Client, configuration};

    fn free_address() -> SocketAddr {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap()
    }

    async fn server_with_objects() -> ctrlmesh_testkit::ApiServer {
        let admission = |plural, kind| Resource::cluster("admissionregistration.k8s.io", "v1", plural, kind);
        let (mutating, validating) = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration");
        let server = test_env::builder()
            .resource(admission("mutatingwebhookconfigurations", mutating))
            .resource(admission("validatingwebhookconfigurations", validating))
            .start()
            .await
            .unwrap();
        for (kind, name) in [(mutating, "ctrlmesh-mutating"), (validating, "ctrlmesh-validating")] {
            server.store().put(configuration(kind, name)).unwrap();
        }
        server
    }

    /// The HTTP status of the readiness probe.
    async fn readiness_code(health: SocketAddr) -> u16 {
        let response = reqwest::get(format!("http://{health}/readyz")).await;
        response.map_or(0, |response| response.status().as_u16())
    }

    #[tokio::test]
    async fn webhooks_answer_for_a_while_after_sigterm() {
        let server = server_with_objects().await;
        let [webhooks, health] = [free_address(), free_address()];
        let flags = [
            &*format!("--webhook-port={}", webhooks.port()),
            &*format!("--health-probe-bind-address={health}"),
            "--metrics-bind-address=127.0.0.1:0",
            "--shutdown-delay-seconds=300",
        ];
        let context = test_env::context(&server, &flags).await;
        let (ask, mut asked) = mpsc::channel(1);
        let running = run_until(&context, async || {
            asked.recv().await;
        });
        let stopping = async {
            while readiness_code(health).await != 200 || context.metrics.leader.get() != 1 {
                tokio::task::yield_now().await;
            }
            let ca = server.store().read(|state| {
                let secret = state
                    .get("secrets", test_env::NAMESPACE, "ctrlmesh-webhook-certs")
                    .unwrap();
                let ca: ByteString = serde_json::from_value(secret["data"]["ca-cert.pem"].clone()).unwrap();
                String::from_utf8(ca.0).unwrap()
            });
            ask.send(()).await.unwrap();
            until(&server, "the lock is given back: no controller runs", |state| {
                let mut leases = state.list("leases.coordination.k8s.io");
                leases.all(|lease| test_env::text(lease, "/spec/holderIdentity").is_empty())
            })
            .await;
            assert_eq!(readiness_code(health).await, 503);
            let client = Client::with_bundle(&ca);
            let (status, _) = client.post(webhooks, MUTATE_NAMESPACE, "{}").await.unwrap();
            assert_eq!(status, 400, "it is answered");
            ask.send(()).await.unwrap();
            client
        };
        let both = tokio::time::timeout(test_env::PATIENCE, async { tokio::join!(running, stopping) });
        let (ended, client) = both.await.unwrap();
        ended.unwrap();
        assert!(client.get(webhooks, "/healthz").await.is_err());
    }
}
