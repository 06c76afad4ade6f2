//! docs/manager.md and docs/registries.md explain every reason that a condition can have.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// What the code of a reason follows: calls whose first text in UpperCamelCase is one, and arms of a `match`.
const BEFORE_CODES: [&str; 5] = ["Reason::new(", "Draft::new(", "draft(", "not_sharded(", "=> \""];

/// Codes of reasons in the sources below a folder, without their tests.
fn reason_codes(folder: &Path, codes: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        if is_test {
            continue;
        }
        if path.is_dir() {
            reason_codes(&path, codes);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]").next().unwrap();
            codes.extend(BEFORE_CODES.iter().flat_map(|before| codes_after(source, before)));
        }
    }
}

fn codes_after<'a>(source: &'a str, before: &'a str) -> impl Iterator<Item = String> + 'a {
    let rests = source.split(before).skip(1);
    rests.filter_map(move |rest| {
        // The arguments before the message, which is a text with spaces or a variable.
        let arguments = rest.split([';', ')']).next()?;
        let texts = arguments
            .split('"')
            .skip(usize::from(!before.ends_with('"')))
            .step_by(2);
        let mut codes = texts.filter(|text| is_code(text));
        codes.next().map(str::to_owned)
    })
}

fn is_code(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase()) && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

#[test]
fn reasons_of_conditions_are_explained() {
    let root = repository_root();
    let mut codes = BTreeSet::new();
    for folder in [
        "manager/rollout/src",
        "manager/src/controllers/distribution",
        "manager/src/controllers/shards",
    ] {
        reason_codes(&root.join(folder), &mut codes);
    }
    for code in ["TooLarge", "Sharded", "NameTaken", "Orphaned", "None"] {
        assert!(codes.contains(code), "{code} is not found: {codes:?}");
    }
    assert!(codes.len() >= 30, "{codes:?}");
    let read = |name: &str| fs::read_to_string(root.join("docs").join(name)).unwrap();
    let documents = [read("manager.md"), read("registries.md")].concat();
    for code in codes {
        assert!(
            documents.contains(&format!("`{code}`")),
            "reason {code} is not explained"
        );
    }
}

#[test]
fn codes_of_reasons_are_found_in_calls_and_arms() {
    let source = r#"Reason::new("NoRoom", error.to_string()); Reason::new(code, "Text of a message"); Reason::new(
        "Deleting", message); match a { B => "Shared", _ => "it has no code" }"#;
    let codes = |before| codes_after(source, before).collect::<Vec<_>>();
    assert_eq!(codes("Reason::new("), ["NoRoom", "Deleting"]);
    assert_eq!(codes("=> \""), ["Shared"]);
}
