//! Settings that make no sense.

use std::process::Output;

use ctrlmesh_tests::{DEADLINE, binary};
use tokio::process::Command;

async fn start(flags: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(binary("ctrlmesh-proxy")?);
    command.args(flags).kill_on_drop(true);
    Ok(tokio::time::timeout(DEADLINE, command.output()).await??)
}

/// 78 is EX_CONFIG (sysexits.h): nothing has been served, and trying again does not help.
#[tokio::test]
async fn every_setting_that_makes_no_sense_is_told_before_anything_is_served() -> anyhow::Result<()> {
    let output = start(&["--chain-dir=/nowhere", "--pod-namespace=demo", "--public-key=abc"]).await?;
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
