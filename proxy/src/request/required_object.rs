//! Requests that are sent only if their object matches (WIT `require-object-match`): asks the API server for the object's metadata, refuses
//! the request, or binds it to the object's UID.
//!
//! Guarantees: a request whose object does not match, or is not known, is never sent, whatever the failure policy of the entry; what is
//! bound changes the object that was checked and no later one of the same name. Leaves bodies to `ctrlmesh_wire`.
//!
//! Cost: one read of metadata for a request, unless predicates read only what the request itself says.

use ctrlmesh_wire::objects::{MetadataFields, ObjectMetadata, Predicate};
use ctrlmesh_wire::{RequestInfo, UidError, UidPlace, Verb, bind_to_uid, delete_options_of_query, object_uid};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Uri};

use super::edit_body::content_type;
use super::exchange::Exchange;
use super::object_lookup::{look_up, named_object};
use crate::chain::EntryId;
use crate::chain::phases::{Attributed, Plugins};
use crate::plugin::verdict::{ObjectRefusal, RequestEdit};
use crate::respond::{NamedObject, Reply};
use crate::stream::body::RequestBody;

/// What a request says of its object.
const FIELDS_OF_PATH: MetadataFields = MetadataFields {
    uid: false,
    resource_version: false,
    labels: false,
    annotations: false,
    controller: false,
    ..MetadataFields::ALL
};

/// What a PUT with a UID says of its object: the API server refuses it for another one.
const FIELDS_OF_PUT: MetadataFields = MetadataFields {
    uid: true,
    ..FIELDS_OF_PATH
};

/// The object of a request, and what entries require of it.
pub(super) struct RequiredObject<'a> {
    requirements: Vec<Requirement<'a>>,
    object: NamedObject,
    /// The path of the object without a subresource.
    path: PathAndQuery,
}

struct Requirement<'a> {
    entry: EntryId,
    predicate: &'a Predicate,
    refusal: ObjectRefusal,
}

/// The UID that the body of a request has to get.
pub(super) struct RequiredUid {
    uid: String,
    place: UidPlace,
    object: NamedObject,
}

impl<'a> RequiredObject<'a> {
    /// Returns `None` if no edit requires anything. `sent` is the target that is sent.
    ///
    /// # Errors
    /// The reply to send if the path cannot be read.
    pub(super) fn of_edits(info: &RequestInfo<'_>, sent: &Uri, edits: &'a [Attributed]) -> Result<Option<Self>, Reply> {
        let requirements = edits.iter().filter_map(|(entry, edit)| match edit {
            RequestEdit::RequireObjectMatch(predicate, refusal) => Some(Requirement {
                entry: *entry,
                predicate: predicate.predicate(),
                refusal: *refusal,
            }),
            _ => None,
        });
        let requirements: Vec<_> = requirements.collect();
        if requirements.is_empty() {
            return Ok(None);
        }
        let path = object_path(info, sent.path());
        let unreadable = || {
            Reply::bad_request(
                "the sidecar can't tell the object of this path: write its names without percent-encoded slashes",
            )
        };
        let object = named_object(info, path).ok_or_else(unreadable)?;
        let path = PathAndQuery::try_from(path).map_err(|_| unreadable())?;
        Ok(Some(Self {
            requirements,
            object,
            path,
        }))
    }

