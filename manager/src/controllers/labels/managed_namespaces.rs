//! The managed namespaces. They are kept in memory, and changes are announced.

use std::collections::{HashMap, HashSet};
use std::sync::RwLock;

use ctrlmesh_manager_planner::auto_shard::LabelKeys;
use ctrlmesh_manager_planner::labels::rules::is_managed;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PartialObjectMeta;
use kube::{Api, Client};
use tokio::sync::{broadcast, watch};

use crate::cluster::{read_unpoisoned, write_unpoisoned};

/// Maximum changed namespaces that a kind has not checked yet. If there are more, it checks all of its objects.
const MAX_FLIPS: usize = 64;

/// The namespaces that a watch has seen, and whether each is managed.
pub(super) struct ManagedNamespaces {
    keys: LabelKeys,
    managed: RwLock<HashMap<String, bool>>,
    /// Namespaces that began or ceased to be managed.
    flips: broadcast::Sender<String>,
    /// Whether all namespaces were seen once.
    known: watch::Sender<bool>,
}

impl ManagedNamespaces {
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

    /// Whether all namespaces were seen once.
    pub(super) fn are_known(&self) -> bool {
        *self.known.borrow()
    }

    /// All namespaces were seen once.
    pub(super) fn set_known(&self) {
        self.known.send_replace(true);
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
        let managed = read_unpoisoned(&self.managed);
        managed.get(name).copied()
    }

    /// Records a namespace. `is_late`: objects in it may have been checked before it was known.
    pub(super) fn put(&self, namespace: &ObjectMeta, is_late: bool) {
        let name = namespace.name.clone().unwrap_or_default();
        let is_managed = is_managed(namespace, &self.keys);
        let before = {
            let mut managed = write_unpoisoned(&self.managed);
            managed.insert(name.clone(), is_managed)
        };
        if before.map_or(is_late, |before| before != is_managed) {
            // Without a receiver no kind is followed yet.
            let _ = self.flips.send(name);
        }
    }

    pub(super) fn remove(&self, name: &str) {
        let mut managed = write_unpoisoned(&self.managed);
        managed.remove(name);
    }

    /// Forgets all other namespaces.
    pub(super) fn retain(&self, names: &HashSet<String>) {
        let mut managed = write_unpoisoned(&self.managed);
        managed.retain(|name, _| names.contains(name));
    }
}
