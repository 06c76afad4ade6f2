//! Builds the programs with cargo, and finds out which of them are new.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio::process::Command;

use super::super::{Binaries, MANAGER, PROXY};
use super::sources::Changed;
use crate::args::DevArgs;
use crate::error::Error;
use crate::print;

/// The name of the binary with this code.
const COMMAND: &str = "ctrlmesh";

/// The programs that are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rebuilt {
    pub(super) command: bool,
    pub(super) manager: bool,
    pub(super) proxy: bool,
}

/// Builds, and remembers what runs.
#[derive(Debug)]
pub(super) struct Build<'a> {
    args: &'a DevArgs,
    command: PathBuf,
    binaries: Binaries,
    running: Written,
}

/// When each program was written; `None`: it is to be restarted whatever it is.
#[derive(Debug, Clone, Copy)]
struct Written {
    command: Option<SystemTime>,
    manager: Option<SystemTime>,
    proxy: Option<SystemTime>,
}

impl<'a> Build<'a> {
    /// With the programs that are there now as those that run.
    pub(super) fn new(args: &'a DevArgs, command: &Path, binaries: &Binaries) -> Self {
        let (command, binaries) = (command.to_owned(), binaries.clone());
        let running = times_written(&command, &binaries);
        Self {
            args,
            command,
            binaries,
            running,
        }
    }

    /// Runs `cargo build`, with our standard output and error. `None`: the build failed.
    pub(super) async fn run(&mut self, changed: Changed) -> Result<Option<Rebuilt>, Error> {
        print::line("dev: building");
        // As `make build` does: with the features of fewer packages, or without those of tests, dependencies would be built once more.
        let mut cargo = Command::new(&self.args.cargo);
        cargo
            .args([
                "build",
                "--locked",
                "--workspace",
                "--example",
                "hello",
                "--bin",
                PROXY,
                "--bin",
                MANAGER,
            ])
            .current_dir(&self.args.sources)
            .kill_on_drop(true);
        if changed == Changed::Command {
            cargo.args(["--bin", COMMAND]);
        }
        let status = cargo.status().await.map_err(|source| Error::Spawn {
            name: self.args.cargo.display().to_string(),
            source,
        })?;
        if !status.success() {
            return Ok(None);
        }
        let before = std::mem::replace(&mut self.running, times_written(&self.command, &self.binaries));
        Ok(Some(Rebuilt {
            command: changed == Changed::Command && self.running.command != before.command,
            manager: before.manager.is_none() || self.running.manager != before.manager,
            proxy: before.proxy.is_none() || self.running.proxy != before.proxy,
        }))
    }

    /// Counts the manager and the sidecars as new after the next build: they may not run.
    pub(super) fn forget(&mut self) {
        (self.running.manager, self.running.proxy) = (None, None);
    }
}

fn times_written(command: &Path, binaries: &Binaries) -> Written {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    Written {
        command: modified(command),
        manager: modified(&binaries.manager),
        proxy: modified(&binaries.proxy),
    }
}
