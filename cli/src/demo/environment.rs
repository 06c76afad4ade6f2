//! Everything that runs in the demo: the cluster with its widgets, the manager, the sidecars, the controllers behind them, and the
//! tasks that observe them.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ctrlmesh_testkit::Faults;
use kube::Client;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cluster::Cluster;
use super::kubectl::{self, Kubectl};
use super::kubelet::{self, Pod, PodIdentity};
use super::load;
use super::manager::{self, Manager};
use super::observations::SharedObservations;
use super::observer;
use super::process::Process;
use super::replica::Replica;
use super::report::Report;
use super::sharding_plan::POD_NAMESPACE;
use super::sidecar::{self, Sidecar, read_observations};
use super::widget::PLURAL;
use crate::admin::Admin;
use crate::error::Error;

/// Interval between two status requests to a sidecar, for the picture.
const ASK_EVERY: Duration = Duration::from_millis(250);

pub(crate) struct DemoEnv {
    pub(crate) observations: SharedObservations,
    /// Applies and deletes objects.
    pub(crate) kubectl: Kubectl,
    pub(crate) cluster: Cluster,
    manager: Option<Manager>,
    /// Of the manager that ran last: whose chains sidecars take.
    public_key: String,
    pods: Vec<Pod>,
    sidecars: Vec<Sidecar>,
    controllers: Vec<Process>,
    load: Option<(CancellationToken, JoinHandle<()>)>,
    bursts: u64,
    /// Patches of widgets by the manager: their labels.
    labelled: u64,
    tasks: JoinSet<()>,
    directory: PathBuf,
    kubeconfig: PathBuf,
}

impl DemoEnv {
    /// Creates a cluster full of widgets.
    pub(crate) async fn new(directory: &Path) -> Result<Self, Error> {
        let cluster = Cluster::start().await?;
        let (observations, client) = (SharedObservations::default(), cluster.client.clone());
        let kubeconfig = write_file(directory, "api-server.kubeconfig", &cluster.server.kubeconfig())?;
        let mut tasks = JoinSet::new();
        tasks.spawn(observer::run(client.clone(), observations.clone()));
        tasks.spawn(kubectl::watch_objects(client.clone(), observations.clone()));
        Ok(Self {
            observations,
            kubectl: Kubectl::new(client),
            cluster,
            manager: None,
            public_key: String::new(),
            pods: Vec::new(),
            sidecars: Vec::new(),
            controllers: Vec::new(),
            load: None,
            bursts: 0,
            labelled: 0,
            tasks,
            directory: directory.to_owned(),
            kubeconfig,
        })
    }

    /// Returns once the manager leads and has labelled all widgets.
    pub(crate) async fn start_manager(&mut self, program: PathBuf, keepers: TaskTracker) -> Result<(), Error> {
        let setup = manager::Setup {
            program,
            directory: self.directory.clone(),
            kubeconfig: self.kubeconfig.clone(),
            registry_ca: write_file(&self.directory, "registry-ca.pem", self.cluster.registry.ca_pem())?,
            keepers,
        };
        let manager = Manager::start(&setup, &self.cluster).await?;
        self.public_key.clone_from(&manager.public_key);
        self.manager = Some(manager);
        self.labelled = self.cluster.server.requests().count_of("patch", PLURAL);
        Ok(())
    }

    /// Ends the manager, if it runs, and starts it again.
    pub(crate) async fn restart_manager(&mut self, program: PathBuf, keepers: TaskTracker) -> Result<(), Error> {
        if let Some(manager) = self.manager.take() {
            manager.process.end().await;
        }
        self.start_manager(program, keepers).await
    }

