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
