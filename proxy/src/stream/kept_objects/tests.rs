use std::cell::Cell;
use std::future::poll_fn;

use ctrlmesh_wire::LabelSelector;
use ctrlmesh_wire::objects::{NameSet, Predicate};
use ctrlmesh_wire::protobuf::{Message, envelope};
use futures_util::stream;
use http::HeaderMap;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;

mod asked;
mod decisions;

use decisions::STARTS_EMPTY;

type FrameResult = Result<Frame<Bytes>, BoxError>;

fn kept_objects(predicates: Vec<Predicate>) -> (KeptObjects, Counter) {
    let hidden = Counter::default();
    let predicates = predicates.into_iter().map(ObjectPredicate::from).collect();
    let kept = KeptObjects::new(predicates, DroppedFields::default(), hidden.clone(), Counter::default());
    (kept, hidden)
}

fn in_namespace(name: &str) -> Predicate {
    Predicate::Namespaces(NameSet::of_names([name]).unwrap())
}

fn with_name(name: &str) -> Predicate {
    Predicate::Names(NameSet::of_names([name]).unwrap())
}

fn with_labels(selector: &str) -> Predicate {
    Predicate::labels(LabelSelector::parse(selector).unwrap()).unwrap()
}

fn object(namespace: &str, name: &str, shard: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-of-{namespace}-{name}"), "resourceVersion": "7",
            "labels": { "shard": shard },
        },
    })
}

fn list_of(items: &[Value]) -> String {
    json!({ "kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": items }).to_string()
}

fn event(event_type: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": event_type, "object": object }))
}

fn data(bytes: &[u8]) -> FrameResult {
    Ok(Frame::data(Bytes::copy_from_slice(bytes)))
}

fn upstream(frames: Vec<FrameResult>) -> StreamBody<impl stream::Stream<Item = FrameResult> + Unpin> {
    StreamBody::new(stream::iter(frames))
}

fn list_body(frames: Vec<FrameResult>, kept: KeptObjects) -> impl Body<Data = Bytes, Error = BoxError> + Unpin {
    KeptObjectsBody::list(upstream(frames), WatchEncoding::Json, kept)
}

