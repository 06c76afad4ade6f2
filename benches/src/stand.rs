//! What every measurement needs: the origin, a place for files, the sidecar's program.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;
use tempfile::TempDir;

use crate::chain::{Chain, Folder};
use crate::process::Process;
use crate::sidecar::Sidecar;

/// Shared by the measurements of a run.
pub(crate) struct Stand {
    pub(crate) origin: SocketAddr,
    pub(crate) program: PathBuf,
    files: TempDir,
    _origin: Process,
}

impl Stand {
    pub(crate) fn start(program: Option<PathBuf>) -> anyhow::Result<Self> {
        let program = match program {
            Some(program) => program,
            None => std::env::current_exe()?.with_file_name("ctrlmesh-proxy"),
        };
        if !program.exists() {
            bail!("{} is missing: run `make bench`, which builds it", program.display());
        }
        let (process, origin) = role(&["origin"])?;
        Ok(Self {
            origin,
            program,
            files: tempfile::tempdir()?,
            _origin: process,
        })
    }

    /// A bare hyper proxy in front of the origin.
    pub(crate) fn bare(&self) -> anyhow::Result<(Process, SocketAddr)> {
        role(&["bare", &self.origin.to_string()])
    }

    /// A new folder for a sidecar in front of the origin.
    pub(crate) fn folder(&self, name: &str, chain: Chain) -> anyhow::Result<Folder> {
        Folder::create(self.files(), name, self.origin, chain)
    }

    /// A sidecar in front of the origin, on a new folder.
    pub(crate) async fn sidecar(&self, name: &str, chain: Chain) -> anyhow::Result<Sidecar> {
        Sidecar::start(&self.program, &self.folder(name, chain)?).await
    }

    pub(crate) fn files(&self) -> &Path {
        self.files.path()
    }
}

/// This program in another role, as a process of its own.
fn role(arguments: &[&str]) -> anyhow::Result<(Process, SocketAddr)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    let (process, line) = Process::start_and_listen(command)?;
    Ok((process, line.parse()?))
}
