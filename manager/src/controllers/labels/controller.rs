//! Follows the kinds that the ConfigMap names: starts and stops one task for each, and reports their progress.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::Api;
use kube::discovery::ApiResource;
use kube::runtime::utils::StreamBackoff;
use kube::runtime::watcher::{DefaultBackoff, watch_object};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::labeller::name_of;
use super::progress::{self, Progress, Report};
use super::{Shared, namespaces, objects};
use crate::cluster::events::{self, EventDraft};
use crate::cluster::{Error, error_text};
use crate::metrics::labels::Kind;
use ctrlmesh_manager_planner::labels::kinds::SelectedKinds;

/// Runs until the manager stops.
pub(super) async fn run(shared: Shared, mut reports: mpsc::Receiver<Report>) -> Result<(), Error> {
    let stop = shared.context.stop.clone();
    let config: Api<ConfigMap> = Api::namespaced(shared.context.client.clone(), &shared.context.args.namespace);
    let config = watch_object(config, &shared.context.args.resource_configmap_name);
    let mut config = std::pin::pin!(StreamBackoff::new(config, DefaultBackoff::default()));
    let mut discover = interval(shared.limits.discover);
    discover.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut controller = Controller::new(shared);
    controller.follow_namespaces();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(config) = config.next() => match config {
                Ok(config) => controller.configure(config).await,
                Err(error) => tracing::warn!(error = error_text(&error), "watch of the ConfigMap with kinds to label failed; retrying"),
            },
            _ = discover.tick() => {}
            Some(report) = reports.recv() => {
                controller.report(report).await;
                continue;
            }
            Some(ended) = controller.tasks.join_next() => {
                ended?;
                continue;
            }
        }
        if stop.run_until_cancelled(controller.discover()).await.is_none() {
            break;
        }
    }
    controller.join_tasks().await
}

struct Controller {
    shared: Shared,
    /// `None`: not read yet.
    kinds_to_label: Option<SelectedKinds>,
    followed: BTreeMap<String, FollowedKind>,
    tasks: JoinSet<()>,
    progress: Progress,
    /// The last reported kinds that can't be labelled.
    skipped_kinds: Vec<String>,
}

struct FollowedKind {
    kind: ApiResource,
    stop: CancellationToken,
}

impl Controller {
    fn new(shared: Shared) -> Self {
        Self {
            shared,
            kinds_to_label: None,
            followed: BTreeMap::new(),
            tasks: JoinSet::new(),
            progress: Progress::new("namespaces"),
            skipped_kinds: Vec::new(),
        }
    }

    fn follow_namespaces(&mut self) {
        self.tasks.spawn(namespaces::follow_namespaces(self.shared.clone()));
    }

    /// Applies the ConfigMap. An unreadable one changes nothing.
    async fn configure(&mut self, config: Option<ConfigMap>) {
        let is_good = &self.shared.context.metrics.labels.is_config_good;
        match config.map(|config| SelectedKinds::read(&config.data.unwrap_or_default())) {
            None => {
                is_good.set(1);
                self.kinds_to_label = Some(SelectedKinds::default());
            }
            Some(Ok(kinds_to_label)) => {
                is_good.set(1);
                self.kinds_to_label = Some(kinds_to_label);
            }
            Some(Err(error)) => {
                is_good.set(0);
                let event = progress::config_refused(&error, self.kinds_to_label.is_some());
                self.kinds_to_label.get_or_insert_default();
                tracing::warn!(note = event.note, "ConfigMap with kinds to label is invalid");
                self.publish_event(&event).await;
            }
        }
    }

    /// Follows exactly the kinds that are configured and that the cluster has.
    async fn discover(&mut self) {
        let Some(kinds_to_label) = self.kinds_to_label.clone() else {
            return;
        };
        let mut kinds = BTreeMap::new();
        let mut skipped_kinds = Vec::new();
        for group_version in kinds_to_label.group_versions() {
            match self.resources_of(group_version).await {
                Ok(found) => {
                    let (selected, skipped) = kinds_to_label.select_resources(group_version, &found);
                    kinds.extend(selected.into_iter().map(|kind| (name_of(&kind), kind)));
                    skipped_kinds.extend(skipped);
                }
                Err(error) => {
                    tracing::warn!(
                        error = error_text(&error),
                        group_version,
                        "discovery of kinds failed; retrying"
                    );
                    let known = self
                        .followed
                        .iter()
                        .filter(|(_, one)| one.kind.api_version == group_version);
                    kinds.extend(known.map(|(name, one)| (name.clone(), one.kind.clone())));
                }
            }
        }
        self.follow_kinds(kinds).await;
        if skipped_kinds != self.skipped_kinds {
            if !skipped_kinds.is_empty() {
                let event = progress::kinds_left_alone(&skipped_kinds);
                tracing::warn!(note = event.note, "some kinds are not labelled");
                self.publish_event(&event).await;
            }
            self.skipped_kinds = skipped_kinds;
        }
    }

    async fn resources_of(&self, group_version: &str) -> Result<Vec<APIResource>, kube::Error> {
        let client = &self.shared.context.client;
        let found = if group_version.contains('/') {
            client.list_api_group_resources(group_version).await
        } else {
            client.list_core_api_resources(group_version).await
        };
        match found {
            Ok(found) => Ok(found.resources),
            // For a missing group, API servers answer in plain text.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    async fn follow_kinds(&mut self, kinds: BTreeMap<String, ApiResource>) {
        // Otherwise each object would request its namespace.
        self.shared.namespaces.wait_until_known().await;
        let is_desired = |name: &String, followed: &FollowedKind| kinds.get(name) == Some(&followed.kind);
        let gone: Vec<_> = self
            .followed
            .extract_if(.., |name, followed| !is_desired(name, followed))
            .collect();
        for (name, followed) in gone {
            followed.stop.cancel();
            self.stop_following(&name).await;
        }
        let mut started = Vec::new();
        for (name, kind) in kinds {
            if self.followed.contains_key(&name) {
                continue;
            }
            let stop = self.shared.context.stop.child_token();
            self.tasks
                .spawn(objects::follow_objects(self.shared.clone(), kind.clone(), stop.clone()));
            started.push(name.clone());
            self.followed.insert(name, FollowedKind { kind, stop });
        }
        if !started.is_empty() {
            let event = self.progress.add_kinds(&started);
            self.publish_event(&event).await;
        }
    }

    async fn stop_following(&mut self, name: &str) {
        let kind = Kind { kind: name.to_owned() };
        self.shared.context.metrics.labels.is_done.remove(&kind);
        if let Some(event) = self.progress.remove_kind(name) {
            self.publish_event(&event).await;
        }
    }

    async fn report(&mut self, report: Report) {
        if let Some(event) = self.progress.record_report(report) {
            self.publish_event(&event).await;
        }
    }

    /// Publishes an Event on the ConfigMap with the kinds, even if that does not exist.
    async fn publish_event(&self, event: &EventDraft) {
        let context = &self.shared.context;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name: Some(context.args.resource_configmap_name.clone()),
            namespace: Some(context.args.namespace.clone()),
            ..ObjectReference::default()
        };
        tracing::info!(reason = event.reason, note = event.note, "labelling progress");
        events::publish(context, &about, event).await;
    }

    /// Waits for the tasks, which stop by the same signal.
    async fn join_tasks(mut self) -> Result<(), Error> {
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        Ok(())
    }
}
