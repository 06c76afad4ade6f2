//! Ends of values, and positions of members.

use proptest::prelude::*;

use super::*;

const fn level(name: &'static str) -> Level {
    Level {
        name,
        noted: Noted::All,
    }
}

const LONG_PATH: Path = &[level("ob"), level("me")];
const SHORT_PATH: Path = &[level("a"), level("m")];

/// Scans the text in chunks of this size. Gives the number of bytes up to the end, and the members.
fn scan_chunks(text: &[u8], path: Option<Path>, size: usize) -> Result<(Option<usize>, Vec<Member>), FilterError> {
    let mut scanner = Scanner::default();
    scanner.restart(path);
    let mut consumed = 0;
    for chunk in text.chunks(size) {
        if let Some(end) = scanner.scan(chunk)? {
            return Ok((Some(consumed + end), scanner.members().to_vec()));
        }
        consumed += chunk.len();
    }
    Ok((None, scanner.members().to_vec()))
}

fn member_texts<'a>(text: &'a str, members: &[Member]) -> Vec<(usize, &'a str, &'a str)> {
    let texts = members
        .iter()
        .map(|member| (member.depth, &text[member.key.clone()], &text[member.tail.clone()]));
    texts.collect()
}

#[test]
fn end_of_value_is_found_in_chunks_of_any_size() {
    let values = [
        "{}",
        "[]",
        "\"\"",
        "\"}{\\\"\\\\\"",
        "{\"a\":[1,2.5e+3,{\"b\":null}],\"c\\u0041\":\"}\"}",
        "[ [ ] , { } , true , \"a string of more than eight bytes, \\\" and more\" ]",
    ];
    for value in values {
        let text = format!("{value},\"more");
        for size in [1, 2, 3, 7, 1000] {
            let (end, _) = scan_chunks(text.as_bytes(), None, size).unwrap();
            assert_eq!(end, Some(value.len()), "{value} in chunks of {size}");
        }
    }
}

#[test]
fn unfinished_value_has_no_end() {
    let value = br#"{"a":["\\",{"b":12}]}"#;
    for length in 0..value.len() {
        assert_eq!(scan_chunks(&value[..length], None, 3).unwrap().0, None, "{length}");
    }
}

#[test]
fn broken_structure_is_malformed() {
    let texts = [
        "{]",
        "[}",
        "[1}",
        "{\"a\"}",
        "{\"a\" 1}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{1:2}",
        "{,}",
        "[,1]",
        "[1,]",
        "[1 2]",
        "[\"a\"\"b\"]",
        "{\"a\":1 \"b\":2}",
        "[\"\n\"]",
        "[\"12345678\u{1}\"]",
        "[\"\\x\"]",
        "}",
        ":",
        "x",
        "[1,,2]",
    ];
    for text in texts {
        for size in [1, 2, 1000] {
            let outcome = scan_chunks(text.as_bytes(), Some(SHORT_PATH), size);
            assert!(
                matches!(outcome, Err(FilterError::Malformed { .. })),
                "{text}: {outcome:?}"
            );
        }
    }
}

#[test]
fn nesting_and_members_are_bounded() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    // As in Go.
    assert!(scan_chunks(nested(10_000).as_bytes(), None, 7).is_ok());
    assert!(scan_chunks(nested(10_001).as_bytes(), None, 7).is_err());
    let object = |members: usize| format!("{{{}}}", vec!["\"a\":1"; members].join(","));
    assert!(scan_chunks(object(MAX_MEMBERS).as_bytes(), Some(&[]), 7).is_ok());
    assert!(scan_chunks(object(MAX_MEMBERS + 1).as_bytes(), Some(&[]), 7).is_err());
    assert!(scan_chunks(object(MAX_MEMBERS + 1).as_bytes(), None, 7).is_ok());
}