    /// Starts a pod with a sidecar for each replica. Returns once both listen.
    pub(crate) async fn start_sidecars(&mut self, proxy: PathBuf, keepers: TaskTracker) -> Result<(), Error> {
        for replica in Replica::BOTH {
            let pod = Pod::create(PodIdentity::of_replica(replica), &self.directory)?;
            self.cluster.server.store().put(pod.pod_object())?;
            self.pods.push(pod);
        }
        self.run_sidecars(proxy, keepers).await?;
        for (replica, sidecar) in Replica::BOTH.into_iter().zip(&self.sidecars) {
            let following = poll_sidecar(sidecar.admin.clone(), replica, self.observations.clone());
            self.tasks.spawn(following);
        }
        let kubelet = kubelet::run(
            self.cluster.client.clone(),
            POD_NAMESPACE,
            self.pods.clone(),
            self.observations.clone(),
        );
        self.tasks.spawn(kubelet);
        Ok(())
    }

    /// Ends the sidecars and starts them again in their pods.
    pub(crate) async fn restart_sidecars(&mut self, proxy: PathBuf, keepers: TaskTracker) -> Result<(), Error> {
        for sidecar in self.sidecars.drain(..) {
            sidecar.process.end().await;
        }
        self.run_sidecars(proxy, keepers).await
    }

    async fn run_sidecars(&mut self, proxy: PathBuf, keepers: TaskTracker) -> Result<(), Error> {
        let setup = self.sidecar_setup(proxy, keepers);
        let starts = self.pods.iter().map(|pod| Sidecar::start(pod, &setup));
        self.sidecars = futures_util::future::try_join_all(starts).await?;
        Ok(())
    }

    /// How sidecars with this program are started.
    pub(crate) fn sidecar_setup(&self, proxy: PathBuf, keepers: TaskTracker) -> sidecar::Setup {
        sidecar::Setup {
            proxy,
            directory: self.directory.clone(),
            kubeconfig: self.kubeconfig.clone(),
            public_key: self.public_key.clone(),
            await_entry: None,
            keepers,
        }
    }

    /// Starts a controller behind each sidecar.
    pub(crate) fn start_controllers(&mut self, keepers: &TaskTracker) -> Result<(), Error> {
        for ((replica, sidecar), pod) in Replica::BOTH.into_iter().zip(&self.sidecars).zip(&self.pods) {
            let (process, stdout) = start_controller(pod, sidecar, &[], &self.directory, keepers)?;
            self.tasks
                .spawn(read_controller_reports(stdout, replica, self.observations.clone()));
            self.controllers.push(process);
        }
        Ok(())
    }

    pub(crate) async fn ask_sidecars(&self) -> Result<(), Error> {
        for (replica, sidecar) in Replica::BOTH.into_iter().zip(&self.sidecars) {
            let found = read_observations(&sidecar.admin).await?;
            self.observations
                .with_observations(|observations| *observations.sidecars.get_mut(replica) = found);
        }
        Ok(())
    }

    /// Starts a user who changes widgets.
    pub(crate) fn start_load(&mut self) {
        let stop = CancellationToken::new();
        let load = load::run(self.client(), self.observations.clone(), stop.clone());
        self.load = Some((stop, tokio::spawn(load)));
    }

    /// Stops the user and waits for the last change.
    pub(crate) async fn stop_load(&mut self) {
        if let Some((stop, load)) = self.load.take() {
            stop.cancel();
            // The task neither panics nor is aborted.
            let _ = load.await;
        }
    }

    /// Starts a user who changes every widget once, without pauses.
    pub(crate) fn start_burst(&mut self) {
        self.bursts += 1;
        let burst = load::run_burst(self.client(), self.observations.clone(), self.bursts);
        self.tasks.spawn(burst);
    }

    /// Where the files of the demo are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The kubeconfig of the API server, past the sidecars.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Each sidecar with its replica.
    pub(crate) fn sidecars(&self) -> impl Iterator<Item = (Replica, &Sidecar)> {
        Replica::BOTH.into_iter().zip(&self.sidecars)
    }

    pub(crate) fn server_faults(&self) -> &Faults {
        self.cluster.server.faults()
    }

