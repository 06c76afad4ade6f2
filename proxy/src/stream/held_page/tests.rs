//! Pages pass unchanged once an object is kept, and tell the next page if none is.

use ctrlmesh_wire::WatchEncoding;
use ctrlmesh_wire::objects::{DroppedFields, NameSet, Predicate};
use ctrlmesh_wire::protobuf::{Message, envelope};
use futures_util::stream;
use http::HeaderMap;
use http_body_util::{BodyExt, StreamBody};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::plugin::object_predicate::ObjectPredicate;
use crate::stream::body::BoxBody;
use crate::stream::kept_objects::KeptObjects;

type FrameResult = Result<Frame<Bytes>, BoxError>;

/// A body of which the object with the name `mine` is kept.
pub(crate) fn filtered(body: BoxBody, encoding: WatchEncoding) -> KeptObjectsBody<BoxBody> {
    let mine = Predicate::Names(NameSet::of_names(["mine"]).unwrap());
    let kept = KeptObjects::new(
        [ObjectPredicate::from(mine)].into(),
        DroppedFields::default(),
        Counter::default(),
        Counter::default(),
    );
    KeptObjectsBody::list(body, encoding, kept)
}

fn data(bytes: &[u8]) -> FrameResult {
    Ok(Frame::data(Bytes::copy_from_slice(bytes)))
}

fn upstream(frames: Vec<FrameResult>) -> BoxBody {
    Box::pin(StreamBody::new(stream::iter(frames)))
}

fn in_chunks(body: &[u8], size: usize) -> BoxBody {
    upstream(body.chunks(size).map(data).collect())
}

pub(crate) fn json_page(names: &[&str], token: &str) -> Vec<u8> {
    let items: Vec<Value> = names
        .iter()
        .map(|name| json!({ "metadata": { "name": name } }))
        .collect();
    let list = json!({ "kind": "XList", "apiVersion": "v1", "metadata": { "continue": token }, "items": items });
    list.to_string().into_bytes()
}

/// The objects are as large as the number beside their names says.
fn protobuf_page(objects: &[(&str, usize)], token: &str) -> Vec<u8> {
    let mut list = Message::new().message(1, &Message::new().string(2, "7").string(3, token));
    for (name, length) in objects {
        let object = Message::new().message(1, &Message::new().string(1, name));
        list = list.message(2, &object.bytes(2, &vec![b'x'; *length]));
    }
    envelope("v1", "XList", &list)
}

/// A map of two lists, without lengths: metadata with a token, and items with these names.
fn cbor_page(names: &[&str], token: &str) -> Vec<u8> {
    let text = |text: &str| [&[0x60 | u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat();
    let one = |key: &str, value: Vec<u8>| [vec![0xa1], text(key), value].concat();
    let items: Vec<u8> = names
        .iter()
        .flat_map(|name| one("metadata", one("name", text(name))))
        .collect();
    let metadata = [text("metadata"), one("continue", text(token))].concat();
    [vec![0xbf], metadata, text("items"), vec![0x9f], items, vec![0xff, 0xff]].concat()
}

async fn collect(body: impl Body<Data = Bytes, Error = BoxError>) -> Vec<u8> {
    body.collect().await.unwrap().to_bytes().to_vec()
}

#[tokio::test]
async fn page_without_kept_object_gives_its_token_and_passes_unchanged() {
    let large = [("a", 100), ("b", 300_000), ("c", 100)];
    let cases = [
        (WatchEncoding::Json, json_page(&["a", "b"], "t1"), Some("t1")),
        (WatchEncoding::Json, json_page(&[], "t1"), Some("t1")),
        (WatchEncoding::Json, json_page(&["a", "b"], ""), None),
        (WatchEncoding::Cbor, cbor_page(&["a", "b"], "t1"), Some("t1")),
        (WatchEncoding::Cbor, cbor_page(&["a", "b"], ""), None),
        (WatchEncoding::Protobuf, protobuf_page(&large, "t1"), Some("t1")),
        (WatchEncoding::Protobuf, protobuf_page(&large, ""), None),
    ];
    for (encoding, body, expected) in cases {
        for size in [7, 64 << 10, usize::MAX] {
            let unheld = collect(filtered(in_chunks(&body, size), encoding)).await;
            let mut page = HeldPage::new(filtered(in_chunks(&body, size), encoding));
            let token = page.next_token().await;
            assert_eq!(token.as_deref(), expected, "{encoding:?} in chunks of {size}");
            assert_eq!(page.next_token().await, token, "it is the same each time");
            assert!(collect(page).await == unheld, "{encoding:?} in chunks of {size}");
        }
    }
}

#[tokio::test]
async fn page_with_kept_object_gives_no_token_and_passes_unchanged() {
    let objects = [("a", 200_000), ("b", 10), ("mine", 200_000), ("c", 300)];
    let names = objects.map(|(name, _)| name);
    for (encoding, body) in [
        (WatchEncoding::Json, json_page(&names, "t1")),
        (WatchEncoding::Cbor, cbor_page(&names, "t1")),
        (WatchEncoding::Protobuf, protobuf_page(&objects, "t1")),
    ] {
        for size in [7, 64 << 10, usize::MAX] {
            let unheld = collect(filtered(in_chunks(&body, size), encoding)).await;
            assert!(unheld.windows(4).any(|bytes| bytes == b"mine"));
            let mut page = HeldPage::new(filtered(in_chunks(&body, size), encoding));
            assert_eq!(page.next_token().await, None, "{encoding:?} in chunks of {size}");
            assert!(collect(page).await == unheld, "{encoding:?} in chunks of {size}");
        }
    }
}

#[tokio::test]
async fn frames_of_what_has_waited_are_bounded() {
    let body = protobuf_page(&[("a", 300_000)], "");
    let mut page = HeldPage::new(filtered(in_chunks(&body, 1000), WatchEncoding::Protobuf));
    assert_eq!(page.next_token().await, None);
    let mut length = 0;
    while let Some(frame) = page.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() <= MAX_FRAME_BYTES, "{}", data.len());
        length += data.len();
        assert_eq!(page.is_end_stream(), length == body.len());
    }
    assert_eq!(length, body.len());
}

