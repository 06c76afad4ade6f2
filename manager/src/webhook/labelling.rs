//! Sets labels at admission, by [`ctrlmesh_manager_planner::labels::rules`]. The back-fill labels objects that were missed here.

use ctrlmesh_manager_planner::labels::rules::OWN_GROUP;
use ctrlmesh_manager_planner::labels::{Changes, patch_for_namespace, patch_for_object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use kube::core::metadata::PartialObjectMeta;
use serde_json::Value;

use super::Reviewer;

type Request = AdmissionRequest<PartialObjectMeta>;

/// Labels of a namespace.
pub(super) fn review_namespace(reviewer: &Reviewer, request: &Request) -> AdmissionResponse {
    let Some(object) = written_object(request) else {
        return request.into();
    };
    patch_response(request, object, patch_for_namespace(object, &reviewer.keys))
}

/// Labels of an object in a namespace. If the namespace is not known, the object is admitted unchanged.
pub(super) async fn review_resource(reviewer: &Reviewer, request: &Request) -> AdmissionResponse {
    let name = request.namespace.as_deref().unwrap_or_default();
    let Some(object) = written_object(request).filter(|_| !name.is_empty() && request.kind.group != OWN_GROUP) else {
        return request.into();
    };
    let namespace = reviewer.namespaces.get(name).await;
    let changes = namespace.and_then(|namespace| patch_for_object(object, &namespace, &reviewer.keys));
    patch_response(request, object, changes)
}

/// The object that is created or updated. Objects that are being deleted are not labelled.
fn written_object(request: &Request) -> Option<&ObjectMeta> {
    let is_written = matches!(request.operation, Operation::Create | Operation::Update);
    let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
    let object = request.object.as_ref().map(|object| &object.metadata);
    object.filter(|object| is_written && is_whole && object.deletion_timestamp.is_none())
}

fn patch_response(request: &Request, object: &ObjectMeta, changes: Option<Changes>) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some(changes) = changes else {
        return response;
    };
    let patch = serde_json::from_value(Value::Array(changes.json_patch(object)));
    match patch.map(|patch| response.clone().with_patch(patch)) {
        Ok(Ok(patched)) => patched,
        Ok(Err(_)) | Err(_) => {
            tracing::error!("labels cannot be written as a JSON patch; the back-fill will add them");
            response
        }
    }
}
