//! Failures and refusals as a Kubernetes `Status`. No other module picks an HTTP status code.
//!
//! The code decides what client-go does next (client-go `rest/with_retry.go`). It repeats any verb up to ten times on 429 and on every 5xx
//! **with** an integer `Retry-After`; without the header it repeats nothing. So `Retry-After` is sent where a repeat is harmless, and never
//! where a write may have happened.

use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_wire::{Status, StatusCause, StatusDetails};
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::connection::OverBound;
use crate::plugin::verdict::{self, Failure, ObjectRefusal, Refusal};
use crate::upstream::{ConnectError, SendError};

/// metav1's `StatusReasonUnknown` is the empty string, which in WIT `refusal.reason` means "the usual one".
const UNKNOWN_REASON: &str = "Unknown";

/// Placeholder for the object's name in the message of a refusal (WIT `details.name`).
const NAME_PLACEHOLDER: &str = "{name}";

/// As in every response of the API server (k8s.io/apiserver `pkg/endpoints/filters/cachecontrol.go`).
const NOT_CACHED: &str = "no-cache, private";

/// Longest part of an error that is no `Status` in a message, in characters: a text of an overloaded server or of a proxy before it.
const MAX_ERROR_CHARACTERS: usize = 1000;

/// A plugin's own response that is no `Status`, unchanged.
pub(crate) fn plain_response(answer: verdict::Answer) -> Response<Bytes> {
    let mut response = Response::new(answer.body);
    *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let length = response.body().len();
    let headers = response.headers_mut();
    for (name, value) in answer.headers {
        headers.append(name, value);
    }
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// The response to the delete of a collection whose objects the sidecar has deleted: that of an API server which returns no list of them.
pub(crate) fn deleted_collection(group: &str, resource: &str, accept: &Accept) -> Response<Bytes> {
    let details = StatusDetails {
        group: group.to_owned(),
        kind: resource.to_owned(),
        ..StatusDetails::default()
    };
    let status = Status {
        code: StatusCode::OK.as_u16(),
        details: Some(details),
        ..Status::default()
    };
    status_response(&status, accept)
}

/// The object that a request names in its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedObject {
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl NamedObject {
    /// As in messages of the API server: `widgets.example.com "w"`.
    fn description(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{}{dot}{} {:?}", self.resource, self.group, self.name)
    }
}

/// A response that the sidecar itself gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Boxed, because replies travel as errors and most requests have none.
    status: Box<Status>,
    /// In seconds.
    retry_after: Option<u32>,
    /// Outcome for `on-complete`, metrics and the access log.
    pub(crate) failure: Failure,
}

impl Reply {
    fn new(code: StatusCode, message: impl Into<String>) -> Self {
        let code = code.as_u16();
        let status = Status {
            code,
            reason: ctrlmesh_wire::default_reason(code).to_owned(),
            message: message.into(),
            details: None,
        };
        Self {
            status: Box::new(status),
            retry_after: None,
            failure: Failure::Refused,
        }
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self.details().retry_after_seconds = seconds;
        self
    }

    fn with_failure(mut self, failure: Failure) -> Self {
        self.failure = failure;
        self
    }

