//! A registry, an API server with Secrets, and the plugins of a manager between them.

use std::time::Duration;

use ctrlmesh_manager_api::plugin::PullPolicy;
use ctrlmesh_testkit::ApiServer;
use ctrlmesh_testkit::registry::Registry;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::*;

/// Timeout of every wait in a test. A passing test never reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Settings with short times.
pub(crate) fn settings(registry: &Registry) -> Settings {
    Settings {
        insecure: [registry.host(), "registry.test".to_owned()].into(),
        cache_bytes: 64 * 1024 * 1024,
        times: Times {
            connect: Duration::from_secs(5),
            read: Duration::from_millis(500),
            pull: Duration::from_secs(20),
            pause: Duration::from_millis(10),
            max_retry_after: Duration::from_secs(5),
            again: Duration::from_millis(50),
            again_at_most: Duration::from_millis(100),
            tag_refresh: Duration::from_millis(50),
            idle: Duration::from_secs(300),
        },
        ..Settings::default()
    }
}

pub(crate) struct TestEnv {
    pub(crate) registry: Registry,
    pub(crate) api: ApiServer,
    pub(crate) manager: Manager,
}

/// Starts a registry and a manager.
pub(crate) async fn test_env() -> TestEnv {
    test_env_with(|_, _| {}).await
}

pub(crate) async fn test_env_with(change: impl FnOnce(&mut Settings, &Registry)) -> TestEnv {
    let registry = Registry::start().await.unwrap();
    let api = ApiServer::builder().namespace("demo").start().await.unwrap();
    let mut settings = settings(&registry);
    change(&mut settings, &registry);
    let manager = Manager::start(&api, settings).await;
    TestEnv { registry, api, manager }
}

impl TestEnv {
    /// A request of namespace demo for a tag or digest of `you/plugin`.
    pub(crate) fn request_for(&self, target: &str) -> ResolveRequest {
        let separator = if target.contains(':') { '@' } else { ':' };
        request_for(&format!("oci://{}/you/plugin{separator}{target}", self.registry.host()))
    }

    /// Stores a Secret of type `kubernetes.io/dockerconfigjson`.
    pub(crate) fn put_secret(&self, name: &str, user: &str, password: &str) {
        let auths = json!({ "auths": { self.registry.host(): { "username": user, "password": password } } });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": name, "namespace": "demo" },
            "type": "kubernetes.io/dockerconfigjson",
            "data": { ".dockerconfigjson": base64(auths.to_string().as_bytes()) },
        });
        self.api.store().put(secret).unwrap();
    }
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A request of namespace demo.
pub(crate) fn request_for(image: &str) -> ResolveRequest {
    ResolveRequest {
        namespace: "demo".to_owned(),
        image: image.to_owned(),
        pull_policy: PullPolicy::IfNotPresent,
        pull_secret: None,
        verification_key: None,
        pinned: None,
    }
}

/// The plugins of a manager, and the namespaces that it reports.
pub(crate) struct Manager {
    pub(crate) plugins: Plugins,
    pub(crate) metrics: Metrics,
    changed: mpsc::Receiver<String>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), JoinError>>,
}

impl Manager {
    pub(crate) async fn start(api: &ApiServer, settings: Settings) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = Kubeconfig::from_yaml(&api.plain_kubeconfig()).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        config.default_retry = false;
        let (sender, changed) = mpsc::channel(16);
        let metrics = Metrics::default();
        let client = Client::try_from(config).unwrap();
        let (plugins, worker) = Plugins::new(client, settings, sender, metrics.clone());
        let stop = CancellationToken::new();
        Self {
            plugins,
            metrics,
            changed,
            task: tokio::spawn(worker.run(stop.clone())),
            stop,
        }
    }

    /// Resolves until a condition holds, again after each report of the namespace.
    pub(crate) async fn resolve_until(
        &mut self,
        request: &ResolveRequest,
        condition: impl Fn(&Resolution) -> bool,
    ) -> Resolution {
        let waiting = async {
            loop {
                let resolution = self.plugins.resolve(request);
                if condition(&resolution) {
                    return resolution;
                }
                assert!(self.changed.recv().await.is_some(), "the worker has ended");
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(resolution) => resolution,
            Err(_) => panic!("still {:?}", self.plugins.resolve(request)),
        }
    }

    /// The next namespace that is reported.
    pub(crate) async fn next_report(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.changed.recv())
            .await
            .unwrap()
            .unwrap()
    }

    pub(crate) async fn resolve_ready(&mut self, request: &ResolveRequest) -> Arc<Artifact> {
        match self
            .resolve_until(request, |resolution| *resolution != Resolution::Pending)
            .await
        {
            Resolution::Ready(artifact) => artifact,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn resolve_failed(&mut self, request: &ResolveRequest) -> (FailureReason, String) {
        match self
            .resolve_until(request, |resolution| *resolution != Resolution::Pending)
            .await
        {
            Resolution::Failed { reason, message, .. } => (reason, message),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}
