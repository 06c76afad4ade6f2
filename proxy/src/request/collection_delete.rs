//! Deletes of collections of which plugins keep only some objects (WIT `keep-objects`): lists the collection page by page, and deletes each
//! object that matches by its name. API servers can select objects by labels and fields alone.
//!
//! Guarantees: an object that does not match, or that has taken the name of one that does, is not deleted. All requests have the identity
//! of the client's, and the deletes its options. Nothing more is sent once a request has failed, the time is over or the client is gone.
//! The request counts as a write in flight until the outcome of each delete is known.
//!
//! Cost: a list for each [`PAGE_OBJECTS`] objects of the collection, and a delete for each object that matches.
//!
//! | file | what is in it |
//! |---|---|
//! | `options` | the options of all deletes |
//! | `page` | the objects of one list that match |

use std::cell::Cell;
use std::future::ready;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_wire::objects::Predicate;
use ctrlmesh_wire::{Query, QueryEditor, RequestInfo};
use futures_util::stream::{self, StreamExt};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{Instant, timeout};

use super::exchange::Exchange;
use super::object_lookup::{look_up, named_object, own_headers, unreachable_server};
use crate::chain::phases::Attributed;
use crate::observe::record::Record;
use crate::plugin::verdict::RequestEdit;
use crate::respond::{self, Accept, NamedObject, Reply};
use crate::stream::body::{self, RequestBody};
use crate::upstream::write_outcome::WriteOutcome;
use crate::upstream::{RequestHead, Upstream, UpstreamBody};

mod options;
mod page;

use options::DeleteOptions;
use page::{ListedObject, Page, read_page};

/// Maximum time for all requests: the API server's own limit for the delete of a collection (`--request-timeout`).
const DELETION_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of deletes that are sent at a time. An API server deletes one object after the other by default (`--delete-collection-workers`),
/// but needs no request for each.
const CONCURRENT_DELETES: usize = 4;

/// Number of objects of a list, as client-go asks for.
const PAGE_OBJECTS: &str = "500";

/// Servers of others may not know the form with metadata alone. Whole objects take more time, and no more memory.
const LIST_TYPES: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Characters of a name that a path has as they are (RFC 3986, 3.3).
const NAME_CHARACTERS: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// Why a deletion has ended early.
enum DeletionError {
    /// The API server has answered with this error.
    ApiServer(Reply),
    Sidecar(Reply),
}

impl From<Reply> for DeletionError {
    fn from(reply: Reply) -> Self {
        Self::Sidecar(reply)
    }
}

/// The delete of a collection, object by object.
struct CollectionDelete<'a> {
    exchange: &'a Exchange<'a>,
    /// An object is deleted if it matches all of them.
    predicates: Vec<&'a Predicate>,
    /// The path of the collection, without a slash at its end.
    path: &'a str,
    list_headers: HeaderMap,
    delete_headers: HeaderMap,
    options: DeleteOptions,
    outcome: JointOutcome<'a>,
}

/// The outcome of all deletes so far, for the request. It is recorded at the end, also if that is early because the client is gone.
struct JointOutcome<'a> {
    record: &'a Record,
    outcome: Cell<WriteOutcome>,
}

impl<'a> JointOutcome<'a> {
    const fn new(record: &'a Record) -> Self {
        Self {
            record,
            outcome: Cell::new(WriteOutcome::Finished),
        }
    }

    fn add(&self, outcome: WriteOutcome) {
        self.outcome.set(self.outcome.get().and(outcome));
    }

    /// Records that no delete is under way any more.
    fn record(&self) {
        self.record.record_outcome(self.outcome.get());
    }
}

impl Drop for JointOutcome<'_> {
    fn drop(&mut self) {
        // Without effect behind an outcome that was recorded. Otherwise the deletes that were under way are broken off.
        self.add(WriteOutcome::GivenUp);
        self.record();
    }
}

/// Whether an entry lets only some objects of a collection be deleted.
pub(super) fn keeps_objects(edits: &[Attributed]) -> bool {
    predicates_of(edits).next().is_some()
}

