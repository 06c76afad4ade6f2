//! docs/reference/filtering-cases.md: each case has a line, and each test that a line names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ctrlmesh_tests::repository_root;

use super::parity::{Tests, all_tests, names_of_tests};

const PAGE: &str = "docs/reference/filtering-cases.md";

/// The groups of the page, with the numbers of their cases.
const GROUPS: [(char, RangeInclusive<u32>); 6] = [
    ('C', 28..=40),
    ('E', 49..=62),
    ('F', 63..=86),
    ('G', 87..=96),
    ('H', 97..=97),
    ('I', 107..=113),
];

/// What the names of subtests begin with that have the number of a case.
const NUMBERED: &str = "TestKnownBypassesAreClosed/";

fn expected_cases() -> BTreeSet<String> {
    let of_groups = GROUPS.into_iter();
    let cases = of_groups.flat_map(|(group, numbers)| numbers.map(move |number| format!("{group}{number}")));
    cases.collect()
}

/// The lines of cases, by their numbers. A number that occurs twice is a mistake.
fn parse_cases<'a>(page: &'a str, mistakes: &mut Vec<String>) -> BTreeMap<&'a str, &'a str> {
    let mut cases = BTreeMap::new();
    for item in page.split("\n- **").skip(1) {
        let item = item.split("\n\n").next().unwrap_or_default();
        let Some((number, text)) = item.split_once("**: ") else {
            mistakes.push(format!("no case: {item}"));
            continue;
        };
        if cases.insert(number, text).is_some() {
            mistakes.push(format!("{number} is there twice"));
        }
    }
    cases
}

fn find_mistakes(page: &str, expected: &BTreeSet<String>, known: &Tests) -> Vec<String> {
    let mut mistakes = Vec::new();
    let cases = parse_cases(page, &mut mistakes);
    for number in expected {
        if !cases.contains_key(number.as_str()) {
            mistakes.push(format!("{number} has no line"));
        }
    }
    for (number, text) in &cases {
        let named = names_of_tests(text);
        if !expected.contains(*number) {
            mistakes.push(format!("{number} is no case"));
        }
        if named.is_empty() && !text.contains("*Missing*") {
            mistakes.push(format!("{number} has no test, and nothing that is missing"));
        }
        for name in named {
            let files = known.get(&name).map_or(0, BTreeSet::len);
            if files == 0 {
                mistakes.push(format!("{number}: there is no test {name}"));
            } else if files > 1 && name.contains("::") {
                mistakes.push(format!("{number}: {name} may be any of {:?}", known[&name]));
            }
        }
    }
    for name in known.keys() {
        let number = name.strip_prefix(NUMBERED).and_then(|rest| rest.split('_').next());
        let text = number.and_then(|number| cases.get(number));
        if text.is_some_and(|text| !names_of_tests(text).contains(name)) {
            mistakes.push(format!("{name} is not in the line of its case"));
        }
    }
    mistakes
}

#[test]
fn each_case_has_a_line_with_tests_that_exist() {
    let page = fs::read_to_string(repository_root().join(PAGE)).unwrap();
    let mistakes = find_mistakes(&page, &expected_cases(), &all_tests());
    assert!(mistakes.is_empty(), "{PAGE}:\n{}", mistakes.join("\n"));
}

#[test]
fn mistakes_of_a_falsified_page_are_found() {
    let expected = BTreeSet::from(["E1", "E2", "E3"].map(str::to_owned));
    let numbered = format!("{NUMBERED}E1_pages");
    let mut known = Tests::new();
    for (name, count) in [("list::a", 1_u32), ("list::b", 2), (numbered.as_str(), 1)] {
        let files = (0..count).map(|file| PathBuf::from(file.to_string()));
        known.insert(name.to_owned(), files.collect());
    }
    let right = format!(
        "x\n\n- **E1**: a. `{numbered}`,\n  `list::a`\n- **E2**: b. `list::a`\n- **E3**: c. *Missing*: d.\n\ny\n"
    );
    let mistakes = find_mistakes(&right, &expected, &known);
    assert!(mistakes.is_empty(), "{mistakes:?}");
    for (from, to, mistake) in [
        ("E3", "E2", "E2 is there twice"),
        ("- **E3**: c. *Missing*: d.", "", "E3 has no line"),
        ("E3", "E4", "E4 is no case"),
        ("*Missing*", "", "E3 has no test, and nothing that is missing"),
        ("list::a", "list::c", "E1: there is no test list::c"),
        ("list::a", "list::b", "E1: list::b may be any of {\"0\", \"1\"}"),
        (
            "E1_pages",
            "E2_pages",
            "TestKnownBypassesAreClosed/E1_pages is not in the line of its case",
        ),
    ] {
        let mistakes = find_mistakes(&right.replace(from, to), &expected, &known);
        assert!(mistakes.iter().any(|found| found == mistake), "{mistake}: {mistakes:?}");
    }
}
