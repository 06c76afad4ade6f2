//! The options of a collection's delete, for each of its objects: those of the client, with the UID of the object as a precondition.

use bytes::Bytes;
use ctrlmesh_wire::{UidError, UidPlace, bind_to_uid, delete_options_of_query};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Uri};

use crate::respond::Reply;
use crate::stream::body::RequestBody;

/// Longest options, in bytes. They take some hundred, and several deletes have a copy at a time.
const MAX_OPTIONS_BYTES: usize = 64 << 10;

/// Stands for the UID of any object. No object has it.
const ANY_UID: &str = "-";

const JSON: &str = "application/json";

/// Options that can be given to each delete.
#[derive(Debug)]
pub(super) struct DeleteOptions {
    content_type: HeaderValue,
    bytes: Bytes,
}

impl DeleteOptions {
    /// Reads the options of a request: from its body, or without one from its query. `sent` is the target, after edits.
    ///
    /// # Errors
    /// The reply to send if the options cannot be read, or are for a single object.
    pub(super) async fn read(headers: &HeaderMap, body: RequestBody, sent: &Uri) -> Result<Self, Reply> {
        let bytes = body.collect().await?;
        let options = if bytes.is_empty() {
            Self::of_query(sent.query().unwrap_or_default())?
        } else {
            Self::of_body(headers, bytes)?
        };
        // Before anything is sent.
        options.for_object(ANY_UID)?;
        Ok(options)
    }

    fn of_query(query: &str) -> Result<Self, Reply> {
        let bytes = delete_options_of_query(query);
        let bytes = bytes.map_err(|error| Reply::bad_request(error.to_string()))?;
        Ok(Self {
            content_type: HeaderValue::from_static(JSON),
            bytes: bytes.into(),
        })
    }

    fn of_body(headers: &HeaderMap, bytes: Bytes) -> Result<Self, Reply> {
        if headers.contains_key(CONTENT_ENCODING) {
            return Err(Reply::unsupported_encoding(
                "DeleteOptions must not be compressed, because the sidecar adds the UIDs of objects to them",
            ));
        }
        if bytes.len() > MAX_OPTIONS_BYTES {
            return Err(Reply::body_too_large(MAX_OPTIONS_BYTES));
        }
        // The API server treats a body without a type as JSON.
        let content_type = headers.get(CONTENT_TYPE).cloned();
        Ok(Self {
            content_type: content_type.unwrap_or_else(|| HeaderValue::from_static(JSON)),
            bytes,
        })
    }

    pub(super) const fn content_type(&self) -> &HeaderValue {
        &self.content_type
    }

    /// The body of the delete of an object.
    ///
    /// # Errors
    /// The reply to send if the options cannot be edited, or are for a single object.
    pub(super) fn for_object(&self, uid: &str) -> Result<Bytes, Reply> {
        // A type that is no text is one that the API server does not know.
        let content_type = self.content_type.to_str().unwrap_or("unknown");
        let bound = bind_to_uid(content_type, &self.bytes, UidPlace::Preconditions, uid);
        let bound = bound.map_err(|error| match error {
            UidError::OtherObject { wanted, .. } => Reply::bad_request(format!(
                "the precondition for the UID {wanted:?} can't hold for all objects of a collection: delete that object by its name"
            )),
            UidError::Malformed { .. } => Reply::bad_request(error.to_string()),
            _ => Reply::unsupported_encoding(error.to_string()),
        })?;
        Ok(bound.into())
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::protobuf::{Message, envelope};
    use http::HeaderName;
    use serde_json::{Value, json};

    use super::*;

    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    const COLLECTION: &str = "/api/v1/namespaces/n/pods";

    async fn read(fields: &[(HeaderName, &'static str)], body: &[u8], query: &str) -> Result<DeleteOptions, u16> {
        let headers = fields
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        let body = RequestBody::of_bytes(Bytes::copy_from_slice(body));
        let sent = format!("{COLLECTION}?{query}").parse().unwrap();
        let options = DeleteOptions::read(&headers.collect(), body, &sent).await;
        options.map_err(|reply| reply.code())
    }

    fn json_for(options: &DeleteOptions, uid: &str) -> Value {
        serde_json::from_slice(&options.for_object(uid).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn options_of_the_body_get_the_uid_of_each_object() {
        let body = br#"{"propagationPolicy":"Orphan","preconditions":{"resourceVersion":"7"},"dryRun":["All"]}"#;
        let options = read(&[], body, "gracePeriodSeconds=0").await.unwrap();
        assert_eq!(options.content_type(), JSON);
        for uid in ["u1", "u2"] {
            let expected = json!({
                "propagationPolicy": "Orphan", "dryRun": ["All"],
                "preconditions": { "resourceVersion": "7", "uid": uid },
            });
            assert_eq!(json_for(&options, uid), expected);
        }
    }

    #[tokio::test]
    async fn options_of_the_query_count_without_a_body() {
        let typed = [(CONTENT_TYPE, PROTOBUF)];
        let options = read(&typed, b"", "labelSelector=a&gracePeriodSeconds=0&dryRun=All")
            .await
            .unwrap();
        assert_eq!(options.content_type(), JSON);
        let expected = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "dryRun": ["All"],
            "preconditions": { "uid": "u" },
        });
        assert_eq!(json_for(&options, "u"), expected);
    }

    #[tokio::test]
    async fn options_in_protobuf_stay_protobuf() {
        let empty = envelope("v1", "DeleteOptions", &Message::new());
        let options = read(&[(CONTENT_TYPE, PROTOBUF)], &empty, "").await.unwrap();
        assert_eq!(options.content_type(), PROTOBUF);
        let bound = options.for_object("the-uid").unwrap();
        assert!(
            bound.starts_with(b"k8s\0") && bound.windows(7).any(|part| part == b"the-uid"),
            "{bound:?}"
        );
    }

    #[tokio::test]
    async fn options_that_cannot_hold_for_each_object_are_refused() {
        let large = format!(r#"{{"dryRun":["{}"]}}"#, "x".repeat(MAX_OPTIONS_BYTES));
        for (fields, body, query, code) in [
            (vec![], br#"{"preconditions":{"uid":"u"}}"#.as_slice(), "", 400),
            (vec![], b"", "uid=u", 400),
            (vec![], b"", "gracePeriodSeconds=x", 400),
            (vec![], b"{", "", 400),
            (vec![(CONTENT_TYPE, PROTOBUF)], b"{}", "", 400),
            (vec![(CONTENT_TYPE, "application/cbor")], b"x", "", 415),
            (vec![(CONTENT_TYPE, "application/yaml")], b"dryRun: [All]", "", 415),
            (vec![(CONTENT_TYPE, "application/apply-patch+yaml")], b"{}", "", 415),
            (vec![(CONTENT_ENCODING, "gzip")], b"{}", "", 415),
            (vec![], large.as_bytes(), "", 413),
        ] {
            let refused = read(&fields, body, query).await.unwrap_err();
            assert_eq!(refused, code, "{fields:?} {query}");
        }
    }
}
