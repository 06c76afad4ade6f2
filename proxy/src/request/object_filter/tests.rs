use ctrlmesh_wire::objects::Predicate;
use http::Response;

use super::*;
use crate::chain::EntryId;
use crate::plugin::dropped_fields::PluginDroppedFields;
use crate::plugin::object_metadata::ObjectQuestion;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn keep_everything() -> Attributed {
    let everything = Predicate::All(Box::default());
    (EntryId::next_id(), RequestEdit::KeepObjects(everything.into()))
}

fn ask_about_objects() -> Attributed {
    let question = ObjectQuestion::new(Vec::new());
    (EntryId::next_id(), RequestEdit::AskAboutObjects(question))
}

fn drop_fields(paths: &[&str]) -> Attributed {
    let paths = paths.iter().map(|&path| path.to_owned()).collect();
    let dropped = PluginDroppedFields::parse(paths).unwrap();
    (EntryId::next_id(), RequestEdit::DropFields(dropped))
}

fn object_filter(query: &str) -> ObjectFilter {
    let sent: Uri = format!("/api/v1/configmaps?{query}").parse().unwrap();
    let filter = ObjectFilter::new(
        &[keep_everything()],
        "",
        &ParsedQuery::new(query),
        &sent,
        &HeaderMap::new(),
    );
    filter.unwrap().unwrap()
}

/// The fields that are sent for those of a client.
fn sent_headers(mut headers: HeaderMap, edits: &[Attributed]) -> Result<HeaderMap, u16> {
    let sent = Uri::from_static("/api/v1/configmaps");
    let filter = ObjectFilter::new(edits, "", &ParsedQuery::new(""), &sent, &headers);
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
    let filter = ObjectFilter::new(&edits, "", &ParsedQuery::new(""), &sent, &headers);
    assert!(filter.unwrap().is_none());
}

#[test]
fn filter_that_drops_fields_alone_leaves_no_object_out() {
    for (edit, leaves_objects_out) in [
        (keep_everything(), true),
        (ask_about_objects(), true),
        (drop_fields(&["metadata.managedFields"]), false),
    ] {
        let sent = Uri::from_static("/api/v1/configmaps");
        let filter = ObjectFilter::new(&[edit], "", &ParsedQuery::new(""), &sent, &HeaderMap::new());
        assert_eq!(filter.unwrap().unwrap().leaves_objects_out(), leaves_objects_out);
    }
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
    let filter = ObjectFilter::new(&edits, "", &ParsedQuery::new(""), &sent, &HeaderMap::new());
    let expected = DroppedFields::parse(["spec.a", "spec.b", "metadata.labels"]).unwrap();
    assert_eq!(filter.unwrap().unwrap().dropped, expected);
}

#[test]
fn values_of_metrics_pass_if_only_fields_are_dropped() {
    let sent = Uri::from_static("/apis/external.metrics.k8s.io/v1beta1/namespaces/a/queue");
    let yaml = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/yaml"))]);
    let is_filtered = |edits: &[Attributed], group| {
        let filter = ObjectFilter::new(edits, group, &ParsedQuery::new(""), &sent, &yaml);
        filter.map(|filter| filter.is_some()).map_err(|reply| reply.code())
    };
    let dropping = || drop_fields(&["metadata.managedFields"]);
    for group in ["external.metrics.k8s.io", "custom.metrics.k8s.io"] {
        assert_eq!(is_filtered(&[dropping()], group), Ok(false), "{group}");
        assert_eq!(is_filtered(&[ask_about_objects()], group), Err(406), "{group}");
        assert_eq!(
            is_filtered(&[dropping(), keep_everything()], group),
            Err(406),
            "{group}"
        );
    }
    for group in ["metrics.k8s.io", ""] {
        assert_eq!(is_filtered(&[ask_about_objects()], group), Err(406), "{group}");
        assert_eq!(is_filtered(&[dropping()], group), Err(406), "{group}");
    }
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
        ("watch=1", ClientStart::Empty),
        ("watch=1&resourceVersion=", ClientStart::Empty),
        ("watch=1&resourceVersion=0", ClientStart::Empty),
        ("watch=1&resourceVersion=5", ClientStart::Resumed),
        ("watch=1&sendInitialEvents=true", ClientStart::Empty),
        ("watch=1&resourceVersion=5&sendInitialEvents=true", ClientStart::Empty),
        // The watch begins now, whatever the client has.
        ("watch=1&sendInitialEvents=false", ClientStart::Resumed),
        (
            "watch=1&resourceVersion=0&sendInitialEvents=false",
            ClientStart::Resumed,
        ),
        ("watch=1&resourceVersion=5&sendInitialEvents=0", ClientStart::Resumed),
    ] {
        assert_eq!(object_filter(query).client.start, expected, "{query}");
    }
}

#[test]
fn watch_that_plugin_lets_start_anew_repeats_what_the_client_has() {
    let start = |client, sent| watch_client(&ParsedQuery::new(client), &Query::new(sent)).start;
    let resumed = "watch=1&resourceVersion=5";
    for all in ["watch=1", "watch=1&resourceVersion=0", "watch=1&sendInitialEvents=true"] {
        assert_eq!(start(resumed, all), ClientStart::Repeated, "{all}");
        assert_eq!(start(all, resumed), ClientStart::Resumed, "{all}");
        assert_eq!(start(all, all), ClientStart::Empty, "{all}");
    }
}
