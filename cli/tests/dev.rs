//! `ctrlmesh dev` with a stand-in for cargo that only touches programs: what is restarted, what a failed build does, what is left behind.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// From a change to the line that is waited for. A manager packs its plugins when it starts, which is slow in a debug build.
const DEADLINE: Duration = Duration::from_secs(60);

/// Lines that a test has not read.
const LINES: usize = 10_000;

fn write_program(path: &Path, script: &str) -> Result<()> {
    std::fs::write(path, format!("#!/bin/sh\n{script}\n"))?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

/// Ends the process with its test.
struct Dev {
    process: Child,
    lines: Receiver<String>,
}

impl Dev {
    /// Programs and sources lie in `folder`, files of the process in `temporary`.
    fn start(folder: &Path, temporary: &Path) -> Result<Self> {
        let command = Path::new(env!("CARGO_BIN_EXE_ctrlmesh"));
        for name in ["ctrlmesh-proxy", "ctrlmesh-manager"] {
            let program = command.with_file_name(name);
            ensure!(
                program.is_file(),
                "{} is missing: run `make build` first",
                program.display()
            );
            write_program(&folder.join(name), &format!("exec '{}' \"$@\"", program.display()))?;
        }
        let mut process = Command::new(command)
            .args(["dev", "--sources", ".", "--cargo", "./cargo"])
            .args(["--proxy", "./ctrlmesh-proxy", "--manager", "./ctrlmesh-manager"])
            .current_dir(folder)
            .env("TMPDIR", temporary)
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = BufReader::new(process.stdout.take().context("standard output")?);
        let (sender, lines) = sync_channel(LINES);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, lines })
    }

    fn wait_for_line(&self, part: &str) -> Result<()> {
        let mut read = Vec::new();
        loop {
            let line = self.lines.recv_timeout(DEADLINE);
            let line = line.with_context(|| format!("no line with {part:?} after\n{}", read.join("\n")))?;
            if line.contains(part) {
                return Ok(());
            }
            read.push(line);
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn dev_restarts_what_was_built_and_leaves_nothing_behind() -> Result<()> {
    let (folder, temporary) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let source = folder.path().join("proxy");
    std::fs::create_dir(&source)?;
    let mut dev = Dev::start(folder.path(), temporary.path())?;
    dev.wait_for_line("dev: watching")?;
    for (number, (build, line)) in [
        ("touch ctrlmesh-proxy", "dev: restarted ctrlmesh-proxy"),
        ("exit 1", "dev: the build failed; the programs go on as they are"),
        ("touch ctrlmesh-manager", "dev: restarted ctrlmesh-manager"),
        ("exit 0", "dev: the programs are the same"),
    ]
    .into_iter()
    .enumerate()
    {
        write_program(&folder.path().join("cargo"), build)?;
        std::fs::write(source.join(format!("{number}.rs")), build)?;
        dev.wait_for_line(line)?;
    }
    let pid = dev.process.id().to_string();
    ensure!(Command::new("kill").args(["-INT", &pid]).status()?.success());
    ensure!(dev.process.wait()?.success());
    assert_eq!(std::fs::read_dir(temporary.path())?.count(), 0);
    Ok(())
}
