//! Samples that people have: taken unchanged, or refused with the reason that the file states.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};

use ctrlmesh_manager::validate;
use serde_json::Value;

fn files(folder: &str) -> Vec<PathBuf> {
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

#[test]
fn samples_apply_unchanged() {
    for file in files("accepted") {
        for document in documents(&fs::read_to_string(&file).unwrap()) {
            let findings = validate(&document);
            assert!(findings.is_accepted(), "{}: {}", file.display(), findings.mistakes);
            assert_eq!(findings.warnings.list(), [], "{}", file.display());
        }
    }
}

#[test]
fn samples_that_make_no_sense_are_refused_with_the_reason() {
    for file in files("refused").into_iter().chain(files("refused-by-rules")) {
        let text = fs::read_to_string(&file).unwrap();
        let reasons: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# reason: "))
            .collect();
        let told: Vec<String> = documents(&text)
            .iter()
            .flat_map(|document| validate(document).mistakes.list().to_vec())
            .map(|mistake| format!("{}: {}", mistake.path, mistake.problem))
            .collect();
        assert_eq!(told, reasons, "{}", file.display());
    }
}

/// `rules.json`: what an API server refuses by schema and CEL, these rules refuse at the same field. `TestCRDs` asks the API server.
#[test]
fn what_an_api_server_refuses_is_refused_here_at_the_same_field() {
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
        // Where ours has other words than a pattern, they are compared.
        let says = case["ours"].as_str().or(case["says"].as_str()).unwrap();
        assert!(mistake.problem.contains(says), "{case}: {}", mistake.problem);
    }
}
