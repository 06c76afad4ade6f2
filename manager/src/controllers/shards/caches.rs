//! Watch caches of ShardingConfigs, of the names of namespaces, and of the replicas of StatefulSets, with one watch each for the cluster.
//! The watch of StatefulSets begins with the first root that follows the replicas of one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_planner::auto_shard::{LabelKeys, Workload};
use ctrlmesh_manager_planner::labels::rules::is_managed;
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PartialObjectMeta;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::sync::watch;

use crate::cluster::error_text;

/// The watched part of a namespace.
pub(super) type NamespaceMeta = PartialObjectMeta<Namespace>;

/// A ShardingConfig, as it was stored.
pub(super) type Config = Arc<DynamicObject>;

/// Namespaces that need a pass.
pub(super) type Triggers = stream::BoxStream<'static, ObjectRef<NamespaceMeta>>;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WatchProgress {
    configs: bool,
    namespaces: bool,
    /// Whether a root has followed the replicas of its StatefulSet.
    follows_replicas: bool,
    stateful_sets: bool,
    /// Incremented with each change.
    changes: u64,
}

/// Watch caches of ShardingConfigs and namespaces.
#[derive(Clone)]
pub(super) struct Caches {
    configs: Store<DynamicObject>,
    namespaces: Store<NamespaceMeta>,
    stateful_sets: Store<StatefulSet>,
    keys: LabelKeys,
    seen: Arc<watch::Sender<WatchProgress>>,
}

impl Caches {
    /// The watches start when the triggers are polled.
    pub(super) fn watch(client: &Client, keys: LabelKeys) -> (Self, Triggers) {
        let kind = ApiResource::erase::<ShardingConfig>(&());
        let configs = Writer::new(kind.clone());
        let namespaces = Writer::new(());
        let stateful_sets = Writer::new(());
        let caches = Self {
            configs: configs.as_reader(),
            namespaces: namespaces.as_reader(),
            stateful_sets: stateful_sets.as_reader(),
            keys,
            seen: Arc::default(),
        };
        let api = Api::all_with(client.clone(), &kind);
        let events = watcher(api, watcher::Config::default())
            .default_backoff()
            .modify(|object: &mut DynamicObject| object.managed_fields_mut().clear())
            .reflect(configs);
        let here = caches.clone();
        let of_configs = events.map(move |event| here.config(ok_or_log(event, "shardingconfigs")));
        let events = watcher(Api::<NamespaceMeta>::all(client.clone()), watcher::Config::default())
            .default_backoff()
            .modify(|namespace: &mut NamespaceMeta| {
                namespace.managed_fields_mut().clear();
                namespace.annotations_mut().clear();
            })
            .reflect(namespaces);
        let here = caches.clone();
        let of_namespaces = events.map(move |event| here.namespace(ok_or_log(event, "namespaces")));
        let of_sets = caches.watch_stateful_sets(client, stateful_sets);
        let triggers = stream::select_all([of_configs.boxed(), of_namespaces.boxed(), of_sets]);
        (caches, triggers.flat_map(stream::iter).boxed())
    }

