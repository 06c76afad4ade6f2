//! Labels namespaces, and records which of them are managed.

use std::collections::HashSet;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::discovery::ApiResource;
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, DefaultBackoff, Event};

use super::Shared;
use super::labeller::Labeller;
use super::write::Object;
use ctrlmesh_manager_planner::labels::rules::patch_for_namespace;

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
                let is_late = namespaces.are_known();
                namespaces.put(&namespace.metadata, is_late);
                self.label_namespace(&namespace.metadata);
            }
            Event::InitDone => {
                namespaces.retain(&self.listed);
                self.listed = HashSet::new();
                namespaces.set_known();
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
        let changes = patch_for_namespace(namespace, &self.shared.keys);
        self.labeller.queue_changes(namespace, changes.as_ref());
    }
}
