//! Finds the namespaces that need bundle and certificate. Each has a CA of its own, whose key stays in the manager's namespace, and
//! a task that keeps it. So a reader of one namespace's Secrets can't impersonate the API server in another, and a failure in one
//! namespace does not block others.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::{annotations, labels};
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, SelectAll, select_all};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace as Core, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Config, Event, watch_object};
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::namespace::{self, Cluster, Namespace, changes};
use super::object::{Kept, is_ours};
use super::seen::Seen;
use super::{CA_FILE, CLUSTER_CA, OF_NAMESPACE, SECRET, SERVICE, addresses};
use crate::certificates::ca::{self, CaSecret, Schedule, certificates, log_watch_errors};
use crate::cluster::{Context, Error};

/// An event of a watch.
enum Told {
    Namespace(Event<PartialObjectMeta<Core>>),
    Pod(Event<PartialObjectMeta<Pod>>),
    Authority(Event<Secret>),
    Bundle(Event<ConfigMap>),
    Certificate(Event<Secret>),
    ClusterCa(Option<ConfigMap>),
    Service(Option<Box<Service>>),
}

/// The namespaces that are kept.
pub(super) struct Namespaces {
    context: Context,
    schedule: Schedule,
    there: Seen<PartialObjectMeta<Core>>,
    /// Namespaces with a pod that needs the CA, or with a bundle of ours. A recreated namespace may be seen after a pod in it, so
    /// none is removed.
    needing: BTreeSet<String>,
    authorities: Seen<Secret>,
    bundles: Seen<ConfigMap>,
    certificates: Seen<Secret>,
    cluster: watch::Sender<Cluster>,
    kept: BTreeMap<String, Keeping>,
    tasks: JoinSet<()>,
}

/// The task of a namespace.
struct Keeping {
    /// UID of the namespace. A recreated namespace has another one.
    uid: Option<String>,
    stop: CancellationToken,
}

