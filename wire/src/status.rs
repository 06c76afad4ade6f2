//! The `Status` object (`k8s.io/apimachinery/pkg/apis/meta/v1`), as JSON and as protobuf. Callers choose the
//! code and the reason.

use serde::{Deserialize, Serialize};

use crate::protobuf::{Message, envelope};

/// The answer of the API when it has no object to give: an error, or the outcome of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code. Below 400 the Status says `Success`, else `Failure`.
    pub code: u16,
    /// A word of metav1's `StatusReason`, for machines. See [`default_reason`].
    pub reason: String,
    /// Text for people: the error, or the outcome.
    pub message: String,
    /// The object of the error.
    pub details: Option<StatusDetails>,
}

/// The object of a [`Status`], and causes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group of the object; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The object's resource, in spite of the field's name: upstream writes `configmaps` here.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Single causes, for example one per invalid field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Whole seconds after which the client may try again; 0 when unknown. client-go reads the `Retry-After` header.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One cause among [`StatusDetails::causes`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// A word of metav1's `CauseType`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The cause, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field that caused it, as a path such as `spec.replicas`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The form in JSON, in upstream's order of fields.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a StatusDetails>,
    code: u16,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Read {
    kind: String,
    message: String,
    reason: String,
    details: Option<StatusDetails>,
    code: u16,
}

impl Status {
    /// An error with the reason that upstream gives to the code.
    #[must_use]
    pub fn failure(code: u16, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: default_reason(code).to_owned(),
            message: message.into(),
            details: None,
        }
    }

    /// The body of an `application/json` answer.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "strings and numbers under fixed keys always serialise"
    )]
    pub fn to_json(&self) -> Vec<u8> {
        let written = Written {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: self.status_text(),
            message: &self.message,
            reason: &self.reason,
            details: self.details.as_ref(),
            code: self.code,
        };
        serde_json::to_vec(&written).expect("plain data serialises")
    }

    /// Reads a Status from JSON; `None` when the body is none.
    #[must_use]
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let read: Read = serde_json::from_slice(body).ok()?;
        (read.kind == "Status").then_some(Self {
            code: read.code,
            reason: read.reason,
            message: read.message,
            details: read.details,
        })
    }

    /// The body of an `application/vnd.kubernetes.protobuf` answer: magic number, envelope, Status, byte for byte as
    /// upstream's generated marshaller writes it.
    #[must_use]
    pub fn to_protobuf(&self) -> Vec<u8> {
        // ListMeta: selfLink, resourceVersion and continue are written even when empty (gogo's non-nullable strings).
        let metadata = Message::new().string(1, "").string(2, "").string(3, "");
        let mut status = Message::new()
            .message(1, &metadata)
            .string(2, self.status_text())
            .string(3, &self.message)
            .string(4, &self.reason);
        if let Some(details) = &self.details {
            status = status.message(5, &details.to_message());
        }
        envelope("v1", "Status", &status.varint(6, self.code.into()))
    }

    pub(crate) fn status_text(&self) -> &'static str {
        if self.code < 400 { "Success" } else { "Failure" }
    }
}

impl StatusDetails {
    fn to_message(&self) -> Message {
        let head = Message::new()
            .string(1, &self.name)
            .string(2, &self.group)
            .string(3, &self.kind);
        let causes = self.causes.iter().fold(head, |message, cause| {
            let cause = Message::new()
                .string(1, &cause.reason)
                .string(2, &cause.message)
                .string(3, &cause.field);
            message.message(4, &cause)
        });
        causes.varint(5, self.retry_after_seconds.into()).string(6, &self.uid)
    }
}

/// The reason that upstream gives to an HTTP status code (metav1's `StatusReason` and `NewGenericServerResponse`); ""
/// where it has none. 410 is `Expired`, the reason at which reflectors list again.
#[must_use]
pub fn default_reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        406 => "NotAcceptable",
        409 => "Conflict",
        410 => "Expired",
        413 => "RequestEntityTooLarge",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        500.. => "InternalError",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_fields_of_upstream() {
        let mut status = Status::failure(429, "slow \"down\"");
        status.details = Some(StatusDetails {
            retry_after_seconds: 3,
            ..StatusDetails::default()
        });
        assert_eq!(
            String::from_utf8(status.to_json()).unwrap(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"slow \"down\"","reason":"TooManyRequests","details":{"retryAfterSeconds":3},"code":429}"#
        );
    }

    #[test]
    fn json_round_trips() {
        let status = Status {
            code: 404,
            reason: "NotFound".into(),
            message: "leases \"a\" not found".into(),
            details: Some(StatusDetails {
                name: "a".into(),
                group: "coordination.k8s.io".into(),
                kind: "leases".into(),
                uid: "u".into(),
                causes: vec![StatusCause {
                    reason: "r".into(),
                    message: "m".into(),
                    field: "f".into(),
                }],
                retry_after_seconds: 1,
            }),
        };
        assert_eq!(Status::from_json(&status.to_json()), Some(status));
        assert_eq!(Status::from_json(br#"{"kind":"Lease"}"#), None);
        assert_eq!(Status::from_json(b"{"), None);
    }

    #[test]
    fn outcome_below_400_is_success() {
        let body = String::from_utf8(
            Status {
                code: 200,
                ..Status::default()
            }
            .to_json(),
        )
        .unwrap();
        assert!(body.contains(r#""status":"Success""#), "{body}");
    }

    #[test]
    fn unknown_codes_have_no_reason() {
        assert_eq!(default_reason(414), "");
        assert_eq!(default_reason(200), "");
        assert_eq!(default_reason(502), "InternalError");
    }
}
