//! Leaves objects out of lists and watches (WIT `keep-objects`, `ask-about-objects`), and fields out of objects (WIT `drop-fields`): asks for
//! a response that can be filtered, and filters its body.
//!
//! Guarantees: a response that may hold objects and cannot be filtered is replaced by an error, whatever plugins do to its head. Errors of
//! the API server pass if they are a `Status` or a short text. Leaves the flow of the body to `stream::inflate` and `stream::kept_objects`,
//! and rows of tables, which must have their objects, to `edit`.

use std::rc::Rc;

use bytes::Bytes;
use ctrlmesh_wire::objects::{DroppedFields, METRIC_VALUE_GROUPS, ObjectMetadata};
use ctrlmesh_wire::{ParsedQuery, Query, Verb, WatchEncoding};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use prometheus_client::metrics::counter::Counter;

use super::exchange::Exchange;
use super::view_check::{is_true_flag, is_unset_or_zero};
use crate::chain::phases::objects::ObjectQuestions;
use crate::chain::phases::{Attributed, Plugins};
use crate::observe::record::Record;
use crate::plugin::object_predicate::ObjectPredicate;
use crate::plugin::verdict::RequestEdit;
use crate::respond::Reply;
use crate::stream::body::{BoxBody, ClientBody};
use crate::stream::inflate::{InflateError, InflatedBody};
use crate::stream::kept_objects::{AskedPlugins, ClientStart, KeptObjects, KeptObjectsBody, WatchClient};

/// Media types of lists that can be filtered, for clients that accept none of them.
const FILTERABLE_TYPES: [&str; 3] = [
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/cbor",
];

/// Longest error that is no `Status`, in bytes: a text of an overloaded server or of a proxy before it.
const MAX_ERROR_TEXT_BYTES: usize = 64 << 10;

/// Fields of requests for a part of a body, or for none if the client has it already.
const CONDITIONS: [HeaderName; 6] = [
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_MATCH,
    IF_UNMODIFIED_SINCE,
    IF_RANGE,
    RANGE,
];

/// Fields of responses that are about the bytes of the body.
const BODY_FIELDS: [HeaderName; 5] = [CONTENT_LENGTH, CONTENT_ENCODING, ETAG, LAST_MODIFIED, ACCEPT_RANGES];

/// Filters the response of one list or watch.
#[derive(Debug, Clone)]
pub(super) struct ObjectFilter {
    predicates: Box<[ObjectPredicate]>,
    /// The questions to plugins about objects that match.
    questions: ObjectQuestions,
    /// The fields that are left out of kept objects.
    dropped: DroppedFields,
    client: WatchClient,
    /// The `Accept` field that is sent; `None` if the client has none.
    accept: Option<HeaderValue>,
}

/// The body of a response that can be filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FilteredBody {
    is_gzip: bool,
    content: FilteredContent,
}

/// How the body of a response is filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilteredContent {
    /// A list, or a `Status`, which passes whole.
    List(WatchEncoding),
    Watch(WatchEncoding),
    /// The text of an error, which passes up to a bound.
    ErrorText,
}

