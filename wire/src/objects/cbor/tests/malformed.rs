//! Violations of CBOR and of the API's use of it, in lists and in watches.

use super::CHUNK_SIZES;
use crate::objects::{CborListFilter, CborWatchFilter, EventDecision, FilterError, MetadataFields};

fn list_error(body: &[u8], chunk_size: usize) -> Option<FilterError> {
    let mut filter = CborListFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut chunks = body.chunks(chunk_size);
    let error = chunks.find_map(|chunk| filter.push(chunk, &mut out, &mut |_, _| {}).err())?;
    // Nothing passes behind an error.
    out.clear();
    assert_eq!(filter.push(b"\xff", &mut out, &mut |_, _| {}), Err(error));
    assert_eq!(filter.finish(), Err(error));
    assert!(out.is_empty());
    Some(error)
}

fn watch_error(body: &[u8], chunk_size: usize) -> Option<FilterError> {
    let mut filter = CborWatchFilter::new(MetadataFields::ALL);
    let mut out = Vec::new();
    let mut chunks = body.chunks(chunk_size);
    let error = chunks.find_map(|chunk| {
        let result = filter.push(chunk, &mut out, &mut |_, _| EventDecision::Keep);
        result.err()
    })?;
    assert_eq!(
        filter.push(b"\xa0", &mut out, &mut |_, _| EventDecision::Keep),
        Err(error)
    );
    assert!(out.is_empty());
    Some(error)
}

fn is_malformed(error: Option<FilterError>) -> bool {
    matches!(error, Some(FilterError::Malformed { format: "CBOR", .. }))
}

/// Values that violate CBOR, wherever they stand.
fn broken_values() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("reserved number", b"\x1c".to_vec()),
        ("reserved array", b"\x9d".to_vec()),
        ("reserved string", b"\x5e".to_vec()),
        ("number of indefinite length", b"\x1f".to_vec()),
        ("tag of indefinite length", b"\xdf\x00".to_vec()),
        ("break without array", b"\xff".to_vec()),
        ("break in a definite array", b"\x81\xff".to_vec()),
        ("break behind a tag", b"\x9f\xc1\xff".to_vec()),
        ("break instead of a value", b"\xbf\x41a\xff".to_vec()),
        ("chunk of another type", b"\x5f\x61a\xff".to_vec()),
        ("chunk of indefinite length", b"\x5f\x5f\x41a\xff\xff".to_vec()),
        ("long simple value", b"\xf8\x10".to_vec()),
        (
            "map of too many entries",
            b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
        ),
        ("undefined", b"\xf7".to_vec()),
        ("nested arrays", [vec![0x81; 10_001], vec![0]].concat()),
        ("nested arrays of indefinite length", vec![0x9f; 10_001]),
    ]
}

#[test]
fn broken_value_is_refused_everywhere() {
    for (case, value) in broken_values() {
        let lists = [
            [&b"\xa1\x41a"[..], &value].concat(),
            [&b"\xa1\x44kind"[..], &value].concat(),
            [&b"\xa2\x45items\x80\x48metadata"[..], &value].concat(),
            [&b"\xa1\x45items\x81"[..], &value].concat(),
            [&b"\xa1\x45items\x81\xa2\x48metadata\xa0\x44spec"[..], &value].concat(),
        ];
        let event = [
            &b"\xd9\xd9\xf7\xa2\x44type\x45ADDED\x46object\xa1\x48metadata\xa1\x41x"[..],
            &value,
        ]
        .concat();
        for chunk_size in CHUNK_SIZES {
            for list in &lists {
                let error = list_error(list, chunk_size);
                assert!(is_malformed(error), "{case}: {error:?} of {list:x?}");
            }
            let error = watch_error(&event, chunk_size);
            assert!(is_malformed(error), "{case} in an event: {error:?}");
        }
    }
}

