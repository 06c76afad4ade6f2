//! Sets of names match names, prefixes and whole patterns, and their size is bounded.

use super::*;

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn set_of(names: &[&str], prefixes: &[&str], patterns: &[&str]) -> NameSet {
    NameSet::new(texts(names), texts(prefixes), texts(patterns)).unwrap()
}

fn with_pattern(pattern: &str) -> Result<NameSet, PredicateError> {
    NameSet::new(Vec::new(), Vec::new(), texts(&[pattern]))
}

#[test]
fn names_match_exactly() {
    let set = set_of(&["b", "a", "kube-system", "b"], &[], &[]);
    for (name, expected) in [
        ("a", true),
        ("b", true),
        ("kube-system", true),
        ("", false),
        ("c", false),
        ("A", false),
        ("ab", false),
        ("kube", false),
        ("kube-system2", false),
    ] {
        assert_eq!(set.contains(name), expected, "{name:?}");
    }
    assert_eq!(set.names().len(), 3);
}

#[test]
fn empty_set_contains_nothing() {
    let set = set_of(&[], &[], &[]);
    assert!(!set.contains("") && !set.contains("a"));
}

#[test]
fn empty_name_is_legal() {
    let set = set_of(&[""], &[], &[]);
    assert!(set.contains("") && !set.contains("a"));
}

#[test]
fn prefixes_match_beginnings() {
    let set = set_of(&[], &["team-", "b", "team-a-", "tea", "\u{e4}", "b"], &[]);
    assert_eq!(set.prefixes().collect::<Vec<_>>(), ["b", "tea", "\u{e4}"]);
    for (name, expected) in [
        ("b", true),
        ("bz", true),
        ("team", true),
        ("team-zz", true),
        ("tea", true),
        ("\u{e4}x", true),
        ("", false),
        ("a", false),
        ("az", false),
        ("te", false),
        ("tez", false),
        ("te\u{e4}", false),
        ("z", false),
        ("B", false),
    ] {
        assert_eq!(set.contains(name), expected, "{name:?}");
    }
}

#[test]
fn patterns_match_whole_names() {
    for (pattern, matched, unmatched) in [
        ("a|bc", vec!["a", "bc"], vec!["", "ab", "bca", "xbc", "abc"]),
        ("^team-[0-9]+$", vec!["team-7"], vec!["team-", "xteam-7", "team-7x"]),
        (r"\w\d", vec!["a1", "_1"], vec!["a", "a1b", "-1"]),
        ("(?i)prod", vec!["PROD", "prod"], vec!["prod2"]),
        // Modes of a pattern do not reach its anchors.
        ("(?m)a", vec!["a"], vec!["a\n", "\na", "a\nb"]),
        ("(?x) a b", vec!["ab"], vec!["a b"]),
        (".*x.*", vec!["x", "axb"], vec!["ab", ""]),
        ("", vec![""], vec!["a"]),
        ("..", vec!["ab", "\u{e4}"], vec!["a", "abc"]),
    ] {
        let set = with_pattern(pattern).unwrap();
        for name in matched {
            assert!(set.contains(name), "{pattern:?} {name:?}");
        }
        for name in unmatched {
            assert!(!set.contains(name), "{pattern:?} {name:?}");
        }
    }
}

#[test]
fn name_is_in_set_by_any_of_its_parts() {
    let set = set_of(&["exact"], &["pre-"], &["a+", "b+"]);
    for name in ["exact", "pre-x", "aa", "bbb"] {
        assert!(set.contains(name), "{name:?}");
    }
    for name in ["exact-", "pre", "ab"] {
        assert!(!set.contains(name), "{name:?}");
    }
}

#[test]
fn invalid_patterns_are_named_with_their_problem() {
    for (pattern, problem) in [
        ("(a", "unclosed group"),
        ("a)", "unopened group"),
        // Wrapped in a group this would compile, without its anchors.
        ("a)|(b", "unopened group"),
        // The comment hides the end of the group.
        ("(?x)a # b", "unclosed group"),
        ("[b-a]", "invalid character class range"),
        ("(?=a)", "look-around"),
        (r"(a)\1", "backreferences"),
    ] {
        let error = with_pattern(pattern).unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(&error, PredicateError::Pattern { pattern: named, .. } if named == pattern),
            "{text}"
        );
        assert!(text.contains(problem) && !text.contains('\n'), "{pattern:?}: {text}");
    }
}

