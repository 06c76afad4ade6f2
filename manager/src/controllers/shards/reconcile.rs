//! One pass over a namespace: carries out the plans of its roots.

use std::sync::Arc;

use ctrlmesh_contract::names::finalizers::PROTECTED;
use ctrlmesh_manager_api::document::text_at;
use ctrlmesh_manager_api::status::ConditionDraft;
use ctrlmesh_manager_api::{FIELD_MANAGER, ShardingConfig};
use ctrlmesh_manager_planner::auto_shard::Workload;
use ctrlmesh_manager_planner::validate::{Object, read};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::core::ApiResource;
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::RESYNC;
use super::caches::{Caches, NamespaceMeta, followed_stateful_set};
use super::plan::{self, Plan, Surroundings, Write};
use super::status::write_root_status;
use crate::cluster::status::timestamp_now;
use crate::cluster::{Context, Error, patch_params};

/// Everything that a pass needs.
pub(super) struct Sharder {
    pub(super) context: Context,
    pub(super) caches: Caches,
}

impl Sharder {
    /// Reconciles the roots of a namespace. A failure of one does not block the others.
    pub(super) async fn reconcile(&self, namespace: &Arc<NamespaceMeta>) -> Result<Action, Error> {
        let documents = self.caches.documents_in(&namespace.name_any());
        let mut managed = None;
        let mut outcome = Ok(Action::await_change());
        for document in documents
            .iter()
            .filter(|document| plan::needs_plan(document, &documents))
        {
            let Some(workload) = self.workload_of(document) else {
                tracing::debug!(
                    root = text_at(document, "/metadata/name"),
                    "StatefulSets are not listed yet; the shards of this root stay as they are"
                );
                continue;
            };
            let around = Surroundings {
                documents: &documents,
                workload,
                namespaces: managed.get_or_insert_with(|| self.caches.managed_namespaces()),
                keys: self.caches.keys(),
            };
            let plan = plan::plan_root(document, around);
            match self.carry_out(document, &plan).await {
                Ok(()) if outcome.is_ok() => outcome = Ok(Action::requeue(RESYNC)),
                Ok(()) => {}
                Err(error) => {
                    self.report_refusal(document, &error).await;
                    outcome = Err(error);
                }
            }
        }
        outcome
    }

    /// What is known of the StatefulSet of a root; of other roots than those that follow replicas, nothing. `None`: StatefulSets are not
    /// listed yet, and their list will lead to another pass.
    fn workload_of(&self, root: &Value) -> Option<Workload> {
        let spec = root.pointer("/spec/root");
        let followed = spec.filter(|_| root.pointer("/metadata/deletionTimestamp").is_none());
        followed
            .and_then(followed_stateful_set)
            .map_or(Some(Workload::Missing), |name| {
                self.caches.workload(text_at(root, "/metadata/namespace"), name)
            })
    }

    async fn carry_out(&self, root: &Value, plan: &Plan) -> Result<(), Error> {
        let shards = self.shards(root);
        let metrics = &self.context.metrics.shards;
        if plan.protect {
            self.set_finalizer(root, true).await?;
        }
        for write in &plan.writes {
            self.write(&shards, write).await?;
            metrics.written.inc();
        }
        for (name, uid) in &plan.deletes {
            let preconditions = Preconditions {
                uid: Some(uid.clone()),
                resource_version: None,
            };
            let params = DeleteParams::default().preconditions(preconditions);
            if !is_gone(shards.delete(name, &params).await)? {
                tracing::info!(root = text_at(root, "/metadata/name"), name, "shard deleted");
                metrics.deleted.inc();
            }
        }
        // A released root is gone before anybody reads its status.
        if root.pointer("/metadata/deletionTimestamp").is_none() || plan.condition.is_some() {
            self.write_status(root, plan.condition.as_ref(), plan.made.as_deref())
                .await?;
        }
        if plan.release {
            self.set_finalizer(root, false).await?;
        }
        Ok(())
    }

    /// Creates the shard, or edits it if it is still the version that was seen.
    async fn write(&self, shards: &Api<DynamicObject>, write: &Write) -> Result<(), Error> {
        let name = write.child.name_any();
        let mut params = PatchParams::apply(FIELD_MANAGER);
        let mut child = write.child.clone();
        if write.version.is_some() {
            // Without that, an object that somebody else has just created is a conflict.
            params = params.force();
            child.metadata.resource_version.clone_from(&write.version);
        }
        let written = shards.patch(&name, &params, &Patch::Apply(&child)).await?;
        tracing::info!(namespace = written.namespace(), name, "shard written");
        let stored = serde_json::to_value(&written)
            .ok()
            .and_then(|stored| read(&stored).ok());
        if !matches!(&stored, Some(Object::ShardingConfig(stored)) if plan::is_same_spec(stored, &write.child)) {
            // Somebody has added fields, which an apply does not remove.
            let patch = json!([
                { "op": "test", "path": "/metadata/uid", "value": written.uid() },
                { "op": "replace", "path": "/spec", "value": write.child.spec },
            ]);
            let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
            let params = patch_params();
            shards
                .patch(&name, &params, &Patch::Json::<DynamicObject>(patch))
                .await?;
        }
        Ok(())
    }

    async fn set_finalizer(&self, root: &Value, is_set: bool) -> Result<(), Error> {
        let list = root.pointer("/metadata/finalizers").and_then(Value::as_array);
        let others = list.into_iter().flatten().filter(|finalizer| *finalizer != PROTECTED);
        let mut finalizers: Vec<Value> = others.cloned().collect();
        if is_set {
            finalizers.push(PROTECTED.into());
        }
        // The list is replaced as a whole, so it has to be the one that was seen.
        let metadata = json!({
            "resourceVersion": text_at(root, "/metadata/resourceVersion"),
            "finalizers": finalizers,
        });
        let patch = json!({ "metadata": metadata });
        let written = self
            .shards(root)
            .patch(
                text_at(root, "/metadata/name"),
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        is_gone(written).map(drop)
    }

    async fn write_status(
        &self,
        root: &Value,
        condition: Option<&ConditionDraft>,
        made: Option<&[String]>,
    ) -> Result<(), Error> {
        let now = timestamp_now();
        let written = write_root_status(&self.context.client, root, condition, made, &now).await;
        is_gone(written).map(drop)
    }

    /// Writes a refusal by the API server into the root's status. Conflicts with other writers are not reported.
    async fn report_refusal(&self, root: &Value, error: &Error) {
        let Error::Api(kube::Error::Api(status)) = error else {
            return;
        };
        if !(400..500).contains(&status.code) || matches!(status.code, 409 | 429) {
            return;
        }
        let refused = plan::refused_condition(&status.message);
        if let Err(error) = self.write_status(root, Some(&refused), None).await {
            tracing::warn!(%error, name = text_at(root, "/metadata/name"), "failed to write the root's status");
        }
    }

    fn shards(&self, root: &Value) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<ShardingConfig>(&());
        let namespace = text_at(root, "/metadata/namespace");
        Api::namespaced_with(self.context.client.clone(), namespace, &kind)
    }
}

/// Whether the object is gone or was replaced. Other errors are returned.
fn is_gone<T>(result: Result<T, kube::Error>) -> Result<bool, Error> {
    match result {
        Ok(_) => Ok(false),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
        Err(error) => Err(error.into()),
    }
}
