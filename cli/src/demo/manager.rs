//! A real `ctrlmesh-manager` process. Starting it includes waiting for the chain's key and for the labels of all widgets.

use std::path::PathBuf;
use std::time::Duration;

use ctrlmesh_contract::names::{CHAIN_KEY_SECRET, PUBLIC_KEY_FIELD, labels};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::Value;
use tokio::process::Command;
use tokio_util::task::TaskTracker;

use super::cluster::{Cluster, MANAGER_NAMESPACE};
use super::process::Process;
use super::widget::qualified_name;
use crate::error::Error;

/// From start until key and labels exist. Packing the plugins in a debug build takes longest.
const START_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Manager {
    pub(crate) process: Process,
    /// The public key that sidecars verify chains with.
    pub(crate) public_key: String,
}

#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) program: PathBuf,
    /// Working directory of the demo.
    pub(crate) directory: PathBuf,
    /// Kubeconfig of the API server.
    pub(crate) kubeconfig: PathBuf,
    pub(crate) registry_ca: PathBuf,
    /// Tracks the task that waits for the end of the process.
    pub(crate) keepers: TaskTracker,
}

impl Manager {
    /// Returns once the manager leads and every widget has its labels.
    pub(crate) async fn start(setup: &Setup, cluster: &Cluster) -> Result<Self, Error> {
        let command = manager_command(setup);
        let (process, mut stdout) = Process::start("manager", command, &setup.directory, &setup.keepers)?;
        // The manager prints nothing, but the pipe must be read to its end.
        setup
            .keepers
            .spawn(async move { drop(tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await) });
        let public_key = tokio::select! {
            ready = wait_until_ready(cluster) => ready?,
            error = process.wait_for_exit() => return Err(error),
        };
        Ok(Self { process, public_key })
    }
}

fn manager_command(setup: &Setup) -> Command {
    let mut command = Command::new(&setup.program);
    command
        .args(["--pod-name=manager-0", "--namespace", MANAGER_NAMESPACE])
        .args([
            "--metrics-bind-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
        ])
        .args(["--webhook-bind-address=127.0.0.1", "--webhook-port=0"])
        // A widget takes milliseconds, so what a controller had begun has ended by then.
        .args(["--settle-ms=300", "--poll-seconds=1"])
        // 200 widgets get their labels while a person waits.
        .args(["--rest-config-qps=1000", "--rest-config-burst=1000"])
        .arg("--registry-ca-file")
        .arg(&setup.registry_ca)
        // Settings of the user's shell must not change the demo.
        .env_clear()
        .env("TMPDIR", &setup.directory)
        .env("KUBECONFIG", &setup.kubeconfig);
    command
}

/// Waits for key and labels. Returns the public key.
async fn wait_until_ready(cluster: &Cluster) -> Result<String, Error> {
    let store = cluster.server.store();
    let has_label = |widget: &Value| {
        let labels = widget.pointer("/metadata/labels");
        labels.is_some_and(|labels| labels.get(labels::SHARD_HASH).is_some())
    };
    let waited = store.wait_until_within(START_DEADLINE, |state| {
        let has_key = state.get("secrets", MANAGER_NAMESPACE, CHAIN_KEY_SECRET).is_some();
        has_key && state.list(&qualified_name()).all(has_label)
    });
    let labelled = || store.read(|state| state.list(&qualified_name()).filter(|widget| has_label(widget)).count());
    waited.await.map_err(|_| Error::Deadline {
        what: "the manager creates the chain key and labels all widgets".to_owned(),
        after: START_DEADLINE,
        last: format!("{} widgets are labelled", labelled()),
    })?;
    let secrets = Api::<Secret>::namespaced(cluster.client.clone(), MANAGER_NAMESPACE);
    let secret = secrets
        .get(CHAIN_KEY_SECRET)
        .await
        .map_err(Error::client("the manager's key"))?;
    let public = secret
        .data
        .and_then(|mut data| data.remove(PUBLIC_KEY_FIELD))
        .unwrap_or_default();
    Ok(String::from_utf8_lossy(&public.0).into_owned())
}
