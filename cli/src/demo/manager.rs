//! A real `ctrlmesh-manager` process, and what the demo waits for before it goes on: that it has made the key for chains, and that
//! it has labelled the widgets.

use std::path::PathBuf;
use std::time::Duration;

use ctrlmesh_contract::names::labels;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::Value;
use tokio::process::Command;
use tokio_util::task::TaskTracker;

use super::cluster::{Cluster, MANAGER_NAMESPACE};
use super::process::Process;
use super::widget::qualified_name;
use crate::error::Error;

/// From start to everything that the demo waits for. Packing the plugins in a debug build is the slowest.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// The Secret with the key, and the part of it that sidecars get.
const KEY_SECRET: &str = "ctrlmesh-chain-key";
const PUBLIC_KEY: &str = "public";

/// A running manager.
#[derive(Debug)]
pub(crate) struct Manager {
    pub(crate) process: Process,
    /// Whose chains sidecars take.
    pub(crate) public_key: String,
}

/// What it is started with.
#[derive(Debug)]
pub(crate) struct Setup {
    /// The binary.
    pub(crate) program: PathBuf,
    /// Where the demo keeps its files.
    pub(crate) directory: PathBuf,
    /// Of the API server.
    pub(crate) kubeconfig: PathBuf,
    /// The CA of the registry.
    pub(crate) registry_ca: PathBuf,
    /// Waits for the process' end.
    pub(crate) keepers: TaskTracker,
}

impl Manager {
    /// Starts it, and waits until it leads and every widget has its labels.
    pub(crate) async fn start(setup: &Setup, cluster: &Cluster) -> Result<Self, Error> {
        let command = command(setup);
        let (process, mut stdout) = Process::start("manager", command, &setup.directory, &setup.keepers)?;
        // It prints nothing; the pipe is read to its end all the same.
        setup
            .keepers
            .spawn(async move { drop(tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await) });
        let public_key = tokio::select! {
            ready = ready(cluster) => ready?,
            error = process.ended() => return Err(error),
        };
        Ok(Self { process, public_key })
    }
}

fn command(setup: &Setup) -> Command {
    let mut command = Command::new(&setup.program);
    command
        .args(["--pod-name=manager-0", "--namespace", MANAGER_NAMESPACE])
        .args([
            "--metrics-bind-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
        ])
        .args(["--webhook-bind-address=127.0.0.1", "--webhook-port=0"])
        // A widget is in work for milliseconds: what a controller had begun has ended by then.
        .args(["--settle-ms=300", "--poll-seconds=1"])
        // 200 widgets get their labels while somebody waits.
        .args(["--rest-config-qps=1000", "--rest-config-burst=1000"])
        .arg("--registry-ca-file")
        .arg(&setup.registry_ca)
        // Settings of the user's shell must not change what the demo shows.
        .env_clear()
        .env("TMPDIR", &setup.directory)
        .env("KUBECONFIG", &setup.kubeconfig);
    command
}

/// Waits for the key and the labels. Returns the public key.
async fn ready(cluster: &Cluster) -> Result<String, Error> {
    let store = cluster.server.store();
    let has_label = |widget: &Value| {
        let labels = widget.pointer("/metadata/labels");
        labels.is_some_and(|labels| labels.get(labels::SHARD_HASH).is_some())
    };
    let waited = store.wait_until_within(START_DEADLINE, |state| {
        let has_key = state.get("secrets", MANAGER_NAMESPACE, KEY_SECRET).is_some();
        has_key && state.list(&qualified_name()).all(has_label)
    });
    let labelled = || store.read(|state| state.list(&qualified_name()).filter(|widget| has_label(widget)).count());
    waited.await.map_err(|_| Error::Deadline {
        what: "the manager makes a key for chains and labels all widgets".to_owned(),
        after: START_DEADLINE,
        last: format!("{} widgets are labelled", labelled()),
    })?;
    let secrets = Api::<Secret>::namespaced(cluster.client.clone(), MANAGER_NAMESPACE);
    let secret = secrets
        .get(KEY_SECRET)
        .await
        .map_err(Error::client("the manager's key"))?;
    let public = secret
        .data
        .and_then(|mut data| data.remove(PUBLIC_KEY))
        .unwrap_or_default();
    Ok(String::from_utf8_lossy(&public.0).into_owned())
}
