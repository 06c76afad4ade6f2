//! Samples that users have: accepted unchanged, or refused with the reason that the file states.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};

use ctrlmesh_contract::Mistakes;
use ctrlmesh_manager_planner::validate;
use ctrlmesh_manager_planner::validate::next_fix;
use serde_json::Value;

fn fixture_files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n")
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// The rest of each line that begins with `what`.
fn expected_notes<'t>(text: &'t str, what: &str) -> Vec<&'t str> {
    text.lines().filter_map(|line| line.strip_prefix(what)).collect()
}

fn mistake_lines(all: &Mistakes) -> Vec<String> {
    all.list()
        .iter()
        .map(|it| format!("{}: {}", it.path, it.problem))
        .collect()
}

#[test]
fn samples_apply_unchanged() {
    for file in fixture_files("accepted") {
        let text = fs::read_to_string(&file).unwrap();
        let mut warnings = Vec::new();
        for document in documents(&text) {
            let findings = validate(&document);
            assert!(findings.is_accepted(), "{}: {}", file.display(), findings.mistakes);
            warnings.extend(mistake_lines(&findings.warnings));
        }
        assert_eq!(warnings, expected_notes(&text, "# warning: "), "{}", file.display());
    }
}

#[test]
fn shipped_samples_are_not_warned_of() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/samples");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        for document in documents(&fs::read_to_string(&file).unwrap()) {
            let findings = validate(&document);
            let all = [mistake_lines(&findings.mistakes), mistake_lines(&findings.warnings)].concat();
            assert!(all.is_empty(), "{}: {all:?}", file.display());
            count += 1;
        }
    }
    assert!(count >= 6, "{count}");
}

#[test]
fn invalid_samples_are_refused_with_reason() {
    for file in fixture_files("refused")
        .into_iter()
        .chain(fixture_files("refused-by-rules"))
    {
        let text = fs::read_to_string(&file).unwrap();
        let documents = documents(&text);
        let mistakes = documents
            .iter()
            .flat_map(|document| mistake_lines(&validate(document).mistakes));
        assert_eq!(
            mistakes.collect::<Vec<_>>(),
            expected_notes(&text, "# reason: "),
            "{}",
            file.display()
        );
    }
}

#[test]
fn each_refused_sample_is_corrected_automatically() {
    for file in fixture_files("refused")
        .into_iter()
        .chain(fixture_files("refused-by-rules"))
    {
        for mut document in documents(&fs::read_to_string(&file).unwrap()) {
            while let Some(fix) = next_fix(&document) {
                document = fix.apply(&document).unwrap();
            }
            let mistakes = validate(&document).mistakes;
            assert!(mistakes.list().is_empty(), "{}: {mistakes}", file.display());
        }
    }
}

/// `rules.json`: mistakes that an API server refuses by schema and CEL, these rules refuse at the same field.
/// `TestCRDsAcceptAndRefuseSamples` asks the API server.
#[test]
fn schema_check_refuses_same_fields_as_api_server() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(folder.join("rules.json")).unwrap()).unwrap();
    for case in &cases {
        let text = fs::read_to_string(folder.join("accepted").join(case["of"].as_str().unwrap())).unwrap();
        let mut document = documents(&text).remove(0);
        for (pointer, value) in case["set"].as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let parent = document.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            match value {
                Value::Null => drop(parent.remove(field)),
                value => drop(parent.insert(field.to_owned(), value.clone())),
            }
        }
        let mistakes = validate(&document).mistakes;
        let [mistake] = mistakes.list() else {
            panic!("{case}: {mistakes}")
        };
        assert!(
            mistake.path.starts_with(case["path"].as_str().unwrap()),
            "{case}: {}",
            mistake.path
        );
        // `ours` is given where our message differs from the API server's.
        let says = case["ours"].as_str().or(case["says"].as_str()).unwrap();
        assert!(mistake.problem.contains(says), "{case}: {}", mistake.problem);
    }
}
