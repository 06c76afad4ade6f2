//! Which namespaces need bundle and certificate, and that they have them.

use std::collections::BTreeSet;
use std::time::Duration;

use ctrlmesh_contract::names::{annotations, labels};
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, SelectAll};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Config, Event, watch_object};
use kube::{Api, ResourceExt as _};

use super::copies::{Copies, Files, Kept, Written};
use super::{CA_FILE, CLUSTER_CA, SERVICE, addresses};
use crate::certificate::{Error, Stored, Trusting, blocks, certificates, told};
use crate::context::Context;

/// Until a namespace that did not take its objects is tried again.
const RETRY: Duration = Duration::from_secs(15);

/// What the API server is called inside of a cluster, and what sidecars listen on.
const NAMES: [&str; 7] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    "127.0.0.1",
    "::1",
];

/// What a watch says.
pub(super) enum Seen {
    Pod(Event<PartialObjectMeta<Pod>>),
    ConfigMap(Event<ConfigMap>),
    Secret(Event<Secret>),
    ClusterCa(Option<ConfigMap>),
    /// Addresses of the API server's.
    Addresses(Vec<String>),
}

/// Containers trust the ConfigMap of their namespace; sidecars serve what the Secret holds.
pub(super) struct Namespaces {
    context: Context,
    /// Those where a pod asked.
    needing: BTreeSet<String>,
    config_maps: Copies<ConfigMap>,
    secrets: Copies<Secret>,
    /// Of the cluster, PEM. `None`: there was none yet.
    cluster_ca: Option<String>,
    is_cluster_ca_looked_for: bool,
    /// Of the API server's Service. `None`: not looked for yet.
    addresses: Option<Vec<String>>,
}

impl Namespaces {
    pub(super) fn new(context: Context) -> Self {
        Self {
            context,
            needing: BTreeSet::new(),
            config_maps: Copies::new(),
            secrets: Copies::new(),
            cluster_ca: None,
            is_cluster_ca_looked_for: false,
            addresses: None,
        }
    }

    /// Where a pod asked, and where there is something of ours already.
    fn all(&self) -> BTreeSet<String> {
        let there = self.config_maps.ours().map(|(namespace, _)| namespace);
        let there = there.chain(self.secrets.ours().map(|(namespace, _)| namespace));
        there.chain(&self.needing).cloned().collect()
    }

    /// Whether this is of use yet: a namespace may be a new one.
    fn see_pod(&mut self, event: Event<PartialObjectMeta<Pod>>) -> bool {
        match event {
            Event::InitApply(pod) | Event::Apply(pod) if asks(&pod) => {
                self.needing.insert(pod.namespace().unwrap_or_default())
            }
            _ => false,
        }
    }

    async fn write_bundles(&mut self, bundle: &str) -> Written {
        let Some(cluster) = &self.cluster_ca else {
            return Written::Well;
        };
        let files = Files::from([(CA_FILE, format!("{}\n{bundle}", cluster.trim_end()))]);
        let mut worst = Written::Well;
        for namespace in self.all() {
            let written = self.config_maps.write(&self.context, &namespace, &files).await;
            worst = worse(worst, self.settle(&namespace, written));
        }
        worst
    }

    async fn write_certificates(&mut self, stored: &Stored) -> Written {
        let Some(current) = &stored.current else {
            return Written::Well;
        };
        let files = Files::from([
            ("tls.crt", current.certificate.clone()),
            ("tls.key", current.key.clone()),
        ]);
        let mut worst = Written::Well;
        for namespace in self.all() {
            let written = self.secrets.write(&self.context, &namespace, &files).await;
            worst = worse(worst, self.settle(&namespace, written));
        }
        worst
    }

    fn settle(&mut self, namespace: &str, written: Written) -> Written {
        if written == Written::Gone {
            self.needing.remove(namespace);
        }
        written
    }
}

fn worse(one: Written, other: Written) -> Written {
    if one == Written::Failed { one } else { other }
}

/// Whether a pod's containers speak TLS with its sidecar.
fn asks(pod: &PartialObjectMeta<Pod>) -> bool {
    let is_true = |value: Option<&String>| value.is_some_and(|value| value == "true");
    is_true(pod.labels().get(labels::ENABLE_IPTABLES)) || is_true(pod.annotations().get(annotations::LOOPBACK_TLS))
}

