//! The webhook server's certificate: the leader issues it, replaces it before it expires, and writes the bundles of API servers.
//!
//! [`crate::certificates::ca`] keeps it, and every replica serves it (`webhook::serving_certificate`). With `--webhook-cert-dir` somebody else
//! issues the certificate, and nothing is done here.

pub(crate) mod bundles;

use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, SelectAll};
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::core::DynamicObject;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};

use crate::certificates::ca::{self, CaSecret, Error, Stored, TrustDomain, log_watch_errors};
use crate::certificates::lifetimes::{Schedule, WEBHOOKS};
use crate::cluster::Context;
use bundles::Bundles;

/// Keeps the certificate and the bundles until the manager stops.
///
/// # Errors
/// None: failures are logged and retried.
pub async fn run(context: Context) -> Result<(), crate::cluster::Error> {
    maintain(context, WEBHOOKS).await;
    Ok(())
}

pub(crate) async fn maintain(context: Context, schedule: Schedule) {
    if context.args.webhook_cert_dir.is_some() {
        context.stop.cancelled().await;
        return;
    }
    let name = &context.args.webhook_secret_name;
    let ca_secret = CaSecret {
        purpose: "webhooks".to_owned(),
        secret: ObjectMeta {
            name: Some(name.clone()),
            ..ObjectMeta::default()
        },
        schedule,
    };
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.args.namespace);
    let secrets = log_watch_errors(watch_object(secrets, name));
    let configurations = watch_configurations(&context.client);
    let api_servers = ApiServers {
        names: context.args.webhook_names(),
        bundles: Bundles::new(&context.client),
    };
    ca::maintain(context, ca_secret, secrets, configurations, api_servers).await;
}

/// The webhook configurations, each with its index.
fn watch_configurations(client: &Client) -> SelectAll<BoxStream<'static, (usize, Option<DynamicObject>)>> {
    let mut all = SelectAll::new();
    for (index, (api, name)) in bundles::configuration_apis(client).into_iter().enumerate() {
        let configuration = watch_object(api, name);
        all.push(log_watch_errors(
            configuration.map(move |seen| seen.map(|it| (index, it))),
        ));
    }
    all
}

/// API servers trust the bundles in the two configurations. Replicas serve the certificate in the Secret.
struct ApiServers {
    names: Vec<String>,
    bundles: Bundles,
}

impl TrustDomain for ApiServers {
    type Seen = (usize, Option<DynamicObject>);

    fn observe(&mut self, (index, configuration): Self::Seen) -> bool {
        self.bundles.observe(index, configuration);
        true
    }

    fn names(&self) -> Option<Vec<String>> {
        Some(self.names.clone())
    }

    fn bundles_in_force(&self) -> Option<Vec<String>> {
        self.bundles.bundles_in_force()
    }

    async fn set_bundles(&mut self, bundle: &str) -> Result<(), Error> {
        self.bundles.write(bundle).await
    }

    async fn distribute(&mut self, _: &Stored) -> Result<(), Error> {
        Ok(())
    }
}
