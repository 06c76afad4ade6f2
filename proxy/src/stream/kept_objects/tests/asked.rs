//! Bodies about whose objects plugins are asked.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;

/// Names of the objects that were asked about, of each call.
type Calls = Rc<RefCell<Vec<Vec<String>>>>;

/// Plugins that keep objects of shard `a`, and fail if they are asked about one with the name `bad`.
fn asked_plugins(calls: &Calls) -> AskedPlugins {
    let calls = Rc::clone(calls);
    AskedPlugins::new(
        MetadataFields::ALL,
        move |objects: &[ObjectMetadata<'_>], are_kept: &mut [bool]| {
            let mut names = Vec::new();
            for (object, is_kept) in objects.iter().zip(are_kept).filter(|(_, is_kept)| **is_kept) {
                names.push(object.name.to_string());
                *is_kept = object.label("shard") == Some("a");
            }
            let has_failed = names.iter().any(|name| name == "bad");
            calls.borrow_mut().push(names);
            if has_failed {
                Err(Reply::undecided_objects("entry", "digest", "it trapped"))
            } else {
                Ok(())
            }
        },
    )
}

/// A filter that asks plugins about the objects that match these predicates, with its counter and the recorded calls.
fn asking(predicates: Vec<Predicate>) -> (KeptObjects, Counter, Calls) {
    let (kept, hidden) = kept_objects(predicates);
    let calls = Calls::default();
    (kept.with_plugins(Some(asked_plugins(&calls))), hidden, calls)
}

fn watch_of(frames: Vec<FrameResult>, kept: KeptObjects) -> impl Body<Data = Bytes, Error = BoxError> + Unpin {
    KeptObjectsBody::watch(upstream(frames), WatchEncoding::Json, kept, STARTS_EMPTY)
}