#[test]
fn broken_list_is_refused() {
    let cases: [(&str, &[u8]); 9] = [
        ("key twice", b"\xa2\x41a\x00\x41a\x00"),
        ("key twice, as bytes and as text", b"\xa2\x41a\x00\x61a\x00"),
        ("items twice", b"\xa2\x45items\x80\x45items\x80"),
        ("key that is a number", b"\xa1\x00\x00"),
        ("key that is tagged", b"\xa1\xc1\x41a\x00"),
        ("key that is not UTF-8", b"\xa1\x41\xff\x00"),
        ("kind that is a number", b"\xa1\x44kind\x00"),
        ("bytes behind the list", b"\xa1\x45items\x80\x00"),
        ("break instead of a value", b"\xbf\x41a\xff"),
    ];
    for (case, list) in cases {
        for chunk_size in CHUNK_SIZES {
            let error = list_error(list, chunk_size);
            assert!(is_malformed(error), "{case}: {error:?}");
        }
    }
}

#[test]
fn broken_metadata_is_refused() {
    let cases: [(&str, &[u8]); 14] = [
        ("key of object twice", b"\xa3\x48metadata\xa0\x41a\x00\x41a\x00"),
        ("metadata twice", b"\xa2\x48metadata\xa0\x48metadata\xa0"),
        ("key of metadata twice", b"\xa1\x48metadata\xa2\x41a\x00\x41a\x00"),
        ("label twice", b"\xa1\x48metadata\xa1\x46labels\xa2\x41a\x40\x41a\x40"),
        ("key that is a number", b"\xa1\x48metadata\xa1\x00\x00"),
        ("name that is a number", b"\xa1\x48metadata\xa1\x44name\x00"),
        ("name that is tagged", b"\xa1\x48metadata\xa1\x44name\xd6\x41a"),
        ("name that is not UTF-8", b"\xa1\x48metadata\xa1\x44name\x41\xff"),
        (
            "chunks that are not UTF-8",
            b"\xa1\x48metadata\xa1\x44name\x5f\x41\xff\x41a\xff",
        ),
        (
            "character between chunks of text",
            b"\xa1\x48metadata\xa1\x44name\x7f\x61\xc3\x61\xa9\xff",
        ),
        ("labels that are an array", b"\xa1\x48metadata\xa1\x46labels\x80"),
        ("label that is a number", b"\xa1\x48metadata\xa1\x46labels\xa1\x41a\x00"),
        ("owners that are a map", b"\xa1\x48metadata\xa1\x4fownerReferences\xa0"),
        (
            "controller that is a number",
            b"\xa1\x48metadata\xa1\x4fownerReferences\x81\xa1\x4acontroller\x01",
        ),
    ];
    for (case, object) in cases {
        let list = [&b"\xa1\x45items\x81"[..], object].concat();
        let event = [&b"\xd9\xd9\xf7\xa2\x44type\x45ADDED\x46object"[..], object].concat();
        for chunk_size in CHUNK_SIZES {
            let error = list_error(&list, chunk_size);
            assert!(is_malformed(error), "{case}: {error:?}");
            let error = watch_error(&event, chunk_size);
            assert!(is_malformed(error), "{case} in an event: {error:?}");
        }
    }
}

#[test]
fn map_of_many_keys_is_read_and_its_duplicates_are_refused() {
    let mut object = b"\xbf\x48metadata\xbf\x46labels\xbf".to_vec();
    for key in b'a'..=b'z' {
        object.extend([0x41, key, 0x40]);
    }
    let whole = [&b"\xa1\x45items\x81"[..], &object, b"\xff\xff\xff"].concat();
    assert_eq!(list_error(&whole, 7), None);
    for key in [b'a', b'z'] {
        let twice = [&b"\xa1\x45items\x81"[..], &object, &[0x41, key, 0x40], b"\xff\xff\xff"].concat();
        assert!(is_malformed(list_error(&twice, 7)));
    }
}

#[test]
fn broken_event_is_refused() {
    let cases: [(&str, &[u8]); 5] = [
        ("event that is an array", b"\xd9\xd9\xf7\x80"),
        ("break between events", b"\xff"),
        ("type that is a number", b"\xa1\x44type\x00"),
        ("type twice", b"\xa2\x44type\x45ADDED\x44type\x48BOOKMARK"),
        ("object twice", b"\xa3\x44type\x48BOOKMARK\x46object\xa0\x46object\xa0"),
    ];
    for (case, event) in cases {
        for chunk_size in CHUNK_SIZES {
            let error = watch_error(event, chunk_size);
            assert!(is_malformed(error), "{case}: {error:?}");
        }
    }
}