    /// Decides whether the request may be sent. `headers` are those to be sent, with credentials. Returns the body, and the UID that it
    /// has to get.
    ///
    /// # Errors
    /// The reply to send if an entry refuses the object, or if the object cannot be read.
    pub(super) async fn check(
        self,
        exchange: &Exchange<'_>,
        plugins: &Plugins,
        headers: &HeaderMap,
        mut body: RequestBody,
    ) -> Result<(RequestBody, Option<RequiredUid>), Reply> {
        let info = exchange.info;
        if self.reads_only(FIELDS_OF_PATH) {
            self.refuse_other(exchange, plugins, &self.metadata_of_path(info))?;
            return Ok((body, None));
        }
        let is_put = info.verb == Verb::Update && matches!(&*info.subresource, "" | "status");
        if is_put && self.reads_only(FIELDS_OF_PUT) && !headers.contains_key(CONTENT_ENCODING) {
            let bytes = body.collect().await?;
            let uid = object_uid(content_type(headers), &bytes);
            body = RequestBody::of_bytes(bytes);
            if let Some(uid) = uid {
                let metadata = ObjectMetadata {
                    uid: uid.into(),
                    ..self.metadata_of_path(info)
                };
                self.refuse_other(exchange, plugins, &metadata)?;
                return Ok((body, None));
            }
        }
        let Some(metadata) = look_up(exchange, headers, &self.path, &self.object).await? else {
            return Ok((body, None));
        };
        self.refuse_other(exchange, plugins, &metadata)?;
        let uid = uid_place(info).map(|place| RequiredUid {
            uid: metadata.uid.into_owned(),
            place,
            object: self.object,
        });
        Ok((body, uid))
    }

    /// The reply to a write of a controller that may still lead by the lock of an earlier shard, whatever the object.
    pub(super) fn refuse_earlier_leader(&self, exchange: &Exchange<'_>, plugins: &Plugins, entry: EntryId) -> Reply {
        let entry = plugins.note_refused_object(entry);
        exchange.worker.shared.metrics.refused_object(entry);
        tracing::debug!(entry, path = %self.path, verb = %exchange.info.verb, "refused a write of a leader by an earlier lock");
        Reply::refused_earlier_leader(&self.object, entry)
    }

    fn reads_only(&self, allowed: MetadataFields) -> bool {
        let mut predicates = self.requirements.iter().map(|requirement| requirement.predicate);
        predicates.all(|predicate| predicate.fields().union(allowed) == allowed)
    }

    fn metadata_of_path(&self, info: &RequestInfo<'_>) -> ObjectMetadata<'_> {
        let is_namespace = info.group.is_empty() && info.resource == "namespaces";
        let namespace = if is_namespace { "" } else { &*self.object.namespace };
        ObjectMetadata {
            namespace: namespace.into(),
            name: self.object.name.as_str().into(),
            ..ObjectMetadata::default()
        }
    }

    /// # Errors
    /// The refusal of the first entry whose predicate does not match.
    fn refuse_other(
        &self,
        exchange: &Exchange<'_>,
        plugins: &Plugins,
        metadata: &ObjectMetadata<'_>,
    ) -> Result<(), Reply> {
        let mut requirements = self.requirements.iter();
        let Some(unmet) = requirements.find(|requirement| !requirement.predicate.matches(metadata)) else {
            return Ok(());
        };
        let entry = plugins.note_refused_object(unmet.entry);
        exchange.worker.shared.metrics.refused_object(entry);
        tracing::debug!(entry, path = %self.path, verb = %exchange.info.verb, "refused a request because of its object");
        Err(Reply::refused_object(&self.object, unmet.refusal, entry))
    }
}

impl RequiredUid {
    /// Adds the UID to the body. `sent` is the target that is sent: options of a DELETE without a body are in its query.
    ///
    /// # Errors
    /// The reply to send if the body has another UID, or cannot be edited.
    pub(super) async fn add_to_body(
        self,
        headers: &mut HeaderMap,
        body: RequestBody,
        sent: &Uri,
    ) -> Result<RequestBody, Reply> {
        let mut bytes = body.collect().await?;
        if bytes.is_empty() && self.place == UidPlace::Preconditions {
            let options = delete_options_of_query(sent.query().unwrap_or_default());
            bytes = options.map_err(|error| Reply::bad_request(error.to_string()))?.into();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.remove(CONTENT_ENCODING);
        }
        if headers.contains_key(CONTENT_ENCODING) {
            return Err(Reply::unsupported_encoding(
                "the body must not be compressed, because the sidecar adds the UID of the object to it",
            ));
        }
        let bound = bind_to_uid(content_type(headers), &bytes, self.place, &self.uid);
        let bound = bound.map_err(|error| self.refusal(&error))?;
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bound.len()));
        Ok(RequestBody::of_bytes(bound.into()))
    }

    fn refusal(&self, error: &UidError) -> Reply {
        let problem = error.to_string();
        match error {
            UidError::OtherObject { .. } => Reply::replaced_object(&self.object, &problem),
            UidError::Malformed { .. } => Reply::bad_request(problem),
            _ => Reply::unsupported_encoding(problem),
        }
    }
}

