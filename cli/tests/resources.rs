//! `ctrlmesh crd` and `ctrlmesh lint`: output and exit codes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

/// Exit code, standard output, standard error.
fn run_ctrlmesh(arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh")).args(arguments).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn fixture_path(path: &str) -> String {
    let path = in_repository("manager/planner/tests/fixtures").join(path);
    path.display().to_string()
}

#[test]
fn crd_prints_shipped_definitions() -> Result<()> {
    let (code, printed, errors) = run_ctrlmesh(&["crd"])?;
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
fn crd_help_recommends_the_method_of_the_installation() -> Result<()> {
    let install = std::fs::read_to_string(in_repository("docs/install.md"))?;
    assert!(
        install.contains("Do not mix in\n`kubectl apply --server-side`"),
        "the documents say something else now"
    );
    for arguments in [&["--help"][..], &["crd", "--help"]] {
        let (code, printed, _) = run_ctrlmesh(arguments)?;
        assert_eq!(code, Some(0));
        assert!(
            printed.contains("kubectl apply -f -") && !printed.contains("--server-side"),
            "{printed}"
        );
    }
    Ok(())
}

#[test]
fn lint_accepts_valid_objects() -> Result<()> {
    let (code, printed, errors) = run_ctrlmesh(&["lint", "-f", &fixture_path("accepted/breaker-forced.yaml")])?;
    assert_eq!((code, &*errors), (Some(0), ""), "{printed}");
    assert!(
        printed.contains("breaker-forced.yaml: CircuitBreaker ") && printed.trim_end().ends_with(": ok"),
        "{printed}"
    );
    Ok(())
}

#[test]
fn lint_names_invalid_field_and_fails() -> Result<()> {
    let bad = fixture_path("refused/fault-demo.yaml");
    let text = std::fs::read_to_string(&bad)?;
    let reasons: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# reason: "))
        .collect();
    let (code, printed, _) = run_ctrlmesh(&["lint", "-f", &fixture_path("accepted/readme.yaml"), "-f", &bad])?;
    assert_eq!(code, Some(1));
    assert!(!reasons.is_empty());
    for reason in &reasons {
        assert!(
            printed.lines().any(|line| line.ends_with(reason)),
            "{reason} is missing in {printed}"
        );
    }
    let (code, json, _) = run_ctrlmesh(&["lint", "-f", &bad, "--output", "json"])?;
    assert_eq!(code, Some(1));
    let documents: serde_json::Value = serde_json::from_str(&json)?;
    let errors = documents[0]["errors"].as_array().map_or(0, Vec::len);
    assert_eq!(errors, reasons.len(), "{json}");
    Ok(())
}

#[test]
fn lint_reads_standard_input() -> Result<()> {
    for (file, code) in [("accepted/readme.yaml", 0), ("refused/fault-demo.yaml", 1)] {
        let input = std::fs::File::open(fixture_path(file))?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
        let output = command.args(["lint", "-f", "-"]).stdin(input).output()?;
        assert_eq!(output.status.code(), Some(code), "{file}: {output:?}");
    }
    Ok(())
}

#[test]
fn lint_reports_unreadable_file_and_continues() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [broken, empty, none] = ["broken.yaml", "empty.yaml", "none"].map(|name| folder.path().join(name));
    std::fs::write(&broken, "a: [")?;
    std::fs::write(&empty, "# nothing\n")?;
    for (path, says) in [
        (broken, "cannot be read as YAML or JSON"),
        (empty, "the file has no object"),
        (none, "cannot read"),
    ] {
        let good = fixture_path("accepted/breaker-forced.yaml");
        let (code, printed, _) = run_ctrlmesh(&["lint", "-f", &path.display().to_string(), "-f", &good])?;
        assert_eq!(code, Some(1));
        assert!(printed.contains(says), "{printed}");
        assert!(printed.trim_end().ends_with(": ok"), "{printed}");
    }
    Ok(())
}

#[test]
fn lint_reads_lists_and_skips_foreign_objects() -> Result<()> {
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
    let (code, printed, _) = run_ctrlmesh(&["lint", "-f", &file.display().to_string()])?;
    assert_eq!(code, Some(1));
    for says in [
        "CircuitBreaker A: metadata.name: \"A\" is no name",
        "not checked: 1 object of another API group: Deployment operator\n",
        "ShardingConfig a: apiVersion: is \"ctrlmesh.kusionstak.io/v1alpha1\"; write ctrlmesh.kusionstack.io/v1alpha1",
    ] {
        assert!(printed.contains(says), "{says} is missing in {printed}");
    }
    Ok(())
}