    fn reason(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.status.reason);
        self
    }

    fn with_cause(mut self, reason: &str, message: impl Into<String>) -> Self {
        self.details().causes.push(StatusCause {
            reason: reason.to_owned(),
            message: message.into(),
            field: String::new(),
        });
        self
    }

    fn details(&mut self) -> &mut StatusDetails {
        self.status.details.get_or_insert_with(StatusDetails::default)
    }

    /// The request cannot be read safely: a malformed query under a shard's selector, or a selector outside the grammar.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The request's destination is not allowed.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// Too many tunnels are open.
    pub(crate) fn too_many_tunnels(limit: usize) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("all {limit} tunnels of this thread are in use; close some that are idle"),
        )
        .retry_after(1)
    }

    /// The URL exceeds the length that the host parses.
    pub(crate) fn uri_too_long(limit: usize) -> Self {
        Self::new(
            StatusCode::URI_TOO_LONG,
            format!("the request URI is longer than {limit} bytes"),
        )
        .reason("RequestURITooLong")
    }

    /// The head has more fields than the limit.
    pub(crate) fn too_many_fields(limit: usize) -> Self {
        Self::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!("the request has more than {limit} header fields"),
        )
    }

    /// The body exceeds the size that the host buffers for an edit.
    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body must be rewritten for this shard and is larger than {limit} bytes"),
        )
    }

    /// There is no memory for the request, or for a response that must be rewritten. `repeatable`: nothing can have been carried out yet.
    pub(crate) fn over_bound(error: OverBound, repeatable: bool) -> Self {
        let code = match error {
            OverBound::Connection(_) => StatusCode::TOO_MANY_REQUESTS,
            OverBound::InAll(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let reply = Self::new(code, error.to_string());
        if repeatable { reply.retry_after(1) } else { reply }
    }

    /// A body in this encoding cannot be rewritten. client-go responds to a 415 for CBOR by going back to JSON for good.
    pub(crate) fn unsupported_encoding(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// The client accepts none of these media types. The message is that of the API server (k8s.io/apiserver
    /// `pkg/endpoints/handlers/negotiation/errors.go`).
    pub(crate) fn not_acceptable(media_types: &[&str]) -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            format!(
                "only the following media types are accepted: {}",
                media_types.join(", ")
            ),
        )
    }

    /// A response may hold objects that the client must not get, and cannot be filtered. Without `Retry-After`, because the next one would
    /// be the same.
    pub(crate) fn unfilterable_response(problem: &str) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            format!("a plugin leaves objects out of the API server's response, and it cannot be filtered: {problem}"),
        )
    }

    /// A plugin failed that was asked which objects of the response to keep. Whatever its entry's failure policy, no object passes that was
    /// not decided on.
    pub(crate) fn undecided_objects(entry: &str, digest: &str, fault: &str) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            format!("ctrlmesh plugin {entry} ({digest}) failed to decide on objects of the response: {fault}"),
        )
        .with_cause("PluginFailed", entry)
        .with_failure(Failure::PluginFailed)
    }

    /// The object of the request does not match what the entry requires. Without `Retry-After`, because the next answer would be the same.
    pub(crate) fn refused_object(object: &NamedObject, refusal: ObjectRefusal, entry: &str) -> Self {
        let described = object.description();
        let reply = match refusal {
            ObjectRefusal::Conflict => Self::new(
                StatusCode::CONFLICT,
                format!(
                    "Operation cannot be fulfilled on {described}: the entry {entry} of the sidecar does not let this client write the \
                     object, which belongs to another shard or view; nothing was written"
                ),
            )
            .reason("Conflict"),
            ObjectRefusal::NotFound => Self::new(StatusCode::NOT_FOUND, format!("{described} not found")),
            ObjectRefusal::Forbidden => Self::new(
                StatusCode::FORBIDDEN,
                format!(
                    "{described} is forbidden: the entry {entry} of the sidecar does not let this client have the object, which \
                     belongs to another shard or view"
                ),
            ),
        };
        reply.with_object(object).with_cause("ObjectDoesNotMatch", entry)
    }

    /// The controller may still lead by the lock of an earlier shard. Without `Retry-After`, as for any object that does not match.
    pub(crate) fn refused_earlier_leader(object: &NamedObject, entry: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {}: this client may still lead by the lock of its pod's earlier shard, and the entry {entry} \
             of the sidecar lets it write no object before that lock has expired or it leads by the new one; nothing was written",
            object.description()
        );
        let reply = Self::new(StatusCode::CONFLICT, message).reason("Conflict");
        reply.with_object(object).with_cause("EarlierLock", entry)
    }

    /// The sidecar may not read the object by which it has to decide on the request.
    pub(crate) fn unreadable_object(object: &NamedObject) -> Self {
        let described = object.description();
        let reply = Self::forbidden(format!(
            "{described} is forbidden: before it sends this request, the sidecar has to get the object with the credentials of the \
             request, and the API server does not allow that; grant the verb \"get\" for this resource"
        ));
        reply.with_object(object)
    }

    /// The API server does not take the credentials with which the sidecar has asked for the object. The code is that of the API server,
    /// because clients read a new token at it.
    pub(crate) fn unknown_credentials(object: &NamedObject) -> Self {
        let message = format!(
            "the sidecar needs the metadata of {} to decide on this request, and the API server does not take the credentials of the \
             request",
            object.description()
        );
        Self::new(StatusCode::UNAUTHORIZED, message).with_object(object)
    }

    /// The API server did not answer with the object by which the sidecar has to decide on the request. Nothing was sent, so a repeat is
    /// harmless.
    pub(crate) fn unknown_object(object: &NamedObject, status: StatusCode) -> Self {
        let message = format!(
            "the sidecar needs the metadata of {} to decide on this request, and the API server answered {}",
            object.description(),
            status.as_u16()
        );
        let is_overloaded = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
        if is_overloaded {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(1)
        } else {
            Self::new(StatusCode::BAD_GATEWAY, message)
        }
    }

    /// The API server's answer is not the object by which the sidecar has to decide on the request.
    pub(crate) fn invalid_object(object: &NamedObject, problem: &str) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            format!(
                "the sidecar needs the metadata of {} to decide on this request, and cannot read the API server's answer: {problem}",
                object.description()
            ),
        )
    }

    /// The request is for an earlier object of this name.
    pub(crate) fn replaced_object(object: &NamedObject, problem: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {}: {problem}", object.description());
        let reply = Self::new(StatusCode::CONFLICT, message).reason("Conflict");
        reply.with_object(object)
    }

    /// An error of the API server, as it came. `retry_after` is its field `Retry-After`.
    pub(crate) fn of_api_server(code: StatusCode, body: &[u8], retry_after: Option<u32>) -> Self {
        let status = Status::from_json(body).unwrap_or_else(|| {
            let text: String = String::from_utf8_lossy(body)
                .trim()
                .chars()
                .take(MAX_ERROR_CHARACTERS)
                .collect();
            Status::failure(code.as_u16(), format!("the API server answered {code} {text:?}"))
        });
        Self {
            status: Box::new(Status {
                code: code.as_u16(),
                ..status
            }),
            retry_after,
            failure: Failure::Refused,
        }
    }

    /// Adds which right the client may lack for a request that the sidecar makes to delete some objects of a collection. Admission refuses
    /// deletes with 403, too.
    pub(crate) fn lacking_right(mut self, verb: &str) -> Self {
        self.status.message = format!(
            "{}; this client has only some objects of the collection, so the sidecar lists it and deletes them by their names, with the \
             credentials of the request; if these lack the right, grant the verb {verb:?} for this resource",
            self.status.message
        );
        self
    }

    /// API servers delete no collection at this path.
    pub(crate) fn undeletable_collection() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "the server does not allow this method on the requested resource: delete the collection of one namespace, or objects by name",
        )
    }

    /// The API server's response to a list or a delete is not what the sidecar needs to delete some objects of a collection.
    pub(crate) fn unfinished_deletion(problem: &str) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            format!(
                "the sidecar can't tell which objects of this collection to delete: {problem}; delete them by name"
            ),
        )
    }

    /// The objects of a collection were not all deleted in time. Without `Retry-After`, because some were.
    pub(crate) fn slow_deletion(limit: Duration) -> Self {
        let message = format!(
            "the sidecar deletes the objects of this collection by their names, and not all were deleted within {} s; repeat the request",
            limit.as_secs()
        );
        Self::new(StatusCode::GATEWAY_TIMEOUT, message).with_failure(Failure::Timeout)
    }

    fn with_object(mut self, object: &NamedObject) -> Self {
        let details = self.details();
        details.name.clone_from(&object.name);
        details.group.clone_from(&object.group);
        details.kind.clone_from(&object.resource);
        self
    }

    /// A plugin has to decide on an object that has more metadata than the plugin is given.
    pub(crate) fn too_much_metadata(bytes: usize, limit: usize) -> Self {
        Self::unfilterable_response(&format!(
            "the metadata of an object takes {bytes} bytes of the plugin's memory, and it is told at most {limit}"
        ))
    }

    /// The client took too long to send its body.
    pub(crate) fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the request body came too slowly").with_failure(Failure::Timeout)
    }

    /// The client's view has changed since the resource version that it sends: it must list again.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, message).reason("Expired")
    }

    pub(crate) fn refused_by_plugin(refusal: &Refusal) -> Self {
        let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut reply = Self::new(code, refusal.message.clone());
        match refusal.reason.as_str() {
            "" => {}
            UNKNOWN_REASON => reply = reply.reason(""),
            reason => reply = reply.reason(reason),
        }
        if let Some(seconds) = refusal.retry_after_seconds {
            reply = reply.retry_after(seconds);
        }
        if let Some(about) = &refusal.details {
            reply.set_details(about);
        }
        match &refusal.cause {
            Some(cause) => reply.with_cause("PluginRefused", cause.clone()),
            None => reply,
        }
    }

    fn set_details(&mut self, about: &verdict::Details) {
        let details = self.details();
        details.name.clone_from(&about.name);
        details.group.clone_from(&about.group);
        details.kind.clone_from(&about.kind);
        let causes = about.causes.iter().map(|cause| StatusCause {
            reason: cause.reason.clone(),
            message: cause.message.clone(),
            field: cause.field.clone(),
        });
        details.causes.extend(causes);
        if !about.name.is_empty() {
            self.set_name(&about.name);
        }
    }

    /// Whether the reply is about an object whose name the plugin could not know, because a create has it in the body.
    pub(crate) fn lacks_name(&self) -> bool {
        self.status.message.contains(NAME_PLACEHOLDER)
    }

    /// Sets the name of the object, and replaces `{name}` in the message.
    pub(crate) fn set_name(&mut self, name: &str) {
        self.status.message = self.status.message.replace(NAME_PLACEHOLDER, name);
        name.clone_into(&mut self.details().name);
    }

    /// A plugin failed and its entry fails closed.
    pub(crate) fn plugin_failed(entry: &str, digest: &str, fault: &str) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("ctrlmesh plugin {entry} ({digest}) failed and its entry is closed on failure: {fault}"),
        )
        .with_cause("PluginFailed", entry)
        .with_failure(Failure::PluginFailed)
    }

    /// The client's body or the API server's ended early.
    pub(crate) fn broken_body(error: &crate::upstream::BoxError) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, format!("a body broke off: {error}")).with_failure(Failure::UpstreamReset)
    }

    /// Sending to a server failed. `server` names the server in a sentence. `repeatable`: the verb changes nothing.
    pub(crate) fn upstream_failed(error: &SendError, server: &str, repeatable: bool) -> Self {
        match error {
            SendError::Unreachable { source } if matches!(**source, ConnectError::Refused { .. }) => {
                Self::forbidden(source.to_string())
            }
            SendError::Unreachable { .. } | SendError::NotProcessed { .. } | SendError::TooManyConnections { .. } => {
                Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("{server} can't be reached: {error}"),
                )
                .retry_after(1)
                .with_failure(Failure::Unreachable)
            }
            SendError::HeadTimeout { .. } => {
                let reply = Self::new(StatusCode::GATEWAY_TIMEOUT, format!("{server} did not answer in time"))
                    .with_failure(Failure::Timeout);
                if repeatable { reply.retry_after(1) } else { reply }
            }
            SendError::RequestBody { source } if source.is::<SlowBody>() => Self::slow_body(),
            SendError::RequestBody { .. } => {
                Self::new(StatusCode::BAD_REQUEST, format!("the request body broke off: {error}"))
                    .with_failure(Failure::ClientGone)
            }
            SendError::InvalidRequest { .. } => Self::bad_request(error.to_string()),
            SendError::Broken { .. } => {
                let reply = Self::new(StatusCode::BAD_GATEWAY, format!("{server} broke off: {error}"))
                    .reason("ServiceUnavailable")
                    .with_failure(Failure::UpstreamReset);
                if repeatable { reply.retry_after(1) } else { reply }
            }
        }
    }

    /// HTTP status of the response.
    pub(crate) fn code(&self) -> u16 {
        self.status.code
    }

    /// The `Status`, for the ERROR event of a watch.
    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    /// The response in JSON or protobuf, whichever the client prefers.
    pub(crate) fn into_response(self, accept: &Accept) -> Response<Bytes> {
        let mut response = status_response(&self.status, accept);
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

fn status_response(status: &Status, accept: &Accept) -> Response<Bytes> {
    let (body, content_type) = if accept.is_protobuf() {
        (status.to_protobuf(), "application/vnd.kubernetes.protobuf")
    } else {
        (status.to_json(), "application/json")
    };
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let length = response.body().len();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(NOT_CACHED));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// Error of a request body of which nothing arrived for too long.
#[derive(Debug, thiserror::Error)]
#[error("no bytes of the request body arrived for {} s", idle.as_secs())]
pub(crate) struct SlowBody {
    pub(crate) idle: Duration,
}

/// The client's `Accept` field, kept from the request's head for a response of the sidecar's own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accept(Option<HeaderValue>);

impl Accept {
    /// Only the first field counts, as in Go's `Header.Get`.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        Self(headers.get(ACCEPT).cloned())
    }

    /// Whether an API server would send an error in protobuf. It picks the media type with the highest `q`, and of these the first, that it
    /// supports for a `Status` (k8s.io/apiserver `pkg/endpoints/handlers/negotiation`). One with `as=` is for objects.
    fn is_protobuf(&self) -> bool {
        let text = self
            .0
            .as_ref()
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let mut best = (0.0, false);
        for clause in text.split(',') {
            let mut parts = clause.split(';').map(str::trim);
            let is_protobuf = match parts.next() {
                Some("application/vnd.kubernetes.protobuf") => true,
                Some("application/json" | "application/*" | "*/*") => false,
                _ => continue,
            };
            let mut q = 1.0;
            let mut is_for_objects = false;
            for parameter in parts {
                match parameter.split_once('=') {
                    Some(("q", value)) => q = value.parse().unwrap_or(0.0),
                    Some(("as", _)) => is_for_objects = true,
                    _ => {}
                }
            }
            if !is_for_objects && q > best.0 {
                best = (q, is_protobuf);
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests;