async fn events_of(frames: Vec<FrameResult>, kept: KeptObjects) -> Vec<Value> {
    let bytes = watch_of(frames, kept).collect().await.unwrap().to_bytes();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

#[tokio::test]
async fn list_has_objects_that_match_and_that_plugins_keep() {
    let list = list_of(&[
        object("a", "x", "a"),
        object("b", "bad", "a"),
        object("a", "y", "b"),
        object("a", "z", "a"),
    ]);
    let (kept, hidden, calls) = asking(vec![in_namespace("a")]);
    let bytes = list_body(vec![data(list.as_bytes())], kept)
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(bytes, list_of(&[object("a", "x", "a"), object("a", "z", "a")]));
    assert_eq!(hidden.get(), 2);
    assert_eq!(*calls.borrow(), [["x", "y", "z"]], "one call for the chunk");
}

#[tokio::test]
async fn plugins_are_not_asked_if_nothing_matches() {
    let list = list_of(&[object("b", "x", "a"), object("b", "y", "a")]);
    let (kept, _, calls) = asking(vec![in_namespace("a")]);
    let bytes = list_body(vec![data(list.as_bytes())], kept)
        .collect()
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(bytes, list_of(&[]));
    assert!(calls.borrow().is_empty());
}

#[tokio::test]
async fn list_is_a_broken_transfer_after_a_failure() {
    let objects = [object("a", "x", "a"), object("a", "bad", "a"), object("a", "y", "a")];
    let list = list_of(&objects);
    for size in [1, 100, list.len()] {
        let (kept, _, calls) = asking(vec![]);
        let mut body = list_body(list.as_bytes().chunks(size).map(data).collect(), kept);
        let mut passed = Vec::new();
        let error = loop {
            match body.frame().await.unwrap() {
                Ok(frame) => passed.extend_from_slice(&frame.into_data().unwrap()),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("it trapped"), "{error}");
        assert!(body.frame().await.is_none() && body.is_end_stream());
        let passed = String::from_utf8(passed).unwrap();
        assert!(!passed.contains("bad") && !passed.contains(r#""name":"y""#), "{passed}");
        assert_eq!(
            calls
                .borrow()
                .last()
                .unwrap()
                .iter()
                .filter(|name| *name == "bad")
                .count(),
            1
        );
    }
}

#[tokio::test]
async fn failure_of_a_plugin_is_no_body_that_cannot_be_read() {
    let unfilterable = Counter::default();
    let kept = KeptObjects::new(
        [].into(),
        DroppedFields::default(),
        Counter::default(),
        unfilterable.clone(),
    );
    let kept = kept.with_plugins(Some(asked_plugins(&Calls::default())));
    let list = list_of(&[object("a", "bad", "a")]);
    assert!(list_body(vec![data(list.as_bytes())], kept).collect().await.is_err());
    assert_eq!(unfilterable.get(), 0);
}

#[tokio::test]
async fn watch_remembers_what_plugins_have_kept() {
    let (kept, _, _) = asking(vec![]);
    let frames = [
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("MODIFIED", "b"),
        ("MODIFIED", "b"),
        ("DELETED", "b"),
    ];
    let frames = frames.map(|(event_type, shard)| data(event(event_type, &object("a", "x", shard)).as_bytes()));
    let events = events_of(frames.into(), kept).await;
    assert_eq!(types_and_names(&events), [("ADDED", "x"), ("DELETED", "x")]);
}

/// A list of three objects, of which plugins keep `first` and `third`.
fn encoded_list(encoding: WatchEncoding) -> Vec<u8> {
    let objects = [("first", "a"), ("second", "b"), ("third", "a")];
    let items = objects.map(|(name, shard)| object("a", name, shard));
    let list = list_of(&items);
    match encoding {
        WatchEncoding::Json => list.into_bytes(),
        WatchEncoding::Cbor => cbor(&serde_json::from_str(&list).unwrap()),
        WatchEncoding::Protobuf => {
            let items = objects.map(|(name, shard)| {
                let label = Message::new().string(1, "shard").string(2, shard);
                let metadata = Message::new().string(1, name).string(3, "a").message(11, &label);
                Message::new().message(1, &metadata)
            });
            let list = Message::new().message(1, &Message::new());
            let list = items.iter().fold(list, |list, item| list.message(2, item));
            envelope("v1", "ConfigMapList", &list)
        }
    }
}

fn has_text(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn plugins_decide_on_lists_in_every_encoding() {
    for encoding in ENCODINGS {
        let list = encoded_list(encoding);
        for size in [1, list.len()] {
            let (kept, hidden, calls) = asking(vec![]);
            let frames = list.chunks(size).map(data).collect();
            let body = KeptObjectsBody::list(upstream(frames), encoding, kept);
            let bytes = body.collect().await.unwrap().to_bytes();
            let shown = ["first", "second", "third"].map(|name| has_text(&bytes, name));
            assert_eq!(shown, [true, false, true], "{encoding:?}, chunks of {size}");
            assert_eq!(hidden.get(), 1);
            let names = calls.borrow().concat();
            assert_eq!(names, ["first", "second", "third"], "{encoding:?}, chunks of {size}");
            if size == list.len() {
                assert_eq!(calls.borrow().len(), 1, "{encoding:?}: one call for the chunk");
            }
        }
    }
}

#[tokio::test]
async fn plugins_decide_on_watches_in_every_encoding() {
    for encoding in ENCODINGS {
        let frames = MOVES_OF_OBJECT.map(|(event_type, shard)| data(&encoded_event(encoding, event_type, shard)));
        let (kept, hidden, calls) = asking(vec![]);
        let mut body = KeptObjectsBody::watch(upstream(frames.into()), encoding, kept, STARTS_EMPTY);
        let added = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(added, encoded_event(encoding, "ADDED", "a"), "{encoding:?}");
        let deleted = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(
            has_text(&deleted, "DELETED") && !has_text(&deleted, "shard"),
            "{encoding:?}: {deleted:?}"
        );
        assert!(body.frame().await.is_none(), "{encoding:?}");
        assert_eq!(hidden.get(), 3, "{encoding:?}");
        assert_eq!(*calls.borrow(), [["x"]; 5], "{encoding:?}: one call for each event");
    }
}

#[tokio::test]
async fn failed_plugin_ends_watch_with_error_event_in_every_encoding() {
    for encoding in ENCODINGS {
        let (kept, _) = kept_objects(vec![]);
        let failing = AskedPlugins::new(MetadataFields::ALL, |_: &[ObjectMetadata<'_>], _: &mut [bool]| {
            Err(Reply::undecided_objects("entry", "digest", "it trapped"))
        });
        let frames = vec![data(&encoded_event(encoding, "ADDED", "a"))];
        let kept = kept.with_plugins(Some(failing));
        let body = KeptObjectsBody::watch(upstream(frames), encoding, kept, STARTS_EMPTY);
        let bytes = body.collect().await.unwrap().to_bytes();
        assert!(
            has_text(&bytes, "ERROR") && has_text(&bytes, "it trapped"),
            "{encoding:?}: {bytes:?}"
        );
        assert!(!has_text(&bytes, "ADDED"), "{encoding:?}: {bytes:?}");
    }
}

#[tokio::test]
async fn failed_plugin_stops_all_events_of_chunk() {
    let added = |name: &str| event("ADDED", &object("a", name, "a"));
    let bookmark = event(
        "BOOKMARK",
        &json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "resourceVersion": "9" } }),
    );
    for chunk in [
        format!("{}{}{bookmark}", added("y"), added("bad")),
        format!("{}{bookmark}{}", added("bad"), added("y")),
    ] {
        let (kept, _, calls) = asking(vec![]);
        let frames = vec![
            data(added("x").as_bytes()),
            data(chunk.as_bytes()),
            data(added("z").as_bytes()),
        ];
        let events = events_of(frames, kept).await;
        assert_eq!(types_and_names(&events), [("ADDED", "x"), ("ERROR", "")], "{chunk}");
        assert_eq!(events[1]["object"]["code"], 502);
        assert_eq!(
            calls.borrow().last().unwrap(),
            &["bad"],
            "nobody is asked after a failure"
        );
    }
}

#[test]
fn fields_of_predicates_and_plugins_are_read() {
    let (kept, _) = kept_objects(vec![with_labels("a=b")]);
    let only_names = MetadataFields {
        name: true,
        ..MetadataFields::default()
    };
    let kept = kept.with_plugins(Some(AskedPlugins::new(
        only_names,
        |_: &[ObjectMetadata<'_>], _: &mut [bool]| Ok(()),
    )));
    let fields = kept.fields();
    assert!(fields.name && fields.labels && !fields.annotations);
    assert!(kept.is_mutable());
}
