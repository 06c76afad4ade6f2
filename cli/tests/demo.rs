//! Runs the real `ctrlmesh demo` with a real manager and real sidecars: its exit code and report must be correct, and nothing left behind.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The longest check whose table fits into 80 columns.
const MAX_CHECK_WIDTH: usize = 51;

/// Some of the checks that the report must contain.
const COUNTED: &[&str] = &[
    "shards that waited until another had let go",
    "widgets with two owners at a time",
    "requests failed by the replacement",
    "watches cut by the crashes",
    "writes at the tightest moment, of 2 × (30 + 30/s)",
    "writes in all, of 2 × (30 + 30/s)",
    "writes that waited for a token",
    "requests failed by the limit",
    "breakers open, by /status",
    "breakers open, by the object's status",
    "writes that failed before both were open",
    "other writes that it saw while they were open",
    "breakers closed again, by /status",
    "changes during the outage that were never handled",
    "rules of the file that fired",
    "lists after the watches expired",
    "responses lost without a hint: writes done twice",
    "responses lost with a hint: writes done twice",
    "conflicts, as the file's seed draws them",
    "failures that controllers met, all from the file",
    "spoiled chains that the manager put right",
    "sidecars that run the manager's chain",
    "objects refused with the field that is wrong",
    "widgets changed and handled meanwhile",
    "gadgets that one shard handled alone",
    "gadgets of the first that the third got",
    "gadgets of the second that the third got",
    "gadgets that moved between the first two",
    "gadgets with two owners at a time",
    "gadgets with a label",
    "writes of gadgets by others than controllers",
    "shards that show the moved gadget",
    "late writes answered with 409",
    "late writes that the sidecar counts as refused",
    "late writes that reached the API server",
    "moved gadgets as the new owner wrote them",
    "late writes that the controller gave up",
];

/// `temporary` is a folder of its own, so that leftovers are visible.
fn run_demo(arguments: &[&str], temporary: &Path) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    Ok(command.args(arguments).env("TMPDIR", temporary).output()?)
}

#[test]
fn demo_checks_all_hold() -> Result<()> {
    for name in ["ctrlmesh-proxy", "ctrlmesh-manager"] {
        let path = Path::new(env!("CARGO_BIN_EXE_ctrlmesh")).with_file_name(name);
        ensure!(
            path.is_file(),
            "{} is missing: run `cargo build -p {name}` first",
            path.display()
        );
    }
    let temporary = tempfile::tempdir()?;
    let output = run_demo(&["demo", "--fast", "--output", "json"], temporary.path())?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "{}\n{stderr}\n{stdout}", output.status);

    let report: Value = serde_json::from_str(&stdout)?;
    assert_eq!(report["holds"], true);
    let checks = report["claims"].as_array().context("no checks")?;
    assert!(checks.iter().all(|check| check["holds"] == true), "{stdout}");
    for step in 2..=12 {
        assert!(
            checks.iter().any(|check| check["step"] == step),
            "step {step} checks nothing: {stdout}"
        );
    }
    for counted in COUNTED {
        assert!(
            checks.iter().any(|check| check["claim"] == *counted),
            "nobody counted {counted}"
        );
    }
    for check in checks.iter().filter_map(|check| check["claim"].as_str()) {
        assert!(
            check.chars().count() <= MAX_CHECK_WIDTH,
            "too wide for a terminal: {check}"
        );
    }
    every_rule_fired(&report)?;
    let left: Vec<_> = std::fs::read_dir(temporary.path())?.collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

fn every_rule_fired(report: &Value) -> Result<()> {
    let fired = report["faults"].as_array().context("no rules for faults")?;
    assert_eq!(fired.len(), 4, "{fired:?}");
    for rule in fired {
        let (matched, fired) = (rule["matched"].as_u64(), rule["fired"].as_u64());
        assert!(fired > Some(0) && matched >= fired, "{rule}");
    }
    Ok(())
}

