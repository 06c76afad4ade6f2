//! Labels namespaces, and keeps in memory which of them are managed.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock};

use ctrlmesh_manager_planner::auto_shard::LabelKeys;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;
use kube::discovery::ApiResource;
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, DefaultBackoff, Event};
use kube::{Api, Client};
use tokio::sync::{broadcast, watch};

use super::Shared;
use super::labeller::Labeller;
use super::write::Object;
use ctrlmesh_manager_planner::labels::rules::{is_managed, patch_for_namespace};

/// Maximum changed namespaces that a kind has not checked yet. If there are more, it checks all of its objects.
const MAX_FLIPS: usize = 64;

/// The namespaces that are managed.
pub(super) struct Namespaces {
    keys: LabelKeys,
    managed: RwLock<HashMap<String, bool>>,
    /// Namespaces that began or ceased to be managed.
    flips: broadcast::Sender<String>,
    /// Whether all namespaces were seen once.
    known: watch::Sender<bool>,
}

impl Namespaces {
    pub(super) fn new(keys: LabelKeys) -> Self {
        Self {
            keys,
            managed: RwLock::default(),
            flips: broadcast::channel(MAX_FLIPS).0,
            known: watch::channel(false).0,
        }
    }

    /// Receives namespaces that begin or cease to be managed from now on.
    pub(super) fn subscribe_changes(&self) -> broadcast::Receiver<String> {
        self.flips.subscribe()
    }

    /// Waits until all namespaces were seen once.
    pub(super) async fn wait_until_known(&self) {
        // The sender is in `self`.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    /// Whether a namespace is managed. If the watch has not seen it yet, it is requested. `None`: it does not exist.
    ///
    /// # Errors
    /// The request fails.
    pub(super) async fn is_managed(&self, client: Client, name: &str) -> Result<Option<bool>, kube::Error> {
        if let Some(is_managed) = self.get(name) {
            return Ok(Some(is_managed));
        }
        let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client);
        let found = namespaces.get_opt(name).await?;
        Ok(found.map(|found| is_managed(&found.metadata, &self.keys)))
    }

    fn get(&self, name: &str) -> Option<bool> {
        let managed = self.managed.read().unwrap_or_else(PoisonError::into_inner);
        managed.get(name).copied()
    }

    /// Records a namespace. `is_late`: objects in it may have been checked before it was known.
    fn put(&self, namespace: &ObjectMeta, is_late: bool) {
        let name = namespace.name.clone().unwrap_or_default();
        let is_managed = is_managed(namespace, &self.keys);
        let before = {
            let mut managed = self.managed.write().unwrap_or_else(PoisonError::into_inner);
            managed.insert(name.clone(), is_managed)
        };
        if before.map_or(is_late, |before| before != is_managed) {
            // Without a receiver no kind is followed yet.
            let _ = self.flips.send(name);
        }
    }

    fn remove(&self, name: &str) {
        let mut managed = self.managed.write().unwrap_or_else(PoisonError::into_inner);
        managed.remove(name);
    }

    fn retain(&self, names: &HashSet<String>) {
        let mut managed = self.managed.write().unwrap_or_else(PoisonError::into_inner);
        managed.retain(|name, _| names.contains(name));
    }
}

/// Follows the namespaces until the manager stops.
pub(super) async fn follow_namespaces(shared: Shared) {
    let mut reconciler = NamespaceReconciler {
        labeller: Labeller::new(shared.clone(), ApiResource::erase::<Namespace>(&())),
        shared,
        listed: HashSet::new(),
    };
    let stop = reconciler.shared.context.stop.clone();
    while stop.run_until_cancelled(reconciler.follow_once()).await.is_some() {}
}

struct NamespaceReconciler {
    shared: Shared,
    labeller: Labeller,
    /// Names in the list that is being read.
    listed: HashSet<String>,
}

impl NamespaceReconciler {
    /// Follows one list and its watch, until everything has to be listed again.
    async fn follow_once(&mut self) {
        let stream = watcher(self.labeller.all_objects(), Config::default());
        let mut stream = std::pin::pin!(StreamBackoff::new(stream, DefaultBackoff::default()));
        loop {
            tokio::select! {
                () = self.labeller.write_queued() => return,
                event = stream.next() => match event {
                    None => return,
                    Some(Err(error)) => self.labeller.report_unreadable(&error).await,
                    Some(Ok(event)) => self.handle_event(event),
                },
            }
        }
    }

    fn handle_event(&mut self, event: Event<Object>) {
        let namespaces = &self.shared.namespaces;
        match event {
            Event::Init => {
                self.listed.clear();
                self.labeller.begin_list();
            }
            Event::InitApply(namespace) => {
                self.listed.extend(namespace.metadata.name.clone());
                let is_late = *namespaces.known.borrow();
                namespaces.put(&namespace.metadata, is_late);
                self.label_namespace(&namespace.metadata);
            }
            Event::InitDone => {
                namespaces.retain(&self.listed);
                self.listed = HashSet::new();
                namespaces.known.send_replace(true);
                self.labeller.finish_list();
            }
            Event::Apply(namespace) => {
                namespaces.put(&namespace.metadata, false);
                self.label_namespace(&namespace.metadata);
            }
            Event::Delete(namespace) => namespaces.remove(namespace.metadata.name.as_deref().unwrap_or_default()),
        }
    }

    fn label_namespace(&mut self, namespace: &ObjectMeta) {
        let changes = patch_for_namespace(namespace, &self.shared.namespaces.keys);
        self.labeller.queue_changes(namespace, changes.as_ref());
    }
}
