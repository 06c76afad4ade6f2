//! Whether an object of ours is let in: the rules of `ctrlmesh lint`, with the path of every field that is wrong.

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use kube::core::response::{Status, StatusCause, StatusDetails, StatusSummary, reason};
use serde_json::{Map, Value};

use super::{Reviewer, neighbours};
use crate::Findings;
use crate::validate::{Object, read, validate_with, warn_of_new};

type Request = AdmissionRequest<DynamicObject>;

/// What the API server says to an object that breaks its schema.
const UNPROCESSABLE: u16 = 422;

pub(super) async fn review(reviewer: &Reviewer, request: &Request) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request);
    let Some(document) = judged(request) else {
        return response;
    };
    let mut findings = validate_with(&document, &reviewer.keys);
    if !findings.is_accepted() {
        return refused(request, response, &findings);
    }
    let object = read(&document).ok();
    if let Some(object) = object.as_ref().filter(|_| request.operation == Operation::Create) {
        warn_of_new(object, &mut findings);
    }
    let mut warnings: Vec<String> = told(&findings);
    if let Some(Object::ShardingConfig(config)) = object {
        warnings.extend(neighbours::warnings(reviewer, *config).await);
    }
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    response
}

fn told(findings: &Findings) -> Vec<String> {
    let warnings = findings.warnings.list().iter();
    warnings.map(|it| format!("{}: {}", it.path, it.problem)).collect()
}

/// What there is to judge. Objects from before a rule must not lock anyone in: an update that leaves the spec as it is
/// (labels, finalizers), and one of an object that is being deleted, are let through unread.
fn judged(request: &Request) -> Option<Value> {
    let object = request.object.as_ref()?;
    let is_whole = request.sub_resource.as_deref().unwrap_or_default().is_empty();
    let is_going = object.metadata.deletion_timestamp.is_some();
    let is_changed = match request.operation {
        Operation::Create => true,
        Operation::Update => request.old_object.as_ref().map(meant) != Some(meant(object)),
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

/// Without metadata, which is no part of `data`, and status.
fn meant(object: &DynamicObject) -> Map<String, Value> {
    let mut fields = object.data.as_object().cloned().unwrap_or_default();
    fields.remove("status");
    fields
}

fn refused(request: &Request, response: AdmissionResponse, findings: &Findings) -> AdmissionResponse {
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
