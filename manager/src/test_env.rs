//! Environment of the tests of controllers: an API server in memory, and a context that talks to it as the process does.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
pub(crate) use ctrlmesh_manager_api::document::text_at as text;
use ctrlmesh_testkit::{ApiServer, Builder, Resource, Snapshot};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::cluster::{Context, Error};
use crate::metrics::Metrics;

/// The namespace of the manager.
pub(crate) const NAMESPACE: &str = "ctrlmesh";
/// Every wait of a test: generous, and never used up by a test that passes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An API server that has our kinds.
pub(crate) fn builder() -> Builder {
    let ours = |plural: &str, kind: &str| {
        Resource::namespaced("ctrlmesh.kusionstack.io", "v1alpha1", plural, kind).with_status()
    };
    let state = Resource::cluster("ctrlmesh.kusionstack.io", "v1alpha1", "managerstates", "ManagerState").with_status();
    ApiServer::builder()
        .namespace(NAMESPACE)
        .resource(ours("shardingconfigs", "ShardingConfig"))
        .resource(ours("circuitbreakers", "CircuitBreaker"))
        .resource(ours("faultinjections", "FaultInjection"))
        .resource(state)
}

/// Puts an object into the API server's store.
pub(crate) fn put(server: &ApiServer, object: Value) {
    server.store().put(object).unwrap();
}

/// A manager with these flags at an API server.
pub(crate) async fn context(server: &ApiServer, flags: &[&str]) -> Context {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig = Kubeconfig::from_yaml(&server.plain_kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let common = ["ctrlmesh-manager", "--namespace", NAMESPACE];
    let args = Args::parse_from(common.iter().chain(flags));
    Context::new(&client, args, Arc::new(Metrics::default()), CancellationToken::new())
}

/// A part of the manager that runs.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) fn start(context: &Context, part: impl Future<Output = Result<(), Error>> + Send + 'static) -> Self {
        Self {
            stop: context.stop.clone(),
            task: tokio::spawn(part),
        }
    }

    /// Stops it as the process does.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// Waits until the store is so.
pub(crate) async fn until(server: &ApiServer, what: &str, condition: impl FnMut(&Snapshot<'_>) -> bool) {
    let waited = server.store().wait_until_within(PATIENCE, condition).await;
    assert!(waited.is_ok(), "{what}");
}

/// Notes of Events with this reason.
pub(crate) fn notes(server: &ApiServer, reason: &str) -> Vec<String> {
    server.store().read(|state| {
        let events = state
            .list("events.events.k8s.io")
            .filter(|event| text(event, "/reason") == reason);
        events.map(|event| text(event, "/note").to_owned()).collect()
    })
}

/// Time for which Go's clients keep idle connections (`http.DefaultTransport`).
const IDLE_OF_GO: Duration = Duration::from_secs(90);

/// Sends two requests over one HTTP/1.1 connection, the second after the connection was idle for as long as Go's clients keep one.
/// Returns after how long without a third one the server closes it. Needs paused time.
pub(crate) async fn idle_time_of_server<F: Future<Output = ()>>(serve: impl FnOnce(DuplexStream) -> F) -> Duration {
    let (mut client, server) = tokio::io::duplex(1 << 10);
    let client = async {
        for pause in [Duration::ZERO, IDLE_OF_GO] {
            tokio::time::sleep(pause).await;
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            assert!(head.starts_with(b"HTTP/1.1 404"));
        }
        let since = Instant::now();
        let read = tokio::time::timeout(Duration::from_hours(1), client.read(&mut [0; 1])).await;
        assert_eq!(read.expect("the server never closes it").unwrap(), 0);
        since.elapsed()
    };
    tokio::join!(serve(server), client).1
}
