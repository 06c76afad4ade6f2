//! Watch caches of ShardingConfigs and of the names of namespaces, with one watch each for the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_planner::auto_shard::LabelKeys;
use ctrlmesh_manager_planner::labels::rules::is_managed;
use futures_util::{StreamExt as _, stream};
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
    /// Incremented with each change.
    changes: u64,
}

/// Watch caches of ShardingConfigs and namespaces.
#[derive(Clone)]
pub(super) struct Caches {
    configs: Store<DynamicObject>,
    namespaces: Store<NamespaceMeta>,
    keys: LabelKeys,
    seen: Arc<watch::Sender<WatchProgress>>,
}

impl Caches {
    /// The watches start when the triggers are polled.
    pub(super) fn watch(client: &Client, keys: LabelKeys) -> (Self, Triggers) {
        let kind = ApiResource::erase::<ShardingConfig>(&());
        let configs = Writer::new(kind.clone());
        let namespaces = Writer::new(());
        let caches = Self {
            configs: configs.as_reader(),
            namespaces: namespaces.as_reader(),
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
        let triggers = stream::select(of_configs.boxed(), of_namespaces.boxed());
        (caches, triggers.flat_map(stream::iter).boxed())
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
                object.namespace().iter().map(|name| ObjectRef::new(name)).collect()
            }
            Some(Event::InitDone) => {
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

    fn count_change<K>(&self, event: Option<&Event<K>>) {
        if let Some(Event::Apply(_) | Event::Delete(_) | Event::InitDone) = event {
            self.seen.send_modify(|seen| seen.changes += 1);
        }
    }

    /// Namespaces with such a ShardingConfig.
    fn with_configs(&self, is_such: fn(&DynamicObject) -> bool) -> Vec<ObjectRef<NamespaceMeta>> {
        let configs = self.configs.state();
        let such = configs.iter().filter(|object| is_such(object));
        let names: BTreeSet<String> = such.filter_map(|object| object.namespace()).collect();
        names.iter().map(|name| ObjectRef::new(name)).collect()
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