/// Deletes the objects of the collection that the predicates of all edits match. `headers` are those to be sent, with credentials, and
/// `sent` is the target. Returns the response to send: that all were deleted, or an error of the API server.
///
/// # Errors
/// The reply to send if the request is refused, or not finished for another reason.
pub(super) async fn delete_kept_objects(
    exchange: &Exchange<'_>,
    edits: &[Attributed],
    sent: &Uri,
    headers: &HeaderMap,
    body: RequestBody,
    accept: &Accept,
) -> Result<Response<Bytes>, Reply> {
    let began = Instant::now();
    let info = exchange.info;
    let is_namespaces = info.group.is_empty() && info.resource == "namespaces";
    if is_namespaces || !info.subresource.is_empty() {
        return Err(Reply::undeletable_collection());
    }
    let options = DeleteOptions::read(headers, body, sent).await?;
    let mut delete_headers = own_headers(headers, "application/json");
    delete_headers.insert(CONTENT_TYPE, options.content_type().clone());
    let deletion = CollectionDelete {
        exchange,
        predicates: predicates_of(edits).collect(),
        path: sent.path().trim_end_matches('/'),
        list_headers: own_headers(headers, LIST_TYPES),
        delete_headers,
        options,
        outcome: JointOutcome::new(exchange.record),
    };
    // Boxed, so that the future stays small.
    let in_time = timeout(
        DELETION_TIMEOUT,
        Box::pin(deletion.run(sent.query().unwrap_or_default())),
    )
    .await;
    let deleted = in_time.unwrap_or_else(|_| {
        // The deletes that were under way are broken off.
        deletion.outcome.add(WriteOutcome::GivenUp);
        Err(Reply::slow_deletion(DELETION_TIMEOUT).into())
    });
    deletion.outcome.record();
    let response = match deleted {
        Ok(()) => respond::deleted_collection(&info.group, &info.resource, accept),
        Err(DeletionError::ApiServer(reply)) => reply.into_response(accept),
        Err(DeletionError::Sidecar(reply)) => return Err(reply),
    };
    let code = response.status().as_u16();
    exchange.record.set_upstream(code, began.elapsed());
    exchange.record.set_status(code);
    Ok(response)
}

fn predicates_of(edits: &[Attributed]) -> impl Iterator<Item = &Predicate> {
    edits.iter().filter_map(|(_, edit)| match edit {
        RequestEdit::KeepObjects(predicate) => Some(predicate.predicate()),
        _ => None,
    })
}