impl Namespaces {
    pub(super) fn new(context: Context, schedule: Schedule) -> Self {
        Self {
            context,
            schedule,
            there: Seen::new(|namespace| Some(namespace.name_any())),
            needing: BTreeSet::new(),
            authorities: Seen::new(namespace_of),
            bundles: Seen::new(ResourceExt::namespace),
            certificates: Seen::new(ResourceExt::namespace),
            cluster: watch::Sender::default(),
            kept: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Keeps the namespaces until the manager stops.
    ///
    /// # Errors
    /// A task panicked.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        let mut told = self.watched();
        loop {
            tokio::select! {
                () = self.context.stop.cancelled() => break,
                Some(ended) = self.tasks.join_next() => ended?,
                Some(told) = told.next() => {
                    self.observe(told);
                    self.attend();
                }
            }
        }
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    fn watched(&self) -> SelectAll<BoxStream<'static, Told>> {
        let (client, own) = (&self.context.client, &self.context.args.namespace);
        let asking = Config::default().labels(&format!("{}=true", labels::ENABLE_PROXY));
        let namespaces: Api<PartialObjectMeta<Core>> = Api::all(client.clone());
        let pods: Api<PartialObjectMeta<Pod>> = Api::all(client.clone());
        let authorities: Api<Secret> = Api::namespaced(client.clone(), own);
        let cluster_ca: Api<ConfigMap> = Api::namespaced(client.clone(), own);
        let services: Api<Service> = Api::namespaced(client.clone(), SERVICE.0);
        let labelled = Config::default().labels(OF_NAMESPACE);
        select_all([
            log_watch_errors(watcher::watcher(namespaces, Config::default()))
                .map(Told::Namespace)
                .boxed(),
            log_watch_errors(watcher::watcher(pods, asking)).map(Told::Pod).boxed(),
            log_watch_errors(watcher::watcher(authorities, labelled))
                .map(Told::Authority)
                .boxed(),
            named(&self.context).map(Told::Bundle).boxed(),
            named(&self.context).map(Told::Certificate).boxed(),
            log_watch_errors(watch_object(cluster_ca, CLUSTER_CA))
                .map(Told::ClusterCa)
                .boxed(),
            log_watch_errors(watch_object(services, SERVICE.1))
                .map(|found| Told::Service(found.map(Box::new)))
                .boxed(),
        ])
    }

    fn observe(&mut self, told: Told) {
        match told {
            Told::Namespace(event) => self.there.observe(event),
            Told::Pod(Event::InitApply(pod) | Event::Apply(pod)) if asks(&pod) => {
                self.needing.extend(pod.namespace());
            }
            Told::Pod(_) => {}
            Told::Authority(event) => self.authorities.observe(event),
            Told::Bundle(event) => {
                // Existing objects are kept up to date, also while the namespace has no pods.
                if let Event::InitApply(map) | Event::Apply(map) = &event
                    && is_ours(map)
                {
                    self.needing.extend(map.namespace());
                }
                self.bundles.observe(event);
            }
            Told::Certificate(event) => self.certificates.observe(event),
            Told::ClusterCa(found) => self.observe_cluster_ca(found),
            Told::Service(service) => {
                let names = told_addresses(service.as_deref());
                self.cluster.send_modify(|cluster| cluster.addresses = Some(names));
            }
        }
    }

    fn observe_cluster_ca(&self, found: Option<ConfigMap>) {
        let text = found.and_then(|map| map.data?.remove(CA_FILE));
        let text = text.filter(|text| !certificates(text).is_empty());
        if text.is_none() {
            tracing::warn!(
                namespace = self.context.args.namespace,
                name = CLUSTER_CA,
                "ConfigMap holds no certificate; pods with redirected traffic wait for it. kube-controller-manager writes it"
            );
        }
        self.cluster.send_modify(|cluster| {
            cluster.is_ca_looked_for = true;
            // Containers keep trusting the API server if the ConfigMap is gone.
            cluster.ca = text.or(cluster.ca.take());
        });
    }

    /// Starts tasks for namespaces that need one, and stops the others.
    fn attend(&mut self) {
        let uid = |name: &String| Some(self.there.get(name)?.uid());
        let gone = self
            .kept
            .iter()
            .filter(|(name, keeping)| uid(name).as_ref() != Some(&keeping.uid));
        let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
        let missing = self
            .needing
            .iter()
            .filter(|name| !self.kept.contains_key(*name) || gone.contains(name));
        let missing: Vec<(String, Option<String>)> =
            missing.filter_map(|name| Some((name.clone(), uid(name)?))).collect();
        for name in gone {
            if let Some(keeping) = self.kept.remove(&name) {
                keeping.stop.cancel();
            }
            self.authorities.forget(&name);
            self.bundles.forget(&name);
            self.certificates.forget(&name);
        }
        for (name, uid) in missing {
            self.keep(name, uid);
        }
    }

    fn keep(&mut self, name: String, uid: Option<String>) {
        let stop = self.context.stop.child_token();
        let context = self.context.until(stop.clone());
        let ca_secret = CaSecret {
            what: format!("sidecars of namespace {name}"),
            secret: authority(&name, uid.as_deref()),
            schedule: self.schedule,
        };
        let secrets = self.authorities.follow(&name).map({
            let uid = uid.clone();
            move |found| found.filter(|secret| !is_of_another(secret, uid.as_deref()))
        });
        let bundles = self.bundles.follow(&name).map(namespace::Seen::Bundle);
        let certificates = self.certificates.follow(&name).map(namespace::Seen::Certificate);
        let cluster = self.cluster.subscribe();
        let others = select_all([bundles.boxed(), certificates.boxed(), changes(cluster.clone())]);
        let namespace = Namespace::new(context.clone(), &name, cluster);
        self.tasks
            .spawn(ca::maintain(context, ca_secret, secrets.boxed(), others, namespace));
        self.kept.insert(name, Keeping { uid, stop });
    }
}

/// The namespace of a Secret with a CA. `None`: the label is right, but the name is not.
fn namespace_of(secret: &Secret) -> Option<String> {
    let namespace = secret.labels().get(OF_NAMESPACE)?;
    (secret.name_any() == format!("{SECRET}-{namespace}")).then(|| namespace.clone())
}

/// Whether the Secret belongs to an earlier namespace of this name. Pods must not trust it, because it is about to be deleted.
fn is_of_another(secret: &Secret, uid: Option<&str>) -> bool {
    let mut owners = secret.owner_references().iter();
    owners.any(|owner| owner.kind == "Namespace" && Some(owner.uid.as_str()) != uid)
}

/// Metadata of the Secret with a namespace's CA. It is deleted with the namespace.
fn authority(namespace: &str, uid: Option<&str>) -> ObjectMeta {
    let owner = uid.map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Namespace".to_owned(),
        name: namespace.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    });
    ObjectMeta {
        name: Some(format!("{SECRET}-{namespace}")),
        labels: Some(BTreeMap::from([(OF_NAMESPACE.to_owned(), namespace.to_owned())])),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// Whether a pod's containers use TLS to its sidecar.
fn asks(pod: &PartialObjectMeta<Pod>) -> bool {
    let is_true = |value: Option<&String>| value.is_some_and(|value| value == "true");
    is_true(pod.labels().get(labels::ENABLE_IPTABLES)) || is_true(pod.annotations().get(annotations::LOOPBACK_TLS))
}

fn named<K: Kept>(context: &Context) -> BoxStream<'static, Event<K>> {
    let name = format!("metadata.name={}", K::NAME);
    let api: Api<K> = Api::all(context.client.clone());
    log_watch_errors(watcher::watcher(api, Config::default().fields(&name)))
}

/// The Service's addresses as names of a certificate.
fn told_addresses(service: Option<&Service>) -> Vec<String> {
    if service.is_none() {
        tracing::warn!("Service kubernetes not found; certificates of sidecars will lack its addresses");
    }
    let all = service.map(addresses).unwrap_or_default();
    all.iter().map(ToString::to_string).collect()
}
