//! Messages of `ctrlmesh lint`, as a reviewer reads them. `cargo insta review` (or `INSTA_UPDATE=always cargo test`) accepts changed ones.

use std::path::Path;
use std::process::Command;

#[test]
fn messages_of_lint_match_snapshot() -> anyhow::Result<()> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manager/planner/tests/fixtures");
    let mut names = Vec::new();
    for folder in ["refused", "refused-by-rules"] {
        for entry in std::fs::read_dir(fixtures.join(folder))? {
            names.push(Path::new(folder).join(entry?.file_name()));
        }
    }
    names.sort();
    let mut printed = String::new();
    for name in names {
        let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
            .current_dir(&fixtures)
            .args(["lint", "-f"])
            .arg(&name)
            .output()?;
        assert_eq!(output.status.code(), Some(1), "{name:?} has mistakes");
        printed += &String::from_utf8(output.stdout)?;
    }
    insta::assert_snapshot!(printed);
    Ok(())
}

/// Exit code and output for one of the fixtures of these tests.
fn lint_fixture(arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"))
        .arg("lint")
        .args(arguments)
        .output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

#[test]
fn warnings_of_lint_match_snapshot() -> anyhow::Result<()> {
    let (code, printed) = lint_fixture(&["warnings.yaml"])?;
    assert_eq!(code, Some(0), "warnings refuse nothing: {printed}");
    insta::assert_snapshot!(printed);
    Ok(())
}

#[test]
fn json_of_lint_matches_snapshot() -> anyhow::Result<()> {
    let (code, printed) = lint_fixture(&["--output", "json", "findings.yaml"])?;
    assert_eq!(code, Some(1), "{printed}");
    insta::assert_snapshot!(printed);
    Ok(())
}
