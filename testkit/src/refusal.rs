//! The errors that clients get: a `Status` with code, reason, message and details, worded like apimachinery `pkg/api/errors`, because
//! clients and people compare with that. ctrlmesh-wire encodes it.

use ctrlmesh_wire::{Status, StatusCause, StatusDetails};
use http::StatusCode;

use crate::error::Error;
use crate::resource::Resource;

/// The answer to a request that was not served.
#[derive(Debug, Clone)]
pub(crate) struct Refusal(pub(crate) Box<Status>);

impl Refusal {
    pub(crate) fn new(code: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self(Box::new(Status {
            code: code.as_u16(),
            reason: reason.into(),
            message: message.into(),
            details: None,
        }))
    }

    fn with_details(mut self, change: impl FnOnce(&mut StatusDetails)) -> Self {
        change(self.0.details.get_or_insert_default());
        self
    }

    fn for_object(self, resource: &Resource, name: &str) -> Self {
        self.with_details(|details| {
            details.name = name.into();
            details.group.clone_from(&resource.group);
            details.kind.clone_from(&resource.plural);
        })
    }

    fn caused_by(self, causes: Vec<StatusCause>) -> Self {
        self.with_details(|details| details.causes = causes)
    }

    /// Asks the client to retry.
    pub(crate) fn retry_after(self, seconds: u32) -> Self {
        self.with_details(|details| details.retry_after_seconds = seconds)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified_name());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).for_object(resource, name)
    }

    /// Unknown path, kind or subresource.
    pub(crate) fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.qualified_name());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).for_object(resource, name)
    }

    /// An optimistic-concurrency conflict, or a failed precondition.
    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            resource.qualified_name()
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).for_object(resource, name)
    }

    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// Fields that other managers own (server-side apply); one cause per field.
    pub(crate) fn apply_conflict(resource: &Resource, name: &str, causes: Vec<StatusCause>) -> Self {
        let fields: Vec<_> = causes.iter().map(|c| format!("{}: {}", c.message, c.field)).collect();
        let plural = if causes.len() == 1 { "" } else { "s" };
        let message = format!(
            "Apply failed with {} conflict{plural}: {}",
            causes.len(),
            fields.join("; ")
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message)
            .for_object(resource, name)
            .caused_by(causes)
    }

    pub(crate) fn invalid(resource: &Resource, name: &str, field: &str, problem: &str) -> Self {
        let dot = if resource.group.is_empty() { "" } else { "." };
        let message = format!(
            "{}{dot}{} \"{name}\" is invalid: {field}: {problem}",
            resource.kind, resource.group
        );
        let cause = StatusCause {
            reason: "FieldValueInvalid".into(),
            message: problem.into(),
            field: field.into(),
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
            .for_object(resource, name)
            .with_details(|details| details.kind.clone_from(&resource.kind))
            .caused_by(vec![cause])
    }

    /// A resource version or continue token that is older than the event log.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// A resource version that the store has not reached yet; apiserver `pkg/storage/errors.go`.
    pub(crate) fn resource_version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let cause = StatusCause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        };
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
            .caused_by(vec![cause])
            .retry_after(1)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    pub(crate) fn not_acceptable(accepted: &str) -> Self {
        let message = format!("only the following media types are accepted: {accepted}");
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// A body whose media type is not accepted.
    pub(crate) fn unsupported_media_type(media_type: &str, accepted: &str) -> Self {
        let message = format!("the body of the request was in an unknown format ({media_type}) - accepted: {accepted}");
        Self::unsupported(message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity is too large: limit is {limit}");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// A feature of a real API server that is missing here.
    pub(crate) fn not_implemented(what: &str) -> Self {
        let message = format!("the testkit API server does not implement {what}");
        Self::new(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.0)
    }
}
