//! Tables in docs/manager.md and docs/registries.md explain every reason that a condition can have. Their codes are the
//! constants of manager/api/src/status/reason.rs and nowhere else.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// Text before the code of a reason: an earlier argument of a call, or the arrow of a match arm.
const BEFORE_CODES: [&str; 6] = [
    "Reason::new(",
    "not_sharded(",
    "ConditionStatus::True,",
    "ConditionStatus::False,",
    "ConditionStatus::Unknown,",
    "=>",
];

/// The values of the constants of `Reason`, which are lines of their own.
fn reason_codes(source: &str) -> Vec<&str> {
    let values = source.lines().filter_map(|line| {
        let constant = line.trim().strip_prefix("pub const ")?.strip_suffix("\";")?;
        let (_, value) = constant.split_once(": &'static str = \"")?;
        Some(value)
    });
    values.collect()
}

/// Codes in the first cells of tables whose first column is `reason`. Elsewhere a code may be the name of a condition.
fn explained_codes(page: &str) -> BTreeSet<&str> {
    let mut codes = BTreeSet::new();
    let mut header = None;
    for line in page.lines() {
        let Some(row) = line.strip_prefix('|') else {
            header = None;
            continue;
        };
        let cell = row.split('|').next().unwrap_or_default().trim();
        if *header.get_or_insert(cell) == "reason" {
            codes.extend(cell.split('`').skip(1).step_by(2));
        }
    }
    codes
}

#[test]
fn reasons_of_conditions_are_explained() {
    let root = repository_root();
    let source = fs::read_to_string(root.join("manager/api/src/status/reason.rs")).unwrap();
    let codes = reason_codes(&source);
    for code in ["TooLarge", "Sharded", "NameTaken", "Orphaned", "None"] {
        assert!(codes.contains(&code), "{code} is not found: {codes:?}");
    }
    assert!(codes.len() >= 40, "{codes:?}");
    let read = |name: &str| fs::read_to_string(root.join("docs").join(name)).unwrap();
    let documents = [read("manager.md"), read("registries.md")].join("\n");
    let explained = explained_codes(&documents);
    let missing: Vec<&str> = codes.into_iter().filter(|code| !explained.contains(code)).collect();
    assert!(missing.is_empty(), "no table of reasons explains {missing:?}");
}

#[test]
fn only_first_cells_of_tables_of_reasons_explain_codes() {
    let page = "`Text`\n| type | says |\n|---|---|\n| `Condition` | `Cell` |\n\n\
                | reason | status |\n|---|---|\n| `One`, `Two` | `True` |\n";
    assert_eq!(explained_codes(page), BTreeSet::from(["One", "Two"]));
}

/// Calls with a literal code in the sources below a folder, without their tests.
fn literal_codes(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            literal_codes(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]").next().unwrap();
            if has_literal_code(source) {
                found.push(path.display().to_string());
            }
        }
    }
}

/// Codes are single words in CamelCase, unlike messages.
fn has_literal_code(source: &str) -> bool {
    let mut rests = BEFORE_CODES.iter().flat_map(|before| source.split(before).skip(1));
    rests.any(|rest| {
        let literal = rest
            .trim_start()
            .strip_prefix('"')
            .and_then(|rest| rest.split_once('"'));
        literal.is_some_and(|(text, _)| {
            text.starts_with(char::is_uppercase) && text.chars().all(|letter| letter.is_ascii_alphabetic())
        })
    })
}

#[test]
fn codes_of_reasons_are_constants() {
    let mut found = Vec::new();
    for folder in ["manager/rollout/src", "manager/src/controllers"] {
        literal_codes(&repository_root().join(folder), &mut found);
    }
    assert!(
        found.is_empty(),
        "write these codes as constants of `Reason`: {found:?}"
    );
}

#[test]
fn literal_codes_are_found_in_calls() {
    let source = "    pub const NO_ROOM: &'static str = \"NoRoom\";\n    let text = \"text\";\n";
    assert_eq!(reason_codes(source), ["NoRoom"]);
    assert!(has_literal_code("Reason::new(\n    \"Deleting\", message)"));
    assert!(has_literal_code(
        "ConditionDraft::new(condition::ACCEPTED, ConditionStatus::False,\n \"Invalid\", message)"
    ));
    assert!(has_literal_code("_ => \"InvalidChain\","));
    assert!(!has_literal_code(
        "Reason::new(Reason::DELETING, \"Text of a message\")"
    ));
    assert!(!has_literal_code("None => \"text of a message\""));
}
