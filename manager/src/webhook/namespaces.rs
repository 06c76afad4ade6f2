//! What every replica knows of namespaces: names and labels, by a watch; one that is not known yet is asked for.

use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::metadata::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, store, store::Writer};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};

use super::warning_rate::WarningRate;
use crate::LabelKeys;
use crate::context::Context;
use crate::labels::rules::is_managed;
use crate::plain::plain;

/// For an answer about one namespace. A review has twice that time (`deploy/webhook/mutating.yaml`), and objects without labels are found later.
const ASK: Duration = Duration::from_secs(1);

type Known = PartialObjectMeta<Namespace>;

/// Namespaces, as last seen.
pub(crate) struct Namespaces {
    client: Client,
    known: Store<Known>,
    /// Whoever reaches the port can ask about namespaces that are not there.
    unread: WarningRate,
}

impl Namespaces {
    /// Empty, and what [`follow`] fills it with.
    pub(crate) fn new(client: Client) -> (Self, Writer<Known>) {
        let (known, writer) = store();
        let namespaces = Self {
            client,
            known,
            unread: WarningRate::default(),
        };
        (namespaces, writer)
    }

    /// `None`: there is none, or nobody says so in time.
    pub(crate) async fn get(&self, name: &str) -> Option<ObjectMeta> {
        if let Some(known) = self.known.get(&ObjectRef::new(name)) {
            return Some(known.metadata.clone());
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        // A list, which the watch needs anyway: one permission less.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        match tokio::time::timeout(ASK, api.list_metadata(&named)).await {
            Ok(Ok(found)) => found.items.into_iter().next().map(|found| found.metadata),
            Ok(Err(error)) => {
                if let Some(suppressed) = self.unread.admit() {
                    tracing::warn!(
                        error = plain(&error),
                        namespace = name,
                        suppressed,
                        "an object gets its labels later: its namespace can't be read"
                    );
                }
                None
            }
            Err(_) => {
                if let Some(suppressed) = self.unread.admit() {
                    tracing::warn!(
                        namespace = name,
                        suppressed,
                        "an object gets its labels later: no answer about its namespace"
                    );
                }
                None
            }
        }
    }

    /// Names of those whose objects are divided among shards; at most so many.
    pub(crate) fn managed(&self, keys: &LabelKeys, most: usize) -> Vec<String> {
        let known = self.known.state();
        let managed = known.iter().filter(|namespace| is_managed(&namespace.metadata, keys));
        let mut names: Vec<String> = managed.map(|namespace| namespace.name_any()).collect();
        names.sort_unstable();
        names.truncate(most);
        names
    }
}

/// Keeps the store true until it shall stop.
pub(crate) async fn follow(writer: Writer<Known>, context: Context) {
    let api: Api<Known> = Api::all(context.client.clone());
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(|namespace: &mut Known| {
            namespace.metadata.managed_fields = None;
            namespace.metadata.annotations = None;
        })
        .reflect(writer)
        .take_until(context.stop.cancelled());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        if let Err(error) = event {
            tracing::warn!(error = plain(&error), "namespaces can't be watched; it is tried again");
        }
    }
}
