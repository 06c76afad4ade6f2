//! One write of labels.
//!
//! Why a merge patch of `metadata.labels` and not server-side apply: labels that a webhook set, or KusionStack, belong to other
//! field managers and could not be removed by applying without them; and applying to an object that was deleted meanwhile
//! makes it again. A merge patch names our keys only, removes by `null`, conflicts with nothing that others write, and ends
//! with 404 if the object is gone.

use std::time::Duration;

use ctrlmesh_manager_planner::auto_shard::LabelKeys;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, PartialObjectMeta, Patch, PatchParams};
use kube::{Api, Error};
use serde_json::Value;
use tokio::time::sleep;

use super::namespaces::Namespaces;
use crate::cluster::error_text;
use ctrlmesh_manager_planner::labels::rules::{Changes, is_ours, patch_for_namespace};

/// What is read of an object.
pub(super) type Object = PartialObjectMeta<DynamicObject>;

/// Who writes labels, in `managedFields`.
const FIELD_MANAGER: &str = "ctrlmesh-labels";
/// A write is tried so often before it counts as failed.
const TRIES: u32 = 5;
/// Wait before the second try; doubled for each further one.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// An object whose labels are not right.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// In a namespace. Its labels follow from what that says when they are written.
    Object {
        namespace: String,
        name: String,
        /// Whether the manager made it for itself.
        is_ours: bool,
    },
    /// A namespace, as it was seen.
    Namespace(Box<ObjectMeta>),
}

impl Work {
    /// Without what only takes up memory.
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

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is right now.
    Written,
    /// There was nothing left to do, or nothing to do it to.
    Gone,
    /// It is as it was.
    Failed,
    /// The API server forbids it.
    Forbidden,
}

/// Writes it. `objects` are those of the kind, in its namespace if it lies in one.
pub(super) async fn write(
    objects: &Api<Object>,
    namespaces: &Namespaces,
    keys: &LabelKeys,
    work: &mut Work,
) -> Outcome {
    let mut wait = FIRST_WAIT;
    for tried in 1..=TRIES {
        match attempt(objects, namespaces, keys, work).await {
            Ok(outcome) => return outcome,
            Err(Error::Api(status)) if status.is_not_found() => return Outcome::Gone,
            Err(Error::Api(status)) if status.is_forbidden() => {
                // Whoever may write none of a kind would fill the log.
                tracing::debug!(%status, ?work, url = objects.resource_url(), "not permitted to write labels");
                return Outcome::Forbidden;
            }
            Err(error) if tried == TRIES || !is_passing(&error) => {
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

async fn attempt(
    objects: &Api<Object>,
    namespaces: &Namespaces,
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
            let changes = Changes::all(namespace, is_managed, *is_ours, keys);
            patch(objects, name, &changes.merge_patch()).await?;
        }
        Work::Namespace(namespace) => {
            let Some(changes) = patch_for_namespace(namespace, keys) else {
                return Ok(Outcome::Gone);
            };
            let name = namespace.name.clone().unwrap_or_default();
            // What is set as our default must not undo what a person has just written.
            let changes = changes.merge_patch_at(namespace.resource_version.as_deref());
            let written = patch(objects, &name, &changes).await;
            if matches!(&written, Err(Error::Api(status)) if status.is_conflict()) {
                **namespace = objects.get(&name).await?.metadata;
            }
            written?;
        }
    }
    Ok(Outcome::Written)
}

async fn patch(objects: &Api<Object>, name: &str, patch: &Value) -> Result<Object, Error> {
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    objects.patch(name, &params, &Patch::Merge(patch)).await
}

/// Whether the same request may succeed soon: somebody else wrote at the same time, or the API server did not answer. (The client
/// itself waits when it says that it is busy.)
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Api(status) => status.is_conflict() || status.code >= 500,
        _ => true,
    }
}
