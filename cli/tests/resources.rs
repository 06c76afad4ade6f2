//! `ctrlmesh crd` and `ctrlmesh lint`: what they print, and their exit codes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

/// Exit code, standard output, standard error.
fn ctrlmesh(arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh")).args(arguments).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn fixture(path: &str) -> String {
    let path = in_repository("manager/planner/tests/fixtures").join(path);
    path.display().to_string()
}

#[test]
fn the_definitions_are_those_that_are_shipped() -> Result<()> {
    let (code, printed, errors) = ctrlmesh(&["crd"])?;
    assert_eq!((code, &*errors), (Some(0), ""));
    let mut shipped = String::new();
    for name in ["circuitbreakers", "faultinjections", "managerstates", "shardingconfigs"] {
        let file = in_repository(&format!("deploy/crd/{name}.yaml"));
        shipped = format!("{shipped}---\n{}\n", std::fs::read_to_string(file)?.trim_end());
    }
    assert_eq!(printed, shipped);
    Ok(())
}

#[test]
fn good_objects_are_told_to_be_good() -> Result<()> {
    let (code, printed, errors) = ctrlmesh(&["lint", "-f", &fixture("accepted/breaker-forced.yaml")])?;
    assert_eq!((code, &*errors), (Some(0), ""), "{printed}");
    assert!(
        printed.contains("breaker-forced.yaml: CircuitBreaker ") && printed.trim_end().ends_with(": ok"),
        "{printed}"
    );
    Ok(())
}

#[test]
fn what_is_wrong_is_told_by_its_field_and_fails_the_command() -> Result<()> {
    let bad = fixture("refused/fault-demo.yaml");
    let text = std::fs::read_to_string(&bad)?;
    let reasons: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# reason: "))
        .collect();
    let (code, printed, _) = ctrlmesh(&["lint", "-f", &fixture("accepted/readme.yaml"), "-f", &bad])?;
    assert_eq!(code, Some(1));
    assert!(!reasons.is_empty());
    for reason in &reasons {
        assert!(
            printed.lines().any(|line| line.ends_with(reason)),
            "{reason} is missing in {printed}"
        );
    }
    let (code, json, _) = ctrlmesh(&["lint", "-f", &bad, "--output", "json"])?;
    assert_eq!(code, Some(1));
    let documents: serde_json::Value = serde_json::from_str(&json)?;
    let errors = documents[0]["errors"].as_array().map_or(0, Vec::len);
    assert_eq!(errors, reasons.len(), "{json}");
    Ok(())
}

#[test]
fn objects_come_from_standard_input_too() -> Result<()> {
    for (file, code) in [("accepted/readme.yaml", 0), ("refused/fault-demo.yaml", 1)] {
        let input = std::fs::File::open(fixture(file))?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
        let output = command.args(["lint", "-f", "-"]).stdin(input).output()?;
        assert_eq!(output.status.code(), Some(code), "{file}: {output:?}");
    }
    Ok(())
}

#[test]
fn a_file_that_is_none_is_an_error_and_hides_no_other() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [broken, empty, none] = ["broken.yaml", "empty.yaml", "none"].map(|name| folder.path().join(name));
    std::fs::write(&broken, "a: [")?;
    std::fs::write(&empty, "# nothing\n")?;
    for (path, says) in [
        (broken, "is neither YAML nor JSON"),
        (empty, "there is no object in it"),
        (none, "cannot read"),
    ] {
        let good = fixture("accepted/breaker-forced.yaml");
        let (code, printed, _) = ctrlmesh(&["lint", "-f", &path.display().to_string(), "-f", &good])?;
        assert_eq!(code, Some(1));
        assert!(printed.contains(says), "{printed}");
        assert!(printed.trim_end().ends_with(": ok"), "{printed}");
    }
    Ok(())
}

#[test]
fn lists_are_looked_into_and_objects_of_others_are_left_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("all.yaml");
    std::fs::write(
        &file,
        "apiVersion: v1
kind: List
items:
- {apiVersion: ctrlmesh.kusionstack.io/v1alpha1, kind: CircuitBreaker, metadata: {name: A}, spec: {}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: operator}}
---
apiVersion: ctrlmesh.kusionstak.io/v1alpha1
kind: ShardingConfig
metadata: {name: a}
",
    )?;
    let (code, printed, _) = ctrlmesh(&["lint", "-f", &file.display().to_string()])?;
    assert_eq!(code, Some(1));
    for says in [
        "CircuitBreaker A: metadata.name: \"A\" is no name",
        "Deployment operator: warning: apiVersion: is apps/v1; only objects of",
        "ShardingConfig a: apiVersion: is \"ctrlmesh.kusionstak.io/v1alpha1\"; write ctrlmesh.kusionstack.io/v1alpha1",
    ] {
        assert!(printed.contains(says), "{says} is missing in {printed}");
    }
    Ok(())
}
