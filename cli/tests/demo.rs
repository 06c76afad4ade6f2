//! The real `ctrlmesh demo`, with real sidecars: it must say the truth in its exit code and in its report, and leave nothing behind.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// `temporary` is a folder of its own, so that what is left behind is seen.
fn run(arguments: &[&str], temporary: &Path) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    Ok(command.args(arguments).env("TMPDIR", temporary).output()?)
}

#[test]
fn every_claim_of_the_demo_holds() -> Result<()> {
    let proxy = Path::new(env!("CARGO_BIN_EXE_ctrlmesh")).with_file_name("ctrlmesh-proxy");
    ensure!(
        proxy.is_file(),
        "{} is missing: run `cargo build -p ctrlmesh-proxy` first",
        proxy.display()
    );
    let temporary = tempfile::tempdir()?;
    let output = run(&["demo", "--fast", "--output", "json"], temporary.path())?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{}\n{stderr}\n{stdout}", output.status);

    let report: Value = serde_json::from_str(&stdout)?;
    assert_eq!(report["holds"], true);
    let claims = report["claims"].as_array().context("no claims")?;
    assert!(claims.iter().all(|claim| claim["holds"] == true), "{stdout}");
    for step in 2..=6 {
        assert!(
            claims.iter().any(|claim| claim["step"] == step),
            "step {step} claims nothing: {stdout}"
        );
    }
    for counted in [
        "widgets with two owners at a time",
        "requests failed by the replacement",
        "watches cut by the crashes",
    ] {
        assert!(
            claims.iter().any(|claim| claim["claim"] == counted),
            "nobody counted {counted}"
        );
    }
    let left: Vec<_> = std::fs::read_dir(temporary.path())?.collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

#[test]
fn a_missing_sidecar_is_named_with_what_to_do() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let output = run(&["demo", "--proxy", "/nonexistent/ctrlmesh-proxy"], temporary.path())?;
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cargo build -p ctrlmesh-proxy"), "{stderr}");
    assert!(output.stdout.is_empty());
    Ok(())
}
