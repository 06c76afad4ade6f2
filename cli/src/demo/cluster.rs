//! What the demo has in the place of a cluster: an API server in memory, full of widgets, that knows the manager's kinds; and a
//! registry with the plugins of the person's own.

use std::path::PathBuf;

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, files};
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ManagerState, ShardingConfig};
use ctrlmesh_testkit::registry::Registry;
use ctrlmesh_testkit::{ApiServer, Resource};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::{Client, Config};

use super::plan::{Image, POD_NAMESPACE};
use super::widget::{NAMESPACES, WidgetKey, kinds_to_label, namespace_object, resource, widget_object};
use crate::error::Error;

/// The manager's own namespace.
pub(crate) const MANAGER_NAMESPACE: &str = "ctrlmesh";

/// Changes that the API server remembers: more than the demo makes, so that no watch can fall behind.
const EVENT_LOG: usize = 32_768;

/// The only way into the API server. Sidecars and the manager know it, the controllers don't.
const TOKEN: &str = "demo-token";

/// A running cluster.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) registry: Registry,
    /// A client past the sidecars.
    pub(crate) client: Client,
}

impl Cluster {
    /// Starts both, with everything in it that is there before the manager.
    pub(crate) async fn start() -> Result<Self, Error> {
        let builder = ApiServer::builder()
            .namespace(MANAGER_NAMESPACE)
            .namespace(POD_NAMESPACE)
            .resource(resource())
            .token(TOKEN)
            .event_log(EVENT_LOG)
            .request_log(0);
        let server = kinds()
            .into_iter()
            .fold(builder, |builder, kind| builder.resource(kind));
        let server = server.start().await?;
        server.store().put(kinds_to_label(MANAGER_NAMESPACE))?;
        for namespace in NAMESPACES {
            server.store().put(namespace_object(namespace))?;
        }
        for key in WidgetKey::all() {
            server.store().put(widget_object(&key))?;
        }
        let registry = Registry::start().await?;
        for image in Image::ALL {
            registry.put_component(image.repository, image.tag, image.wasm);
        }
        let client = client(&server.kubeconfig()).await?;
        Ok(Self {
            server,
            registry,
            client,
        })
    }

    /// The document in the chain's ConfigMap.
    pub(crate) fn chain(&self) -> Option<String> {
        self.server.store().read(|state| {
            let map = state.get("configmaps", POD_NAMESPACE, CHAIN_CONFIG_MAP)?;
            let document = map.get("data")?.get(files::CHAIN)?;
            document.as_str().map(str::to_owned)
        })
    }
}

/// The manager's kinds, as their CustomResourceDefinitions have them, and those of webhooks, of which there are none.
fn kinds() -> [Resource; 6] {
    let namespaced = |kind: ApiResource| Resource::namespaced(&kind.group, &kind.version, &kind.plural, &kind.kind);
    let state = ApiResource::erase::<ManagerState>(&());
    let webhooks = |plural, kind| Resource::cluster("admissionregistration.k8s.io", "v1", plural, kind);
    [
        namespaced(ApiResource::erase::<ShardingConfig>(&())).with_status(),
        namespaced(ApiResource::erase::<CircuitBreaker>(&())).with_status(),
        namespaced(ApiResource::erase::<FaultInjection>(&())).with_status(),
        Resource::cluster(&state.group, &state.version, &state.plural, &state.kind).with_status(),
        webhooks("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        webhooks("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ]
}

async fn client(kubeconfig: &str) -> Result<Client, Error> {
    let problem = |source| Error::Kubeconfig {
        path: PathBuf::from("of the in-memory API server"),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).map_err(problem)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(problem)?;
    Client::try_from(config).map_err(Error::client("a client of the API server"))
}
