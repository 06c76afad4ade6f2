//! The processes of a measurement: origin, bare proxy, the sidecar without and with an entry.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use ctrlmesh_contract::Digest;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Process;

/// One row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) target: String,
    /// The process whose CPU is counted.
    pub(crate) process: Option<Process>,
}

/// Everything that runs.
pub(crate) struct Stand {
    cases: Vec<Case>,
    _origin: Process,
    _files: TempDir,
}

const LIST: &str = "/api/v1/namespaces/default/configmaps?limit=500";
const GET: &str = "/api/v1/namespaces/default/configmaps/a";

/// A sidecar compiles its plugins at the first start.
const READY: Duration = Duration::from_secs(60);

impl Stand {
    pub(crate) async fn start(proxy: Option<PathBuf>) -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let proxy = proxy.unwrap_or_else(|| own.with_file_name("ctrlmesh-proxy"));
        if !proxy.exists() {
            bail!(
                "{} is missing: cargo build --release -p ctrlmesh-proxy",
                proxy.display()
            );
        }
        let files = tempfile::tempdir()?;
        let mut command = Command::new(&own);
        command.arg("origin");
        let (origin, line) = Process::start(command)?;
        let at: SocketAddr = line.parse()?;
        let mut command = Command::new(&own);
        command.args(["bare", &at.to_string()]);
        let (bare, line) = Process::start(command)?;
        let direct = Case {
            name: "direct",
            address: at,
            target: GET.to_owned(),
            process: None,
        };
        let bare = Case {
            name: "bare hyper proxy",
            address: line.parse()?,
            target: GET.to_owned(),
            process: Some(bare),
        };
        let (empty, address) = sidecar(&proxy, at, &chain(files.path(), "empty", false)?).await?;
        let empty = Case {
            name: "ctrlmesh, no entry",
            address,
            target: GET.to_owned(),
            process: Some(empty),
        };
        let (sharded, address) = sidecar(&proxy, at, &chain(files.path(), "sharded", true)?).await?;
        let sharded = Case {
            name: "ctrlmesh, shard-selector on list",
            address,
            target: LIST.to_owned(),
            process: Some(sharded),
        };
        Ok(Self {
            cases: vec![direct, bare, empty, sharded],
            _origin: origin,
            _files: files,
        })
    }

    pub(crate) fn cases(&self) -> &[Case] {
        &self.cases
    }
}

/// Writes kubeconfig, chain and plugin; returns the folder.
fn chain(files: &Path, name: &str, sharded: bool) -> anyhow::Result<PathBuf> {
    let folder = files.join(name);
    let chain = folder.join("chain");
    std::fs::create_dir_all(&chain)?;
    let plugin = ctrlmesh_plugins_builtin::SHARD_SELECTOR;
    let digest = Digest::of(plugin);
    let settings = serde_json::json!({
        "shard": "a",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "selector": { "matchLabels": { "shard": "a" } },
        }],
    });
    let entry = serde_json::json!({
        "name": "shard-selector/a", "plugin": format!("sha256:{}", digest.hex()), "podSelector": {}, "order": 100,
        "onFailure": "Closed", "settings": settings,
    });
    let document = serde_json::json!({
        "apiVersion": ctrlmesh_contract::names::CHAIN_API_VERSION, "namespace": "bench", "generation": 1,
        "entries": if sharded { vec![entry] } else { Vec::new() },
    });
    std::fs::write(chain.join("chain.yaml"), serde_json::to_vec(&document)?)?;
    std::fs::write(chain.join(format!("{}.wasm", digest.hex())), plugin)?;
    Ok(folder)
}

async fn sidecar(proxy: &Path, origin: SocketAddr, folder: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let kubeconfig = folder.join("kubeconfig");
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{origin}") } }],
        "users": [{ "name": "c", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
    });
    std::fs::write(&kubeconfig, serde_json::to_vec(&config)?)?;
    let mut command = Command::new(proxy);
    command.args([
        "--api-address",
        "127.0.0.1:0",
        "--admin-address",
        "127.0.0.1:0",
        "--workers",
        "1",
        "--log",
        "warn",
    ]);
    command
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .arg("--chain-dir")
        .arg(folder.join("chain"));
    command
        .arg("--cache-dir")
        .arg(folder.join("cache"))
        .args(["--pod-name", "bench-0", "--pod-namespace", "bench"]);
    let (process, line) = Process::start(command)?;
    let line: serde_json::Value = serde_json::from_str(&line).context("the sidecar did not start")?;
    let address = |name: &str| -> anyhow::Result<SocketAddr> {
        Ok(line
            .pointer(&format!("/listening/{name}"))
            .and_then(|it| it.as_str())
            .context("no address")?
            .parse()?)
    };
    tokio::time::timeout(READY, ready(address("admin")?))
        .await
        .context("the sidecar did not become ready")??;
    Ok((process, address("api")?))
}

async fn ready(admin: SocketAddr) -> anyhow::Result<()> {
    let mut poll = tokio::time::interval(Duration::from_millis(20));
    loop {
        poll.tick().await;
        let mut stream = TcpStream::connect(admin).await?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        if answer.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
    }
}