/// The events that a watch of these frames gives.
async fn watch_events(frames: Vec<FrameResult>, predicate: Predicate) -> Vec<Value> {
    let (kept, _) = kept_objects(vec![predicate]);
    let body = KeptObjectsBody::watch(upstream(frames), WatchEncoding::Json, kept, WatchClient::default());
    let bytes = body.collect().await.unwrap().to_bytes();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn types_and_names(events: &[Value]) -> Vec<(&str, &str)> {
    let pairs = events.iter().map(|event| {
        (
            event["type"].as_str().unwrap(),
            event["object"]["metadata"]["name"].as_str().unwrap_or_default(),
        )
    });
    pairs.collect()
}

#[tokio::test]
async fn list_has_the_objects_that_match_all_predicates() {
    let list = list_of(&[object("a", "x", ""), object("b", "x", ""), object("a", "y", "")]);
    for size in [1, 10, list.len()] {
        let (kept, hidden) = kept_objects(vec![in_namespace("a"), with_name("x")]);
        let frames = list.as_bytes().chunks(size).map(data).collect();
        let bytes = list_body(frames, kept).collect().await.unwrap().to_bytes();
        assert_eq!(bytes, list_of(&[object("a", "x", "")]), "chunks of {size}");
        assert_eq!(hidden.get(), 2);
    }
}

#[tokio::test]
async fn list_that_ends_in_the_middle_is_a_broken_transfer() {
    let list = list_of(&[object("a", "x", ""), object("a", "y", "")]);
    let (part, _) = list.as_bytes().split_at(list.len() - 2);
    for ending in [vec![], vec![Ok(Frame::trailers(HeaderMap::new()))]] {
        let (kept, _) = kept_objects(vec![in_namespace("a")]);
        let mut frames = vec![data(part)];
        frames.extend(ending);
        let mut body = list_body(frames, kept);
        assert!(body.frame().await.unwrap().is_ok());
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(error.downcast_ref::<FilterError>(), Some(&FilterError::Unfinished));
        assert!(body.frame().await.is_none());
    }
    let (kept, _) = kept_objects(vec![in_namespace("a")]);
    let mut empty = list_body(vec![], kept);
    assert!(!empty.is_end_stream(), "hyper would end the response without an error");
    assert!(empty.frame().await.unwrap().is_err());
}

#[tokio::test]
async fn body_that_is_no_list_does_not_pass() {
    for body in [object("b", "x", "").to_string(), "[{}]".to_owned(), "hello".to_owned()] {
        let (kept, _) = kept_objects(vec![in_namespace("a")]);
        let mut body = list_body(vec![data(body.as_bytes())], kept);
        assert!(body.frame().await.unwrap().is_err());
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test]
async fn trailers_of_complete_list_pass() {
    let (kept, _) = kept_objects(vec![in_namespace("a")]);
    let trailers = HeaderMap::from_iter([(http::header::EXPIRES, "0".parse().unwrap())]);
    let frames = vec![data(list_of(&[]).as_bytes()), Ok(Frame::trailers(trailers.clone()))];
    let collected = list_body(frames, kept).collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
}

#[tokio::test]
async fn list_of_which_nothing_is_kept_lets_other_tasks_run() {
    const FRAMES: usize = 3 * MAX_SILENT_BYTES / 1000;
    let mut hidden = object("b", "x", "");
    hidden["data"] = "v".repeat(1000).into();
    let item = hidden.to_string();
    let mut frames = vec![
        data(br#"{"kind":"ConfigMapList","apiVersion":"v1","items":["#),
        data(item.as_bytes()),
    ];
    let next = format!(",{item}");
    frames.extend((0..FRAMES).map(|_| data(next.as_bytes())));
    frames.push(data(b"]}"));
    let (kept, counter) = kept_objects(vec![in_namespace("a")]);
    let mut body = list_body(frames, kept);
    let mut turns = 0;
    poll_fn(|cx| {
        loop {
            match Pin::new(&mut body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Ready(Some(frame)) => drop(frame.unwrap()),
                Poll::Pending => {
                    turns += 1;
                    return Poll::Pending;
                }
            }
        }
    })
    .await;
    assert!(turns >= 3, "{turns}");
    assert_eq!(counter.get(), FRAMES as u64 + 1);
}

#[tokio::test]
async fn empty_frames_let_other_tasks_run() {
    const FRAMES: usize = 3 * MAX_SILENT_BYTES / MIN_COUNTED_BYTES;
    let mut frames: Vec<FrameResult> = (0..FRAMES).map(|_| data(b"")).collect();
    frames.push(data(list_of(&[]).as_bytes()));
    let mut body = list_body(frames, kept_objects(vec![in_namespace("a")]).0);
    let mut turns = 0;
    let first = poll_fn(|cx| {
        let polled = Pin::new(&mut body).poll_frame(cx);
        turns += usize::from(polled.is_pending());
        polled
    })
    .await;
    assert!(first.unwrap().is_ok());
    assert_eq!(turns, 3);
}

#[tokio::test]
async fn watch_has_events_of_matching_objects_only() {
    let (mine, foreign) = (object("a", "mine", ""), object("b", "foreign", ""));
    let mut text = String::new();
    for event_type in ["ADDED", "MODIFIED", "DELETED"] {
        text += &event(event_type, &foreign);
        text += &event(event_type, &mine);
    }
    for size in [1, 50, text.len()] {
        let frames = text.as_bytes().chunks(size).map(data).collect();
        let events = watch_events(frames, in_namespace("a")).await;
        let expected = [("ADDED", "mine"), ("MODIFIED", "mine"), ("DELETED", "mine")];
        assert_eq!(types_and_names(&events), expected, "chunks of {size}");
    }
}

#[tokio::test]
async fn object_that_may_have_left_is_deleted_for_the_client() {
    let mine = object("a", "mine", "a");
    let frames = [
        ("ADDED", &object("a", "foreign", "b")),
        ("MODIFIED", &object("a", "left", "b")),
        ("DELETED", &object("a", "gone", "b")),
        ("MODIFIED", &mine),
        ("DELETED", &mine),
    ];
    let frames = frames.map(|(event_type, object)| data(event(event_type, object).as_bytes()));
    let events = watch_events(frames.into(), with_labels("shard=a")).await;
    let expected = [
        ("DELETED", "left"),
        ("DELETED", "gone"),
        ("MODIFIED", "mine"),
        ("DELETED", "mine"),
    ];
    assert_eq!(types_and_names(&events), expected);
    for (event, name) in events.iter().zip(["left", "gone"]) {
        let uid = format!("uid-of-a-{name}");
        let name_alone = json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": { "namespace": "a", "name": name, "uid": uid, "resourceVersion": "7" },
        });
        assert_eq!(
            event["object"], name_alone,
            "nothing else of an object that is not kept"
        );
    }
    assert_eq!(events[3]["object"], mine);
}

#[tokio::test]
async fn object_that_can_never_match_is_never_deleted_for_the_client() {
    let mut frames = Vec::new();
    for event_type in ["MODIFIED", "DELETED"] {
        for name in ["foreign", "left"] {
            let namespace = if name == "left" { "a" } else { "b" };
            let object = object(namespace, &format!("{name}-{event_type}"), "b");
            frames.push(data(event(event_type, &object).as_bytes()));
        }
    }
    let predicate = Predicate::all(vec![with_labels("shard=a"), in_namespace("a")]).unwrap();
    let events = watch_events(frames, predicate).await;
    let expected = [("DELETED", "left-MODIFIED"), ("DELETED", "left-DELETED")];
    assert_eq!(types_and_names(&events), expected);
}

#[tokio::test]
async fn object_must_be_possible_by_all_predicates_to_be_deleted_for_the_client() {
    let (kept, hidden) = kept_objects(vec![with_labels("shard=a"), in_namespace("a")]);
    let modified = event("MODIFIED", &object("b", "foreign", "a"));
    let body = upstream(vec![data(modified.as_bytes())]);
    let body = KeptObjectsBody::watch(body, WatchEncoding::Json, kept, WatchClient::default());
    assert_eq!(body.collect().await.unwrap().to_bytes(), "");
    assert_eq!(hidden.get(), 1);
}

/// The finalizer runs in the shard that the object has come to.
#[tokio::test]
async fn object_that_changes_shards_while_it_is_deleted_is_added_with_its_deletion() {
    let deleting = |shard| {
        let mut object = object("a", "x", shard);
        object["metadata"]["deletionTimestamp"] = "2026-07-01T12:00:00Z".into();
        object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        object
    };
    let events = [
        ("ADDED", object("a", "x", "a")),
        ("MODIFIED", deleting("a")),
        ("MODIFIED", deleting("b")),
        ("DELETED", deleting("b")),
    ];
    let frames = || {
        events
            .iter()
            .map(|(event_type, object)| data(event(event_type, object).as_bytes()))
    };
    let of_loser = watch_events(frames().collect(), with_labels("shard=a")).await;
    let expected = [("ADDED", "x"), ("MODIFIED", "x"), ("DELETED", "x")];
    assert_eq!(types_and_names(&of_loser), expected);
    let of_winner = watch_events(frames().collect(), with_labels("shard=b")).await;
    assert_eq!(types_and_names(&of_winner), [("ADDED", "x"), ("DELETED", "x")]);
    assert_eq!(of_winner[0]["object"], deleting("b"));
}

fn large_object() -> Value {
    let mut large = object("a", "large", "");
    large["data"] = "v".repeat(3 * MAX_FRAME_BYTES).into();
    large
}

#[tokio::test]
async fn large_object_comes_in_frames_of_bounded_size() {
    let list = list_of(&[large_object()]);
    let large_event = event("ADDED", &large_object());
    let kept = || kept_objects(vec![in_namespace("a")]).0;
    let watch_frames = vec![data(format!("{large_event}hello").as_bytes())];
    let watch = KeptObjectsBody::watch(
        upstream(watch_frames),
        WatchEncoding::Json,
        kept(),
        WatchClient::default(),
    );
    let list_frames = vec![data(list.as_bytes())];
    let list_body = KeptObjectsBody::list(upstream(list_frames), WatchEncoding::Json, kept());
    for (mut body, start) in [(watch, large_event), (list_body, list)] {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(data.len() <= MAX_FRAME_BYTES, "{}", data.len());
            bytes.extend_from_slice(&data);
            assert!(!body.is_end_stream() || body.frame().await.is_none());
        }
        assert!(bytes.starts_with(start.as_bytes()));
    }
}

