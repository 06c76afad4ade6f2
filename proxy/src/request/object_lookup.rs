//! Reads the metadata of one object at the API server, with the identity of a client's request.
//!
//! Guarantees: nobody learns of an object that it may not read; the current state is read, and no cache. Leaves decisions on the object to
//! `required_object` and `collection_delete`.

use std::time::Duration;

use ctrlmesh_wire::objects::{self, ObjectMetadata};
use ctrlmesh_wire::{RequestInfo, Verb};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::time::{Instant, timeout};

use super::exchange::Exchange;
use crate::respond::{NamedObject, Reply};
use crate::stream::body::{self, RequestBody};
use crate::upstream::{RequestHead, SendError};

/// Maximum time for the object's metadata: half of the API server's own limit for a request.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Servers of others may not know the form with metadata alone; the whole object is bounded like every body that is read.
const METADATA_TYPES: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Fields that are about the body of the client's request, or about the response that it wants.
const FIELDS_OF_REQUEST: [HeaderName; 10] = [
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
];

/// Asks for the object's metadata. `headers` are those of the client's request, with credentials. Returns `None` if there is no such
/// object.
///
/// # Errors
/// The reply to send if the object cannot be read.
pub(super) async fn look_up(
    exchange: &Exchange<'_>,
    headers: &HeaderMap,
    path: &PathAndQuery,
    object: &NamedObject,
) -> Result<Option<ObjectMetadata<'static>>, Reply> {
    let read = timeout(LOOKUP_TIMEOUT, read_metadata(exchange, headers, path, object)).await;
    read.unwrap_or_else(|_| {
        let timeout = LOOKUP_TIMEOUT;
        Err(unreachable_server(&SendError::HeadTimeout { timeout }))
    })
}

async fn read_metadata(
    exchange: &Exchange<'_>,
    headers: &HeaderMap,
    path: &PathAndQuery,
    object: &NamedObject,
) -> Result<Option<ObjectMetadata<'static>>, Reply> {
    let head = RequestHead {
        method: Method::GET,
        path: Some(path.clone()),
        headers: own_headers(headers, METADATA_TYPES),
        head_timeout: None,
    };
    let uses_sidecar_credentials = exchange.uses_sidecar_credentials.get();
    let upstream = exchange.worker.upstream(uses_sidecar_credentials);
    let sending = upstream.send_head(head, RequestBody::Full(None), None, Instant::now());
    let response = sending.await.map_err(|error| unreachable_server(&error))?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(None),
        StatusCode::UNAUTHORIZED => {
            if uses_sidecar_credentials {
                exchange.worker.credentials().refresh_now();
            }
            return Err(Reply::unknown_credentials(object));
        }
        StatusCode::FORBIDDEN => return Err(Reply::unreadable_object(object)),
        status => return Err(Reply::unknown_object(object, status)),
    }
    let bytes = body::collect_response(response.into_body(), exchange.record).await?;
    let metadata = objects::object_metadata(&bytes);
    exchange.record.release_for_reuse(bytes.len());
    let metadata = metadata.map_err(|problem| Reply::invalid_object(object, &problem))?;
    Ok(Some(metadata))
}

/// Reads the path of an object as the API server will. `None` if that is another one than the request's.
pub(super) fn named_object(info: &RequestInfo<'_>, path: &str) -> Option<NamedObject> {
    let read = RequestInfo::parse("GET", path, None).ok()?;
    let is_same = (&read.group, &read.resource, &read.namespace) == (&info.group, &info.resource, &info.namespace);
    let is_object = read.verb == Verb::Get && !read.name.is_empty() && read.subresource.is_empty();
    (is_same && is_object).then(|| NamedObject {
        group: read.group.into_owned(),
        resource: read.resource.into_owned(),
        namespace: read.namespace.into_owned(),
        name: read.name.into_owned(),
    })
}

/// The fields of a request of the sidecar's own that has the identity of the client's: the client's fields without those that are about its
/// body or its response.
pub(super) fn own_headers(sent: &HeaderMap, accept: &'static str) -> HeaderMap {
    let mut headers = sent.clone();
    for name in FIELDS_OF_REQUEST {
        headers.remove(name);
    }
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

/// The reply if nothing was sent but a read, so that a repeat is harmless.
pub(super) fn unreachable_server(error: &SendError) -> Reply {
    Reply::upstream_failed(error, "the API server", true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_another_object_is_not_taken() {
        let info = RequestInfo::parse("PUT", "/api/v1/namespaces/n/pods/p/status", None).unwrap();
        for path in [
            "/api/v1/namespaces/n/pods",
            "/api/v1/namespaces/n/pods/p/status",
            "/api/v1/namespaces/m/pods/p",
            "/api/v1/namespaces/n/services/p",
        ] {
            assert_eq!(named_object(&info, path), None, "{path}");
        }
        let renamed = named_object(&info, "/api/v1/namespaces/n/pods/q").unwrap();
        assert_eq!(renamed.name, "q");
    }

    #[test]
    fn own_request_has_the_identity_of_the_clients_and_nothing_of_its_body() {
        let mut sent = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer t"),
            ("impersonate-user", "a"),
            ("content-type", "application/json"),
            ("content-length", "7"),
            ("if-none-match", "x"),
            ("accept", "application/vnd.kubernetes.protobuf"),
            ("accept-encoding", "gzip"),
        ] {
            sent.insert(name, HeaderValue::from_static(value));
        }
        let headers = own_headers(&sent, METADATA_TYPES);
        let mut fields: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        fields.sort();
        assert_eq!(
            fields,
            [
                "accept-encoding: identity".to_owned(),
                format!("accept: {METADATA_TYPES}"),
                "authorization: Bearer t".to_owned(),
                "impersonate-user: a".to_owned(),
            ]
        );
    }
}