impl ObjectFilter {
    /// Returns `None` if no edit leaves objects or fields out. `query` and `headers` are the client's, and `sent` the target that is sent.
    /// Values of metrics are no objects: they pass if only fields are left out.
    ///
    /// # Errors
    /// 406 if the client accepts no response that can be filtered.
    pub(super) fn new(
        edits: &[Attributed],
        api_group: &str,
        query: &ParsedQuery<'_>,
        sent: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<Self>, Reply> {
        let predicates = edits.iter().filter_map(|(_, edit)| match edit {
            RequestEdit::KeepObjects(predicate) => Some(predicate.clone()),
            _ => None,
        });
        let predicates: Box<[ObjectPredicate]> = predicates.collect();
        let dropped = edits.iter().filter_map(|(_, edit)| match edit {
            RequestEdit::DropFields(dropped) => Some(dropped.fields()),
            _ => None,
        });
        let dropped = dropped.fold(DroppedFields::default(), DroppedFields::union);
        let questions = ObjectQuestions::of_edits(edits);
        let leaves_objects_out = !predicates.is_empty() || !questions.is_empty();
        if !leaves_objects_out && (dropped.is_empty() || METRIC_VALUE_GROUPS.contains(&api_group)) {
            return Ok(None);
        }
        let sent = Query::new(sent.query().unwrap_or_default());
        Ok(Some(Self {
            predicates,
            questions,
            accept: filterable_accept(edited_accept(headers, edits), &dropped)?,
            dropped,
            client: watch_client(query, &sent),
        }))
    }

    /// Asks for a response that can be filtered. `headers` are those to be sent.
    pub(super) fn edit_request(&self, headers: &mut HeaderMap) {
        // Bodies in other encodings cannot be filtered. A proxy may compress for a client that does not say what it accepts.
        let encoding = if accepts_gzip(headers) { "gzip" } else { "identity" };
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(encoding));
        for name in CONDITIONS {
            headers.remove(name);
        }
        headers.remove(ACCEPT);
        if let Some(accept) = &self.accept {
            headers.insert(ACCEPT, accept.clone());
        }
    }

    /// The body that the client gets. `filtered` is what [`filtered_body`] gave for the head, and `body` is inflated. `plugins` are asked
    /// about its objects while it passes.
    pub(super) fn filter_body(
        self,
        exchange: &Exchange<'_>,
        plugins: &Rc<Plugins>,
        head: &mut response::Parts,
        body: BoxBody,
        filtered: FilteredBody,
    ) -> BoxBody {
        let encoding = match filtered.content {
            FilteredContent::List(encoding) | FilteredContent::Watch(encoding) => encoding,
            FilteredContent::ErrorText => {
                return error_text(body, exchange.worker.shared.metrics.unfilterable_responses.clone());
            }
        };
        remove_body_fields(&mut head.headers);
        if *exchange.record.method() == Method::HEAD {
            return Box::pin(ClientBody::full(Bytes::new(), None));
        }
        if matches!(filtered.content, FilteredContent::Watch(_)) {
            let client = self.client;
            let kept = self.kept_objects(exchange, plugins);
            Box::pin(KeptObjectsBody::watch(body, encoding, kept, client))
        } else {
            Box::pin(self.filter_list(exchange, plugins, body, encoding))
        }
    }

    /// Like [`Self::filter_body`] for a list in this encoding. The head stays.
    pub(super) fn filter_list(
        self,
        exchange: &Exchange<'_>,
        plugins: &Rc<Plugins>,
        body: BoxBody,
        encoding: WatchEncoding,
    ) -> KeptObjectsBody<BoxBody> {
        KeptObjectsBody::list(body, encoding, self.kept_objects(exchange, plugins))
    }

    fn kept_objects(self, exchange: &Exchange<'_>, plugins: &Rc<Plugins>) -> KeptObjects {
        let metrics = &exchange.worker.shared.metrics;
        let kept = KeptObjects::new(
            self.predicates,
            self.dropped,
            metrics.objects_hidden.clone(),
            metrics.unfilterable_responses.clone(),
        );
        kept.with_plugins(asked_plugins(self.questions, plugins, exchange.record))
    }

    /// Whether objects are left out, and not fields alone.
    pub(super) fn leaves_objects_out(&self) -> bool {
        !(self.predicates.is_empty() && self.questions.is_empty())
    }
}

impl FilteredBody {
    /// The encoding of a list or a `Status`; `None` for a watch and a text.
    pub(super) const fn list_encoding(self) -> Option<WatchEncoding> {
        match self.content {
            FilteredContent::List(encoding) => Some(encoding),
            FilteredContent::Watch(_) | FilteredContent::ErrorText => None,
        }
    }

    /// The body without its compression. The client gets it like that.
    pub(super) fn inflate(self, exchange: &Exchange<'_>, head: &mut response::Parts, body: BoxBody) -> BoxBody {
        if !self.is_gzip {
            return body;
        }
        remove_body_fields(&mut head.headers);
        let unfilterable = exchange.worker.shared.metrics.unfilterable_responses.clone();
        Box::pin(InflatedBody::new(body).map_err(move |error| {
            if let Some(error) = error.downcast_ref::<InflateError>() {
                tracing::warn!(%error, "failed to inflate a response whose objects are filtered; it was broken off");
                unfilterable.inc();
            }
            error
        }))
    }
}

