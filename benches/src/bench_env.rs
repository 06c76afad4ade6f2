//! Shared by all measurements: the origin, a folder for files, the sidecar's binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;
use tempfile::TempDir;

use crate::chain::{Chain, SidecarFolder};
use crate::process::Process;
use crate::sidecar::Sidecar;

pub(crate) struct BenchEnv {
    pub(crate) origin: SocketAddr,
    pub(crate) program: PathBuf,
    files: TempDir,
    _origin: Process,
}

impl BenchEnv {
    pub(crate) fn start(program: Option<PathBuf>) -> anyhow::Result<Self> {
        let program = match program {
            Some(program) => program,
            None => std::env::current_exe()?.with_file_name("ctrlmesh-proxy"),
        };
        if !program.exists() {
            bail!("{} is missing: run `make bench`, which builds it", program.display());
        }
        let (process, origin) = start_role(&["origin"])?;
        Ok(Self {
            origin,
            program,
            files: tempfile::tempdir()?,
            _origin: process,
        })
    }

    /// A bare hyper proxy in front of the origin.
    pub(crate) fn start_bare_proxy(&self) -> anyhow::Result<(Process, SocketAddr)> {
        start_role(&["bare", &self.origin.to_string()])
    }

    /// Creates a folder for a sidecar in front of the origin.
    pub(crate) fn create_folder(&self, name: &str, chain: Chain) -> anyhow::Result<SidecarFolder> {
        SidecarFolder::create(self.files_directory(), name, self.origin, chain)
    }

    /// Starts a sidecar in front of the origin, with a new folder.
    pub(crate) async fn start_sidecar(&self, name: &str, chain: Chain) -> anyhow::Result<Sidecar> {
        Sidecar::start(&self.program, &self.create_folder(name, chain)?).await
    }

    pub(crate) fn files_directory(&self) -> &Path {
        self.files.path()
    }
}

/// Starts this program in another role, as a separate process.
fn start_role(arguments: &[&str]) -> anyhow::Result<(Process, SocketAddr)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    let (process, line) = Process::start_and_listen(command)?;
    Ok((process, line.parse()?))
}