/// Starts the demo and waits until its first step is over, so that everything runs.
fn start_and_wait_until_running(temporary: &Path) -> Result<Child> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    let mut demo = command
        .arg("demo")
        .env("TMPDIR", temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdout = BufReader::new(demo.stdout.take().context("no standard output")?);
    let mut line = String::new();
    let mut is_shown = false;
    while !line.contains("1  ✔") {
        line.clear();
        ensure!(stdout.read_line(&mut line)? > 0, "the demo ended too early");
        is_shown |= line.trim() == "$ kubectl apply -f FaultInjection/widgets.yaml";
    }
    ensure!(is_shown, "nobody showed what is applied");
    // The rest must be read, or the demo would block on the pipe.
    std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    Ok(demo)
}

/// Processes with an argument in `temporary`, as all children of the demo have: number and command line.
fn child_processes(temporary: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        // A process may end during the scan.
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        if arguments.contains(&temporary.display().to_string()) {
            found.push((entry.file_name().to_string_lossy().into_owned(), arguments));
        }
    }
    Ok(found)
}

fn send_signal(signal: &str, pid: &str) -> Result<()> {
    ensure!(
        Command::new("kill").args([signal, pid]).status()?.success(),
        "kill {signal} {pid}"
    );
    Ok(())
}

/// Waits for the end of the demo, which must leave nothing behind; returns its exit code and standard error.
fn wait_for_end(mut demo: Child, temporary: &Path) -> Result<(Option<i32>, String)> {
    let mut stderr = String::new();
    demo.stderr
        .take()
        .context("no standard error")?
        .read_to_string(&mut stderr)?;
    let status = demo.wait()?;
    let (files, processes) = (std::fs::read_dir(temporary)?.count(), child_processes(temporary)?);
    ensure!(
        files == 0 && processes.is_empty(),
        "left behind: {files} files, {processes:?}"
    );
    Ok((status.code(), stderr))
}

#[test]
fn interrupt_leaves_nothing_behind() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let demo = start_and_wait_until_running(temporary.path())?;
    let children = child_processes(temporary.path())?;
    assert_eq!(
        children.len(),
        5,
        "a manager, two sidecars and two controllers: {children:?}"
    );
    send_signal("-INT", &demo.id().to_string())?;
    let (code, stderr) = wait_for_end(demo, temporary.path())?;
    assert_eq!((code, stderr.trim()), (Some(130), "ctrlmesh: interrupted"));
    Ok(())
}

/// Kills the first child with this binary. Returns the demo's exit code and standard error.
fn run_without_child(binary: &str) -> Result<(Option<i32>, String)> {
    let temporary = tempfile::tempdir()?;
    let demo = start_and_wait_until_running(temporary.path())?;
    let children = child_processes(temporary.path())?;
    let child = children.iter().find(|(_, arguments)| arguments.contains(binary));
    send_signal("-KILL", &child.with_context(|| format!("no {binary} runs"))?.0)?;
    wait_for_end(demo, temporary.path())
}

#[test]
fn demo_names_process_that_died_and_fails() -> Result<()> {
    for (binary, name) in [("ctrlmesh-proxy", "sidecar-"), ("ctrlmesh-manager", "manager")] {
        let (code, stderr) = run_without_child(binary)?;
        assert_eq!(code, Some(1), "{stderr}");
        assert!(
            stderr.contains(&format!("ctrlmesh: {name}")) && stderr.contains("ended by itself"),
            "{stderr}"
        );
    }
    Ok(())
}

#[test]
fn missing_binary_error_says_what_to_do() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    for (flag, binary) in [("--proxy", "ctrlmesh-proxy"), ("--manager", "ctrlmesh-manager")] {
        let output = run_demo(&["demo", flag, "/nonexistent"], temporary.path())?;
        assert!(!output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains(&format!("cargo build -p {binary}")), "{stderr}");
        assert!(output.stdout.is_empty());
    }
    Ok(())
}
