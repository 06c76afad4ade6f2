//! Only the object of an event is renamed, and malformed or oversized events end the watch.

use proptest::prelude::*;

use super::*;
use crate::protobuf::{Message, envelope};

fn lock_rename() -> Rename {
    Rename {
        from: "lock".into(),
        to: "lock---a".into(),
    }
}

/// Pushes the text in chunks and gives what came out, chunk by chunk.
fn rename_watch(encoding: WatchEncoding, chunks: &[&[u8]]) -> Result<Vec<Vec<u8>>, RenameError> {
    let mut renamer = WatchRenamer::new(encoding, lock_rename());
    chunks.iter().map(|chunk| renamer.push(chunk)).collect()
}

#[test]
fn json_event_is_emitted_as_soon_as_it_is_complete() {
    let event = r#"{"type":"ADDED","object":{"kind":"Lease","metadata":{"name":"lock","x":"}{\"lock\""}}}"#;
    let expected = event.replace("\"name\":\"lock\"", "\"name\":\"lock---a\"");
    let (head, tail) = event.as_bytes().split_at(30);
    let out = rename_watch(
        WatchEncoding::Json,
        &[head, tail, b"\n", event.as_bytes(), b"\n{\"type\":\"BOOKMARK\"}\n"],
    )
    .unwrap();
    let expected: [&[u8]; 5] = [
        b"",
        expected.as_bytes(),
        b"\n",
        expected.as_bytes(),
        b"\n{\"type\":\"BOOKMARK\"}\n",
    ];
    assert_eq!(out, expected);
}

#[test]
fn line_feed_is_emitted_without_waiting_for_the_next_event() {
    let out = rename_watch(WatchEncoding::Json, &[b"{}\n{\"a\":", b"1}"]).unwrap();
    assert_eq!(out, [&b"{}\n"[..], b"{\"a\":1}"]);
}

#[test]
fn idle_watch_releases_memory() {
    let data = "x".repeat(1 << 20);
    let event = format!(
        r#"{{"type":"ADDED","object":{{"kind":"ConfigMap","metadata":{{"name":"lock"}},"data":{{"x":"{data}"}}}}}}"#
    );
    let (head, tail) = event.split_at(event.len() / 2);
    let mut renamer = WatchRenamer::new(WatchEncoding::Json, lock_rename());
    let mut out = Vec::new();
    for chunk in [head, tail, "\n"] {
        out.extend(renamer.push(chunk.as_bytes()).unwrap());
    }
    assert!(out.len() > event.len() && !renamer.is_mid_event());
    assert!(renamer.pending.capacity() <= MAX_IDLE_BYTES);
}

#[test]
fn only_the_object_of_a_watch_event_is_renamed() {
    let out = rename_watch(
        WatchEncoding::Json,
        &[br#"{"metadata":{"name":"lock"},"object":{"kind":"Status","message":"\"lock\""}}"#],
    );
    assert_eq!(
        out.unwrap()[0],
        br#"{"metadata":{"name":"lock"},"object":{"kind":"Status","message":"\"lock---a\""}}"#
    );
}

#[test]
fn broken_and_oversized_watches_end() {
    assert!(rename_watch(WatchEncoding::Json, &[b"x"]).is_err());
    assert!(rename_watch(WatchEncoding::Json, &[b"{]"]).is_err());
    assert!(matches!(
        rename_watch(WatchEncoding::Cbor, &[b"\xd9"]),
        Err(RenameError::Unsupported(_))
    ));
    assert_eq!(
        rename_watch(WatchEncoding::Protobuf, &[&[0xff; 4]]),
        Err(RenameError::EventTooLarge)
    );
    let half = vec![b' '; MAX_WATCH_EVENT_BYTES / 2];
    assert_eq!(
        rename_watch(WatchEncoding::Json, &[b"{1234", &half, &half]),
        Err(RenameError::EventTooLarge)
    );
    let mut renamer = WatchRenamer::new(WatchEncoding::Json, lock_rename());
    renamer.push(b"{}\n{").unwrap();
    assert!(renamer.is_mid_event());
}

#[test]
fn events_are_passed_on_unchanged() {
    let json = br#"{"type":"ADDED","object":{"metadata":{"name":"lock"}}}"#;
    let lease = Message::new().message(1, &Message::new().string(1, "lock"));
    let lease = Message::new().bytes(1, &envelope("coordination.k8s.io/v1", "Lease", &lease));
    let message = Message::new().string(1, "ADDED").message(2, &lease).finish();
    let framed = [&u32::try_from(message.len()).unwrap().to_be_bytes(), &*message].concat();
    for (encoding, stream, event) in [
        (WatchEncoding::Json, &json[..], &json[..]),
        (WatchEncoding::Protobuf, &*framed, &*message),
    ] {
        let mut renamer = WatchRenamer::new(encoding, lock_rename());
        let (head, tail) = stream.split_at(20);
        let mut seen = Vec::new();
        for chunk in [head, tail, stream] {
            renamer.push_seen(chunk, |event| seen.push(event.to_vec())).unwrap();
        }
        assert_eq!(seen, [event, event], "{encoding:?}");
    }
}

proptest! {
    #[test]
    fn renamed_watch_does_not_depend_on_chunks(cuts in prop::collection::vec(1_usize..40, 1..12)) {
        let text = br#"{"type":"ADDED","object":{"metadata":{"name":"lock"}}}
 {"type":"MODIFIED","object":{"a":"\\\"}{","metadata":{"name":"lock"}}}
{"type":"BOOKMARK","object":{}}
"#;
        let whole = rename_watch(WatchEncoding::Json, &[text]).unwrap().concat();
        let mut renamer = WatchRenamer::new(WatchEncoding::Json, lock_rename());
        let mut out = Vec::new();
        let mut rest = &text[..];
        for cut in cuts.iter().cycle() {
            let (chunk, behind) = rest.split_at((*cut).min(rest.len()));
            out.extend(renamer.push(chunk).unwrap());
            rest = behind;
            if rest.is_empty() { break; }
        }
        prop_assert_eq!(out, whole);
        prop_assert!(!renamer.is_mid_event());
    }
}
