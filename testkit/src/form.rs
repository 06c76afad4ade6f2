//! In which form objects are answered: as they are, as metadata only, or as a table, each in JSON or in protobuf; chosen
//! by the `Accept` header, written as single object, list or watch event. What a table shows is [`crate::table`]'s.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use ctrlmesh_wire::{Query, Status, WatchEncoding, watch_error_event};
use http::HeaderMap;
use http::header::ACCEPT;
use serde_json::{Value, json};

use crate::accept::{Encoding, media_ranges};
use crate::object::Object;
use crate::protobuf::{self, ProtobufError};
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::table::{self, IncludeObject};

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    view: View,
    encoding: Encoding,
}

/// What is shown of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// The object itself.
    Full,
    /// `PartialObjectMetadata` or its list.
    Metadata,
    /// `meta.k8s.io/v1` `Table`; only in JSON.
    Table(IncludeObject),
}

impl Form {
    /// The first form of the `Accept` header that the server can write; JSON if there is no header. Metadata has an
    /// encoding in protobuf whatever kind it is of, a table has none.
    pub(crate) fn negotiate(headers: &HeaderMap, query: &Query<'_>, resource: &Resource) -> Result<Self, Refusal> {
        let form = |view, encoding| Ok(Self { view, encoding });
        if !headers.contains_key(ACCEPT) {
            return form(View::Full, Encoding::Json);
        }
        for range in media_ranges(headers) {
            match (range.encoding(), range.target) {
                (Some(Encoding::Json), None) => return form(View::Full, Encoding::Json),
                (Some(Encoding::Protobuf), None) if resource.has_protobuf() => {
                    return form(View::Full, Encoding::Protobuf);
                }
                (Some(Encoding::Json), Some(("Table", "meta.k8s.io", "v1"))) => {
                    return form(View::Table(IncludeObject::read(query)?), Encoding::Json);
                }
                (
                    Some(encoding),
                    Some(("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1")),
                ) => return form(View::Metadata, encoding),
                _ => {}
            }
        }
        Err(Refusal::not_acceptable(&resource.media_types()))
    }

    /// The media type of an object or a list.
    pub(crate) fn content_type(self) -> &'static str {
        self.encoding.media_type()
    }

    /// The media type of a watch.
    pub(crate) fn watch_content_type(self) -> &'static str {
        match self.encoding {
            Encoding::Json => self.content_type(),
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// One object.
    pub(crate) fn object(self, object: &Object) -> Result<Bytes, Refusal> {
        match (self.encoding, self.view) {
            (Encoding::Json, View::Full) => Ok(object.encoded.clone()),
            (Encoding::Json, _) => Ok(self.shown(&object.value, true).to_string().into()),
            (Encoding::Protobuf, _) => self.protobuf(&object.value),
        }
    }

    /// A Status in place of an object.
    pub(crate) fn status(self, status: &Status) -> Vec<u8> {
        match self.encoding {
            Encoding::Json => status.to_json(),
            Encoding::Protobuf => status.to_protobuf(),
        }
    }

    /// What is answered for an object. `with_columns`: a watch names those of a table only once.
    fn shown(self, object: &Value, with_columns: bool) -> Cow<'_, Value> {
        match self.view {
            View::Full => Cow::Borrowed(object),
            View::Metadata => Cow::Owned(partial(object)),
            View::Table(include) => {
                let metadata = json!({ "resourceVersion": crate::object::text(object, "resourceVersion") });
                Cow::Owned(table::table(&metadata, with_columns, &[table::row(object, include)]))
            }
        }
    }

    fn protobuf(self, object: &Value) -> Result<Bytes, Refusal> {
        let encoded = protobuf::encode(&self.shown(object, true));
        encoded.map(Bytes::from).map_err(|error| {
            let name = crate::object::text(object, "name");
            unencodable(&format!("\"{name}\""), &error)
        })
    }

    /// A list whole, where the encoding allows no other way; `None` where it is written item by item.
    pub(crate) fn whole_list(
        self,
        resource: &Resource,
        metadata: &Value,
        objects: &[Arc<Object>],
    ) -> Result<Option<Bytes>, Refusal> {
        if self.encoding == Encoding::Json {
            return Ok(None);
        }
        let (kind, api_version) = match self.view {
            View::Full => (format!("{}List", resource.kind), resource.api_version()),
            _ => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        let items: Vec<_> = objects
            .iter()
            .map(|object| self.shown(&object.value, true).into_owned())
            .collect();
        let list = json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items });
        let encoded = protobuf::encode(&list).map_err(|error| unencodable(&resource.qualified_name(), &error));
        encoded.map(|encoded| Some(encoded.into()))
    }

    /// What stands before the items of a list in JSON; `metadata` is the list's.
    pub(crate) fn list_head(self, resource: &Resource, metadata: &Value) -> String {
        match self.view {
            View::Full => {
                let (kind, version) = (&resource.kind, resource.api_version());
                format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#)
            }
            View::Metadata => format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"items":["#
            ),
            View::Table(_) => format!(
                r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"columnDefinitions":{},"rows":["#,
                table::columns()
            ),
        }
    }

    /// One item of a list in JSON.
    pub(crate) fn list_item(self, object: &Object) -> Bytes {
        match self.view {
            View::Full => object.encoded.clone(),
            View::Metadata => partial(&object.value).to_string().into(),
            View::Table(include) => table::row(&object.value, include).to_string().into(),
        }
    }

    /// One event of a watch. `first`: a table names its columns only then.
    pub(crate) fn event(self, kind: &str, object: &Value, encoded: &[u8], first: bool) -> Result<Bytes, Refusal> {
        if self.encoding == Encoding::Protobuf {
            return Ok(protobuf::watch_event(kind, &self.protobuf(object)?).into());
        }
        let mut line = format!(r#"{{"type":"{kind}","object":"#).into_bytes();
        match self.view {
            View::Full => line.extend_from_slice(encoded),
            _ => line.extend_from_slice(self.shown(object, first).to_string().as_bytes()),
        }
        line.extend_from_slice(b"}\n");
        Ok(line.into())
    }

    /// The event that ends a watch with an error.
    pub(crate) fn error_event(self, status: &Status) -> Bytes {
        let encoding = match self.encoding {
            Encoding::Json => WatchEncoding::Json,
            Encoding::Protobuf => WatchEncoding::Protobuf,
        };
        watch_error_event(status, encoding).into()
    }
}

/// An object that was written in JSON and holds what its kind can't: a real API server would have refused it then.
fn unencodable(what: &str, error: &ProtobufError) -> Refusal {
    Refusal::internal(format!(
        "{what} has no encoding in protobuf; correct it, or ask for JSON: {error}"
    ))
}

/// The object's `PartialObjectMetadata`.
pub(crate) fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}
