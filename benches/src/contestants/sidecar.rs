//! A sidecar in a separate process, with one worker thread.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ctrlmesh_contract::status::Status;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Contestant;
use crate::chain::SidecarFolder;
use crate::process::Process;

pub(crate) struct Sidecar {
    pub(crate) process: Process,
    /// Address of the port for controllers.
    pub(crate) api: SocketAddr,
    admin: SocketAddr,
    /// The HTTP version that it speaks with the origin.
    upstream_http: &'static str,
    /// Interval at which the admin port is asked for something that is awaited.
    poll: Duration,
    /// From process start to the first 200 of `/readyz`.
    pub(crate) ready_after: Duration,
}

/// Timeout of a start, in which plugins may be compiled, under valgrind too.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval at which a sidecar is asked whether it is ready when its start is measured.
pub(crate) const POLL: Duration = Duration::from_millis(1);

impl Sidecar {
    /// Returns when the sidecar is ready.
    pub(crate) async fn start(program: &Path, folder: &SidecarFolder) -> anyhow::Result<Self> {
        Self::start_command(Command::new(program), folder, POLL).await
    }

    /// Starts a command that begins with other flags or runs the sidecar in another program. `poll`: the interval at which it is asked
    /// whether it is ready.
    pub(crate) async fn start_command(
        mut command: Command,
        folder: &SidecarFolder,
        poll: Duration,
    ) -> anyhow::Result<Self> {
        command
            .args(["--api-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"])
            .args(["--workers", "1", "--log", "warn"])
            .args(["--pod-name", "bench-0", "--pod-namespace", "bench"]);
        command.arg("--kubeconfig").arg(folder.kubeconfig_path());
        command.arg("--chain-dir").arg(folder.chain_directory());
        command.arg("--cache-dir").arg(folder.cache_directory());
        let start = Instant::now();
        let (process, line) = Process::start_and_listen(command)?;
        let line: serde_json::Value = serde_json::from_str(&line).context("the sidecar did not start")?;
        let address = |name: &str| -> anyhow::Result<SocketAddr> {
            let address = line
                .pointer(&format!("/listening/{name}"))
                .and_then(|address| address.as_str());
            Ok(address.context("no address")?.parse()?)
        };
        let mut sidecar = Self {
            process,
            api: address("api")?,
            admin: address("admin")?,
            upstream_http: folder.upstream_http(),
            poll,
            ready_after: Duration::ZERO,
        };
        sidecar.wait_until("/readyz", |_| true).await?;
        sidecar.ready_after = start.elapsed();
        Ok(sidecar)
    }

    pub(crate) fn into_contestant(self, name: &str) -> Contestant {
        Contestant::new(name, self.process, self.api, self.upstream_http)
    }

    /// Waits until this generation of the chain is in force.
    pub(crate) async fn wait_for_generation(&self, generation: u64) -> anyhow::Result<()> {
        self.wait_until("/status", |body| {
            let status: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
            status.pointer("/chain/generation").and_then(serde_json::Value::as_u64) == Some(generation)
        })
        .await
        .with_context(|| format!("generation {generation} of the chain did not come into force"))
    }

    /// Verdicts of all entries that were repeated without a call so far.
    pub(crate) async fn repeated_verdicts(&self) -> anyhow::Result<u64> {
        let response = self.get_admin("/status").await?;
        let (_, body) = response.split_once("\r\n\r\n").context("no status")?;
        let status: Status = serde_json::from_str(body)?;
        let reuses = status.chain.entries.into_iter().filter_map(|entry| entry.reuse);
        Ok(reuses.map(|reuse| reuse.reused).sum())
    }

    /// Polls the admin port until it answers 200 with the expected content.
    async fn wait_until(&self, path: &str, is_expected: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut poll = tokio::time::interval(self.poll);
        loop {
            poll.tick().await;
            let response = self.get_admin(path).await?;
            let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
            if head.starts_with("HTTP/1.1 200") && is_expected(body) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{path} of the sidecar says after {PATIENCE:?}: {response}");
            }
        }
    }

    async fn get_admin(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.admin).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response)
    }
}
