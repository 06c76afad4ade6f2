//! The real `ctrlmesh-proxy` process, started on free ports, killed when dropped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use ctrlmesh_contract::status::Status;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::{Client, DEADLINE, NAMESPACE, wait_until};

pub struct Sidecar {
    child: Child,
    api: SocketAddr,
    admin: SocketAddr,
    external: Option<SocketAddr>,
    log: Arc<Mutex<Vec<String>>>,
    _reader: JoinHandle<()>,
}

/// A binary of the workspace, from the folder above the test's own.
///
/// # Errors
/// If it was not built.
pub fn binary_path(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own
        .parent()
        .and_then(std::path::Path::parent)
        .context("no target folder")?;
    let binary = target.join(name);
    if !binary.exists() {
        bail!("{} is missing: build it first (make test-rust does)", binary.display());
    }
    Ok(binary)
}

impl Sidecar {
    /// Starts the sidecar without waiting until it is ready.
    ///
    /// # Errors
    /// If it ends at once; the text is its log.
    pub async fn start(flags: &[String]) -> anyhow::Result<Self> {
        let mut command = Command::new(binary_path("ctrlmesh-proxy")?);
        command
            .args([
                "--pod-name",
                "operator-0",
                "--pod-namespace",
                NAMESPACE,
                "--log",
                "info,access=debug",
            ])
            .args(flags);
        Self::from_command(command).await
    }

    /// Starts the sidecar by a command of the test, but on free ports.
    ///
    /// # Errors
    /// If it ends at once; the text is its log.
    pub async fn from_command(mut command: Command) -> anyhow::Result<Self> {
        command
            .env("CTRLMESH_API_ADDRESS", "127.0.0.1:0")
            .env("CTRLMESH_ADMIN_ADDRESS", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let errors = child.stderr.take().context("no stderr")?;
        let reader = tokio::spawn(collect_log(BufReader::new(errors), Arc::clone(&log)));
        let output = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        tokio::time::timeout(DEADLINE, BufReader::new(output).read_line(&mut line)).await??;
        let address = |name: &str| -> anyhow::Result<SocketAddr> {
            let value: serde_json::Value = serde_json::from_str(&line).with_context(|| log_text(&log))?;
            let text = value
                .pointer(&format!("/listening/{name}"))
                .and_then(|text| text.as_str())
                .context("no address")?;
            Ok(text.parse()?)
        };
        Ok(Self {
            api: address("api")?,
            admin: address("admin")?,
            external: address("external").ok(),
            child,
            log,
            _reader: reader,
        })
    }

    /// Address of the port for controllers.
    #[must_use]
    pub const fn api_address(&self) -> SocketAddr {
        self.api
    }

    /// Address of the port for external calls, if it is enabled.
    #[must_use]
    pub const fn external_address(&self) -> Option<SocketAddr> {
        self.external
    }

    /// Address of the admin port.
    #[must_use]
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// A client for the admin port.
    #[must_use]
    pub fn admin_client(&self) -> Client {
        Client::http1(self.admin)
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> String {
        log_text(&self.log)
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// If it does not before the deadline; the text is its log.
    pub async fn wait_ready(&self) -> anyhow::Result<()> {
        let admin = self.admin_client();
        wait_until("/readyz", || async { Ok(admin.get("/readyz").await?.status == 200) })
            .await
            .with_context(|| self.log())
    }

    /// `/status`.
    ///
    /// # Errors
    /// If the admin port does not answer.
    pub async fn status(&self) -> anyhow::Result<Status> {
        Ok(serde_json::from_slice(&self.admin_client().get("/status").await?.body)?)
    }

    /// Waits until `/status` satisfies `fits`.
    ///
    /// # Errors
    /// If it does not before the deadline; the text is the last status.
    pub async fn wait_status(&self, what: &str, fits: impl Fn(&Status) -> bool) -> anyhow::Result<Status> {
        wait_until(what, || async { Ok(fits(&self.status().await?)) })
            .await
            .with_context(|| self.log())?;
        self.status().await
    }

    /// Waits until this generation is in force.
    ///
    /// # Errors
    /// If it is not before the deadline.
    pub async fn wait_generation(&self, generation: u64) -> anyhow::Result<()> {
        self.wait_status("the chain is in force", |status| status.chain.generation >= generation)
            .await
            .map(drop)
    }

    /// The value of a metric; 0 if it is missing. `series`: name and labels as written.
    ///
    /// # Errors
    /// If the admin port does not answer.
    pub async fn metric_value(&self, series: &str) -> anyhow::Result<f64> {
        metric_in(&self.metrics().await?, series)
    }

    /// All metrics, as text.
    ///
    /// # Errors
    /// If the admin port does not answer.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8(
            self.admin_client().get("/metrics").await?.body.to_vec(),
        )?)
    }

    /// Resets the peak memory use.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn forget_peak_memory(&self) -> anyhow::Result<()> {
        let pid = self.child.id().context("it has ended")?;
        Ok(std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
    }

    /// The peak memory use since [`Self::forget_peak_memory`], in bytes.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn peak_memory(&self) -> anyhow::Result<usize> {
        let pid = self.child.id().context("it has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
        Ok(peak.context("no peak")?.trim().parse::<usize>()? << 10)
    }

    /// The anonymous memory in use, in bytes.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn anonymous_memory(&self) -> anyhow::Result<usize> {
        let pid = self.child.id().context("it has ended")?;
        let memory = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let anonymous = memory
            .lines()
            .find_map(|line| line.strip_prefix("Anonymous:")?.strip_suffix("kB"));
        Ok(anonymous.context("no anonymous memory")?.trim().parse::<usize>()? << 10)
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn send_sigterm(&self) -> anyhow::Result<()> {
        let pid = self.child.id().context("it has ended")?;
        let status = std::process::Command::new("kill")
            .args(["-TERM", &pid.to_string()])
            .status()?;
        if !status.success() {
            bail!("kill failed");
        }
        Ok(())
    }

    /// Kills the process, and waits until it is gone.
    ///
    /// # Errors
    /// If the system call fails.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    /// If it does not before the deadline.
    pub async fn wait_end(&mut self) -> anyhow::Result<ExitStatus> {
        tokio::time::timeout(DEADLINE, self.child.wait())
            .await
            .context("it does not end")?
            .map_err(Into::into)
    }

    /// Whether the process still runs.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

/// The value of a series in the text of `/metrics`; 0 if it is missing.
///
/// # Errors
/// If the value is no number.
pub fn metric_in(text: &str, series: &str) -> anyhow::Result<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(line.map(str::parse).transpose()?.unwrap_or_default())
}

fn log_text(log: &Mutex<Vec<String>>) -> String {
    log.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
}

async fn collect_log(mut lines: BufReader<tokio::process::ChildStderr>, log: Arc<Mutex<Vec<String>>>) {
    let mut line = String::new();
    while matches!(lines.read_line(&mut line).await, Ok(read) if read > 0) {
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(std::mem::take(&mut line).trim_end().to_owned());
    }
}