    /// The namespaces that need a pass after each event of StatefulSets. The watch starts when a root follows the replicas of one.
    fn watch_stateful_sets(
        &self,
        client: &Client,
        writer: Writer<StatefulSet>,
    ) -> stream::BoxStream<'static, Vec<ObjectRef<NamespaceMeta>>> {
        let events = watcher(Api::<StatefulSet>::all(client.clone()), watcher::Config::default())
            .default_backoff()
            .modify(keep_replicas)
            .reflect(writer);
        let here = self.clone();
        let triggers = events.map(move |event| here.stateful_set(ok_or_log(event, "statefulsets")));
        let seen = Arc::clone(&self.seen);
        let begun = async move {
            // The sender is in `seen`.
            let _ = seen.subscribe().wait_for(|seen| seen.follows_replicas).await;
            triggers
        };
        stream::once(begun).flatten().boxed()
    }

    /// Waits until everything that exists was seen once. Before that, a missing object may only not be seen yet.
    pub(super) async fn wait_until_ready(&self) {
        // The sender is in `self`.
        let _ = self
            .seen
            .subscribe()
            .wait_for(|seen| seen.configs && seen.namespaces)
            .await;
    }

    pub(super) fn subscribe_changes(&self) -> watch::Receiver<WatchProgress> {
        self.seen.subscribe()
    }

    pub(super) fn by_namespace(&self) -> BTreeMap<String, Vec<Config>> {
        let mut all: BTreeMap<String, Vec<Config>> = BTreeMap::new();
        for config in self.configs.state() {
            all.entry(config.namespace().unwrap_or_default())
                .or_default()
                .push(config);
        }
        all
    }

    /// A StatefulSet; `None`: they are not listed yet.
    pub(super) fn workload(&self, namespace: &str, name: &str) -> Option<Workload> {
        if !self.seen.borrow().stateful_sets {
            return None;
        }
        let set = self
            .stateful_sets
            .get(&ObjectRef::<StatefulSet>::new(name).within(namespace));
        Some(set.map_or(Workload::Missing, |set| workload_of(&set)))
    }

    pub(super) fn namespace_store(&self) -> Store<NamespaceMeta> {
        self.namespaces.clone()
    }

    /// Names of managed namespaces.
    pub(super) fn managed_namespaces(&self) -> Vec<String> {
        let known = self.namespaces.state();
        let managed = known.iter().filter(|known| is_managed(&known.metadata, &self.keys));
        managed.map(|known| known.name_any()).collect()
    }

    /// Keys of the labels that selectors use.
    pub(super) const fn keys(&self) -> &LabelKeys {
        &self.keys
    }

    /// ShardingConfigs of a namespace, as they were stored, by name.
    pub(super) fn documents_in(&self, namespace: &str) -> Vec<Value> {
        let configs = self.configs.state();
        let own = configs
            .iter()
            .filter(|object| object.namespace().as_deref() == Some(namespace));
        let mut documents: Vec<Value> = own.filter_map(|object| serde_json::to_value(&**object).ok()).collect();
        documents.sort_by_key(|document| document.pointer("/metadata/name").map(ToString::to_string));
        documents
    }

    /// Namespaces that need a pass after an event of ShardingConfigs.
    fn config(&self, event: Option<Event<DynamicObject>>) -> Vec<ObjectRef<NamespaceMeta>> {
        self.count_change(event.as_ref());
        match event {
            Some(Event::Apply(object) | Event::Delete(object)) => {
                self.note_followers(followed_by(&object).is_some());
                object.namespace().iter().map(|name| ObjectRef::new(name)).collect()
            }
            Some(Event::InitDone) => {
                let configs = self.configs.state();
                self.note_followers(configs.iter().any(|config| followed_by(config).is_some()));
                self.seen.send_modify(|seen| seen.configs = true);
                self.with_configs(|_| true)
            }
            Some(Event::Init | Event::InitApply(_)) | None => Vec::new(),
        }
    }

    /// Namespaces that need a pass after an event of namespaces.
    fn namespace(&self, event: Option<Event<NamespaceMeta>>) -> Vec<ObjectRef<NamespaceMeta>> {
        self.count_change(event.as_ref());
        match event {
            Some(Event::Apply(_) | Event::Delete(_)) => self.with_configs(names_namespaces),
            Some(Event::InitDone) => {
                self.seen.send_modify(|seen| seen.namespaces = true);
                self.with_configs(|_| true)
            }
            Some(Event::Init | Event::InitApply(_)) | None => Vec::new(),
        }
    }

    /// Namespaces that need a pass after an event of StatefulSets.
    fn stateful_set(&self, event: Option<Event<StatefulSet>>) -> Vec<ObjectRef<NamespaceMeta>> {
        match event {
            Some(Event::Apply(set) | Event::Delete(set)) => self.with_configs(|config| {
                let followed = followed_by(config);
                followed.is_some() && followed == set.metadata.name.as_deref() && config.namespace() == set.namespace()
            }),
            Some(Event::InitDone) => {
                self.seen.send_modify(|seen| seen.stateful_sets = true);
                self.with_configs(|config| followed_by(config).is_some())
            }
            Some(Event::Init | Event::InitApply(_)) | None => Vec::new(),
        }
    }

    /// Starts the watch of StatefulSets with the first root that follows replicas.
    fn note_followers(&self, follows_replicas: bool) {
        self.seen
            .send_if_modified(|seen| follows_replicas && !std::mem::replace(&mut seen.follows_replicas, true));
    }

    fn count_change<K>(&self, event: Option<&Event<K>>) {
        if let Some(Event::Apply(_) | Event::Delete(_) | Event::InitDone) = event {
            self.seen.send_modify(|seen| seen.changes += 1);
        }
    }

    /// Namespaces with such a ShardingConfig.
    fn with_configs(&self, is_such: impl Fn(&DynamicObject) -> bool) -> Vec<ObjectRef<NamespaceMeta>> {
        let configs = self.configs.state();
        let such = configs.iter().filter(|object| is_such(object));
        let names: BTreeSet<String> = such.filter_map(|object| object.namespace()).collect();
        names.iter().map(|name| ObjectRef::new(name)).collect()
    }
}

/// Name of the StatefulSet whose replicas decide the number of shards of a root (`spec.root`). `None`: the root says the number itself,
/// or makes no shards.
pub(super) fn followed_stateful_set(root: &Value) -> Option<&str> {
    let is_given = |field: &str| root.pointer(field).is_some_and(|value| !value.is_null());
    let follows = is_given("/key") && is_given("/auto") && !is_given("/auto/shardingSize");
    let name = root.get("targetStatefulSet")?.as_str()?;
    (follows && root.get("disable") != Some(&Value::Bool(true))).then_some(name)
}

fn followed_by(config: &DynamicObject) -> Option<&str> {
    followed_stateful_set(config.data.pointer("/spec/root")?)
}

/// Keeps of a StatefulSet what the number of shards depends on.
fn keep_replicas(set: &mut StatefulSet) {
    set.managed_fields_mut().clear();
    set.annotations_mut().clear();
    set.labels_mut().clear();
    set.status = None;
    set.spec = StatefulSetSpec {
        replicas: set.spec.replicas,
        ordinals: set.spec.ordinals.take(),
        ..StatefulSetSpec::default()
    };
}

fn workload_of(set: &StatefulSet) -> Workload {
    let ordinals = set.spec.ordinals.as_ref();
    Workload::Found {
        // API servers write the default.
        replicas: set.spec.replicas.unwrap_or(1),
        first_ordinal: ordinals.and_then(|ordinals| ordinals.start).unwrap_or_default(),
    }
}

/// Whether shards depend on the names of namespaces: only if a canary has both lists.
fn names_namespaces(object: &DynamicObject) -> bool {
    let has = |field: &str| {
        let list = object.data.pointer(&format!("/spec/root/canary/{field}"));
        list.and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    };
    has("inNamespaces") && has("inShardHash")
}

fn ok_or_log<K>(event: watcher::Result<Event<K>>, resource: &str) -> Option<Event<K>> {
    event
        .inspect_err(|error| tracing::warn!(error = error_text(error), resource, "watch failed; restarting it"))
        .ok()
}
