//! A real `ctrlmesh-proxy` process for one replica, and the observations from its admin port.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ctrlmesh_contract::names::{files, ports};
use http::Request;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::ApiResource;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{ChildStdout, Command};
use tokio_util::task::TaskTracker;

use super::kubelet::Pod;
use super::metrics::{self, OwnCounts};
use super::observations::SidecarObservations;
use super::process::Process;
use super::widget::{Widget, api_resource};
use crate::admin::{self, Admin};
use crate::error::Error;

/// From start to the line with the addresses.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Header in which the next version of shard-selector names the shard (`plugins/shard-selector/examples`).
const SHARD_HEADER: &str = "x-ctrlmesh-shard";

#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) proxy: PathBuf,
    /// Working directory of the demo.
    pub(crate) directory: PathBuf,
    /// Kubeconfig of the API server.
    pub(crate) kubeconfig: PathBuf,
    /// Public key of the manager.
    pub(crate) public_key: String,
    /// Name, or prefix up to a slash, of the entry without which it serves no traffic.
    pub(crate) await_entry: Option<&'static str>,
    /// Tracks the tasks that wait for the end of the processes.
    pub(crate) keepers: TaskTracker,
}

pub(crate) struct Sidecar {
    pub(crate) process: Process,
    /// Where the controller connects.
    pub(crate) api: SocketAddr,
    pub(crate) admin: Admin,
}

/// The line that the process prints when it listens.
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
    /// Returns once the sidecar of the pod listens.
    pub(crate) async fn start(pod: &Pod, setup: &Setup) -> Result<Self, Error> {
        let name = format!("sidecar-{}", pod.identity.suffix);
        let command = sidecar_command(pod, setup);
        let (process, stdout) = Process::start(&name, command, &setup.directory, &setup.keepers)?;
        let mut lines = BufReader::new(stdout).lines();
        let addresses = tokio::select! {
            addresses = read_announcement(&name, &mut lines) => addresses?,
            error = process.wait_for_exit() => return Err(error),
        };
        // The pipe must be read to its end, or a sidecar that prints more would block.
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
    /// Lists widgets through the sidecar, as a controller does, and returns the shard that the response names. Only the next version of
    /// shard-selector names one.
    pub(crate) async fn shard_in_response(&self) -> Result<Option<String>, Error> {
        let doing = || "a list through a sidecar".to_owned();
        let resource = api_resource();
        let target = format!("/apis/{}/{}?limit=1", resource.api_version, resource.plural);
        let request = Request::get(target).body(Body::empty());
        let request = request.map_err(|error| Error::client(doing())(kube::Error::HttpError(error)))?;
        let client = admin::sidecar_client(self.api)?;
        let response = admin::with_deadline(doing(), client.send(request))
            .await?
            .map_err(Error::client(doing()))?;
        Ok(response
            .headers()
            .get(SHARD_HEADER)
            .and_then(|shard| shard.to_str().ok())
            .map(str::to_owned))
    }

    /// Names of the objects of a kind that a client of this sidecar gets.
    pub(crate) async fn list_names(&self, resource: &ApiResource) -> Result<BTreeSet<String>, Error> {
        let doing = || "a list through a sidecar".to_owned();
        let objects = Api::<Widget>::all_with(admin::sidecar_client(self.api)?, resource);
        let list = admin::with_deadline(doing(), objects.list(&ListParams::default()))
            .await?
            .map_err(Error::client(doing()))?;
        Ok(list.items.iter().map(ResourceExt::name_any).collect())
    }
}

fn sidecar_command(pod: &Pod, setup: &Setup) -> Command {
    let mut command = Command::new(&setup.proxy);
    if let Some(entry) = setup.await_entry {
        command.arg(format!("--await-entry={entry}"));
    }
    command
        .arg(format!("--api-address={}:{}", pod.ip, ports::API))
        .arg(format!("--admin-address={}:{}", pod.ip, ports::ADMIN))
        .arg("--drain-timeout=1")
        .arg("--kubeconfig")
        .arg(&setup.kubeconfig)
        .arg("--chain-dir")
        .arg(pod.chain_directory())
        .arg("--labels-file")
        .arg(pod.podinfo_directory().join(files::LABELS))
        .arg("--public-key")
        .arg(&setup.public_key)
        .arg("--cache-dir")
        .arg(setup.directory.join("compiled"))
        // Settings of the user's shell must not change the demo.
        .env_clear()
        .env("TMPDIR", &setup.directory)
        .env("POD_NAME", &pod.identity.name)
        .env("POD_NAMESPACE", pod.identity.namespace);
    command
}

async fn read_announcement(name: &str, lines: &mut Lines<BufReader<ChildStdout>>) -> Result<Addresses, Error> {
    let read = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if let Ok(Announcement { listening }) = serde_json::from_str(&line) {
                return listening;
            }
        }
        // Standard output has ended, so the process is about to: the caller reports that.
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

pub(crate) async fn read_observations(admin: &Admin) -> Result<SidecarObservations, Error> {
    let metrics = admin.get("/metrics").await?;
    let status = serde_json::from_str(&admin.get("/status").await?)?;
    Ok(SidecarObservations {
        status,
        requests: metrics::request_count(&metrics),
        failures: metrics::failure_count(&metrics),
        own: OwnCounts::read(&metrics),
    })
}