#[test]
fn members_on_the_path_are_noted() {
    let text = r#"{"a":[{"b":1}], "ob":{"x":{"y":2},"me":{"n" : 3}},"\u006fb":{"z":4},"c":{"d":5}}"#;
    let expected = [
        (1, r#""a""#, r#":[{"b":1}]"#),
        (1, r#""ob""#, r#":{"x":{"y":2},"me":{"n" : 3}}"#),
        (2, r#""x""#, r#":{"y":2}"#),
        (2, r#""me""#, r#":{"n" : 3}"#),
        (3, r#""n""#, " : 3"),
        (1, r#""\u006fb""#, r#":{"z":4}"#),
        (2, r#""z""#, ":4"),
        (1, r#""c""#, r#":{"d":5}"#),
    ];
    for size in [1, 2, 3, 7, 1000] {
        let (_, members) = scan_chunks(text.as_bytes(), Some(LONG_PATH), size).unwrap();
        assert_eq!(member_texts(text, &members), expected, "chunks of {size}");
    }
}

#[test]
fn only_members_with_names_are_noted_and_none_below_other_keys() {
    const NAMED_PATH: Path = &[Level {
        name: "metadata",
        noted: Noted::Names(&["metadata", "kind"]),
    }];
    let text = r#"{"settings":{"a":1},"spec":{"b":2},"other":3,"kind":"K","a\"b":{"c":4},"metadata":{"x":5},
        "\u212aind":6,
        "m\u0065tadata":{"y":7},"\u006d\u0065\u0074\u0061\u0064\u0061\u0074\u0061":{"z":8},"other":{"d":9}}"#;
    let kelvin = "{\"\u{212a}ind\":{},\"others\":{}}";
    let noted_keys = |text: &str, size: usize| {
        let (_, members) = scan_chunks(text.as_bytes(), Some(NAMED_PATH), size).unwrap();
        let keys = members.iter().map(|member| text[member.key.clone()].to_owned());
        keys.collect::<Vec<_>>()
    };
    for size in [1, 2, 3, 7, 1000] {
        let expected = [
            r#""settings""#,
            r#""spec""#,
            r#""kind""#,
            r#""a\"b""#,
            r#""metadata""#,
            r#""x""#,
            r#""\u212aind""#,
            r#""m\u0065tadata""#,
            r#""y""#,
            r#""\u006d\u0065\u0074\u0061\u0064\u0061\u0074\u0061""#,
            r#""z""#,
        ];
        assert_eq!(noted_keys(text, size), expected, "chunks of {size}");
        assert_eq!(noted_keys(kelvin, size), ["\"\u{212a}ind\""], "chunks of {size}");
    }
}

#[test]
fn value_of_a_noted_member_ends_before_members_that_are_not_noted() {
    const NAMED_PATH: Path = &[Level {
        name: "metadata",
        noted: Noted::Names(&["metadata"]),
    }];
    let text = r#"{"metadata":{},"a":[1],"b":{"c":2}}"#;
    let (_, members) = scan_chunks(text.as_bytes(), Some(NAMED_PATH), 1000).unwrap();
    assert_eq!(member_texts(text, &members), [(1, r#""metadata""#, ":{}")]);
}

proptest! {
    #[test]
    fn special_bytes_are_found_as_by_a_plain_search(
        bytes in prop::collection::vec(prop_oneof![8 => Just(b'!'), 1 => Just(b'\\'), 2 => any::<u8>()], 0..40),
        from in 0_usize..40,
    ) {
        let from = from.min(bytes.len());
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
        let expected = bytes[from..].iter().position(is_special).map_or(bytes.len(), |position| from + position);
        prop_assert_eq!(special_position(&bytes, from), expected);
    }

    #[test]
    fn chunks_do_not_change_what_is_found(text in r#"[{}\[\]",:am\\ 0-9u]{0,48}"#, size in 1_usize..9) {
        let whole = scan_chunks(text.as_bytes(), Some(SHORT_PATH), 1000);
        prop_assert_eq!(scan_chunks(text.as_bytes(), Some(SHORT_PATH), size), whole);
    }
}