/// So a client that reads slowly delays the API server, and what waits for it is bounded.
#[tokio::test]
async fn nothing_is_read_before_the_client_has_taken_what_was_read() {
    let large = event("ADDED", &large_object());
    let reads = Cell::new(0);
    let frames = [large.as_str(); 2].into_iter().map(|text| {
        reads.set(reads.get() + 1);
        data(text.as_bytes())
    });
    let (kept, _) = kept_objects(vec![in_namespace("a")]);
    let inner = StreamBody::new(stream::iter(frames));
    let mut body = KeptObjectsBody::watch(inner, WatchEncoding::Json, kept, WatchClient::default());
    let frames_of_event = large.len().div_ceil(MAX_FRAME_BYTES);
    for expected in [1, 2] {
        for _ in 0..frames_of_event {
            assert!(body.frame().await.unwrap().is_ok());
            assert_eq!(reads.get(), expected);
        }
    }
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn bodies_that_cannot_be_read_are_counted() {
    let unfilterable = Counter::default();
    for is_watch in [false, true] {
        let predicates = [ObjectPredicate::from(in_namespace("a"))].into();
        let kept = KeptObjects::new(
            predicates,
            DroppedFields::default(),
            Counter::default(),
            unfilterable.clone(),
        );
        let body = upstream(vec![data(b"hello")]);
        let body = if is_watch {
            KeptObjectsBody::watch(body, WatchEncoding::Json, kept, WatchClient::default())
        } else {
            KeptObjectsBody::list(body, WatchEncoding::Json, kept)
        };
        drop(body.collect().await);
    }
    assert_eq!(unfilterable.get(), 2);
}

#[tokio::test]
async fn watch_that_cannot_be_read_ends_with_error_event_on_its_own_line() {
    let whole = event("ADDED", &object("a", "x", ""));
    let without_line_feed = whole.trim_end();
    let unfinished = r#"{"type":"ADDED","object":{"#;
    let trailers = || Ok(Frame::trailers(HeaderMap::new()));
    for frames in [
        vec![data(format!("{whole}hello").as_bytes()), data(whole.as_bytes())],
        vec![data(without_line_feed.as_bytes()), data(b"hello")],
        vec![data(whole.as_bytes()), data(unfinished.as_bytes())],
        vec![data(format!("{whole}{unfinished}").as_bytes()), trailers()],
    ] {
        let events = watch_events(frames, in_namespace("a")).await;
        assert_eq!(types_and_names(&events), [("ADDED", "x"), ("ERROR", "")]);
        assert_eq!(events[1]["object"]["code"], 502);
    }
}

#[tokio::test]
async fn watch_that_breaks_off_is_broken_off() {
    let whole = event("ADDED", &object("a", "x", ""));
    let (kept, _) = kept_objects(vec![in_namespace("a")]);
    let frames = vec![data(whole.as_bytes()), Err("reset".into())];
    let mut body = KeptObjectsBody::watch(upstream(frames), WatchEncoding::Json, kept, WatchClient::default());
    assert!(body.frame().await.unwrap().is_ok());
    assert!(body.frame().await.unwrap().is_err());
    assert!(body.frame().await.is_none());
}

/// A watch whose events a test sends.
struct OpenWatch {
    sender: mpsc::Sender<FrameResult>,
    body: Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>,
}

impl OpenWatch {
    fn new(takes_bookmarks: bool) -> Self {
        let (sender, mut frames) = mpsc::channel(8);
        let inner = StreamBody::new(stream::poll_fn(move |cx| frames.poll_recv(cx)));
        let (kept, _) = kept_objects(vec![in_namespace("a")]);
        let body = Box::pin(KeptObjectsBody::watch(
            inner,
            WatchEncoding::Json,
            kept,
            WatchClient {
                takes_bookmarks,
                ..WatchClient::default()
            },
        ));
        Self { sender, body }
    }

    /// Sends an event, and returns the one that the client gets; `None` if it gets none.
    async fn send(&mut self, namespace: &str) -> Option<Value> {
        let added = event("ADDED", &object(namespace, "x", ""));
        let text = self.send_text(&added).await?;
        Some(serde_json::from_str(&text).unwrap())
    }

    /// Sends the text of events, and returns the text that the client gets; `None` if it gets none.
    async fn send_text(&mut self, events: &str) -> Option<String> {
        self.sender.send(data(events.as_bytes())).await.unwrap();
        let polled = poll_fn(|cx| Poll::Ready(self.body.as_mut().poll_frame(cx))).await;
        let Poll::Ready(frame) = polled else { return None };
        let bytes = frame.unwrap().unwrap().into_data().unwrap();
        Some(String::from_utf8(bytes.into()).unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn hidden_event_becomes_bookmark_when_client_got_nothing_for_long() {
    let just_before = BOOKMARK_INTERVAL.saturating_sub(Duration::from_millis(1));
    let mut watch = OpenWatch::new(true);
    tokio::time::advance(just_before).await;
    assert_eq!(watch.send("b").await, None);
    tokio::time::advance(Duration::from_millis(1)).await;
    let bookmark = watch.send("b").await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], "7");
    assert_eq!(watch.send("b").await, None, "one is enough");
    tokio::time::advance(just_before).await;
    assert_eq!(watch.send("a").await.unwrap()["type"], "ADDED");
    tokio::time::advance(just_before).await;
    assert_eq!(watch.send("b").await, None, "the client got an event");
}

#[tokio::test(start_paused = true)]
async fn hidden_events_of_one_chunk_become_one_bookmark() {
    let mut watch = OpenWatch::new(true);
    tokio::time::advance(BOOKMARK_INTERVAL).await;
    let added = event("ADDED", &object("b", "x", ""));
    let bookmark = watch.send_text(&format!("{added}{added}")).await.unwrap();
    assert_eq!(bookmark.lines().count(), 1, "{bookmark}");
}

#[tokio::test(start_paused = true)]
async fn event_that_can_become_no_bookmark_leaves_it_to_the_next() {
    let mut watch = OpenWatch::new(true);
    tokio::time::advance(BOOKMARK_INTERVAL).await;
    let mut unversioned = object("b", "x", "");
    unversioned["metadata"]["resourceVersion"] = "".into();
    assert_eq!(watch.send_text(&event("ADDED", &unversioned)).await, None);
    assert_eq!(watch.send("b").await.unwrap()["type"], "BOOKMARK");
}

#[tokio::test(start_paused = true)]
async fn client_that_takes_no_bookmarks_gets_none() {
    let mut watch = OpenWatch::new(false);
    tokio::time::advance(BOOKMARK_INTERVAL * 2).await;
    assert_eq!(watch.send("b").await, None);
}

/// A value of strings, arrays and maps in CBOR, with byte strings as API servers write them.
fn cbor(value: &Value) -> Vec<u8> {
    let head = |major: u8, length: usize| match u8::try_from(length).unwrap() {
        length @ 0..24 => vec![major << 5 | length],
        length => vec![major << 5 | 24, length],
    };
    match value {
        Value::String(text) => [head(2, text.len()), text.as_bytes().to_vec()].concat(),
        Value::Array(items) => {
            let elements: Vec<_> = items.iter().map(cbor).collect();
            [head(4, items.len()), elements.concat()].concat()
        }
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| (Value::from(key.as_str()), value));
            let entries = entries.flat_map(|(key, value)| [cbor(&key), cbor(value)]);
            [head(5, map.len()), entries.collect::<Vec<_>>().concat()].concat()
        }
        other => panic!("{other}"),
    }
}

