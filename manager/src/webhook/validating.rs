//! Decides whether a custom resource is admitted: by the rules of `ctrlmesh lint`, with the path of every invalid field.

use ctrlmesh_manager_planner::Findings;
use ctrlmesh_manager_planner::validate::{Object, read, validate_with, warn_of_new};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use kube::core::response::{Status, StatusCause, StatusDetails, StatusSummary, reason};
use serde_json::{Map, Value};

use super::{Reviewer, overlap_warnings};

type Request = AdmissionRequest<DynamicObject>;

/// The status with which the API server refuses an object that breaks its schema.
const UNPROCESSABLE: u16 = 422;

pub(super) async fn review_custom_resource(reviewer: &Reviewer, request: &Request) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request);
    let Some(document) = document_to_validate(request) else {
        return response;
    };
    let mut findings = validate_with(&document, &reviewer.keys);
    if !findings.is_accepted() {
        return deny_with(request, response, &findings);
    }
    let object = read(&document).ok();
    if let Some(object) = object.as_ref().filter(|_| request.operation == Operation::Create) {
        warn_of_new(object, &mut findings);
    }
    let mut warnings: Vec<String> = warning_texts(&findings);
    if let Some(Object::ShardingConfig(config)) = object {
        warnings.extend(overlap_warnings::warnings_about_overlaps(reviewer, *config).await);
    }
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    response
}

fn warning_texts(findings: &Findings) -> Vec<String> {
    let warnings = findings.warnings.list().iter();
    warnings.map(|it| format!("{}: {}", it.path, it.problem)).collect()
}

/// The object to validate; `None`: the request is admitted without validation. Objects that are older than a rule must stay
/// editable, so this includes updates that leave the spec as it is (labels, finalizers), and updates of objects that are being
/// deleted.
fn document_to_validate(request: &Request) -> Option<Value> {
    let object = request.object.as_ref()?;
    let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
    let is_going = object.metadata.deletion_timestamp.is_some();
    let is_changed = match request.operation {
        Operation::Create => true,
        Operation::Update => request.old_object.as_ref().map(user_fields) != Some(user_fields(object)),
        Operation::Delete | Operation::Connect => false,
    };
    if !is_whole || is_going || !is_changed {
        return None;
    }
    let mut object = object.clone();
    if object.metadata.namespace.is_none() {
        object.metadata.namespace.clone_from(&request.namespace);
    }
    serde_json::to_value(object).ok()
}

/// The fields that people write, without status. Metadata is not part of `data`.
fn user_fields(object: &DynamicObject) -> Map<String, Value> {
    let mut fields = object.data.as_object().cloned().unwrap_or_default();
    fields.remove("status");
    fields
}

fn deny_with(request: &Request, response: AdmissionResponse, findings: &Findings) -> AdmissionResponse {
    let cause = |mistake: &ctrlmesh_contract::Mistake| StatusCause {
        reason: "FieldValueInvalid".to_owned(),
        message: mistake.problem.clone(),
        field: mistake.path.clone(),
    };
    let details = StatusDetails {
        name: request.name.clone(),
        group: request.kind.group.clone(),
        kind: request.kind.kind.clone(),
        uid: String::new(),
        causes: findings.mistakes.list().iter().map(cause).collect(),
        retry_after_seconds: 0,
    };
    let mut response = response.deny(&findings.mistakes);
    response.result = Status {
        status: Some(StatusSummary::Failure),
        code: UNPROCESSABLE,
        message: std::mem::take(&mut response.result.message),
        metadata: None,
        reason: reason::INVALID.to_owned(),
        details: Some(details),
    };
    response
}