/// Where the body of a request has the UID of its object. `None`: nothing in it makes the API server check that.
fn uid_place(info: &RequestInfo<'_>) -> Option<UidPlace> {
    match (info.verb, &*info.subresource) {
        // What is behind a proxy knows no UIDs.
        (_, "proxy") => None,
        (Verb::Update | Verb::Patch, _) | (Verb::Create, "binding") => Some(UidPlace::Metadata),
        (Verb::Create, "eviction") => Some(UidPlace::EvictionPreconditions),
        (Verb::Delete, "") => Some(UidPlace::Preconditions),
        _ => None,
    }
}

/// The path of the object: that of the request without subresource.
fn object_path<'p>(info: &RequestInfo<'_>, sent: &'p str) -> &'p str {
    let segments = info.path.split('/').filter(|segment| !segment.is_empty()).count();
    let from_resource = info.path_parts().filter(|segment| !segment.is_empty()).count();
    // With the resource and the name.
    let kept = (segments + 2).saturating_sub(from_resource);
    let end = sent.match_indices('/').nth(kept).map(|(position, _)| position);
    end.and_then(|end| sent.get(..end)).unwrap_or(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(method: &'static str, path: &'static str) -> RequestInfo<'static> {
        RequestInfo::parse(method, path, None).unwrap()
    }

    #[test]
    fn object_path_ends_with_the_name() {
        for (path, expected) in [
            ("/api/v1/namespaces/n/pods/p", "/api/v1/namespaces/n/pods/p"),
            ("/api/v1/namespaces/n/pods/p/exec", "/api/v1/namespaces/n/pods/p"),
            ("/api/v1/namespaces/n/pods/p/proxy/a/b", "/api/v1/namespaces/n/pods/p"),
            ("/api/v1/namespaces/n", "/api/v1/namespaces/n"),
            ("/api/v1/namespaces/n/finalize", "/api/v1/namespaces/n"),
            ("/api/v1/nodes/x/status", "/api/v1/nodes/x"),
            (
                "/apis/example.com/v1/clusters/c/scale",
                "/apis/example.com/v1/clusters/c",
            ),
            (
                "/apis/example.com/v1/namespaces/n/widgets/w/status",
                "/apis/example.com/v1/namespaces/n/widgets/w",
            ),
        ] {
            let info = parsed("PUT", path);
            assert_eq!(object_path(&info, path), expected);
            let object = named_object(&info, expected).unwrap();
            assert_eq!(
                (object.resource, object.name),
                (info.resource.to_string(), info.name.to_string())
            );
        }
    }

    #[test]
    fn requests_are_bound_where_the_api_server_checks_the_uid() {
        let (one, base) = ("/api/v1/namespaces/n/pods/p", "/api/v1/namespaces/n/pods/p/");
        for (method, path, expected) in [
            ("PUT", one.to_owned(), Some(UidPlace::Metadata)),
            ("PATCH", one.to_owned(), Some(UidPlace::Metadata)),
            ("PUT", format!("{base}status"), Some(UidPlace::Metadata)),
            ("PATCH", format!("{base}scale"), Some(UidPlace::Metadata)),
            ("DELETE", one.to_owned(), Some(UidPlace::Preconditions)),
            ("POST", format!("{base}eviction"), Some(UidPlace::EvictionPreconditions)),
            ("POST", format!("{base}binding"), Some(UidPlace::Metadata)),
            ("POST", format!("{base}exec"), None),
            ("POST", format!("{base}token"), None),
            ("PUT", format!("{base}proxy/a"), None),
            ("DELETE", format!("{base}proxy/a"), None),
            ("GET", one.to_owned(), None),
        ] {
            let info = RequestInfo::parse(method, &path, None).unwrap();
            assert_eq!(uid_place(&info), expected, "{method} {path}");
        }
    }
}
