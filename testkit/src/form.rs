//! The form in which objects are answered: complete, metadata only, or as a table, each in JSON or protobuf. The `Accept` header selects
//! it, for a single object, a list or a watch event. [`crate::table`] builds the tables.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use ctrlmesh_wire::{Query, Status, WatchEncoding, watch_error_event};
use http::HeaderMap;
use http::header::ACCEPT;
use serde_json::{Value, json};

use crate::accept::{Encoding, media_ranges};
use crate::object::{Object, metadata_text, partial_metadata};
use crate::protobuf::{self, ProtobufError};
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::table::{self, IncludeObject};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    view: ObjectView,
    encoding: Encoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectView {
    Full,
    /// `PartialObjectMetadata` or its list.
    Metadata,
    /// `meta.k8s.io/v1` `Table`; only in JSON.
    Table(IncludeObject),
}

impl Form {
    /// The first form of the `Accept` header that the server can write; JSON without a header. Metadata has a protobuf encoding for every
    /// kind, a table has none.
    pub(crate) fn negotiate_form(headers: &HeaderMap, query: &Query<'_>, resource: &Resource) -> Result<Self, Refusal> {
        let form = |view, encoding| Ok(Self { view, encoding });
        if !headers.contains_key(ACCEPT) {
            return form(ObjectView::Full, Encoding::Json);
        }
        for range in media_ranges(headers) {
            match (range.written_encoding(), range.target) {
                (Some(Encoding::Json), None) => return form(ObjectView::Full, Encoding::Json),
                (Some(Encoding::Protobuf), None) if resource.has_protobuf() => {
                    return form(ObjectView::Full, Encoding::Protobuf);
                }
                (Some(Encoding::Json), Some(("Table", "meta.k8s.io", "v1"))) => {
                    return form(ObjectView::Table(IncludeObject::from_query(query)?), Encoding::Json);
                }
                (
                    Some(encoding),
                    Some(("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1")),
                ) => return form(ObjectView::Metadata, encoding),
                _ => {}
            }
        }
        Err(Refusal::not_acceptable(&resource.media_types()))
    }

    /// Media type of an object or a list.
    pub(crate) fn content_type(self) -> &'static str {
        self.encoding.media_type()
    }

    /// Media type of a watch.
    pub(crate) fn watch_content_type(self) -> &'static str {
        match self.encoding {
            Encoding::Json => self.content_type(),
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    pub(crate) fn encode_object(self, object: &Object) -> Result<Bytes, Refusal> {
        match (self.encoding, self.view) {
            (Encoding::Json, ObjectView::Full) => Ok(object.encoded.clone()),
            (Encoding::Json, _) => Ok(self.shown_value(&object.value, true).to_string().into()),
            (Encoding::Protobuf, _) => self.encode_protobuf(&object.value),
        }
    }

    /// Encodes a Status that is sent in place of an object.
    pub(crate) fn encode_status(self, status: &Status) -> Vec<u8> {
        match self.encoding {
            Encoding::Json => status.to_json(),
            Encoding::Protobuf => status.to_protobuf(),
        }
    }

    /// The value sent for an object. `with_columns`: a watch sends the columns of a table only once.
    fn shown_value(self, object: &Value, with_columns: bool) -> Cow<'_, Value> {
        match self.view {
            ObjectView::Full => Cow::Borrowed(object),
            ObjectView::Metadata => Cow::Owned(partial_metadata(object)),
            ObjectView::Table(include) => {
                let metadata = json!({ "resourceVersion": metadata_text(object, "resourceVersion") });
                Cow::Owned(table::build_table(
                    &metadata,
                    with_columns,
                    &[table::build_row(object, include)],
                ))
            }
        }
    }

    fn encode_protobuf(self, object: &Value) -> Result<Bytes, Refusal> {
        let encoded = protobuf::encode_object(&self.shown_value(object, true));
        encoded.map(Bytes::from).map_err(|error| {
            let name = metadata_text(object, "name");
            encoding_refusal(&format!("\"{name}\""), &error)
        })
    }

    /// The complete list, for encodings that can't be written item by item; `None` for the others.
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
            ObjectView::Full => (format!("{}List", resource.kind), resource.api_version()),
            _ => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        let items: Vec<_> = objects
            .iter()
            .map(|object| self.shown_value(&object.value, true).into_owned())
            .collect();
        let list = json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items });
        let encoded =
            protobuf::encode_object(&list).map_err(|error| encoding_refusal(&resource.qualified_name(), &error));
        encoded.map(|encoded| Some(encoded.into()))
    }

    /// The JSON before the items of a list; `metadata` is the list's.
    pub(crate) fn list_head(self, resource: &Resource, metadata: &Value) -> String {
        match self.view {
            ObjectView::Full => {
                let (kind, version) = (&resource.kind, resource.api_version());
                format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#)
            }
            ObjectView::Metadata => format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"items":["#
            ),
            ObjectView::Table(_) => format!(
                r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"columnDefinitions":{},"rows":["#,
                table::column_definitions()
            ),
        }
    }

    pub(crate) fn list_item(self, object: &Object) -> Bytes {
        match self.view {
            ObjectView::Full => object.encoded.clone(),
            ObjectView::Metadata => partial_metadata(&object.value).to_string().into(),
            ObjectView::Table(include) => table::build_row(&object.value, include).to_string().into(),
        }
    }

    /// Encodes a watch event. `first`: a table has its columns only then.
    pub(crate) fn encode_event(
        self,
        kind: &str,
        object: &Value,
        encoded: &[u8],
        first: bool,
    ) -> Result<Bytes, Refusal> {
        if self.encoding == Encoding::Protobuf {
            return Ok(protobuf::watch_event(kind, &self.encode_protobuf(object)?).into());
        }
        let mut line = format!(r#"{{"type":"{kind}","object":"#).into_bytes();
        match self.view {
            ObjectView::Full => line.extend_from_slice(encoded),
            _ => line.extend_from_slice(self.shown_value(object, first).to_string().as_bytes()),
        }
        line.extend_from_slice(b"}\n");
        Ok(line.into())
    }

    /// Encodes the event that ends a watch with an error.
    pub(crate) fn encode_error_event(self, status: &Status) -> Bytes {
        let encoding = match self.encoding {
            Encoding::Json => WatchEncoding::Json,
            Encoding::Protobuf => WatchEncoding::Protobuf,
        };
        watch_error_event(status, encoding).into()
    }
}

/// For an object stored as JSON with a value that its kind can't have; a real API server would have rejected the write.
fn encoding_refusal(what: &str, error: &ProtobufError) -> Refusal {
    Refusal::internal(format!(
        "{what} has no encoding in protobuf; correct it, or ask for JSON: {error}"
    ))
}
