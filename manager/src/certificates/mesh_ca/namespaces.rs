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

use super::last_seen::LastSeen;
use super::namespace::{self, Cluster, Namespace, cluster_changes};
use super::object::{ManagedObject, is_ours};
use super::{CA_FILE, CLUSTER_CA, OF_NAMESPACE, SECRET, SERVICE, service_addresses};
use crate::certificates::ca::{self, CaSecret, log_watch_errors, parse_certificates};
use crate::certificates::lifetimes::Schedule;
use crate::cluster::{Context, Error};

enum WatchEvent {
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
    there: LastSeen<PartialObjectMeta<Core>>,
    /// Namespaces with a pod that needs the CA, or with a bundle of ours. A recreated namespace may be seen after a pod in it, so
    /// none is removed.
    needing: BTreeSet<String>,
    authorities: LastSeen<Secret>,
    bundles: LastSeen<ConfigMap>,
    certificates: LastSeen<Secret>,
    cluster: watch::Sender<Cluster>,
    kept: BTreeMap<String, NamespaceTask>,
    tasks: JoinSet<()>,
}

struct NamespaceTask {
    /// UID of the namespace. A recreated namespace has another one.
    uid: Option<String>,
    stop: CancellationToken,
}

impl Namespaces {
    pub(super) fn new(context: Context, schedule: Schedule) -> Self {
        Self {
            context,
            schedule,
            there: LastSeen::new(|namespace| Some(namespace.name_any())),
            needing: BTreeSet::new(),
            authorities: LastSeen::new(namespace_of),
            bundles: LastSeen::new(ResourceExt::namespace),
            certificates: LastSeen::new(ResourceExt::namespace),
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
        let mut events = self.watch_all();
        loop {
            tokio::select! {
                () = self.context.stop.cancelled() => break,
                Some(ended) = self.tasks.join_next() => ended?,
                Some(event) = events.next() => {
                    self.observe(event);
                    self.reconcile_tasks();
                }
            }
        }
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    fn watch_all(&self) -> SelectAll<BoxStream<'static, WatchEvent>> {
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
                .map(WatchEvent::Namespace)
                .boxed(),
            log_watch_errors(watcher::watcher(pods, asking))
                .map(WatchEvent::Pod)
                .boxed(),
            log_watch_errors(watcher::watcher(authorities, labelled))
                .map(WatchEvent::Authority)
                .boxed(),
            watch_by_name(&self.context).map(WatchEvent::Bundle).boxed(),
            watch_by_name(&self.context).map(WatchEvent::Certificate).boxed(),
            log_watch_errors(watch_object(cluster_ca, CLUSTER_CA))
                .map(WatchEvent::ClusterCa)
                .boxed(),
            log_watch_errors(watch_object(services, SERVICE.1))
                .map(|found| WatchEvent::Service(found.map(Box::new)))
                .boxed(),
        ])
    }

    fn observe(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Namespace(event) => self.there.observe(event),
            WatchEvent::Pod(Event::InitApply(pod) | Event::Apply(pod)) if needs_ca(&pod) => {
                self.needing.extend(pod.namespace());
            }
            WatchEvent::Pod(_) => {}
            WatchEvent::Authority(event) => self.authorities.observe(event),
            WatchEvent::Bundle(event) => {
                // Existing objects are kept up to date, also while the namespace has no pods.
                if let Event::InitApply(map) | Event::Apply(map) = &event
                    && is_ours(map)
                {
                    self.needing.extend(map.namespace());
                }
                self.bundles.observe(event);
            }
            WatchEvent::Certificate(event) => self.certificates.observe(event),
            WatchEvent::ClusterCa(found) => self.observe_cluster_ca(found),
            WatchEvent::Service(service) => {
                let names = address_names(service.as_deref());
                self.cluster.send_modify(|cluster| cluster.addresses = Some(names));
            }
        }
    }

    fn observe_cluster_ca(&self, found: Option<ConfigMap>) {
        let text = found.and_then(|map| map.data?.remove(CA_FILE));
        let text = text.filter(|text| !parse_certificates(text).is_empty());
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
    fn reconcile_tasks(&mut self) {
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
            self.authorities.stop_following(&name);
            self.bundles.stop_following(&name);
            self.certificates.stop_following(&name);
        }
        for (name, uid) in missing {
            self.start_task(name, uid);
        }
    }

    fn start_task(&mut self, name: String, uid: Option<String>) {
        let stop = self.context.stop.child_token();
        let context = self.context.with_stop(stop.clone());
        let ca_secret = CaSecret {
            purpose: format!("sidecars of namespace {name}"),
            secret: ca_metadata(&name, uid.as_deref()),
            schedule: self.schedule,
        };
        let secrets = self.authorities.states_of(&name).map({
            let uid = uid.clone();
            move |found| found.filter(|secret| !is_of_another(secret, uid.as_deref()))
        });
        let bundles = self.bundles.states_of(&name).map(namespace::NamespaceEvent::Bundle);
        let certificates = self
            .certificates
            .states_of(&name)
            .map(namespace::NamespaceEvent::Certificate);
        let cluster = self.cluster.subscribe();
        let others = select_all([bundles.boxed(), certificates.boxed(), cluster_changes(cluster.clone())]);
        let namespace = Namespace::new(context.clone(), &name, cluster);
        self.tasks
            .spawn(ca::maintain(context, ca_secret, secrets.boxed(), others, namespace));
        self.kept.insert(name, NamespaceTask { uid, stop });
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
fn ca_metadata(namespace: &str, uid: Option<&str>) -> ObjectMeta {
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
fn needs_ca(pod: &PartialObjectMeta<Pod>) -> bool {
    let is_true = |value: Option<&String>| value.is_some_and(|value| value == "true");
    is_true(pod.labels().get(labels::ENABLE_IPTABLES)) || is_true(pod.annotations().get(annotations::LOOPBACK_TLS))
}

fn watch_by_name<K: ManagedObject>(context: &Context) -> BoxStream<'static, Event<K>> {
    let name = format!("metadata.name={}", K::NAME);
    let api: Api<K> = Api::all(context.client.clone());
    log_watch_errors(watcher::watcher(api, Config::default().fields(&name)))
}

/// The Service's addresses as names of a certificate.
fn address_names(service: Option<&Service>) -> Vec<String> {
    if service.is_none() {
        tracing::warn!("Service kubernetes not found; certificates of sidecars will lack its addresses");
    }
    let all = service.map(service_addresses).unwrap_or_default();
    all.iter().map(ToString::to_string).collect()
}
