//! The cluster of the demo: an in-memory API server full of widgets that knows the manager's kinds, and a registry with the user's
//! own plugins.

use std::path::PathBuf;

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, files};
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ManagerState, ShardingConfig};
use ctrlmesh_testkit::registry::Registry;
use ctrlmesh_testkit::{ApiServer, Resource};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::{Client, Config};

use super::gadget::{self, GADGET_NAMESPACE};
use super::sharding_plan::{Image, POD_NAMESPACE};
use super::widget::{NAMESPACES, WidgetKey, kinds_to_label, namespace_object, widget_object, widget_resource};
use crate::error::Error;

pub(crate) const MANAGER_NAMESPACE: &str = "ctrlmesh";

/// Changes that the API server keeps: more than the demo makes, so that no watch can fall behind.
const EVENT_LOG: usize = 32_768;

/// Only sidecars and the manager have the token, the controllers do not.
const TOKEN: &str = "demo-token";

pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) registry: Registry,
    /// A client that bypasses the sidecars.
    pub(crate) client: Client,
}

impl Cluster {
    /// Starts both, with all objects that exist before the manager starts.
    pub(crate) async fn start() -> Result<Self, Error> {
        let builder = ApiServer::builder()
            .namespace(MANAGER_NAMESPACE)
            .namespace(POD_NAMESPACE)
            .namespace(GADGET_NAMESPACE)
            .resource(widget_resource())
            .resource(gadget::gadget_resource())
            .token(TOKEN)
            .event_log(EVENT_LOG)
            .request_log(0);
        let server = served_kinds()
            .into_iter()
            .fold(builder, |builder, kind| builder.resource(kind));
        let server = server.start().await?;
        server.store().put(kinds_to_label(MANAGER_NAMESPACE))?;
        for namespace in NAMESPACES {
            server.store().put(namespace_object(namespace))?;
        }
        for key in WidgetKey::all_keys() {
            server.store().put(widget_object(&key))?;
        }
        let registry = Registry::start().await?;
        for image in Image::ALL {
            registry.put_component(image.repository, image.tag, image.wasm);
        }
        let client = connect_client(&server.kubeconfig()).await?;
        Ok(Self {
            server,
            registry,
            client,
        })
    }

    pub(crate) fn chain_document(&self, namespace: &str) -> Option<String> {
        self.server.store().read(|state| {
            let map = state.get("configmaps", namespace, CHAIN_CONFIG_MAP)?;
            let document = map.get("data")?.get(files::CHAIN)?;
            document.as_str().map(str::to_owned)
        })
    }
}

/// The manager's kinds as in their CustomResourceDefinitions, and the webhook configuration kinds, of which no object exists.
fn served_kinds() -> [Resource; 6] {
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

async fn connect_client(kubeconfig: &str) -> Result<Client, Error> {
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
