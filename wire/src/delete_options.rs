//! `DeleteOptions` in the body of a DELETE. The API server reads them from the query only if there is no body
//! (k8s.io/apiserver `pkg/endpoints/handlers/delete.go`), so an edit of one of them must be made in the body where there is one.
//!
//! Other options and unknown fields stay as they are.

use serde_json::{Map, Value};

use crate::Query;
use crate::protobuf::{Message, OpenEnvelope, fields};
use crate::watch_event::media_type;

/// An error that prevents an edit of options. The request must not be sent on: it would delete in another way than
/// asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeleteOptionsError {
    /// The encoding can't be edited; a server answers 415 to a request in it.
    #[error("can't edit DeleteOptions in {0:?}: send JSON or protobuf")]
    Unsupported(String),
    /// The body breaks its own format.
    #[error("the DeleteOptions are no valid {format}: {problem}")]
    Malformed {
        /// Format that the content type names: JSON or protobuf; or the query.
        format: &'static str,
        /// Message of the parser of that format.
        problem: String,
    },
}

/// An option that a DELETE takes in its query or in its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteOption {
    /// `gracePeriodSeconds`
    GracePeriodSeconds,
    /// `orphanDependents`
    OrphanDependents,
    /// `propagationPolicy`
    PropagationPolicy,
    /// `dryRun`
    DryRun,
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`
    IgnoreStoreReadError,
}

/// The change of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteOptionEdit {
    option: DeleteOption,
    /// `None` removes the option from the body.
    value: Option<OptionValue>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum OptionValue {
    Number(i64),
    Flag(bool),
    Text(String),
    Texts(String),
}

impl DeleteOption {
    const ALL: [Self; 5] = [
        Self::GracePeriodSeconds,
        Self::OrphanDependents,
        Self::PropagationPolicy,
        Self::DryRun,
        Self::IgnoreStoreReadError,
    ];

    /// The option of this query parameter.
    #[must_use]
    pub fn of_query(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|option| option.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::GracePeriodSeconds => "gracePeriodSeconds",
            Self::OrphanDependents => "orphanDependents",
            Self::PropagationPolicy => "propagationPolicy",
            Self::DryRun => "dryRun",
            Self::IgnoreStoreReadError => "ignoreStoreReadErrorWithClusterBreakingPotential",
        }
    }

    /// The number of the field in `k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions`.
    fn field_number(self) -> u32 {
        match self {
            Self::GracePeriodSeconds => 1,
            Self::OrphanDependents => 3,
            Self::PropagationPolicy => 4,
            Self::DryRun => 5,
            Self::IgnoreStoreReadError => 6,
        }
    }

    /// Sets it to what a query says, read as the API server would; `None` if that is not readable.
    #[must_use]
    pub fn set(self, text: &str) -> Option<DeleteOptionEdit> {
        let value = match self {
            Self::GracePeriodSeconds => OptionValue::Number(text.parse().ok()?),
            // apimachinery `pkg/runtime/conversion.go`, `Convert_Slice_string_To_Pointer_bool`.
            Self::OrphanDependents | Self::IgnoreStoreReadError => {
                OptionValue::Flag(text != "0" && !text.eq_ignore_ascii_case("false"))
            }
            Self::PropagationPolicy => OptionValue::Text(text.to_owned()),
            Self::DryRun => OptionValue::Texts(text.to_owned()),
        };
        Some(DeleteOptionEdit {
            option: self,
            value: Some(value),
        })
    }

    /// The edit that removes the option from a body.
    #[must_use]
    pub fn remove(self) -> DeleteOptionEdit {
        DeleteOptionEdit {
            option: self,
            value: None,
        }
    }
}

/// Edits the options in the body of a DELETE, in order. A body that is empty has none: its options are in the query.
///
/// # Errors
/// When the content type is neither JSON nor protobuf, or the body is broken.
pub fn edit_delete_options(
    content_type: &str,
    body: &[u8],
    edits: &[DeleteOptionEdit],
) -> Result<Vec<u8>, DeleteOptionsError> {
    match media_type(content_type).as_str() {
        // The API server takes JSON when a body has no type.
        "" | "application/json" => edit_json(body, edits),
        "application/vnd.kubernetes.protobuf" => edit_protobuf(body, edits),
        other => Err(DeleteOptionsError::Unsupported(other.to_owned())),
    }
}

/// The options in the query of a DELETE as a body in JSON, which takes their place. The preconditions are the parameters `uid` and
/// `resourceVersion` (apimachinery `pkg/apis/meta/v1/conversion.go`, `Convert_url_Values_To_v1_DeleteOptions`).
///
/// # Errors
/// When the API server could not read an option.
pub fn delete_options_of_query(raw_query: &str) -> Result<Vec<u8>, DeleteOptionsError> {
    let query = Query::new(raw_query);
    let mut edits = Vec::new();
    for option in DeleteOption::ALL {
        let Some(value) = query.get(option.name()) else {
            continue;
        };
        let edit = option.set(&value).ok_or_else(|| DeleteOptionsError::Malformed {
            format: "query",
            problem: format!("{} is {value:?}", option.name()),
        })?;
        edits.push(edit);
    }
    let preconditions = ["uid", "resourceVersion"].into_iter().filter_map(|name| {
        let value = query.get(name).filter(|value| !value.is_empty())?;
        Some((name.to_owned(), Value::from(&*value)))
    });
    let preconditions: Map<String, Value> = preconditions.collect();
    let mut options = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    if let Some(members) = options.as_object_mut().filter(|_| !preconditions.is_empty()) {
        members.insert("preconditions".to_owned(), preconditions.into());
    }
    edit_json(options.to_string().as_bytes(), &edits)
}

fn edit_json(body: &[u8], edits: &[DeleteOptionEdit]) -> Result<Vec<u8>, DeleteOptionsError> {
    let malformed = |error: serde_json::Error| DeleteOptionsError::Malformed {
        format: "JSON",
        problem: error.to_string(),
    };
    let mut options: Map<String, Value> = serde_json::from_slice(body).map_err(malformed)?;
    for DeleteOptionEdit { option, value } in edits {
        let value = match value {
            None => {
                options.remove(option.name());
                continue;
            }
            Some(OptionValue::Number(number)) => (*number).into(),
            Some(OptionValue::Flag(flag)) => (*flag).into(),
            Some(OptionValue::Text(text)) => text.clone().into(),
            Some(OptionValue::Texts(text)) => vec![text.clone()].into(),
        };
        options.insert(option.name().to_owned(), value);
    }
    serde_json::to_vec(&options).map_err(malformed)
}

fn edit_protobuf(body: &[u8], edits: &[DeleteOptionEdit]) -> Result<Vec<u8>, DeleteOptionsError> {
    let malformed = |problem: String| DeleteOptionsError::Malformed {
        format: "protobuf",
        problem,
    };
    let envelope = OpenEnvelope::open(body).map_err(malformed)?;
    let mut options = envelope.object.to_vec();
    for edit in edits {
        let mut kept = Vec::with_capacity(options.len());
        for field in fields(&options) {
            let field = field.map_err(|error| malformed(error.to_string()))?;
            if field.number != edit.option.field_number() {
                kept.extend_from_slice(field.whole);
            }
        }
        kept.extend(encode_option(edit));
        options = kept;
    }
    Ok(envelope.close(&options))
}

fn encode_option(edit: &DeleteOptionEdit) -> Vec<u8> {
    let number = edit.option.field_number();
    let message = Message::new();
    let message = match &edit.value {
        None => message,
        Some(OptionValue::Number(value)) => message.varint(number, value.cast_unsigned()),
        Some(OptionValue::Flag(flag)) => message.varint(number, u64::from(*flag)),
        Some(OptionValue::Text(text) | OptionValue::Texts(text)) => message.string(number, text),
    };
    message.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::{MAGIC, RAW, envelope, field, field_payload, text};

    fn set(name: &str, value: &str) -> DeleteOptionEdit {
        DeleteOption::of_query(name).unwrap().set(value).unwrap()
    }

    #[test]
    fn json_options_are_set_and_removed_and_the_rest_stays() {
        let body =
            br#"{"kind":"DeleteOptions","preconditions":{"uid":"u"},"dryRun":[],"gracePeriodSeconds":5,"x":1.50}"#;
        let edits = [
            set("dryRun", "All"),
            set("propagationPolicy", "Orphan"),
            set("orphanDependents", "FALSE"),
            DeleteOption::GracePeriodSeconds.remove(),
        ];
        let edited: Value = serde_json::from_slice(&edit_delete_options("", body, &edits).unwrap()).unwrap();
        let expected = serde_json::json!({
            "kind": "DeleteOptions", "preconditions": { "uid": "u" }, "dryRun": ["All"], "x": 1.5,
            "propagationPolicy": "Orphan", "orphanDependents": false,
        });
        assert_eq!(edited, expected);
    }

    #[test]
    fn protobuf_options_are_set_and_removed_and_the_rest_stays() {
        let preconditions = Message::new().string(1, "u");
        let options = Message::new()
            .varint(1, 5)
            .message(2, &preconditions)
            .string(5, "x")
            .string(5, "y");
        let body = envelope("v1", "DeleteOptions", &options);
        let edits = [
            set("dryRun", "All"),
            set("ignoreStoreReadErrorWithClusterBreakingPotential", "1"),
            DeleteOption::GracePeriodSeconds.remove(),
        ];
        let edited = edit_delete_options("application/vnd.kubernetes.protobuf", &body, &edits).unwrap();
        let unknown = edited.strip_prefix(MAGIC).unwrap();
        assert_eq!(
            text(field_payload(unknown, 1).unwrap(), 2).as_deref(),
            Some("DeleteOptions")
        );
        let options = field_payload(unknown, RAW).unwrap();
        assert_eq!(field(options, 1), None);
        assert_eq!(text(field_payload(options, 2).unwrap(), 1).as_deref(), Some("u"));
        assert_eq!(text(options, 5).as_deref(), Some("All"));
        assert_eq!(fields(options).filter(|field| field.unwrap().number == 5).count(), 1);
        assert_eq!(field(options, 6).unwrap().varint(), Some(1));
        let empty = envelope("v1", "DeleteOptions", &Message::new());
        let edited = edit_delete_options(
            "application/vnd.kubernetes.protobuf",
            &empty,
            &[set("gracePeriodSeconds", "-1")],
        );
        let edited = edited.unwrap();
        let options = field_payload(edited.strip_prefix(MAGIC).unwrap(), RAW).unwrap();
        assert_eq!(field(options, 1).unwrap().varint(), Some(u64::MAX));
    }

    #[test]
    fn options_of_query_become_a_body() {
        let query = "pretty=true&gracePeriodSeconds=0&dryRun=All&orphanDependents=false&gracePeriodSeconds=9";
        let body: Value = serde_json::from_slice(&delete_options_of_query(query).unwrap()).unwrap();
        let expected = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "dryRun": ["All"],
            "orphanDependents": false,
        });
        assert_eq!(body, expected);
        for (query, expected) in [
            (
                "uid=u%2D1&resourceVersion=7&uid=u-2",
                serde_json::json!({ "uid": "u-1", "resourceVersion": "7" }),
            ),
            ("uid=&resourceVersion=7", serde_json::json!({ "resourceVersion": "7" })),
            ("uid=&resourceVersion=", Value::Null),
        ] {
            let body: Value = serde_json::from_slice(&delete_options_of_query(query).unwrap()).unwrap();
            assert_eq!(body["preconditions"], expected, "{query}");
        }
        let error = delete_options_of_query("gracePeriodSeconds=soon").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the DeleteOptions are no valid query: gracePeriodSeconds is \"soon\""
        );
    }

    #[test]
    fn uneditable_bodies_are_refused() {
        let edits = [set("dryRun", "All")];
        for (content_type, body) in [
            ("application/cbor", &b"\xd9\xd9\xf7\xa0"[..]),
            ("application/yaml", b"dryRun: [All]"),
            ("application/json", b"[]"),
            ("application/json", b"{"),
            ("application/vnd.kubernetes.protobuf", b"{}"),
            ("application/vnd.kubernetes.protobuf", b"k8s\0\x12\x05a"),
        ] {
            assert!(
                edit_delete_options(content_type, body, &edits).is_err(),
                "{content_type}"
            );
        }
        assert_eq!(DeleteOption::GracePeriodSeconds.set("soon"), None);
        assert_eq!(DeleteOption::of_query("dryrun"), None);
    }
}