/// The plugins that are asked about objects; `None` if none are. If one fails, the request has failed by it.
fn asked_plugins(questions: ObjectQuestions, plugins: &Rc<Plugins>, record: &Rc<Record>) -> Option<AskedPlugins> {
    if questions.is_empty() {
        return None;
    }
    let (plugins, record) = (Rc::clone(plugins), Rc::clone(record));
    let fields = questions.fields();
    Some(AskedPlugins::new(
        fields,
        move |objects: &[ObjectMetadata<'_>], are_kept: &mut [bool]| {
            let asked = plugins.ask_about_objects(&questions, objects, are_kept);
            asked.inspect_err(|reply| record.record_failure(reply.failure))
        },
    ))
}

/// Removes what is wrong for a body that was filtered.
pub(super) fn remove_body_fields(headers: &mut HeaderMap) {
    for name in BODY_FIELDS {
        headers.remove(name);
    }
}

/// Breaks the transfer off if the text is too long for an error. `unfilterable` counts that.
fn error_text(body: BoxBody, unfilterable: Counter) -> BoxBody {
    Box::pin(Limited::new(body, MAX_ERROR_TEXT_BYTES).map_err(move |error| {
        if error.is::<LengthLimitError>() {
            unfilterable.inc();
        }
        error
    }))
}

/// How the body of a response to this verb is filtered.
///
/// # Errors
/// The reply to send in place of a response that may hold objects and cannot be filtered.
pub(super) fn filtered_body(head: &response::Parts, verb: Verb) -> Result<FilteredBody, Reply> {
    let is_error = head.status.is_client_error() || head.status.is_server_error();
    if head.status != StatusCode::OK && !is_error {
        let problem = format!("its status is {}", head.status.as_u16());
        return Err(Reply::unfilterable_response(&problem));
    }
    let is_gzip = is_gzip(&head.headers)?;
    let mut types = head.headers.get_all(CONTENT_TYPE).iter();
    let content_type = types.next().and_then(|content_type| content_type.to_str().ok());
    if types.next().is_some() {
        // Clients differ in which of two they read.
        return Err(Reply::unfilterable_response("it has several content types"));
    }
    let content = match content_type.and_then(WatchEncoding::from_content_type) {
        Some(encoding) if verb == Verb::Watch && !is_error => FilteredContent::Watch(encoding),
        Some(encoding) => FilteredContent::List(encoding),
        None if is_error => FilteredContent::ErrorText,
        None => {
            return Err(Reply::unfilterable_response(
                "its body is neither JSON nor protobuf nor CBOR",
            ));
        }
    };
    Ok(FilteredBody { is_gzip, content })
}

/// Whether the body is in gzip.
///
/// # Errors
/// The reply to send in place of a body in another encoding, or in several.
fn is_gzip(headers: &HeaderMap) -> Result<bool, Reply> {
    let encodings = headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    let encodings: Vec<&[u8]> = encodings.collect();
    match encodings.as_slice() {
        [encoding] if names_gzip(encoding) => Ok(true),
        plain if plain.iter().all(|encoding| encoding.eq_ignore_ascii_case(b"identity")) => Ok(false),
        _ => Err(Reply::unfilterable_response(
            "it is compressed, and not with gzip alone",
        )),
    }
}

/// RFC 9110, 8.4.1.3: `x-gzip` is another name.
fn names_gzip(encoding: &[u8]) -> bool {
    encoding.eq_ignore_ascii_case(b"gzip") || encoding.eq_ignore_ascii_case(b"x-gzip")
}

/// Whether the field `Accept-Encoding` names gzip. A wildcard does not.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(ACCEPT_ENCODING).iter();
    let fields = fields.filter_map(|field| field.to_str().ok());
    fields.flat_map(|field| field.split(',')).any(|clause| {
        let (encoding, weight) = clause.split_once(';').unwrap_or((clause, "q=1"));
        names_gzip(encoding.trim().as_bytes()) && is_positive_weight(weight)
    })
}

