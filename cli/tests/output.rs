//! Standard output that takes nothing: what was said must not get lost without a word. A reader that goes away is no error.
#![cfg(target_os = "linux")]

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result};

/// Commands that write more than one line, and an object that lint accepts, on standard input.
const COMMANDS: [&[&str]; 4] = [
    &["crd"],
    &["lint", "-f", "-"],
    &["lint", "-f", "-", "--output", "json"],
    &["--help"],
];

const BREAKER: &str = "\
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: a, namespace: demo}
spec: {selector: {}}
";

fn run(arguments: &[&str], stdout: Stdio) -> Result<Output> {
    let mut input = tempfile::tempfile()?;
    std::io::Write::write_all(&mut input, BREAKER.as_bytes())?;
    std::io::Seek::rewind(&mut input)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    command
        .args(arguments)
        .stdin(input)
        .stdout(stdout)
        .stderr(Stdio::piped());
    command.spawn()?.wait_with_output().context("it ends")
}

#[test]
fn full_standard_output_is_an_error_that_is_reported() -> Result<()> {
    for arguments in COMMANDS {
        let full = OpenOptions::new().write(true).open("/dev/full")?;
        let output = run(arguments, full.into())?;
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(
            message.starts_with("ctrlmesh: ") && message.contains("No space left on device"),
            "{arguments:?}: {message}"
        );
    }
    Ok(())
}

#[test]
fn reader_that_goes_away_is_no_error() -> Result<()> {
    for arguments in COMMANDS {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = run(arguments, writer.into())?;
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*message), (Some(0), ""), "{arguments:?}");
    }
    Ok(())
}
