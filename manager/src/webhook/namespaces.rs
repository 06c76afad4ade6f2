//! A cache of namespaces in every replica: names and labels, by a watch. Namespaces that the watch has not seen yet are requested.

use std::time::Duration;

use ctrlmesh_logging::WarningRate;
use ctrlmesh_manager_planner::LabelKeys;
use ctrlmesh_manager_planner::labels::rules::is_managed;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::metadata::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store, store::Writer};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::Instant;

use crate::cluster::{Context, error_text};

/// Timeout for one namespace. A review has twice that time (`deploy/webhook/mutating.yaml`), and the back-fill finds objects
/// without labels later.
const NAMESPACE_GET_TIMEOUT: Duration = Duration::from_secs(1);

type NamespaceMetadata = PartialObjectMeta<Namespace>;

/// Namespaces, as last seen.
pub(crate) struct Namespaces {
    client: Client,
    known: Store<NamespaceMetadata>,
    /// Limits warnings, because any client can ask about namespaces that do not exist.
    unread: WarningRate,
}

impl Namespaces {
    /// An empty cache, and the writer with which [`follow_namespaces`] fills it.
    pub(crate) fn new(client: Client) -> (Self, Writer<NamespaceMetadata>) {
        let (known, writer) = store();
        let namespaces = Self {
            client,
            known,
            unread: WarningRate::default(),
        };
        (namespaces, writer)
    }

    /// `None`: the namespace does not exist, or there was no response in time.
    pub(crate) async fn get(&self, name: &str) -> Option<ObjectMeta> {
        if let Some(known) = self.known.get(&ObjectRef::new(name)) {
            return Some(known.metadata.clone());
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        // Uses a list, for which the watch needs the permission anyway.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        match tokio::time::timeout(NAMESPACE_GET_TIMEOUT, api.list_metadata(&named)).await {
            Ok(Ok(found)) => found.items.into_iter().next().map(|found| found.metadata),
            Ok(Err(error)) => {
                if let Some(suppressed) = self.unread.admit(Instant::now().into_std()) {
                    tracing::warn!(
                        error = error_text(&error),
                        namespace = name,
                        suppressed,
                        "failed to read the object's namespace; the back-fill will add its labels"
                    );
                }
                None
            }
            Err(_) => {
                if let Some(suppressed) = self.unread.admit(Instant::now().into_std()) {
                    tracing::warn!(
                        namespace = name,
                        suppressed,
                        "timed out reading the object's namespace; the back-fill will add its labels"
                    );
                }
                None
            }
        }
    }

    /// Names of managed namespaces, `most` at most.
    pub(crate) fn managed_namespaces(&self, keys: &LabelKeys, most: usize) -> Vec<String> {
        let known = self.known.state();
        let managed = known.iter().filter(|namespace| is_managed(&namespace.metadata, keys));
        let mut names: Vec<String> = managed.map(|namespace| namespace.name_any()).collect();
        names.sort_unstable();
        names.truncate(most);
        names
    }
}

/// Keeps the cache up to date until the manager stops.
pub(crate) async fn follow_namespaces(writer: Writer<NamespaceMetadata>, context: Context) {
    let api: Api<NamespaceMetadata> = Api::all(context.client.clone());
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(|namespace: &mut NamespaceMetadata| {
            namespace.metadata.managed_fields = None;
            namespace.metadata.annotations = None;
        })
        .reflect(writer)
        .take_until(context.stop.cancelled());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        if let Err(error) = event {
            tracing::warn!(error = error_text(&error), "watch of namespaces failed; retrying");
        }
    }
}
