//! A real `ctrlmesh-proxy` process for one replica, and what its admin port tells.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ctrlmesh_contract::names::{files, ports};
use http::Request;
use kube::client::Body;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio_util::task::TaskTracker;

use super::facts::SidecarFacts;
use super::kubelet::Pod;
use super::metrics::{self, OwnCounts};
use super::plan::POD_NAMESPACE;
use super::process::Process;
use super::widget::api_resource;
use crate::admin::{self, Admin};
use crate::error::Error;

/// From start to the line that tells the addresses.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Header in which the next version of the plugin names the shard (`plugins/shard-selector/examples`).
const SHARD_HEADER: &str = "x-ctrlmesh-shard";

/// What all sidecars are started with.
#[derive(Debug)]
pub(crate) struct Setup {
    /// The binary.
    pub(crate) proxy: PathBuf,
    /// Where the demo keeps its files.
    pub(crate) directory: PathBuf,
    /// Of the API server.
    pub(crate) kubeconfig: PathBuf,
    /// Whose chains are taken.
    pub(crate) public_key: String,
    /// Wait for the processes' end.
    pub(crate) keepers: TaskTracker,
}

/// A running sidecar.
pub(crate) struct Sidecar {
    /// The process.
    pub(crate) process: Process,
    /// Where the controller finds it.
    pub(crate) api: SocketAddr,
    /// The admin port.
    pub(crate) admin: Admin,
}

/// What the process prints when it listens.
#[derive(Deserialize)]
struct Announcement {
    listening: Addresses,
}

#[derive(Deserialize)]
struct Addresses {
    api: SocketAddr,
    admin: SocketAddr,
}

impl Sidecar {
    /// Starts the sidecar of a pod and waits until it listens.
    pub(crate) async fn start(pod: &Pod, setup: &Setup) -> Result<Self, Error> {
        let name = format!("sidecar-{}", pod.replica.number());
        let command = command(pod, setup);
        let (process, stdout) = Process::start(&name, command, &setup.directory, &setup.keepers)?;
        let mut lines = BufReader::new(stdout).lines();
        let addresses = tokio::select! {
            addresses = announcement(&name, &mut lines) => addresses?,
            error = process.ended() => return Err(error),
        };
        // The pipe is read to its end, or a sidecar that printed more would block.
        setup
            .keepers
            .spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self {
            process,
            api: addresses.api,
            admin: Admin::new(addresses.admin)?,
        })
    }
}

impl Sidecar {
    /// Lists widgets through the sidecar, as a controller does, and returns which shard the answer names. Only the next version of
    /// the plugin names one.
    pub(crate) async fn shard_in_answer(&self) -> Result<Option<String>, Error> {
        let doing = || "a list through a sidecar".to_owned();
        let resource = api_resource();
        let target = format!("/apis/{}/{}?limit=1", resource.api_version, resource.plural);
        let request = Request::get(target).body(Body::empty());
        let request = request.map_err(|error| Error::client(doing())(kube::Error::HttpError(error)))?;
        let client = admin::client(self.api)?;
        let answer = admin::within(doing(), client.send(request))
            .await?
            .map_err(Error::client(doing()))?;
        Ok(answer
            .headers()
            .get(SHARD_HEADER)
            .and_then(|shard| shard.to_str().ok())
            .map(str::to_owned))
    }
}

fn command(pod: &Pod, setup: &Setup) -> Command {
    let mut command = Command::new(&setup.proxy);
    command
        .arg(format!("--api-address={}:{}", pod.ip, ports::API))
        .arg(format!("--admin-address={}:{}", pod.ip, ports::ADMIN))
        .arg("--drain-timeout=1")
        .arg("--kubeconfig")
        .arg(&setup.kubeconfig)
        .arg("--chain-dir")
        .arg(pod.chain())
        .arg("--labels-file")
        .arg(pod.podinfo().join(files::LABELS))
        .arg("--public-key")
        .arg(&setup.public_key)
        .arg("--cache-dir")
        .arg(setup.directory.join("compiled"))
        // Settings of the user's shell must not change what the demo shows.
        .env_clear()
        .env("TMPDIR", &setup.directory)
        .env("POD_NAME", pod.replica.name())
        .env("POD_NAMESPACE", POD_NAMESPACE);
    command
}

async fn announcement(name: &str, lines: &mut Lines<BufReader<ChildStdout>>) -> Result<Addresses, Error> {
    let read = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if let Ok(Announcement { listening }) = serde_json::from_str(&line) {
                return listening;
            }
        }
        // Standard output has ended, so the process is about to: whoever called finds out.
        std::future::pending().await
    };
    tokio::time::timeout(START_DEADLINE, read)
        .await
        .map_err(|_| Error::Deadline {
            what: format!("{name} tells where it listens"),
            after: START_DEADLINE,
            last: "it printed no such line".to_owned(),
        })
}

/// Asks for everything that the demo looks at.
pub(crate) async fn ask(admin: &Admin) -> Result<SidecarFacts, Error> {
    let metrics = admin.get("/metrics").await?;
    let status = serde_json::from_str(&admin.get("/status").await?)?;
    Ok(SidecarFacts {
        status,
        requests: metrics::requests(&metrics),
        failures: metrics::failures(&metrics),
        own: OwnCounts::read(&metrics),
    })
}
