//! Metadata of one object.

use super::*;

fn scanned(text: &[u8], path: Path) -> Scanner {
    let mut scanner = Scanner::default();
    scanner.restart(Some(path));
    assert_eq!(
        scanner.scan(text),
        Ok(Some(text.len())),
        "{}",
        String::from_utf8_lossy(text)
    );
    scanner
}

fn metadata_of(text: &[u8], fields: MetadataFields) -> Result<ObjectMetadata<'_>, FilterError> {
    read_metadata(&Members::of_text(text, scanned(text, OBJECT_PATH).members()), fields)
}

/// An object with these members of metadata.
fn object(metadata: &str) -> String {
    format!("{{\"spec\":{{\"uid\":\"other\"}},\"metadata\":{{{metadata}}},\"status\":{{}}}}")
}

#[test]
fn fields_are_read() {
    let text = object(
        r#""annotations" : {"a":"\u00e4\n"}, "labels":{"k":"1","k" :"2", "n":null}, "managedFields":[{"uid":"x"}],
        "name":"n","namespace":"s","ownerReferences":[{"uid":"0","controller":false},
        {"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"1","controller":true},
        {"uid":"2","controller":true}],"resourceVersion":"7","uid":"u""#,
    );
    let read = metadata_of(text.as_bytes(), MetadataFields::ALL).unwrap();
    let expected = ObjectMetadata {
        namespace: "s".into(),
        name: "n".into(),
        uid: "u".into(),
        resource_version: "7".into(),
        labels: vec![
            ("k".into(), "1".into()),
            ("k".into(), "2".into()),
            ("n".into(), "".into()),
        ],
        annotations: vec![("a".into(), "\u{e4}\n".into())],
        controller: Some(Controller {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "r".into(),
            uid: "1".into(),
        }),
    };
    assert_eq!(read, expected);
    assert_eq!(read.label("k"), Some("2"));
    let read = metadata_of(text.as_bytes(), MetadataFields::default()).unwrap();
    assert_eq!(read, ObjectMetadata::default());
}

#[test]
fn escaped_keys_count() {
    let text = object(r#""u\u0069d":"b""#);
    assert_eq!(metadata_of(text.as_bytes(), MetadataFields::ALL).unwrap().uid, "b");
}

#[test]
fn text_that_occurs_twice_is_malformed() {
    let metadata = ["namespace", "name", "uid", "resourceVersion"]
        .map(|name| format!(r#""{name}":"a","{name}":"b""#))
        .into_iter();
    let owners = ["apiVersion", "kind", "name", "uid"]
        .map(|name| format!(r#""ownerReferences":[{{"{name}":"a","{name}":"b"}}]"#))
        .into_iter();
    let others = [
        r#""uid":"a","u\u0069d":"b""#,
        r#""uid":null,"uid":"b""#,
        r#""ownerReferences":[{"controller":true,"controller":false}]"#,
    ];
    for members in metadata.chain(owners).chain(others.map(str::to_owned)) {
        let text = object(&members);
        let outcome = metadata_of(text.as_bytes(), MetadataFields::ALL);
        assert!(
            matches!(outcome, Err(FilterError::Malformed { .. })),
            "{text}: {outcome:?}"
        );
    }
}

#[test]
fn ambiguous_or_broken_metadata_is_malformed() {
    let cases: [&[u8]; 11] = [
        br#"{"metadata":{"uid":"a"},"metadata":{}}"#,
        br#"{"metadata":{"uid":"a"},"met\u0061data":null}"#,
        br#"{"metadata":{"uid":"a","uid":null}}"#,
        br#"{"metadata":{"uid":1}}"#,
        br#"{"metadata":{"uid":"\ud800"}}"#,
        b"{\"metadata\":{\"uid\":\"\xff\"}}",
        br#"{"metadata":{"labels":{"a":1}}}"#,
        br#"{"metadata":{"labels":{},"labels":{}}}"#,
        br#"{"metadata":{"annotations":[]}}"#,
        br#"{"metadata":{"ownerReferences":[null]}}"#,
        br#"{"metadata":{"ownerReferences":[],"ownerReferences":[]}}"#,
    ];
    for text in cases {
        let outcome = metadata_of(text, MetadataFields::ALL);
        let text = String::from_utf8_lossy(text);
        assert!(
            matches!(outcome, Err(FilterError::Malformed { .. })),
            "{text}: {outcome:?}"
        );
    }
}

#[test]
fn object_without_metadata_is_refused() {
    for text in [
        "{}",
        r#"{"metadata":null}"#,
        r#"{"metadata":[]}"#,
        r#"{"Metadata":{}}"#,
        r#"{"spec":{"metadata":{}}}"#,
    ] {
        assert_eq!(
            metadata_of(text.as_bytes(), MetadataFields::ALL),
            Err(FilterError::NoMetadata),
            "{text}"
        );
    }
}

#[test]
fn row_has_the_metadata_of_its_object() {
    let uid_of = |text: &str| {
        let scanner = scanned(text.as_bytes(), ROW_PATH);
        let read = read_row(
            &Members::of_text(text.as_bytes(), scanner.members()),
            MetadataFields::ALL,
        );
        read.map(|metadata| metadata.uid.into_owned())
    };
    let row = r#"{"cells":[{"metadata":{"uid":"x"}}],"object":{"kind":"P","metadata":{"uid":"u"}}}"#;
    assert_eq!(uid_of(row), Ok("u".to_owned()));
    assert_eq!(
        uid_of(r#"{"cells":[],"metadata":{"uid":"x"},"object":null}"#),
        Err(FilterError::NoMetadata)
    );
    assert_eq!(
        uid_of(r#"{"subjec":{"metadata":{"uid":"x"}},"object":{}}"#),
        Err(FilterError::NoMetadata)
    );
    assert_eq!(uid_of(r#"{"cells":[]}"#), Err(FilterError::NoMetadata));
}
