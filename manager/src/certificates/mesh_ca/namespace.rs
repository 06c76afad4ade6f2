//! Keeps one namespace's bundle, which its containers trust, and the certificate that its sidecars serve.

use std::collections::BTreeSet;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use tokio::sync::watch;

use super::CA_FILE;
use super::object::{Files, Object};
use crate::certificates::ca::{Error, Stored, TrustDomain, parse_certificates, split_certificates};
use crate::cluster::Context;

/// Names of the API server inside a cluster, and addresses that sidecars listen on.
const NAMES: [&str; 7] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    "127.0.0.1",
    "::1",
];

/// State that all namespaces share.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    /// The cluster's CA, PEM. `None`: there was none yet.
    pub(super) ca: Option<String>,
    pub(super) is_ca_looked_for: bool,
    /// Addresses of the API server's Service. `None`: not read yet.
    pub(super) addresses: Option<Vec<String>>,
}

/// An event of a watch.
pub(super) enum NamespaceEvent {
    Bundle(Option<ConfigMap>),
    Certificate(Option<Secret>),
    Cluster,
}

/// Events for changes of the shared state.
pub(super) fn cluster_changes(cluster: watch::Receiver<Cluster>) -> BoxStream<'static, NamespaceEvent> {
    let next = |mut cluster: watch::Receiver<Cluster>| async move {
        cluster.changed().await.ok()?;
        Some((NamespaceEvent::Cluster, cluster))
    };
    stream::unfold(cluster, next).boxed()
}

/// Containers trust the ConfigMap; sidecars serve the Secret's certificate.
pub(super) struct Namespace {
    context: Context,
    cluster: watch::Receiver<Cluster>,
    bundle: Object<ConfigMap>,
    certificate: Object<Secret>,
}

impl Namespace {
    pub(super) fn new(context: Context, name: &str, cluster: watch::Receiver<Cluster>) -> Self {
        Self {
            context,
            cluster,
            bundle: Object::new(name.to_owned()),
            certificate: Object::new(name.to_owned()),
        }
    }

    /// Writes the bundle. There is none until the cluster's CA is known.
    async fn write_bundle(&mut self, bundle: &str) -> Result<(), Error> {
        let cluster = self.cluster.borrow().ca.clone();
        let Some(cluster) = cluster else { return Ok(()) };
        let files = Files::from([(CA_FILE, format!("{}\n{bundle}", cluster.trim_end()))]);
        self.bundle.write(&self.context, &files).await
    }
}

impl TrustDomain for Namespace {
    type Seen = NamespaceEvent;

    fn observe(&mut self, seen: NamespaceEvent) -> bool {
        match seen {
            NamespaceEvent::Bundle(found) => self.bundle.observe(found),
            NamespaceEvent::Certificate(found) => self.certificate.observe(found),
            NamespaceEvent::Cluster => {}
        }
        true
    }

    fn names(&self) -> Option<Vec<String>> {
        let extra = &self.context.args.proxy.proxy_serving_names;
        let fixed = NAMES.into_iter().map(str::to_owned);
        let cluster = self.cluster.borrow();
        let addresses = cluster.addresses.as_ref()?;
        let mut names: Vec<String> = fixed.chain(addresses.iter().chain(extra).cloned()).collect();
        let mut known = BTreeSet::new();
        names.retain(|name| known.insert(name.clone()));
        Some(names)
    }

    fn bundles_in_force(&self) -> Option<Vec<String>> {
        let cluster = self.cluster.borrow();
        if !self.bundle.is_looked_for() || !self.certificate.is_looked_for() || !cluster.is_ca_looked_for {
            return None;
        }
        // Without the cluster's CA no bundle can be written.
        let Some(cluster) = &cluster.ca else {
            return Some(Vec::new());
        };
        let cluster = parse_certificates(cluster);
        let is_ours = |block: &String| parse_certificates(block).iter().all(|der| !cluster.contains(der));
        let bundle = self.bundle.own_object().map(|map| {
            let text = map.data.as_ref().and_then(|data| data.get(CA_FILE));
            split_certificates(text.map_or("", String::as_str))
                .into_iter()
                .filter(is_ours)
                .collect()
        });
        Some(bundle.into_iter().collect())
    }

    async fn set_bundles(&mut self, bundle: &str) -> Result<(), Error> {
        self.write_bundle(bundle).await
    }

    async fn distribute(&mut self, stored: &Stored) -> Result<(), Error> {
        // The bundle comes first: clients must trust the CA before its certificate is served.
        self.write_bundle(&stored.trust_bundle()).await?;
        let Some(current) = &stored.current else {
            return Ok(());
        };
        let files = Files::from([
            ("tls.crt", current.certificate.clone()),
            ("tls.key", current.key.clone()),
        ]);
        self.certificate.write(&self.context, &files).await
    }
}
