//! Label selectors are parsed, printed and matched as in an API server, within bounds, and invalid ones are refused.

use proptest::prelude::*;

use super::*;

fn canonical_text(text: &str) -> String {
    LabelSelector::parse(text)
        .unwrap_or_else(|e| panic!("{text:?}: {e}"))
        .to_string()
}

#[test]
fn all_operators_are_read_and_written() {
    let text = "a=1,b==2,c!=3,d in (x,y),e notin (z),f,!g,h>5,i<6";
    assert_eq!(canonical_text(text), text);
    let operators: Vec<_> = LabelSelector::parse(text)
        .unwrap()
        .requirements
        .iter()
        .map(|r| r.operator)
        .collect();
    use Operator::*;
    assert_eq!(
        operators,
        [
            Equals,
            DoubleEquals,
            NotEquals,
            In,
            NotIn,
            Exists,
            DoesNotExist,
            GreaterThan,
            LessThan
        ]
    );
}

#[test]
fn canonical_form_is_sorted() {
    assert_eq!(canonical_text("z,b in (y,x,y),a=1"), "a=1,b in (x,y),z");
}

#[test]
fn unusual_spellings_are_accepted() {
    let cases = [
        ("", ""),
        (" \t\n\r", ""),
        ("a=", "a="),
        ("a=,b", "a=,b"),
        ("a!=", "a!="),
        ("a in ()", "a in ()"),
        ("a in (,b)", "a in (,b)"),
        ("a in (b,)", "a in (,b)"),
        ("a in(,,)", "a in ()"),
        ("  a   =  b  ", "a=b"),
        ("! a", "!a"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("notin", "notin"),
        ("a=in", "a=in"),
        ("x.io/a=B_c.d-e", "x.io/a=B_c.d-e"),
    ];
    for (text, expected) in cases {
        assert_eq!(canonical_text(text), expected, "{text:?}");
    }
}

/// Upstream's lexer takes a NUL byte for the end of the text where a token would begin.
#[test]
fn nul_byte_hides_the_rest_like_upstream() {
    assert_eq!(canonical_text("a=b\0\0,c=d"), "a=b");
    assert_eq!(canonical_text("\0a"), "");
    assert_eq!(canonical_text("a\0=\0b"), "a=b");
}

#[test]
fn invalid_selectors_are_refused() {
    let long = "a".repeat(64);
    let texts = [
        ",",
        "a,",
        ",a",
        "a,,b",
        "a===",
        "a=b=c",
        "a b",
        "!",
        "!a=b",
        "!!a",
        "=b",
        "a=!b",
        "a in",
        "a in b",
        "a in (b",
        "a in (b c)",
        "a in (b))",
        "a notin ((b))",
        "a>",
        "a>b",
        "a<1.5",
        "a>9223372036854775808",
        "a>-1",
        "a=-b",
        "a=b-",
        "a=b/c",
        "-a",
        "a/",
        "/a",
        "a/b/c",
        "A.io/b",
        "a..b/c",
        "a=\u{e4}",
        "\u{fffd}",
        "a&b",
        "a=b;c",
        &long,
        "()",
        "a in () b",
        "a,notin ()",
        "(a)",
    ];
    for text in texts {
        assert!(LabelSelector::parse(text).is_err(), "{text:?}");
        assert!(LabelSelector::validate(text).is_err(), "{text:?}");
    }
}

#[test]
fn selectors_are_bounded() {
    assert_eq!(
        LabelSelector::parse(&" ".repeat(MAX_SELECTOR_BYTES + 1)),
        Err(SelectorError::TooLong(MAX_SELECTOR_BYTES + 1))
    );
    assert_eq!(
        LabelSelector::parse(&vec!["a"; MAX_REQUIREMENTS].join(","))
            .unwrap()
            .requirements
            .len(),
        1024
    );
    assert_eq!(
        LabelSelector::parse(&vec!["a"; MAX_REQUIREMENTS + 1].join(",")),
        Err(SelectorError::TooManyRequirements)
    );
}

#[test]
fn matching_follows_upstream() {
    let labels = |key: &str| match key {
        "a" => Some("1"),
        "n" => Some("x"),
        _ => None,
    };
    for text in [
        "a",
        "a=1",
        "a==1",
        "a in (0,1)",
        "b!=1",
        "b notin (1)",
        "!b",
        "a!=2",
        "a>0",
        "a<2",
        "",
        "n in (x,y)",
    ] {
        assert!(LabelSelector::parse(text).unwrap().matches(&labels), "{text}");
    }
    for text in [
        "b",
        "a=2",
        "a notin (1)",
        "!a",
        "a>1",
        "a<1",
        "b>0",
        "n>0",
        "a,b",
        "a=1,a=2",
        "a in ()",
        "b=",
    ] {
        assert!(!LabelSelector::parse(text).unwrap().matches(&labels), "{text}");
    }
}

#[test]
fn constructed_requirements_are_validated() {
    assert!(Requirement::new("a", Operator::In, vec!["b".into()]).is_ok());
    assert!(matches!(
        Requirement::new("a", Operator::In, vec![]),
        Err(SelectorError::ValueCount { .. })
    ));
    assert!(matches!(
        Requirement::new("a", Operator::Exists, vec!["b".into()]),
        Err(SelectorError::ValueCount { .. })
    ));
    assert!(matches!(
        Requirement::new("a b", Operator::Exists, vec![]),
        Err(SelectorError::Key(_))
    ));
    assert!(matches!(
        Requirement::new("a", Operator::Equals, vec!["b,c".into()]),
        Err(SelectorError::Value(_))
    ));
}

fn any_selector() -> impl Strategy<Value = LabelSelector> {
    use Operator::*;
    let operator = prop::sample::select(vec![
        Equals,
        DoubleEquals,
        NotEquals,
        In,
        NotIn,
        Exists,
        DoesNotExist,
        GreaterThan,
        LessThan,
    ]);
    let value = prop::sample::select(vec!["", "a", "b", "in", "notin", "1", "2", "a-b_c.d"]);
    let requirement = (
        "[abc]|x\\.io/[ab]|in",
        operator,
        prop::collection::btree_set(value, 1..4),
    )
        .prop_map(|(key, op, values)| {
            let values: Vec<String> = values.into_iter().map(str::to_owned).collect();
            let values = match op {
                Exists | DoesNotExist => vec![],
                In | NotIn => values,
                GreaterThan | LessThan => vec!["1".to_owned()],
                _ => values.into_iter().take(1).collect(),
            };
            Requirement::new(key, op, values).unwrap()
        });
    prop::collection::vec(requirement, 0..6).prop_map(|requirements| {
        let mut selector = LabelSelector::default();
        selector.narrow_by(LabelSelector { requirements });
        selector
    })
}

proptest! {
    #[test]
    fn printed_selector_parses_to_itself(selector in any_selector()) {
        prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
    }

    #[test]
    fn validate_and_parse_agree(text in "([abin!=<>(), \\x00]|in|notin|x/){0,16}") {
        prop_assert_eq!(LabelSelector::parse(&text).err(), LabelSelector::validate(&text).err());
    }

    #[test]
    fn anded_selector_matches_labels_that_both_match(
        left in any_selector(),
        right in any_selector(),
        a in "[ab12]?",
        b in "[ab12]?"
    ) {
        let labels = |key: &str| match key {
            "a" => Some(a.as_str()),
            "x.io/b" | "in" => Some(b.as_str()),
            _ => None,
        };
        let mut both = left.clone();
        both.narrow_by(right.clone());
        prop_assert_eq!(both.matches(&labels), left.matches(&labels) && right.matches(&labels));
    }
}
