//! An API server with the objects that the webhooks need, and the webhook server beside it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use ctrlmesh_testkit::{ApiServer, Resource};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::certificates::ca::Stored;
use crate::cluster::{Context, Readiness};
use crate::metrics::Metrics;
use crate::webhook::run_within;
use crate::webhook::server::Bounds;

pub(crate) struct TestEnv {
    pub(crate) server: ApiServer,
    pub(crate) context: Context,
    pub(crate) readiness: Readiness,
    pub(crate) goes: CancellationToken,
    pub(crate) bounds: Bounds,
}

impl TestEnv {
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let admission = |plural, kind| Resource::cluster("admissionregistration.k8s.io", "v1", plural, kind);
        let ours = |plural, kind| Resource::namespaced("ctrlmesh.kusionstack.io", "v1alpha1", plural, kind);
        let server = ApiServer::builder()
            .namespace("ctrlmesh")
            .namespace("default")
            .namespace("demo")
            .resource(admission(
                "mutatingwebhookconfigurations",
                "MutatingWebhookConfiguration",
            ))
            .resource(admission(
                "validatingwebhookconfigurations",
                "ValidatingWebhookConfiguration",
            ))
            .resource(ours("shardingconfigs", "ShardingConfig"))
            .resource(ours("circuitbreakers", "CircuitBreaker"))
            .resource(ours("faultinjections", "FaultInjection"))
            .start()
            .await
            .unwrap();
        let args = Args::parse_from(["ctrlmesh-manager"].iter().chain(flags));
        let client = kube::Client::try_from(kube::Config::new(server.url().parse().unwrap())).unwrap();
        Self {
            context: Context::new(&client, args, Arc::new(Metrics::default()), CancellationToken::new()),
            server,
            readiness: Readiness::default(),
            goes: CancellationToken::new(),
            bounds: Bounds::default(),
        }
    }

    pub(crate) fn put_secret(&self, stored: &Stored) {
        let mut data = std::collections::BTreeMap::<String, ByteString>::new();
        stored.write(&mut data);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "ctrlmesh-webhook-certs", "namespace": "ctrlmesh"},
            "data": data,
        });
        self.server.store().put(secret).unwrap();
    }

    /// Starts the webhook server and waits until it is ready.
    pub(crate) async fn start_server(&self) -> (SocketAddr, JoinHandle<Result<(), crate::cluster::Error>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (context, readiness, goes) = (self.context.clone(), self.readiness.clone(), self.goes.clone());
        let running = run_within(context, listener, readiness, goes, self.bounds);
        let running = tokio::spawn(running);
        wait_for(|| self.readiness.is_ready()).await;
        (address, running)
    }
}

/// Waits at most ten seconds.
pub(crate) async fn wait_for(condition: impl Fn() -> bool) {
    let waited = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waited).await.unwrap();
}

/// One of our two configurations, with two webhooks.
pub(crate) fn configuration(kind: &str, name: &str) -> Value {
    let webhook = |name: &str| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"service": {"name": "ctrlmesh-manager-webhook", "namespace": "ctrlmesh", "path": "/x"}},
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "webhooks": [webhook("a.example"), webhook("b.example")],
    })
}
