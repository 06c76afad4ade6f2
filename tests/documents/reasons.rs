//! docs/manager.md and docs/registries.md explain every reason that a condition can have.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// Calls whose first text in UpperCamelCase is the code of a reason.
const CALLS: [&str; 3] = ["Reason::new(", "Draft::new(", "draft("];

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
            codes.extend(CALLS.iter().flat_map(|call| codes_of_call(source, call)));
        }
    }
}

fn codes_of_call<'a>(source: &'a str, call: &'a str) -> impl Iterator<Item = String> + 'a {
    let calls = source.split(call).skip(1);
    calls.filter_map(|arguments| {
        // The arguments before the message, which is a text with spaces or a variable.
        let arguments = arguments.split([';', ')']).next()?;
        let texts = arguments.split('"').skip(1).step_by(2);
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
    for folder in ["manager/rollout/src", "manager/src/controllers/distribution"] {
        reason_codes(&root.join(folder), &mut codes);
    }
    assert!(codes.len() >= 20, "{codes:?}");
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
fn codes_of_reasons_are_found_in_calls() {
    let source = r#"Reason::new("NoRoom", error.to_string()); Reason::new(code, "Text of a message"); Reason::new(
        "Deleting", message)"#;
    let codes: Vec<String> = codes_of_call(source, "Reason::new(").collect();
    assert_eq!(codes, ["NoRoom", "Deleting"]);
}