const ENCODINGS: [WatchEncoding; 3] = [WatchEncoding::Json, WatchEncoding::Protobuf, WatchEncoding::Cbor];

fn encoded_event(encoding: WatchEncoding, event_type: &str, shard: &str) -> Vec<u8> {
    match encoding {
        WatchEncoding::Json => event(event_type, &object("a", "x", shard)).into_bytes(),
        WatchEncoding::Cbor => cbor(&json!({ "type": event_type, "object": object("a", "x", shard) })),
        WatchEncoding::Protobuf => {
            let label = Message::new().string(1, "shard").string(2, shard);
            let metadata = Message::new().string(1, "x").string(3, "a").string(5, "uid");
            let metadata = metadata.string(6, "7").message(11, &label);
            let body = envelope("v1", "ConfigMap", &Message::new().message(1, &metadata));
            let object = Message::new().bytes(1, &body);
            let event = Message::new().string(1, event_type).message(2, &object).finish();
            [&u32::try_from(event.len()).unwrap().to_be_bytes()[..], &event].concat()
        }
    }
}

/// An object of shard `b` comes into shard `a`, and leaves it again.
const MOVES_OF_OBJECT: [(&str, &str); 5] = [
    ("ADDED", "b"),
    ("MODIFIED", "a"),
    ("MODIFIED", "b"),
    ("MODIFIED", "b"),
    ("DELETED", "b"),
];

#[tokio::test]
async fn object_that_enters_is_added_in_every_encoding() {
    for encoding in ENCODINGS {
        let frames = MOVES_OF_OBJECT.map(|(event_type, shard)| data(&encoded_event(encoding, event_type, shard)));
        let (kept, hidden) = kept_objects(vec![with_labels("shard=a")]);
        let mut body = KeptObjectsBody::watch(upstream(frames.into()), encoding, kept, STARTS_EMPTY);
        let added = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(added, encoded_event(encoding, "ADDED", "a"), "{encoding:?}");
        let deleted = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(
            deleted.windows(7).any(|bytes| bytes == b"DELETED"),
            "{encoding:?}: {deleted:?}"
        );
        assert!(body.frame().await.is_none(), "{encoding:?}");
        assert_eq!(hidden.get(), 3);
    }
}
