//! Reading and editing queries.

use proptest::prelude::*;

use super::*;

fn set_parameter(raw: &str, value: &str) -> String {
    let mut editor = QueryEditor::new(raw);
    editor.set("labelSelector", value);
    editor.finish()
}

#[test]
fn first_value_wins() {
    let query = Query::new("labelSelector=a%3D0&labelSelector=a%3D1");
    assert_eq!(query.get("labelSelector").unwrap(), "a=0");
    assert_eq!(
        Query::new("labelSelector=&labelSelector=a")
            .get("labelSelector")
            .unwrap(),
        ""
    );
    assert_eq!(Query::new("watch").get("watch").unwrap(), "");
    assert_eq!(Query::new("").get("watch"), None);
    assert_eq!(Query::new("=x").get("").unwrap(), "x");
}

#[test]
fn keys_are_decoded_and_case_sensitive() {
    assert_eq!(Query::new("label%53elector=a").get("labelSelector").unwrap(), "a");
    assert_eq!(Query::new("LabelSelector=a").get("labelSelector"), None);
}

#[test]
fn pairs_that_the_server_drops_are_ignored() {
    for raw in [
        "labelSelector=a=0;x=1",
        "labelSelector=a%3D0%zz",
        "labelSelector%=a",
        ";labelSelector=a",
    ] {
        let query = Query::new(raw);
        assert_eq!(query.get("labelSelector"), None, "{raw}");
        assert_eq!(query.malformed_pair(), Some(raw));
        assert_eq!(query.pairs().count(), 0);
        let parsed = ParsedQuery::new(raw);
        assert_eq!(
            (parsed.get("labelSelector"), parsed.malformed_pair()),
            (None, Some(raw))
        );
    }
    assert_eq!(Query::new("&&a=1&").malformed_pair(), None);
}

#[test]
fn value_is_set_in_place_and_repetitions_are_removed() {
    assert_eq!(
        set_parameter("limit=5&labelSelector=a&x=%7e&labelSelector=b", "s"),
        "limit=5&labelSelector=s&x=%7e"
    );
    assert_eq!(set_parameter("a=1&b", "x=y"), "a=1&b&labelSelector=x%3Dy");
    assert_eq!(set_parameter("", "s"), "labelSelector=s");
    assert_eq!(set_parameter("&&a=1&", "s"), "&&a=1&&labelSelector=s");
    assert_eq!(set_parameter("label%53elector=a", "s"), "labelSelector=s");
    assert_eq!(set_parameter("LabelSelector=a", "s"), "LabelSelector=a&labelSelector=s");
}

#[test]
fn dropped_pairs_of_the_key_are_removed_for_lenient_readers() {
    assert_eq!(set_parameter("labelSelector=a=0;x=1&y=2", "s"), "y=2&labelSelector=s");
    assert_eq!(set_parameter("x=1;label%53elector=a&y=2", "s"), "y=2&labelSelector=s");
    assert_eq!(set_parameter("labelSelector=%zz", "s"), "labelSelector=s");
    assert_eq!(set_parameter("other=%zz", "s"), "other=%zz&labelSelector=s");
}

#[test]
fn parameter_is_removed_everywhere() {
    let mut editor = QueryEditor::new("a=1&b=2&a=3&c");
    editor.remove("a");
    assert_eq!(editor.get("a"), None);
    assert_eq!(editor.finish(), "b=2&c");
}

#[test]
fn edit_without_effect_is_no_change() {
    let mut editor = QueryEditor::new("a=1");
    assert!(!editor.is_changed());
    editor.set("a", "1");
    assert!(!editor.is_changed());
    editor.set("a", "2");
    assert!(editor.is_changed());
}

#[test]
fn oversized_query_is_refused() {
    assert_eq!(Query::new(&"a".repeat(MAX_QUERY_BYTES)).check(), Ok(()));
    let long = "a".repeat(MAX_QUERY_BYTES + 1);
    assert_eq!(Query::new(&long).check(), Err(QueryError::TooLong(MAX_QUERY_BYTES + 1)));
    assert_eq!(Query::new(&"&".repeat(MAX_QUERY_PAIRS - 1)).check(), Ok(()));
    let many = "&".repeat(MAX_QUERY_PAIRS);
    assert_eq!(
        Query::new(&many).check(),
        Err(QueryError::TooManyPairs(MAX_QUERY_PAIRS + 1))
    );
}

proptest! {
    #[test]
    fn untouched_pairs_keep_their_order_and_bytes(raw in "([a-c%;=&+]|%61|labelSelector){0,24}", value in "\\PC{0,8}") {
        let mut editor = QueryEditor::new(&raw);
        editor.set("labelSelector", &value);
        prop_assert_eq!(editor.get("labelSelector").unwrap(), value.as_str());
        let edited = editor.finish();
        let rest = |text: &str| -> Vec<String> {
            text.split('&').filter(|p| !p.is_empty() && !p.contains("labelSelector")).map(str::to_owned).collect()
        };
        prop_assert_eq!(rest(&raw), rest(&edited));
        prop_assert_eq!(Query::new(&edited).pairs().filter(|(key, _)| key == "labelSelector").count(), 1);
    }

    #[test]
    fn parsed_query_says_the_same_as_the_text(raw in "([ab%;=&+]|%61|%zz){0,24}") {
        let (query, parsed) = (Query::new(&raw), ParsedQuery::new(&raw));
        prop_assert_eq!(parsed.raw(), &raw);
        prop_assert_eq!(parsed.malformed_pair(), query.malformed_pair());
        for key in ["a", "b", "ab", "", " "] {
            prop_assert_eq!(parsed.get(key).map(Cow::Borrowed), query.get(key));
        }
    }

    #[test]
    fn query_that_was_read_is_edited_like_its_text(
        raw in "([ab%;=&+]|%61|%zz){0,24}",
        edits in proptest::collection::vec(("[abc]", proptest::option::of("[a &]{0,3}")), 1..4),
    ) {
        let parsed = ParsedQuery::new(&raw);
        let (mut read, mut text) = (parsed.edit(), QueryEditor::new(&raw));
        for (key, value) in &edits {
            for editor in [&mut read, &mut text] {
                match value {
                    Some(value) => editor.set(key, value),
                    None => editor.remove(key),
                }
            }
            prop_assert_eq!(read.is_changed(), text.is_changed());
            for key in ["a", "b", "c"] {
                prop_assert_eq!(read.get(key), text.get(key));
            }
        }
        prop_assert_eq!(read.finish(), text.finish());
    }

    #[test]
    fn removed_parameter_is_not_found(raw in "([ab%;=&]|%61){0,24}") {
        let mut editor = QueryEditor::new(&raw);
        editor.remove("a");
        prop_assert_eq!(editor.get("a"), None);
        prop_assert!(editor.finish().len() <= raw.len());
    }
}
