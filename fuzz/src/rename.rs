//! Renaming: a first byte that selects the encoding, then the body.

use ctrlmesh_wire::rename::{self, Rename, WatchRenamer};
use ctrlmesh_wire::{LockRecord, WatchEncoding, lock_record, watched_lock_record};

const FROM: &str = "lock";
const TO: &str = "lock---a";

/// Encodings, and the beginning of their bodies.
const ENCODINGS: [(&str, &[u8]); 5] = [
    ("application/json", b""),
    ("application/json-patch+json", b""),
    ("application/apply-patch+yaml", b""),
    ("application/vnd.kubernetes.protobuf", b""),
    ("application/vnd.kubernetes.protobuf", b"k8s\0"),
];

/// No panic; a renamed body can be read again; renaming there, back and there is the same as once; a body without the name is unchanged;
/// chunk boundaries in a watch do not matter; the record of a lock keeps everything but the name.
pub fn rename(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else {
        return;
    };
    let (content_type, head) = ENCODINGS[usize::from(*choice) % ENCODINGS.len()];
    round_trip(content_type, &[head, body].concat());
    for encoding in [WatchEncoding::Json, WatchEncoding::Protobuf] {
        rename_in_chunks(encoding, body, usize::from(*choice) / ENCODINGS.len() + 1);
    }
    if let Ok(query) = std::str::from_utf8(body)
        && let Ok(Some(renamed)) = rename::field_selector(query, &rename_forward())
    {
        assert!(
            rename::field_selector(&renamed, &rename_forward())
                .expect("a renamed query is read")
                .is_none()
        );
    }
}

fn rename_forward() -> Rename {
    Rename {
        from: FROM.into(),
        to: TO.into(),
    }
}

fn round_trip(content_type: &str, body: &[u8]) {
    let nameless = |record| LockRecord {
        name: String::new(),
        ..record
    };
    let said = |body: &[u8]| lock_record(content_type, body).map(nameless);
    let before = said(body);
    let Ok(Some(renamed)) = rename::body(content_type, body, &rename_forward()) else {
        return;
    };
    assert_eq!(said(&renamed), before);
    let is_ambiguous = crate::contains_text(body, TO) || body.contains(&b'\\');
    if is_ambiguous {
        return;
    }
    let apply = |body: &[u8], rename: &Rename| {
        rename::body(content_type, body, rename)
            .expect("a renamed body is read")
            .expect("it holds the name")
    };
    let back = apply(&renamed, &rename_forward().reversed());
    assert_eq!(apply(&back, &rename_forward()), renamed);
    if content_type.ends_with("json") {
        assert_eq!(back, body);
    }
}

fn rename_in_chunks(encoding: WatchEncoding, stream: &[u8], size: usize) {
    let _ = watched_lock_record(encoding, stream);
    let push = |size: usize| -> (Vec<u8>, bool) {
        let mut renamer = WatchRenamer::new(encoding, rename_forward());
        let mut out = Vec::new();
        for chunk in stream.chunks(size) {
            match renamer.push(chunk) {
                Ok(events) => out.extend(events),
                Err(_) => return (out, false),
            }
        }
        (out, true)
    };
    let (whole, is_whole_right) = push(stream.len().max(1));
    let (cut, is_cut_right) = push(size);
    assert_eq!(is_whole_right, is_cut_right);
    // A broken stream yields what was complete before the break, if that came in a chunk of its own.
    assert!(if is_whole_right {
        whole == cut
    } else {
        cut.starts_with(&whole)
    });
}