/// Nothing else bounds what stands beside the objects of a list.
#[tokio::test]
async fn page_passes_without_a_kept_object_if_too_many_bytes_wait() {
    let columns = format!(r#"{{"rows":[],"columnDefinitions":"{}"#, "x".repeat(MAX_HELD_BYTES));
    let (sender, mut frames) = mpsc::channel(1);
    sender.send(data(columns.as_bytes())).await.unwrap();
    let body = StreamBody::new(stream::poll_fn(move |cx| frames.poll_recv(cx)));
    let mut page = HeldPage::new(filtered(Box::pin(body), WatchEncoding::Json));
    assert_eq!(page.next_token().await, None, "it does not wait for the end");
    let first = page.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(first.starts_with(br#"{"rows":[],"#));
}

#[tokio::test]
async fn error_of_a_page_comes_behind_what_was_read() {
    let page = json_page(&["a"], "t1");
    let (part, _) = page.split_at(page.len() - 1);
    let ends: [Option<FrameResult>; 2] = [None, Some(Err("reset".into()))];
    for end in ends {
        let mut frames = vec![data(part)];
        frames.extend(end);
        let mut page = HeldPage::new(filtered(upstream(frames), WatchEncoding::Json));
        assert_eq!(page.next_token().await, None, "its objects are not all known");
        assert!(page.frame().await.unwrap().is_ok());
        assert!(!page.is_end_stream());
        assert!(page.frame().await.unwrap().is_err());
        assert!(page.frame().await.is_none());
    }
}

#[tokio::test]
async fn trailers_pass_behind_an_empty_page() {
    let trailers = HeaderMap::from_iter([(http::header::EXPIRES, "0".parse().unwrap())]);
    let frames = vec![data(&json_page(&["a"], "t1")), Ok(Frame::trailers(trailers.clone()))];
    let mut page = HeldPage::new(filtered(upstream(frames), WatchEncoding::Json));
    assert_eq!(page.next_token().await.as_deref(), Some("t1"));
    assert_eq!(page.collect().await.unwrap().trailers(), Some(&trailers));
}

#[tokio::test]
async fn nothing_is_lost_if_the_wait_for_an_object_is_given_up() {
    let body = json_page(&["a", "mine"], "t1");
    let name = body.windows(4).position(|bytes| bytes == b"mine").unwrap();
    let (before, behind) = body.split_at(name);
    let (sender, mut frames) = mpsc::channel(2);
    let inner = StreamBody::new(stream::poll_fn(move |cx| frames.poll_recv(cx)));
    let mut page = HeldPage::new(filtered(Box::pin(inner), WatchEncoding::Json));
    sender.send(data(before)).await.unwrap();
    let polled = poll_fn(|cx| Poll::Ready(page.poll_next_token(cx))).await;
    assert!(polled.is_pending(), "the object is not complete");
    sender.send(data(behind)).await.unwrap();
    drop(sender);
    assert_eq!(collect(page).await, json_page(&["mine"], "t1"));
}
