//! Labels the objects of one kind: lists them page by page, then watches them. Only one page is in memory at a time.

use futures_util::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::discovery::ApiResource;
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, DefaultBackoff, Event};
use tokio::sync::broadcast::Receiver;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::labeller::Labeller;
use super::write::Object;
use crate::cluster::error_text;
use ctrlmesh_manager_planner::labels::rules::patch_in;

/// Objects in one page of a list, as with client-go.
const PAGE: u32 = 500;

/// Follows the objects of one kind until it is stopped.
pub(super) async fn follow_objects(shared: Shared, kind: ApiResource, stop: CancellationToken) {
    let mut object_watcher = ObjectWatcher {
        labeller: Labeller::new(shared.clone(), kind),
        flips: shared.namespaces.subscribe_changes(),
        shared,
    };
    while stop.run_until_cancelled(object_watcher.follow_once()).await.is_some() {}
}

struct ObjectWatcher {
    shared: Shared,
    labeller: Labeller,
    /// Namespaces whose objects have to be checked again.
    flips: Receiver<String>,
}

impl ObjectWatcher {
    /// Follows one list and its watch, until everything has to be listed again.
    ///
    /// The result does not depend on what was seen before: each object is compared with the current state of its namespace, and
    /// later changes come by the watch, which begins where the list was read.
    async fn follow_once(&mut self) {
        let config = Config::default().page_size(PAGE);
        let stream = watcher(self.labeller.all_objects(), config);
        let mut stream = std::pin::pin!(StreamBackoff::new(stream, DefaultBackoff::default()));
        loop {
            tokio::select! {
                () = self.labeller.write_queued() => return,
                flip = self.flips.recv() => match flip {
                    Ok(namespace) => self.look_into(&namespace).await,
                    // There are too many to check one by one.
                    Err(_) => return,
                },
                event = stream.next() => match event {
                    None => return,
                    Some(Err(error)) => self.labeller.report_unreadable(&error).await,
                    Some(Ok(event)) => self.handle_event(event).await,
                },
            }
        }
    }

    async fn handle_event(&mut self, event: Event<Object>) {
        match event {
            Event::Init => self.labeller.begin_list(),
            Event::InitApply(object) | Event::Apply(object) => self.label_object(&object.metadata).await,
            Event::InitDone => self.labeller.finish_list(),
            Event::Delete(_) => {}
        }
    }

    async fn label_object(&mut self, object: &ObjectMeta) {
        let Some(namespace) = object.namespace.as_deref() else {
            return;
        };
        let (namespaces, client) = (&self.shared.namespaces, &self.shared.context.background);
        match namespaces.is_managed(client.clone(), namespace).await {
            Ok(Some(is_managed)) => {
                let changes = patch_in(object, namespace, is_managed, &self.shared.keys);
                self.labeller.queue_changes(object, changes.as_ref());
            }
            // The namespace is being deleted, and the object with it.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    error = error_text(&error),
                    namespace,
                    "failed to read whether the namespace is managed; retrying"
                );
                self.labeller.retry_unchecked(object);
            }
        }
    }

    /// Checks the objects of a namespace that began or ceased to be managed.
    async fn look_into(&mut self, namespace: &str) {
        let objects = self.labeller.objects_in(namespace);
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = match objects.list(&params).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(
                        error = error_text(&error),
                        namespace,
                        url = objects.resource_url(),
                        "failed to list objects of the namespace; retrying"
                    );
                    return self.labeller.lose_track();
                }
            };
            for object in &page.items {
                self.label_object(&object.metadata).await;
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return,
            }
        }
    }
}
