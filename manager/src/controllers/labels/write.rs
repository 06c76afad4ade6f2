//! Writes the labels of one object.
//!
//! A merge patch of `metadata.labels` is used instead of server-side apply: labels that a webhook or KusionStack set belong to
//! other field managers and could not be removed by applying without them, and applying to an object that was deleted meanwhile
//! would recreate it. A merge patch names our keys only, removes by `null`, conflicts with no other writer, and fails with 404 if
//! the object is gone.

use std::time::Duration;

use ctrlmesh_manager_planner::auto_shard::LabelKeys;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, PartialObjectMeta, Patch, PatchParams};
use kube::{Api, Error};
use serde_json::Value;
use tokio::time::sleep;

use super::managed_namespaces::ManagedNamespaces;
use crate::cluster::error_text;
use ctrlmesh_manager_planner::labels::rules::{Changes, is_ours, patch_for_namespace};

/// The part of an object that is read.
pub(super) type Object = PartialObjectMeta<DynamicObject>;

/// Field manager of labels, in `managedFields`.
const FIELD_MANAGER: &str = "ctrlmesh-labels";
/// Attempts of a write before it counts as failed.
const MAX_TRIES: u32 = 5;
/// Pause before the second attempt; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// An object whose labels have to be changed.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// An object in a namespace. Its labels follow from the state of the namespace at the time of the write.
    Object {
        namespace: String,
        name: String,
        /// Whether the manager created it for itself.
        is_ours: bool,
    },
    /// A namespace, as it was seen.
    Namespace(Box<ObjectMeta>),
}

impl Work {
    /// Keeps only the metadata that is needed, to save memory.
    pub(super) fn new(object: &ObjectMeta) -> Option<Self> {
        let name = object.name.clone()?;
        Some(match object.namespace.clone() {
            Some(namespace) => Self::Object {
                namespace,
                name,
                is_ours: is_ours(object),
            },
            None => Self::Namespace(Box::new(ObjectMeta {
                name: Some(name),
                labels: object.labels.clone(),
                resource_version: object.resource_version.clone(),
                ..ObjectMeta::default()
            })),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The labels are right now.
    Written,
    /// Nothing was left to do, or the object is gone.
    Gone,
    /// The object is unchanged.
    Failed,
    /// The API server forbids it.
    Forbidden,
}

/// Writes the labels. `objects` are those of the kind; of its namespace, if the object has one.
pub(super) async fn write_labels(
    objects: &Api<Object>,
    namespaces: &ManagedNamespaces,
    keys: &LabelKeys,
    work: &mut Work,
) -> Outcome {
    let mut wait = FIRST_WAIT;
    for tried in 1..=MAX_TRIES {
        match write_once(objects, namespaces, keys, work).await {
            Ok(outcome) => return outcome,
            Err(Error::Api(status)) if status.is_not_found() => return Outcome::Gone,
            Err(Error::Api(status)) if status.is_forbidden() => {
                // A higher level would fill the log if a kind may not be written at all.
                tracing::debug!(%status, ?work, url = objects.resource_url(), "not permitted to write labels");
                return Outcome::Forbidden;
            }
            Err(error) if tried == MAX_TRIES || !is_passing(&error) => {
                tracing::warn!(
                    error = error_text(&error),
                    ?work,
                    url = objects.resource_url(),
                    "failed to write labels"
                );
                return Outcome::Failed;
            }
            Err(_) => sleep(wait).await,
        }
        wait *= 2;
    }
    Outcome::Failed
}

async fn write_once(
    objects: &Api<Object>,
    namespaces: &ManagedNamespaces,
    keys: &LabelKeys,
    work: &mut Work,
) -> Result<Outcome, Error> {
    match work {
        Work::Object {
            namespace,
            name,
            is_ours,
        } => {
            let Some(is_managed) = namespaces.is_managed(objects.clone().into_client(), namespace).await? else {
                return Ok(Outcome::Gone);
            };
            let changes = Changes::all_changes(namespace, is_managed, *is_ours, keys);
            patch_labels(objects, name, &changes.merge_patch()).await?;
        }
        Work::Namespace(namespace) => {
            let Some(changes) = patch_for_namespace(namespace, keys) else {
                return Ok(Outcome::Gone);
            };
            let name = namespace.name.clone().unwrap_or_default();
            // Our default must not undo what a person has just written.
            let changes = changes.merge_patch_at(namespace.resource_version.as_deref());
            let written = patch_labels(objects, &name, &changes).await;
            if matches!(&written, Err(Error::Api(status)) if status.is_conflict()) {
                **namespace = objects.get(&name).await?.metadata;
            }
            written?;
        }
    }
    Ok(Outcome::Written)
}

async fn patch_labels(objects: &Api<Object>, name: &str, patch: &Value) -> Result<Object, Error> {
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    objects.patch(name, &params, &Patch::Merge(patch)).await
}

/// Whether a retry may succeed soon: somebody else wrote at the same time, or the API server did not answer. (The client itself
/// waits when the API server is busy.)
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Api(status) => status.is_conflict() || status.code >= 500,
        _ => true,
    }
}
