//! In which form objects are answered: as they are, as metadata only, or as a table; chosen by the `Accept` header,
//! written as single object, list or watch event. What a table shows is [`crate::table`]'s.

use bytes::Bytes;
use ctrlmesh_wire::Query;
use http::HeaderMap;
use http::header::ACCEPT;
use serde_json::{Value, json};

use crate::object::Object;
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::table::{self, IncludeObject};

/// The media types that the server writes, for the 406 that names them.
const WRITTEN: &str = "application/json";

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object itself.
    Full,
    /// `PartialObjectMetadata` or its list.
    Metadata,
    /// `meta.k8s.io/v1` `Table`.
    Table(IncludeObject),
}

/// One entry of an `Accept` header.
struct MediaRange<'a> {
    media_type: &'a str,
    /// The parameters `as`, `g`, `v`.
    target: Option<(&'a str, &'a str, &'a str)>,
}

/// The entries of all `Accept` headers in order. Weights are ignored, as apiserver's negotiation nearly does.
fn media_ranges(headers: &HeaderMap) -> impl Iterator<Item = MediaRange<'_>> {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts.filter_map(|parameter| parameter.split_once('=')).collect();
        let parameter = |key: &str| {
            parameters
                .iter()
                .find(|(k, _)| *k == key)
                .map_or("", |(_, value)| *value)
        };
        let kind = parameter("as");
        MediaRange {
            media_type,
            target: (!kind.is_empty()).then(|| (kind, parameter("g"), parameter("v"))),
        }
    })
}

fn is_json(media_type: &str) -> bool {
    matches!(media_type, "application/json" | "application/*" | "*/*" | "")
}

/// Whether the client asks for aggregated discovery.
pub(crate) fn wants_aggregated_discovery(headers: &HeaderMap) -> bool {
    media_ranges(headers).any(|range| {
        is_json(range.media_type) && range.target == Some(("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2"))
    })
}

impl Form {
    /// The first form of the `Accept` header that the server can write; JSON if there is no header.
    pub(crate) fn negotiate(headers: &HeaderMap, query: &Query<'_>) -> Result<Self, Refusal> {
        if !headers.contains_key(ACCEPT) {
            return Ok(Self::Full);
        }
        let acceptable = media_ranges(headers).filter(|range| is_json(range.media_type));
        let mut forms = acceptable.filter_map(|range| match range.target {
            None => Some(Ok(Self::Full)),
            Some(("Table", "meta.k8s.io", "v1")) => Some(IncludeObject::read(query).map(Self::Table)),
            Some(("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1")) => {
                Some(Ok(Self::Metadata))
            }
            Some(_) => None,
        });
        forms.next().unwrap_or_else(|| Err(Refusal::not_acceptable(WRITTEN)))
    }

    /// One object.
    pub(crate) fn object(self, object: &Object) -> Bytes {
        match self {
            Self::Full => object.encoded.clone(),
            Self::Metadata => partial(&object.value).to_string().into(),
            Self::Table(include) => {
                let metadata = json!({ "resourceVersion": object.resource_version.to_string() });
                table::table(&metadata, true, &[table::row(&object.value, include)])
                    .to_string()
                    .into()
            }
        }
    }

    /// What stands before the items of a list; `metadata` is the list's.
    pub(crate) fn list_head(self, resource: &Resource, metadata: &Value) -> String {
        match self {
            Self::Full => {
                let (kind, version) = (&resource.kind, resource.api_version());
                format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#)
            }
            Self::Metadata => format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"items":["#
            ),
            Self::Table(_) => format!(
                r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"columnDefinitions":{},"rows":["#,
                table::columns()
            ),
        }
    }

    /// One item of a list.
    pub(crate) fn list_item(self, object: &Object) -> Bytes {
        match self {
            Self::Full | Self::Metadata => self.object(object),
            Self::Table(include) => table::row(&object.value, include).to_string().into(),
        }
    }

    /// One line of a watch. `first`: a table names its columns only then.
    pub(crate) fn event(self, kind: &str, object: &Value, encoded: &[u8], first: bool) -> Bytes {
        let mut line = format!(r#"{{"type":"{kind}","object":"#).into_bytes();
        match self {
            Self::Full => line.extend_from_slice(encoded),
            Self::Metadata => line.extend_from_slice(partial(object).to_string().as_bytes()),
            Self::Table(include) => {
                let version = crate::object::text(object, "resourceVersion");
                let table = table::table(
                    &json!({ "resourceVersion": version }),
                    first,
                    &[table::row(object, include)],
                );
                line.extend_from_slice(table.to_string().as_bytes());
            }
        }
        line.extend_from_slice(b"}\n");
        line.into()
    }
}

/// The object's `PartialObjectMetadata`.
pub(crate) fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}
