//! Field selectors are parsed, printed and matched as in an API server, and invalid ones are refused.

use proptest::prelude::*;

use super::*;

fn canonical_text(text: &str) -> String {
    FieldSelector::parse(text)
        .unwrap_or_else(|e| panic!("{text:?}: {e}"))
        .to_string()
}

#[test]
fn operators_and_escapes_are_parsed() {
    let cases = [
        ("", ""),
        ("a=b", "a=b"),
        ("a==b", "a=b"),
        ("a!=b", "a!=b"),
        ("b=1,a=2", "a=2,b=1"),
        (",a=b,,", "a=b"),
        ("a=", "a="),
        ("=a", "=a"),
        ("=", ""),
        (r"a=b\,c\=d\\", r"a=b\,c\=d\\"),
        ("a!b=c", "a!b=c"),
        ("a=!b", "a=!b"),
        (r"a\,b=c", r"a\,b=c"),
        (" a = b ", " a = b "),
    ];
    for (text, expected) in cases {
        assert_eq!(canonical_text(text), expected, "{text:?}");
    }
}

#[test]
fn invalid_selectors_are_refused() {
    for text in ["a", "a=b=c", "a===b", r"a=\", r"a=\x", "a>b", "a=b,c", "a!b"] {
        assert!(FieldSelector::parse(text).is_err(), "{text:?}");
    }
    assert!(FieldSelector::parse(&"a=b,".repeat(MAX_REQUIREMENTS + 1)).is_err());
    assert!(FieldSelector::parse(&",".repeat(MAX_SELECTOR_BYTES + 1)).is_err());
}

#[test]
fn exact_match_is_found() {
    let selector = FieldSelector::parse("metadata.name!=y,metadata.name=x,spec.a=b").unwrap();
    assert_eq!(selector.exact("metadata.name").as_deref(), Some("x"));
    assert_eq!(selector.exact("metadata.namespace"), None);
    assert_eq!(
        FieldSelector::parse("metadata.name!=y").unwrap().exact("metadata.name"),
        None
    );
}

#[test]
fn both_sides_of_and_must_match() {
    let mut selector = FieldSelector::parse("a=1").unwrap();
    selector.narrow_by(FieldSelector::parse("b!=2").unwrap());
    let fields = |b: &'static str| move |field: &str| Some(if field == "a" { "1" } else { b });
    assert!(selector.matches(&fields("3")));
    assert!(!selector.matches(&fields("2")));
    assert!(!selector.is_empty());
}

proptest! {
    #[test]
    fn printed_selector_parses_to_itself(text in r"([ab.!=,\\]|==|!=){0,16}") {
        if let Ok(selector) = FieldSelector::parse(&text) {
            let again = FieldSelector::parse(&selector.to_string()).unwrap();
            let sorted = |selector: &FieldSelector| {
                let mut terms: Vec<String> = selector.requirements.iter().map(|r| format!("{r:?}")).collect();
                terms.sort();
                terms
            };
            prop_assert_eq!(sorted(&again), sorted(&selector));
        }
    }
}
