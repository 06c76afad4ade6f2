//! The replicas of the gadget controller: a pod with a real sidecar and a controller for each, in a namespace of their own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ctrlmesh_contract::names::labels;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::handled_gadgets::HandledGadgets;
use super::root::NAME;
use crate::demo::environment::{DemoEnv, start_controller};
use crate::demo::gadget::{GADGET_NAMESPACE, api_resource};
use crate::demo::kubelet::{self, Pod, PodIdentity};
use crate::demo::metrics;
use crate::demo::process::Process;
use crate::demo::report::Report;
use crate::demo::sidecar::{self, Sidecar, read_observations};
use crate::error::Error;

/// Replicas, with those that come later.
const REPLICAS: usize = 4;

/// From the start of a sidecar until it serves traffic. Compiling the plugin in a debug build takes longest.
const READY_DEADLINE: Duration = Duration::from_secs(30);

/// The metric of requests that sidecars refuse because of their object.
const REFUSED: &str = "ctrlmesh_objects_refused_total";

/// Interval between two status requests to a sidecar.
const ASK_EVERY: Duration = Duration::from_millis(15);

/// What the controllers have reported.
#[derive(Debug, Default)]
pub(super) struct GadgetReports {
    pub(super) handled: HandledGadgets,
    /// Writes of a status.
    pub(super) writes: u64,
    pub(super) failures: u64,
    /// Writes that were answered with 409 Conflict.
    pub(super) conflicts: Vec<ReplicaGadget>,
    /// Gadgets that had left the cache when it was their turn.
    pub(super) dropped: Vec<ReplicaGadget>,
    /// Gadgets before whose write a replica was paused.
    pub(super) paused: Vec<ReplicaGadget>,
}

/// Number of a replica, and the name of a gadget that it has to do with.
pub(super) type ReplicaGadget = (usize, String);

/// Clones share the reports.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedReports(Arc<Mutex<GadgetReports>>);