fn named<K: Kept>(context: &Context) -> BoxStream<'static, Event<K>> {
    let name = format!("metadata.name={}", K::NAME);
    let api: Api<K> = Api::all(context.client.clone());
    told(watcher::watcher(api, Config::default().fields(&name)))
}

impl Trusting for Namespaces {
    type Seen = Seen;

    fn watched(&self) -> SelectAll<BoxStream<'static, Seen>> {
        let (client, own) = (&self.context.client, &self.context.args.namespace);
        let asking = Config::default().labels(&format!("{}=true", labels::ENABLE_PROXY));
        let pods: Api<PartialObjectMeta<Pod>> = Api::all(client.clone());
        let cluster_ca: Api<ConfigMap> = Api::namespaced(client.clone(), own);
        let services: Api<Service> = Api::namespaced(client.clone(), SERVICE.0);
        futures_util::stream::select_all([
            told(watcher::watcher(pods, asking)).map(Seen::Pod).boxed(),
            named(&self.context).map(Seen::ConfigMap).boxed(),
            named(&self.context).map(Seen::Secret).boxed(),
            told(watch_object(cluster_ca, CLUSTER_CA)).map(Seen::ClusterCa).boxed(),
            told(watch_object(services, SERVICE.1))
                .map(|service| Seen::Addresses(told_addresses(service)))
                .boxed(),
        ])
    }

    fn see(&mut self, seen: Seen) -> bool {
        match seen {
            Seen::Pod(event) => return self.see_pod(event),
            Seen::ConfigMap(event) => return self.config_maps.see(event),
            Seen::Secret(event) => return self.secrets.see(event),
            Seen::ClusterCa(found) => {
                self.is_cluster_ca_looked_for = true;
                let text = found.and_then(|map| map.data?.remove(CA_FILE));
                // Who trusts the API server goes on to.
                match text.filter(|text| !certificates(text).is_empty()) {
                    Some(text) => self.cluster_ca = Some(text),
                    None => tracing::warn!(
                        namespace = self.context.args.namespace,
                        "ConfigMap {CLUSTER_CA} has no certificate; pods with redirected traffic wait until it has. Kubernetes' controller \
                         manager makes it; is it running?"
                    ),
                }
            }
            Seen::Addresses(addresses) => self.addresses = Some(addresses),
        }
        true
    }

    fn names(&self) -> Option<Vec<String>> {
        let extra = &self.context.args.proxy.proxy_serving_names;
        let fixed = NAMES.into_iter().map(str::to_owned);
        // Nobody asks: nothing is made.
        let addresses = self.addresses.as_ref().filter(|_| !self.all().is_empty())?;
        let mut names: Vec<String> = fixed.chain(addresses.iter().chain(extra).cloned()).collect();
        let mut known = BTreeSet::new();
        names.retain(|name| known.insert(name.clone()));
        Some(names)
    }

    /// Without the cluster's.
    fn in_force(&self) -> Option<Vec<String>> {
        if !self.config_maps.is_seen() || !self.secrets.is_seen() || !self.is_cluster_ca_looked_for {
            return None;
        }
        // Without the cluster's none can be written.
        let Some(cluster) = &self.cluster_ca else {
            return Some(Vec::new());
        };
        let cluster = certificates(cluster);
        let is_ours = |block: &String| certificates(block).iter().all(|der| !cluster.contains(der));
        let bundles = self.config_maps.ours().map(|(_, map)| {
            let text = map.data.as_ref().and_then(|data| data.get(CA_FILE));
            blocks(text.map_or("", String::as_str))
                .into_iter()
                .filter(is_ours)
                .collect()
        });
        Some(bundles.collect())
    }

    async fn trust(&mut self, bundle: &str) -> Result<(), Error> {
        self.write_bundles(bundle).await;
        Ok(())
    }

    async fn hand_out(&mut self, stored: &Stored) -> Option<Duration> {
        // Whom to trust first.
        let written = worse(
            self.write_bundles(&stored.bundle()).await,
            self.write_certificates(stored).await,
        );
        (written == Written::Failed).then_some(RETRY)
    }
}

/// As names of a certificate.
fn told_addresses(service: Option<Service>) -> Vec<String> {
    if service.is_none() {
        tracing::warn!("there is no Service kubernetes; certificates of sidecars are not for its address");
    }
    let all = service.as_ref().map(addresses).unwrap_or_default();
    all.iter().map(ToString::to_string).collect()
}
