//! Leaves objects out of lists and watches (WIT `keep-objects`), and fields out of objects (WIT `drop-fields`): asks for a response that can
//! be filtered, and filters its body.
//!
//! Guarantees: a response that may hold objects and cannot be filtered is replaced by an error, whatever plugins do to its head. Errors of
//! the API server pass if they are a `Status` or a short text. Leaves the flow of the body to `stream::inflate` and `stream::kept_objects`,
//! and rows of tables, which must have their objects, to `edit`.

use bytes::Bytes;
use ctrlmesh_wire::objects::DroppedFields;
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
use crate::chain::phases::Attributed;
use crate::plugin::object_predicate::ObjectPredicate;
use crate::plugin::verdict::RequestEdit;
use crate::respond::Reply;
use crate::stream::body::{BoxBody, ClientBody};
use crate::stream::inflate::{InflateError, InflatedBody};
use crate::stream::kept_objects::{KeptObjects, KeptObjectsBody, WatchClient, WatchStart};

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
#[derive(Debug)]
pub(super) struct ObjectFilter {
    predicates: Box<[ObjectPredicate]>,
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
    ///
    /// # Errors
    /// 406 if the client accepts no response that can be filtered.
    pub(super) fn new(
        edits: &[Attributed],
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
        if predicates.is_empty() && dropped.is_empty() {
            return Ok(None);
        }
        let sent = Query::new(sent.query().unwrap_or_default());
        Ok(Some(Self {
            predicates,
            accept: filterable_accept(edited_accept(headers, edits), &dropped)?,
            dropped,
            client: WatchClient {
                takes_bookmarks: takes_bookmarks(query, &sent),
                start: watch_start(query, &sent),
            },
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

    /// The body that the client gets. `filtered` is what [`filtered_body`] gave for the head, and `body` is inflated.
    pub(super) fn filter_body(
        self,
        exchange: &Exchange<'_>,
        head: &mut response::Parts,
        body: BoxBody,
        filtered: FilteredBody,
    ) -> BoxBody {
        let metrics = &exchange.worker.shared.metrics;
        let unfilterable = metrics.unfilterable_responses.clone();
        let encoding = match filtered.content {
            FilteredContent::List(encoding) | FilteredContent::Watch(encoding) => encoding,
            FilteredContent::ErrorText => return error_text(body, unfilterable),
        };
        remove_body_fields(&mut head.headers);
        if *exchange.record.method() == Method::HEAD {
            return Box::pin(ClientBody::full(Bytes::new(), None));
        }
        let kept = KeptObjects::new(
            self.predicates,
            self.dropped,
            metrics.objects_hidden.clone(),
            unfilterable,
        );
        if matches!(filtered.content, FilteredContent::Watch(_)) {
            Box::pin(KeptObjectsBody::watch(body, encoding, kept, self.client))
        } else {
            Box::pin(KeptObjectsBody::list(body, encoding, kept))
        }
    }
}

impl FilteredBody {
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

fn remove_body_fields(headers: &mut HeaderMap) {
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

/// Whether a watch may have bookmarks that the API server did not send. A watch that begins with the current objects may not: these come in
/// no order of their versions, and a bookmark among them could be taken for their end.
fn takes_bookmarks(client: &ParsedQuery<'_>, sent: &Query<'_>) -> bool {
    let has_version = sent
        .get("resourceVersion")
        .is_some_and(|version| !is_unset_or_zero(&version));
    has_version
        && sent.get("sendInitialEvents").is_none()
        && client.get("allowWatchBookmarks").is_some_and(is_true_flag)
}

/// What the client has when its watch begins. Its own query tells: if a plugin alone has removed the version, the client has the objects of
/// its list.
fn watch_start(client: &ParsedQuery<'_>, sent: &Query<'_>) -> WatchStart {
    let version = sent.get("resourceVersion");
    let initial_events = sent.get("sendInitialEvents");
    if !begins_with_all(version.as_deref(), initial_events.as_deref()) {
        WatchStart::Resumed
    } else if begins_with_all(client.get("resourceVersion"), client.get("sendInitialEvents")) {
        WatchStart::Empty
    } else {
        WatchStart::Repeated
    }
}

/// Whether a watch begins with ADDED of all objects (apiserver `pkg/storage/cacher/watch_cache.go`, `getAllEventsSinceLocked`).
fn begins_with_all(version: Option<&str>, initial_events: Option<&str>) -> bool {
    initial_events.map_or_else(|| version.is_none_or(is_unset_or_zero), is_true_flag)
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::objects::Predicate;
    use http::Response;

    use super::*;
    use crate::chain::EntryId;
    use crate::plugin::dropped_fields::PluginDroppedFields;

    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

    fn keep_everything() -> Attributed {
        let everything = Predicate::All(Box::default());
        (EntryId::next_id(), RequestEdit::KeepObjects(everything.into()))
    }

    fn drop_fields(paths: &[&str]) -> Attributed {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        let dropped = PluginDroppedFields::parse(paths).unwrap();
        (EntryId::next_id(), RequestEdit::DropFields(dropped))
    }

    fn object_filter(query: &str) -> ObjectFilter {
        let sent: Uri = format!("/api/v1/configmaps?{query}").parse().unwrap();
        let filter = ObjectFilter::new(&[keep_everything()], &ParsedQuery::new(query), &sent, &HeaderMap::new());
        filter.unwrap().unwrap()
    }

    /// The fields that are sent for those of a client.
    fn sent_headers(mut headers: HeaderMap, edits: &[Attributed]) -> Result<HeaderMap, u16> {
        let sent = Uri::from_static("/api/v1/configmaps");
        let filter = ObjectFilter::new(edits, &ParsedQuery::new(""), &sent, &headers);
        let filter = filter.map_err(|reply| reply.code())?;
        filter.unwrap().edit_request(&mut headers);
        Ok(headers)
    }

    /// The `Accept` fields that are sent for those of a client.
    fn sent_accept(fields: &[&'static str]) -> Result<Vec<String>, u16> {
        sent_accept_with(fields, &[keep_everything()])
    }

    fn sent_accept_with(fields: &[&'static str], edits: &[Attributed]) -> Result<Vec<String>, u16> {
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(ACCEPT, HeaderValue::from_static(field));
        }
        let sent = sent_headers(headers, edits)?;
        let sent = sent.get_all(ACCEPT).iter();
        Ok(sent.map(|value| value.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn request_without_filtering_edit_is_not_filtered() {
        let edits = [(EntryId::next_id(), RequestEdit::AndLabelSelector("a=b".into()))];
        let sent = Uri::from_static("/api/v1/configmaps");
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/yaml"))]);
        let filter = ObjectFilter::new(&edits, &ParsedQuery::new(""), &sent, &headers);
        assert!(filter.unwrap().is_none());
    }

    #[test]
    fn gzip_is_asked_for_alone_if_the_client_names_it() {
        for (fields, expected) in [
            (&["gzip"][..], "gzip"),
            (&["gzip, deflate, br, zstd"], "gzip"),
            (&["br;q=1.0, GZip ; q=0.001"], "gzip"),
            (&["x-gzip"], "gzip"),
            (&["br", "identity;q=0.5,gzip;Q=0.5"], "gzip"),
            (&["gzip;q=0"], "identity"),
            (&["gzip;q=0.000, identity"], "identity"),
            (&["gzip;q=high"], "identity"),
            (&["gzip;level=1"], "identity"),
            (&["gzip2, agzip, br;q=gzip"], "identity"),
            (&["br, deflate, zstd"], "identity"),
            (&["*"], "identity"),
            (&["identity"], "identity"),
            (&[""], "identity"),
            (&[], "identity"),
        ] {
            let fields = fields.iter().copied().map(HeaderValue::from_static);
            let headers: HeaderMap = fields.map(|field| (ACCEPT_ENCODING, field)).collect();
            let sent = sent_headers(headers.clone(), &[keep_everything()]).unwrap();
            let sent: Vec<&HeaderValue> = sent.get_all(ACCEPT_ENCODING).iter().collect();
            assert_eq!(sent, [expected], "{headers:?}");
        }
    }

    #[test]
    fn whole_body_is_asked_for() {
        let mut headers = HeaderMap::new();
        for name in [
            "if-none-match",
            "if-modified-since",
            "if-match",
            "if-unmodified-since",
            "if-range",
            "range",
            "x-other",
        ] {
            headers.insert(name, HeaderValue::from_static("1"));
        }
        let sent = sent_headers(headers, &[keep_everything()]).unwrap();
        let expected = [
            (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            (HeaderName::from_static("x-other"), HeaderValue::from_static("1")),
        ];
        assert_eq!(sent, HeaderMap::from_iter(expected));
    }

    #[test]
    fn accept_field_of_plugin_counts() {
        let client = || HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
        let set = |value| RequestEdit::SetHeader(ACCEPT, HeaderValue::from_static(value));
        let id = EntryId::next_id();
        let yaml = [keep_everything(), (id, set("application/yaml"))];
        assert_eq!(sent_headers(client(), &yaml), Err(406));
        let removed = [keep_everything(), (id, RequestEdit::RemoveHeader(ACCEPT))];
        assert!(!sent_headers(client(), &removed).unwrap().contains_key(ACCEPT));
        let both = [keep_everything(), (id, set("application/yaml,application/cbor"))];
        assert_eq!(sent_headers(client(), &both).unwrap()[ACCEPT], "application/cbor");
    }

    #[test]
    fn media_types_that_cannot_be_filtered_are_not_asked_for() {
        for (accept, expected) in [
            ("application/json, */*", "application/json,*/*"),
            (
                "application/vnd.kubernetes.protobuf;q=0.9 , application/yaml, application/json;q=0.5",
                "application/vnd.kubernetes.protobuf;q=0.9,application/json;q=0.5",
            ),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,text/plain,application/json",
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            ),
            ("application/yaml,application/*", "application/*"),
            ("text/html,*", "*"),
            (
                "application/cbor-seq,application/cbor",
                "application/cbor-seq,application/cbor",
            ),
        ] {
            assert_eq!(sent_accept(&[accept]), Ok(vec![expected.to_owned()]), "{accept}");
        }
    }

    #[test]
    fn protobuf_is_asked_for_only_if_dropped_fields_are_in_metadata() {
        let accept = "application/vnd.kubernetes.protobuf,application/json";
        let metadata = || drop_fields(&["metadata.managedFields"]);
        let spec = || drop_fields(&["spec.template"]);
        assert_eq!(sent_accept_with(&[accept], &[metadata()]), Ok(vec![accept.to_owned()]));
        for edits in [vec![spec()], vec![metadata(), spec()], vec![keep_everything(), spec()]] {
            let sent = sent_accept_with(&[accept], &edits);
            assert_eq!(sent, Ok(vec!["application/json".to_owned()]), "{edits:?}");
            assert_eq!(sent_accept_with(&[PROTOBUF], &edits), Err(406), "{edits:?}");
        }
    }

    #[test]
    fn dropped_fields_of_all_edits_add_up() {
        let edits = [
            drop_fields(&["spec.a", "spec.b"]),
            drop_fields(&["spec.b", "metadata.labels"]),
        ];
        let sent = Uri::from_static("/api/v1/configmaps");
        let filter = ObjectFilter::new(&edits, &ParsedQuery::new(""), &sent, &HeaderMap::new());
        let expected = DroppedFields::parse(["spec.a", "spec.b", "metadata.labels"]).unwrap();
        assert_eq!(filter.unwrap().unwrap().dropped, expected);
    }

    #[test]
    fn first_accept_field_counts_alone() {
        assert_eq!(sent_accept(&[]), Ok(vec![]));
        assert_eq!(sent_accept(&["", "application/yaml"]), Ok(vec![]));
        let first = "application/json";
        assert_eq!(sent_accept(&[first, PROTOBUF]), Ok(vec![first.to_owned()]));
        assert_eq!(sent_accept(&["application/yaml", first]), Err(406));
    }

    #[test]
    fn client_that_accepts_nothing_filterable_gets_406() {
        for accept in [
            "application/yaml",
            "text/*",
            "application/jsonx",
            "yaml/*,,",
            "caf\u{e9}",
        ] {
            let value = HeaderValue::from_bytes(accept.as_bytes()).unwrap();
            let headers = HeaderMap::from_iter([(ACCEPT, value)]);
            assert_eq!(sent_headers(headers, &[keep_everything()]), Err(406), "{accept}");
        }
    }

    fn filtered(status: u16, verb: Verb, headers: &[(&str, &str)]) -> Result<FilteredBody, u16> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let (head, ()) = response.body(()).unwrap().into_parts();
        filtered_body(&head, verb).map_err(|reply| reply.code())
    }

    fn plain(content: FilteredContent) -> FilteredBody {
        FilteredBody {
            is_gzip: false,
            content,
        }
    }

    #[test]
    fn response_that_cannot_be_filtered_is_refused() {
        let json = ("content-type", "application/json");
        for (status, headers) in [
            (200, &[("content-type", "application/yaml")][..]),
            (200, &[]),
            (200, &[("content-type", "text/plain")]),
            (200, &[json, json]),
            (200, &[json, ("content-encoding", "br")]),
            (200, &[json, ("content-encoding", "deflate")]),
            (200, &[json, ("content-encoding", "gzip, br")]),
            (200, &[json, ("content-encoding", "gzip, gzip")]),
            (200, &[json, ("content-encoding", "gzip2")]),
            (200, &[json, ("content-encoding", "")]),
            (200, &[json, ("content-encoding", "gzip"), ("content-encoding", "gzip")]),
            (
                200,
                &[json, ("content-encoding", "identity"), ("content-encoding", "gzip")],
            ),
            (101, &[json]),
            (201, &[json]),
            (206, &[json]),
            (301, &[json]),
            (304, &[]),
            (404, &[json, json]),
            (404, &[json, ("content-encoding", "br")]),
            (600, &[json]),
        ] {
            for verb in [Verb::List, Verb::Watch] {
                assert_eq!(filtered(status, verb, headers), Err(502), "{status} {headers:?}");
            }
        }
    }

    #[test]
    fn response_is_filtered_by_its_encoding() {
        for (content_type, encoding) in [
            ("application/json", WatchEncoding::Json),
            ("application/json;stream=watch", WatchEncoding::Json),
            (PROTOBUF, WatchEncoding::Protobuf),
            ("application/cbor", WatchEncoding::Cbor),
            ("application/cbor-seq", WatchEncoding::Cbor),
        ] {
            let headers = [("content-type", content_type), ("content-encoding", "identity")];
            for (status, verb, expected) in [
                (200, Verb::List, FilteredContent::List(encoding)),
                (200, Verb::Watch, FilteredContent::Watch(encoding)),
                // A `Status`, which is no event.
                (410, Verb::Watch, FilteredContent::List(encoding)),
                (500, Verb::List, FilteredContent::List(encoding)),
            ] {
                assert_eq!(
                    filtered(status, verb, &headers),
                    Ok(plain(expected)),
                    "{status} {content_type}"
                );
            }
        }
    }

    #[test]
    fn response_in_gzip_alone_is_inflated() {
        for encoding in ["gzip", "GZIP", "x-gzip"] {
            let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
            for (status, verb) in [(200, Verb::List), (200, Verb::Watch), (404, Verb::List)] {
                assert!(filtered(status, verb, &headers).unwrap().is_gzip, "{status} {encoding}");
            }
        }
    }

    #[tokio::test]
    async fn error_text_passes_up_to_a_bound() {
        for content_type in ["text/plain", "application/yaml"] {
            let headers = [("content-type", content_type)];
            assert_eq!(
                filtered(429, Verb::List, &headers),
                Ok(plain(FilteredContent::ErrorText))
            );
        }
        assert_eq!(filtered(502, Verb::Watch, &[]), Ok(plain(FilteredContent::ErrorText)));
        let unfilterable = Counter::default();
        let passed = |length: usize| {
            let text = ClientBody::full(Bytes::from(vec![b'x'; length]), None);
            error_text(Box::pin(text), unfilterable.clone()).collect()
        };
        let whole = passed(MAX_ERROR_TEXT_BYTES).await.unwrap();
        assert_eq!(whole.to_bytes().len(), MAX_ERROR_TEXT_BYTES);
        assert_eq!(unfilterable.get(), 0);
        assert!(passed(MAX_ERROR_TEXT_BYTES + 1).await.is_err());
        assert_eq!(unfilterable.get(), 1);
    }

    #[test]
    fn only_watch_that_resumes_takes_bookmarks() {
        for (query, expected) in [
            ("watch=1&resourceVersion=5&allowWatchBookmarks=true", true),
            ("watch=1&resourceVersion=5&allowWatchBookmarks=1", true),
            ("watch=1&resourceVersion=5&allowWatchBookmarks=false", false),
            ("watch=1&resourceVersion=5", false),
            ("watch=1&resourceVersion=0&allowWatchBookmarks=true", false),
            ("watch=1&allowWatchBookmarks=true", false),
            (
                "watch=1&resourceVersion=5&allowWatchBookmarks=true&sendInitialEvents=true",
                false,
            ),
        ] {
            assert_eq!(object_filter(query).client.takes_bookmarks, expected, "{query}");
        }
    }

    #[test]
    fn watch_that_begins_with_all_objects_starts_empty() {
        for (query, expected) in [
            ("watch=1", WatchStart::Empty),
            ("watch=1&resourceVersion=", WatchStart::Empty),
            ("watch=1&resourceVersion=0", WatchStart::Empty),
            ("watch=1&resourceVersion=5", WatchStart::Resumed),
            ("watch=1&sendInitialEvents=true", WatchStart::Empty),
            ("watch=1&resourceVersion=5&sendInitialEvents=true", WatchStart::Empty),
            // The watch begins now, whatever the client has.
            ("watch=1&sendInitialEvents=false", WatchStart::Resumed),
            ("watch=1&resourceVersion=0&sendInitialEvents=false", WatchStart::Resumed),
            ("watch=1&resourceVersion=5&sendInitialEvents=0", WatchStart::Resumed),
        ] {
            assert_eq!(object_filter(query).client.start, expected, "{query}");
        }
    }

    #[test]
    fn watch_that_plugin_lets_start_anew_repeats_what_the_client_has() {
        let start = |client, sent| watch_start(&ParsedQuery::new(client), &Query::new(sent));
        let resumed = "watch=1&resourceVersion=5";
        for all in ["watch=1", "watch=1&resourceVersion=0", "watch=1&sendInitialEvents=true"] {
            assert_eq!(start(resumed, all), WatchStart::Repeated, "{all}");
            assert_eq!(start(all, resumed), WatchStart::Resumed, "{all}");
            assert_eq!(start(all, all), WatchStart::Empty, "{all}");
        }
    }
}
