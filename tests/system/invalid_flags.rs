//! A sidecar with invalid flags reports all of them, and exits with 78 before it serves.

use std::process::Output;

use ctrlmesh_tests::{DEADLINE, binary_path};
use tokio::process::Command;

async fn run_sidecar(flags: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(binary_path("ctrlmesh-proxy")?);
    command.args(flags).kill_on_drop(true);
    Ok(tokio::time::timeout(DEADLINE, command.output()).await??)
}

/// 78 is EX_CONFIG (sysexits.h): nothing was served, and retrying does not help.
#[tokio::test]
async fn invalid_settings_are_all_reported_before_serving() -> anyhow::Result<()> {
    let output = run_sidecar(&["--chain-dir=/nowhere", "--pod-namespace=demo", "--public-key=abc"]).await?;
    assert_eq!(output.status.code(), Some(78));
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    for word in ["--chain-dir", "--public-key", "ed25519:"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(!said.contains("listening"), "{said}");
    Ok(())
}