impl CollectionDelete<'_> {
    /// `query` is that of the request, after edits.
    async fn run(&self, query: &str) -> Result<(), DeletionError> {
        let mut left = most_objects(query)?;
        let mut query = query_of_first_page(query)?;
        loop {
            let mut page = self.list(&query).await?;
            page.objects.truncate(left);
            left -= page.objects.len();
            self.delete_objects(&page.objects).await?;
            self.exchange.record.release_for_reuse(page.bytes);
            match page.next {
                Some(token) if left > 0 => query = query_of_next_page(&query, &token),
                _ => return Ok(()),
            }
        }
    }

    async fn list(&self, query: &str) -> Result<Page, DeletionError> {
        let target = format!("{}?{query}", self.path);
        let path = PathAndQuery::try_from(target);
        let path = path.map_err(|error| Reply::bad_request(format!("the target of the list is no URI: {error}")))?;
        let head = RequestHead {
            method: Method::GET,
            path: Some(path),
            headers: self.list_headers.clone(),
            head_timeout: None,
        };
        let sending = self
            .upstream()
            .send_head(head, RequestBody::Full(None), None, Instant::now());
        let response = sending.await.map_err(|error| unreachable_server(&error))?;
        if response.status() != StatusCode::OK {
            return Err(self.error_of(response, "list").await);
        }
        let hold = |bytes| {
            let held = self.exchange.record.hold(bytes);
            held.map_err(|error| Reply::over_bound(error, true))
        };
        Ok(read_page(response.into_body(), &self.predicates, hold).await?)
    }

    /// Deletes these objects, some at a time. After a failure no more deletes are sent, and those that were sent are waited for.
    async fn delete_objects(&self, objects: &[ListedObject]) -> Result<(), DeletionError> {
        let has_failed = &Cell::new(false);
        let deletes = stream::iter(objects).map(|object| async move {
            if has_failed.get() {
                return Ok(());
            }
            let deleted = self.delete_object(object).await;
            if deleted.is_err() {
                has_failed.set(true);
            }
            deleted
        });
        let deletes = deletes.buffer_unordered(CONCURRENT_DELETES);
        let first_error = |first: Result<(), DeletionError>, deleted| ready(first.and(deleted));
        deletes.fold(Ok(()), first_error).await
    }

    async fn delete_object(&self, object: &ListedObject) -> Result<(), DeletionError> {
        let (path, named) = object_target(self.exchange.info, self.path, object)?;
        let options = self.options.for_object(&object.uid)?;
        let mut headers = self.delete_headers.clone();
        headers.insert(CONTENT_LENGTH, HeaderValue::from(options.len()));
        let head = RequestHead {
            method: Method::DELETE,
            path: Some(path.clone()),
            headers,
            head_timeout: None,
        };
        let sent = Instant::now();
        self.exchange.record.mark_sent(sent);
        let sending = self
            .upstream()
            .send_head(head, RequestBody::of_bytes(options), None, sent);
        let result = sending.await;
        self.outcome.add(WriteOutcome::from_result(&result));
        let response = result.map_err(|error| Reply::upstream_failed(&error, "the API server", false))?;
        match response.status() {
            status if status.is_success() || status == StatusCode::NOT_FOUND => {
                discard(response.into_body()).await;
                Ok(())
            }
            status => {
                let error = self.error_of(response, "delete").await;
                if status == StatusCode::CONFLICT && self.is_gone(object, &path, &named).await {
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    /// Whether a delete that was refused with a conflict has nothing left to delete: there is no such object, or another one with its name.
    async fn is_gone(&self, object: &ListedObject, path: &PathAndQuery, named: &NamedObject) -> bool {
        match look_up(self.exchange, &self.list_headers, path, named).await {
            Ok(Some(current)) => *current.uid != *object.uid,
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// The error to which a response leads. `verb` is that of the request.
    async fn error_of(&self, response: Response<UpstreamBody>, verb: &str) -> DeletionError {
        let (status, exchange) = (response.status(), self.exchange);
        if !status.is_client_error() && !status.is_server_error() {
            return Reply::unfinished_deletion(&format!("the API server answered a {verb} with {status}")).into();
        }
        if status == StatusCode::UNAUTHORIZED && exchange.uses_sidecar_credentials.get() {
            exchange.worker.credentials().refresh_now();
        }
        let retry_after = retry_after(response.headers());
        let bytes = match body::collect_response(response.into_body(), exchange.record).await {
            Ok(bytes) => bytes,
            Err(reply) => return reply.into(),
        };
        let reply = Reply::of_api_server(status, &bytes, retry_after);
        exchange.record.release_for_reuse(bytes.len());
        if status == StatusCode::FORBIDDEN {
            return DeletionError::ApiServer(reply.lacking_right(verb));
        }
        DeletionError::ApiServer(reply)
    }

    fn upstream(&self) -> &Rc<Upstream> {
        let uses_sidecar_credentials = self.exchange.uses_sidecar_credentials.get();
        self.exchange.worker.upstream(uses_sidecar_credentials)
    }
}

/// The most objects that the client wants to be deleted.
fn most_objects(query: &str) -> Result<usize, Reply> {
    let limit = Query::new(query).get("limit").unwrap_or_default();
    if limit.is_empty() {
        return Ok(usize::MAX);
    }
    let limit: Result<i64, _> = limit.parse();
    let limit = limit.map_err(|error| Reply::bad_request(format!("the parameter limit is no number: {error}")))?;
    // As in the API server, 0 is no limit.
    Ok(usize::try_from(limit)
        .ok()
        .filter(|limit| *limit > 0)
        .unwrap_or(usize::MAX))
}

/// The query of the first list. It selects what that of the request selects, by the current state, which is as new as any version that a
/// client may ask for: an object of an older one may have moved to another shard since. With a limit, a version alone would mean exactly
/// that version (KEP-2523).
///
/// # Errors
/// The reply to send if the client asks for an older state.
fn query_of_first_page(query: &str) -> Result<String, Reply> {
    let client = Query::new(query);
    let text = |name| client.get(name).unwrap_or_default();
    let version_match = text("resourceVersionMatch");
    if version_match == "Exact" || !text("continue").is_empty() {
        return Err(Reply::bad_request(
            "the sidecar deletes some objects of this collection, and can only tell by their current state which: leave out continue and \
             resourceVersionMatch=Exact",
        ));
    }
    let mut editor = QueryEditor::new(query);
    // The API server reads it of a GET only, which would become a watch.
    editor.remove("watch");
    editor.set("limit", PAGE_OBJECTS);
    let version = text("resourceVersion");
    let is_version = !version.is_empty() && version.bytes().all(|digit| digit.is_ascii_digit());
    // The API server refuses everything else.
    if is_version && matches!(&*version_match, "" | "NotOlderThan") {
        editor.remove("resourceVersion");
        editor.remove("resourceVersionMatch");
    }
    Ok(editor.finish())
}

/// The query of the list that continues another one.
fn query_of_next_page(query: &str, token: &str) -> String {
    let mut editor = QueryEditor::new(query);
    editor.set("continue", token);
    editor.finish()
}

/// The path by which an object of the collection is deleted.
///
/// # Errors
/// The reply to send if API servers would read another object there.
fn object_target(
    info: &RequestInfo<'_>,
    collection: &str,
    object: &ListedObject,
) -> Result<(PathAndQuery, NamedObject), Reply> {
    if info.namespace.is_empty() && !object.namespace.is_empty() {
        return Err(Reply::undeletable_collection());
    }
    let unreadable =
        || Reply::unfinished_deletion("the list has an object without a UID, or with an invalid name or namespace");
    // As apimachinery validates names (`pkg/api/validation/path/name.go`): servers read a path with such a name differently.
    let is_valid = !matches!(object.name.as_str(), "." | "..") && !object.name.contains(['/', '%']);
    if object.uid.is_empty() || !is_valid || (!object.namespace.is_empty() && info.namespace != object.namespace) {
        return Err(unreadable());
    }
    let path = format!("{collection}/{}", utf8_percent_encode(&object.name, NAME_CHARACTERS));
    let named = named_object(info, &path).filter(|named| named.name == object.name);
    let path = PathAndQuery::try_from(path).ok();
    path.zip(named).ok_or_else(unreadable)
}

fn retry_after(headers: &HeaderMap) -> Option<u32> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// Reads a body to its end, so that its connection can take the next request.
async fn discard(body: UpstreamBody) {
    let mut body = pin!(body);
    while let Some(Ok(_)) = body.frame().await {}
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::Verb;

    use super::*;
    use crate::chain::in_flight::InFlightCounts;
    use crate::chain::{Counter, Kind};
    use crate::observe::Class;
    use crate::observe::metrics::Metrics;

    fn listed(namespace: &str, name: &str) -> ListedObject {
        ListedObject {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: "u".to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deletion_of_a_client_that_is_gone_counts_until_its_last_delete_must_be_over() {
        let a_moment = Duration::from_millis(1);
        for (outcome, seconds) in [(WriteOutcome::Finished, 10), (WriteOutcome::CutOff, 70)] {
            let (counts, metrics) = (InFlightCounts::new(), Metrics::new(Metrics::registry()));
            let (class, target) = (Class::Api(Verb::DeleteCollection), Uri::from_static("/api/v1/pods"));
            let record = Record::new(&metrics, class, Method::DELETE, target);
            record.set_write(Counter::new(0).count(&counts, Kind::Write));
            record.mark_sent(Instant::now());
            let joint = JointOutcome::new(&record);
            joint.add(outcome);
            drop(joint);
            drop(record);
            tokio::time::advance(Duration::from_secs(seconds) - a_moment).await;
            assert_eq!(counts.sum().writes, 1, "{outcome:?}");
            tokio::time::advance(a_moment).await;
            assert_eq!(counts.sum().writes, 0, "{outcome:?}");
        }
    }

    #[test]
    fn first_list_selects_what_the_request_selects_by_the_current_state() {
        for (query, expected) in [
            ("", "limit=500"),
            (
                "labelSelector=a%3Db&fieldSelector=x&shardSelector=y",
                "labelSelector=a%3Db&fieldSelector=x&shardSelector=y&limit=500",
            ),
            ("watch=1&limit=7&continue=", "limit=500&continue="),
            ("resourceVersion=0", "limit=500"),
            ("resourceVersion=7", "limit=500"),
            ("limit=2&resourceVersion=7&resourceVersionMatch=", "limit=500"),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan", "limit=500"),
            ("resourceVersion=x", "resourceVersion=x&limit=500"),
            (
                "resourceVersionMatch=NotOlderThan",
                "resourceVersionMatch=NotOlderThan&limit=500",
            ),
            (
                "resourceVersion=7&resourceVersionMatch=x",
                "resourceVersion=7&resourceVersionMatch=x&limit=500",
            ),
        ] {
            assert_eq!(query_of_first_page(query).unwrap(), expected, "{query}");
        }
    }

    #[test]
    fn older_state_of_a_collection_is_refused() {
        for query in [
            "continue=t",
            "limit=7&continue=t",
            "resourceVersion=7&resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersionMatch=Exact",
        ] {
            assert_eq!(query_of_first_page(query).unwrap_err().code(), 400, "{query}");
        }
    }

    #[test]
    fn later_lists_have_the_token_of_the_one_before() {
        let next = query_of_next_page("labelSelector=a&limit=500", "t+1");
        assert_eq!(next, "labelSelector=a&limit=500&continue=t%2B1");
        assert_eq!(query_of_next_page(&next, "t2"), "labelSelector=a&limit=500&continue=t2");
    }

    #[test]
    fn limit_of_the_client_is_that_of_deleted_objects() {
        for (query, expected) in [
            ("", Ok(usize::MAX)),
            ("limit=", Ok(usize::MAX)),
            ("limit=0", Ok(usize::MAX)),
            ("limit=-1", Ok(usize::MAX)),
            ("limit=7&limit=8", Ok(7)),
            ("limit=x", Err(400)),
        ] {
            assert_eq!(most_objects(query).map_err(|reply| reply.code()), expected, "{query}");
        }
    }

    #[test]
    fn objects_are_deleted_below_the_path_of_the_collection() {
        let collection = "/apis/rbac.authorization.k8s.io/v1/namespaces/n/roles";
        let info = RequestInfo::parse("DELETE", collection, None).unwrap();
        for (name, expected) in [
            ("a.b", "a.b"),
            ("system:a", "system:a"),
            ("a b?#ä", "a%20b%3F%23%C3%A4"),
        ] {
            let (path, named) = object_target(&info, collection, &listed("n", name)).unwrap();
            assert_eq!(path.as_str(), format!("{collection}/{expected}"));
            assert_eq!((named.resource.as_str(), named.name.as_str()), ("roles", name));
        }
    }

    #[test]
    fn path_that_could_be_of_another_object_is_refused() {
        let collection = "/api/v1/namespaces/n/pods";
        let info = RequestInfo::parse("DELETE", collection, None).unwrap();
        let without_uid = ListedObject {
            uid: String::new(),
            ..listed("n", "a")
        };
        let invalid = [
            ("n", ""),
            ("n", "."),
            ("n", ".."),
            ("n", "a/status"),
            ("n", "a%2F"),
            ("m", "a"),
        ];
        let invalid = invalid.map(|(namespace, name)| listed(namespace, name));
        for object in invalid.iter().chain([&without_uid]) {
            let refused = object_target(&info, collection, object).unwrap_err();
            assert_eq!(refused.code(), 502, "{object:?}");
        }
        let of_all = RequestInfo::parse("DELETE", "/api/v1/pods", None).unwrap();
        let refused = object_target(&of_all, "/api/v1/pods", &listed("n", "a")).unwrap_err();
        assert_eq!(
            refused.code(),
            405,
            "API servers delete pods of one namespace at a time"
        );
        assert!(object_target(&of_all, "/api/v1/pods", &listed("", "a")).is_ok());
    }
}