/// Whether `q=` and a number above 0, which is the only parameter of an encoding (RFC 9110, 12.4.2).
fn is_positive_weight(weight: &str) -> bool {
    let Some((name, value)) = weight.trim().split_once('=') else {
        return false;
    };
    name.eq_ignore_ascii_case("q") && value.parse::<f32>().is_ok_and(|value| value > 0.0)
}

/// The client's `Accept` field with the edits. Only the first field counts, as in the API server (`Header.Get` of Go).
fn edited_accept<'a>(headers: &'a HeaderMap, edits: &'a [Attributed]) -> Option<&'a HeaderValue> {
    let client = headers.get(ACCEPT);
    edits.iter().fold(client, |accept, (_, edit)| match edit {
        RequestEdit::SetHeader(name, value) if *name == ACCEPT => Some(value),
        RequestEdit::RemoveHeader(name) if *name == ACCEPT => None,
        _ => accept,
    })
}

/// The field with its filterable clauses alone. An empty field is none, as in the API server.
fn filterable_accept(accept: Option<&HeaderValue>, dropped: &DroppedFields) -> Result<Option<HeaderValue>, Reply> {
    let Some(accept) = accept.filter(|accept| !accept.is_empty()) else {
        return Ok(None);
    };
    let kept = filterable_clauses(accept.to_str().unwrap_or_default(), dropped);
    let kept = HeaderValue::from_str(&kept).ok().filter(|kept| !kept.is_empty());
    kept.map(Some).ok_or_else(|| {
        let types = FILTERABLE_TYPES.into_iter();
        let types: Vec<&str> = types.filter(|media_type| is_filterable(media_type, dropped)).collect();
        Reply::not_acceptable(&types)
    })
}

/// The clauses of an `Accept` field that the API server can answer with a body that can be filtered, in their order.
fn filterable_clauses(accept: &str, dropped: &DroppedFields) -> String {
    let clauses = accept.split(',').map(str::trim);
    let kept: Vec<&str> = clauses.filter(|clause| is_filterable(clause, dropped)).collect();
    kept.join(",")
}

/// For a wildcard, API servers choose JSON. Not every field can be left out of each encoding.
fn is_filterable(clause: &str, dropped: &DroppedFields) -> bool {
    let media_type = clause.split(';').next().unwrap_or_default().trim();
    matches!(media_type, "*/*" | "*" | "application/*")
        || WatchEncoding::from_content_type(media_type).is_some_and(|encoding| dropped.supports(encoding))
}

/// The objects that the client of a watch has, and the events that it takes. Its own query tells what it has: if a plugin alone has removed
/// the version, the client has the objects of its list. A watch that begins with the current objects may have no bookmarks that the API
/// server did not send: these objects come in no order of their versions, and a bookmark among them could be taken for their end.
fn watch_client(client: &ParsedQuery<'_>, sent: &Query<'_>) -> WatchClient {
    let version = sent.get("resourceVersion");
    let initial_events = sent.get("sendInitialEvents");
    let start = if !begins_with_all(version.as_deref(), initial_events.as_deref()) {
        ClientStart::Resumed
    } else if begins_with_all(client.get("resourceVersion"), client.get("sendInitialEvents")) {
        ClientStart::Empty
    } else {
        ClientStart::Repeated
    };
    let takes_bookmarks = start == ClientStart::Resumed
        && initial_events.is_none()
        && client.get("allowWatchBookmarks").is_some_and(is_true_flag);
    WatchClient { takes_bookmarks, start }
}

/// Whether a watch begins with ADDED of all objects (apiserver `pkg/storage/cacher/watch_cache.go`, `getAllEventsSinceLocked`).
fn begins_with_all(version: Option<&str>, initial_events: Option<&str>) -> bool {
    initial_events.map_or_else(|| version.is_none_or(is_unset_or_zero), is_true_flag)
}

#[cfg(test)]
mod tests;
