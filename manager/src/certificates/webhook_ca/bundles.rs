//! The CAs that API servers trust: `caBundle` of every webhook in the two webhook configurations.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{ApiResource, Patch};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::certificates::ca::Error;
use crate::cluster::patch_params;

pub(crate) const MUTATING: &str = "ctrlmesh-mutating";
pub(crate) const VALIDATING: &str = "ctrlmesh-validating";

/// APIs and names of the two configurations.
pub(super) fn configuration_apis(client: &Client) -> [(Api<DynamicObject>, &'static str); 2] {
    let api = |resource: &ApiResource| Api::all_with(client.clone(), resource);
    [
        (api(&ApiResource::erase::<MutatingWebhookConfiguration>(&())), MUTATING),
        (
            api(&ApiResource::erase::<ValidatingWebhookConfiguration>(&())),
            VALIDATING,
        ),
    ]
}

/// The two configurations, as last seen.
pub(super) struct Bundles {
    seen: [Configuration; 2],
}

struct Configuration {
    api: Api<DynamicObject>,
    name: &'static str,
    /// `None`: not read yet. `Some(None)`: it does not exist.
    object: Option<Option<DynamicObject>>,
}

impl Bundles {
    pub(super) fn new(client: &Client) -> Self {
        let seen = configuration_apis(client).map(|(api, name)| Configuration {
            api,
            name,
            object: None,
        });
        Self { seen }
    }

    pub(super) fn observe(&mut self, index: usize, object: Option<DynamicObject>) {
        if let Some(configuration) = self.seen.get_mut(index) {
            if object.is_none() {
                tracing::info!(
                    configuration = configuration.name,
                    "webhook configuration not found; apply deploy/webhook"
                );
            }
            configuration.object = Some(object);
        }
    }

    /// The bundle of each webhook, PEM; `None` until both configurations were read.
    pub(super) fn bundles_in_force(&self) -> Option<Vec<String>> {
        let mut bundles = Vec::new();
        for configuration in &self.seen {
            let object = configuration.object.as_ref()?.as_ref();
            let webhooks = object.and_then(|object| object.data.get("webhooks")?.as_array());
            bundles.extend(webhooks.into_iter().flatten().map(bundle_of));
        }
        Some(bundles)
    }

    /// Writes a bundle to every webhook.
    pub(super) async fn write(&mut self, bundle: &str) -> Result<(), Error> {
        for configuration in &mut self.seen {
            if let Some(Some(object)) = &configuration.object
                && let Some(patch) = bundle_patch(object, bundle)
            {
                let options = patch_params();
                let patch = Patch::Merge(&patch);
                let written = configuration.api.patch(configuration.name, &options, &patch);
                configuration.object = Some(Some(written.await?));
            }
        }
        Ok(())
    }
}

fn bundle_of(webhook: &Value) -> String {
    let text = webhook.pointer("/clientConfig/caBundle").and_then(Value::as_str);
    let bytes = STANDARD.decode(text.unwrap_or_default()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// A merge patch replaces whole lists, so it carries the version that was read.
fn bundle_patch(object: &DynamicObject, bundle: &str) -> Option<Value> {
    let mut webhooks = object.data.get("webhooks")?.as_array()?.clone();
    let encoded = STANDARD.encode(bundle);
    for webhook in &mut webhooks {
        let client = webhook.pointer_mut("/clientConfig")?.as_object_mut()?;
        client.insert("caBundle".to_owned(), json!(encoded));
    }
    let is_changed = object.data.get("webhooks")?.as_array() != Some(&webhooks);
    let metadata = json!({"resourceVersion": object.resource_version()});
    is_changed.then(|| json!({"metadata": metadata, "webhooks": webhooks}))
}