impl SharedReports {
    /// `action` runs under a lock, so it must be quick.
    pub(super) fn with_reports<T>(&self, action: impl FnOnce(&mut GadgetReports) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Dropping this ends all processes.
pub(super) struct GadgetReplicas {
    pub(super) reports: SharedReports,
    pods: Vec<Pod>,
    sidecars: Vec<Sidecar>,
    controllers: Vec<Process>,
    tasks: JoinSet<()>,
    directory: PathBuf,
}

impl GadgetReplicas {
    /// Creates the volumes of all pods. No pod runs yet.
    pub(super) fn create(env: &DemoEnv) -> Result<Self, Error> {
        let pods = (0..REPLICAS).map(|number| Pod::create(pod_identity(number), env.directory()));
        let pods: Vec<_> = pods.collect::<Result<_, _>>()?;
        let mut tasks = JoinSet::new();
        let (client, observations) = (env.client(), env.observations.clone());
        tasks.spawn(kubelet::run(client, GADGET_NAMESPACE, pods.clone(), observations));
        Ok(Self {
            reports: SharedReports::default(),
            pods,
            sidecars: Vec::new(),
            controllers: Vec::new(),
            tasks,
            directory: env.directory().to_owned(),
        })
    }

    /// Replicas that run.
    pub(super) const fn len(&self) -> usize {
        self.sidecars.len()
    }

    /// Starts the pod of the next replica. Returns once its sidecar has its shard and its controller has started.
    pub(super) async fn start_next(&mut self, env: &DemoEnv, setup: &sidecar::Setup) -> Result<(), Error> {
        let number = self.len();
        let Some(pod) = self.pods.get(number) else {
            return Ok(());
        };
        env.cluster.server.store().put(pod.pod_object())?;
        let sidecar = Sidecar::start(pod, setup).await?;
        wait_until_ready(&sidecar).await?;
        let file = pause_file(&self.directory, number);
        let flags = [OsStr::new("--gadgets"), OsStr::new("--pause-file"), file.as_os_str()];
        let (controller, stdout) = start_controller(pod, &sidecar, &flags, env.directory(), &setup.keepers)?;
        self.tasks.spawn(read_reports(stdout, number, self.reports.clone()));
        self.sidecars.push(sidecar);
        self.controllers.push(controller);
        Ok(())
    }

    pub(super) fn are_running(&self) -> bool {
        let sidecars = self.sidecars.iter().map(|sidecar| &sidecar.process);
        sidecars.chain(&self.controllers).all(Process::is_running)
    }

    /// The gadgets that each replica sees.
    pub(super) async fn list_gadgets(&self) -> Result<Vec<BTreeSet<String>>, Error> {
        let resource = api_resource();
        let lists = self.sidecars.iter().map(|sidecar| sidecar.list_names(&resource));
        futures_util::future::try_join_all(lists).await
    }

    /// Pauses the controller of a replica before each write.
    pub(super) fn pause(&self, replica: usize) -> Result<(), Error> {
        let file = pause_file(&self.directory, replica);
        std::fs::write(&file, "").map_err(Error::file("write", &file))
    }

    pub(super) fn resume(&self, replica: usize) -> Result<(), Error> {
        let file = pause_file(&self.directory, replica);
        std::fs::remove_file(&file).map_err(Error::file("remove", &file))
    }

    /// Requests that the sidecar of a replica has refused because of their object.
    pub(super) async fn refused_requests(&self, replica: usize) -> Result<u64, Error> {
        let Some(sidecar) = self.sidecars.get(replica) else {
            return Ok(0);
        };
        let text = sidecar.admin.get("/metrics").await?;
        Ok(metrics::sum_counter(&text, REFUSED, |_| true))
    }
}

/// The file that pauses the controller of a replica while it exists.
fn pause_file(directory: &Path, replica: usize) -> PathBuf {
    directory.join(format!("{}.pause", replica_name(replica)))
}

/// Name of the pod of a replica, and of its controller.
pub(super) fn replica_name(number: usize) -> String {
    format!("{NAME}-{number}")
}

/// A pod of a StatefulSet, by whose name its shard selects it.
fn pod_identity(number: usize) -> PodIdentity {
    let name = replica_name(number);
    PodIdentity {
        namespace: GADGET_NAMESPACE,
        labels: [
            (labels::WATCHING, "true".to_owned()),
            (labels::STATEFUL_SET_POD_NAME, name.clone()),
        ]
        .into(),
        suffix: name.clone(),
        name,
    }
}

/// Waits until the sidecar runs the entry of its shard.
async fn wait_until_ready(sidecar: &Sidecar) -> Result<(), Error> {
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        let status = read_observations(&sidecar.admin).await?.status;
        if !status.chain.entries.is_empty() && status.not_ready.is_empty() {
            return Ok(());
        }
        if !sidecar.process.is_running() {
            return Err(sidecar.process.wait_for_exit().await);
        }
        if Instant::now() > deadline {
            return Err(Error::Deadline {
                what: "a sidecar of the gadgets has its shard".to_owned(),
                after: READY_DEADLINE,
                last: format!(
                    "not ready: {}; refused: {:?}",
                    status.not_ready.join(", "),
                    status.refused
                ),
            });
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

async fn read_reports(stdout: ChildStdout, replica: usize, reports: SharedReports) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(report) = serde_json::from_str::<Report>(&line) else {
            continue;
        };
        reports.with_reports(|reports| match report {
            Report::Reconciled {
                name,
                wrote,
                began,
                ended,
                ..
            } => {
                reports.writes += u64::from(wrote);
                reports.handled.record_reconcile(replica, name, began, ended);
            }
            Report::RequestFailed { .. } => reports.failures += 1,
            Report::Conflict { name, .. } => reports.conflicts.push((replica, name)),
            Report::Dropped { name } => reports.dropped.push((replica, name)),
            Report::Paused { name } => reports.paused.push((replica, name)),
            Report::WatchExpired => {}
        });
    }
}