    /// Ends all watches, as a real API server does every few minutes.
    pub(crate) fn end_watches(&self) {
        self.cluster.server.end_watches();
    }

    /// Widget requests with this verb that the API server has seen, without those of the manager.
    pub(crate) fn request_count(&self, verb: &str) -> u64 {
        let all = self.cluster.server.requests().count_of(verb, PLURAL);
        all - if verb == "patch" { self.labelled } else { 0 }
    }

    /// A client that bypasses the sidecars.
    pub(crate) fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// How many sidecars name the shard of their replica in their responses, as the next version of shard-selector does.
    pub(crate) async fn count_responses_with_shard(&self) -> Result<u64, Error> {
        let mut named = 0;
        for (replica, sidecar) in Replica::BOTH.into_iter().zip(&self.sidecars) {
            let expected = format!("widgets-{}", replica.number());
            named += u64::from(sidecar.shard_in_response().await?.as_deref() == Some(&expected));
        }
        Ok(named)
    }

    pub(crate) fn running_processes(&self) -> u64 {
        self.worker_processes().filter(|process| process.is_running()).count() as u64
    }

    /// Returns when one of the processes has ended by itself.
    pub(crate) fn wait_for_exit(&self) -> impl Future<Output = Error> + use<> {
        let manager = self.manager.iter().map(|manager| &manager.process);
        let processes = self.worker_processes().chain(manager);
        let ended: Vec<_> = processes.map(|process| Box::pin(process.wait_for_exit())).collect();
        async move { futures_util::future::select_all(ended).await.0 }
    }

    fn worker_processes(&self) -> impl Iterator<Item = &Process> {
        self.sidecars
            .iter()
            .map(|sidecar| &sidecar.process)
            .chain(&self.controllers)
    }
}

/// Starts the controller of a pod behind its sidecar. Its reports come from standard output.
pub(crate) fn start_controller(
    pod: &Pod,
    sidecar: &Sidecar,
    flags: &[&OsStr],
    directory: &Path,
    keepers: &TaskTracker,
) -> Result<(Process, ChildStdout), Error> {
    let program = std::env::current_exe().map_err(Error::file("find", Path::new("this executable")))?;
    let PodIdentity { name, suffix, .. } = &pod.identity;
    let kubeconfig = write_file(directory, &format!("{name}.kubeconfig"), &plain_kubeconfig(sidecar.api))?;
    let mut command = Command::new(&program);
    command
        .arg("demo-controller")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--name")
        .arg(name)
        .args(flags)
        .env_clear();
    Process::start(&format!("controller-{suffix}"), command, directory, keepers)
}

fn write_file(directory: &Path, name: &str, content: &str) -> Result<PathBuf, Error> {
    let path = directory.join(name);
    std::fs::write(&path, content).map_err(Error::file("write", &path))?;
    Ok(path)
}

/// The kubeconfig of a controller: an address without credentials.
fn plain_kubeconfig(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: sidecar\n\
         clusters: [{{ name: sidecar, cluster: {{ server: 'http://{address}' }} }}]\n\
         users: [{{ name: sidecar, user: {{}} }}]\n\
         contexts: [{{ name: sidecar, context: {{ cluster: sidecar, user: sidecar }} }}]\n"
    )
}

async fn read_controller_reports(stdout: ChildStdout, replica: Replica, observations: SharedObservations) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(report) = serde_json::from_str::<Report>(&line) {
            observations.with_observations(|observations| observations.record_report(replica, report));
        }
    }
}

async fn poll_sidecar(admin: Admin, replica: Replica, observations: SharedObservations) {
    let mut tick = tokio::time::interval(ASK_EVERY);
    loop {
        tick.tick().await;
        // A missing sidecar is noticed by its process; the picture can wait for the next response.
        if let Ok(found) = read_observations(&admin).await {
            observations.with_observations(|observations| *observations.sidecars.get_mut(replica) = found);
        }
    }
}