#[test]
fn patterns_are_bounded() {
    let numbered = |count: usize| (0..count).map(|index| format!("a{index}")).collect::<Vec<_>>();
    assert!(NameSet::new(Vec::new(), Vec::new(), numbered(MAX_PATTERNS)).is_ok());
    assert_eq!(
        NameSet::new(Vec::new(), Vec::new(), numbered(MAX_PATTERNS + 1)),
        Err(PredicateError::TooMany {
            parts: "patterns",
            limit: MAX_PATTERNS
        })
    );
    assert!(with_pattern(&"a".repeat(MAX_PATTERN_BYTES)).is_ok());
    assert_eq!(
        with_pattern(&"a".repeat(MAX_PATTERN_BYTES + 1)),
        Err(PredicateError::TooLong {
            part: "pattern",
            bytes: MAX_PATTERN_BYTES + 1,
            limit: MAX_PATTERN_BYTES
        })
    );
    let large = "(?:a{1000}){1000}";
    assert_eq!(with_pattern(large), Err(PredicateError::PatternTooLarge(large.into())));
}

#[test]
fn programs_of_patterns_are_bounded_together() {
    let patterns = |count: usize| {
        (0..count)
            .map(|index| format!("x{index}[a-z]{{1,400}}"))
            .collect::<Vec<_>>()
    };
    assert!(NameSet::new(Vec::new(), Vec::new(), patterns(1)).is_ok());
    assert_eq!(
        NameSet::new(Vec::new(), Vec::new(), patterns(MAX_PATTERNS)),
        Err(PredicateError::PatternsTooLarge)
    );
}

#[test]
fn names_and_prefixes_are_bounded() {
    let long = "a".repeat(MAX_NAME_BYTES + 1);
    let too_long = |part| {
        Err(PredicateError::TooLong {
            part,
            bytes: MAX_NAME_BYTES + 1,
            limit: MAX_NAME_BYTES,
        })
    };
    assert!(NameSet::of_names([&long[1..]]).is_ok());
    assert_eq!(NameSet::of_names([long.as_str()]), too_long("name"));
    assert_eq!(NameSet::new(Vec::new(), vec![long], Vec::new()), too_long("prefix"));
    assert_eq!(
        NameSet::new(Vec::new(), texts(&["a", ""]), Vec::new()),
        Err(PredicateError::EmptyPrefix)
    );

    let numbered = |count: usize| (0..count).map(|index| index.to_string()).collect::<Vec<_>>();
    let too_many = Err(PredicateError::TooMany {
        parts: "names and prefixes",
        limit: MAX_NAMES,
    });
    assert!(NameSet::of_names(numbered(MAX_NAMES)).is_ok());
    assert_eq!(NameSet::of_names(numbered(MAX_NAMES + 1)), too_many);
    assert_eq!(NameSet::new(numbered(MAX_NAMES), texts(&["a"]), Vec::new()), too_many);
}

#[test]
fn large_set_is_shared_between_clones() {
    let set = NameSet::of_names((0..10_000).map(|index| format!("namespace-{index}"))).unwrap();
    let clone = set.clone();
    assert!(Arc::ptr_eq(&set.parts, &clone.parts));
    assert!((0..10_000).all(|index| clone.contains(&format!("namespace-{index}"))));
    assert!(!clone.contains("namespace-10000") && !clone.contains("namespace-"));
}

#[test]
fn sets_are_equal_when_their_parts_are() {
    let set = set_of(&["a", "b"], &["c"], &["d", "e"]);
    assert_eq!(set, set_of(&["b", "a", "a"], &["c", "cc"], &["e", "d", "e"]));
    for other in [
        set_of(&["a"], &["c"], &["d", "e"]),
        set_of(&["a", "b"], &[], &["d", "e"]),
        set_of(&["a", "b"], &["c"], &["d"]),
    ] {
        assert_ne!(set, other);
    }
}
