//! Everything that runs: the API server with its widgets, the sidecars, the controllers behind them, and the tasks that gather facts.
//! What is done with it is the story's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_testkit::{ApiServer, Faults};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{ChildStdout, Command};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::added::Added;
use super::chain_dir::Volume;
use super::facts::Shared;
use super::load;
use super::observer;
use super::plan::Rules;
use super::process::Process;
use super::replica::Replica;
use super::report::Report;
use super::sidecar::{Setup, Sidecar, ask};
use super::widget::{NAMESPACES, WidgetKey, namespace_object, resource, widget_object};
use crate::admin::Admin;
use crate::error::Error;

/// Changes that the API server remembers: more than the demo makes, so that no watch can fall behind.
const EVENT_LOG: usize = 32_768;

/// The only way into the API server. The sidecars know it, the controllers don't.
const TOKEN: &str = "demo-token";

/// How often a sidecar is asked how it is, for the picture.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// A running world.
pub(crate) struct World {
    /// What is known of it.
    pub(crate) facts: Shared,
    server: ApiServer,
    key: SigningKey,
    chain: Volume,
    generation: u64,
    sidecars: Vec<Sidecar>,
    controllers: Vec<Process>,
    load: Option<(CancellationToken, JoinHandle<()>)>,
    bursts: u64,
    tasks: JoinSet<()>,
    directory: PathBuf,
}

impl World {
    /// An API server full of widgets, and a chain without rules.
    pub(crate) async fn new(directory: &Path) -> Result<Self, Error> {
        let builder = ApiServer::builder()
            .resource(resource())
            .token(TOKEN)
            .event_log(EVENT_LOG)
            .request_log(0);
        let server = builder.start().await?;
        for namespace in NAMESPACES {
            server.store().put(namespace_object(namespace))?;
        }
        for key in WidgetKey::all() {
            server.store().put(widget_object(&key))?;
        }
        let mut world = Self {
            facts: Shared::default(),
            server,
            key: SigningKey::generate()?,
            chain: Volume::create(directory.join("chain"))?,
            generation: 0,
            sidecars: Vec::new(),
            controllers: Vec::new(),
            load: None,
            bursts: 0,
            tasks: JoinSet::new(),
            directory: directory.to_owned(),
        };
        world.publish(&Rules::NONE)?;
        let observer = observer::run(world.client().await?, world.facts.clone());
        world.tasks.spawn(observer);
        Ok(world)
    }

    /// Starts a sidecar for each replica. Returns once both listen.
    pub(crate) async fn start_sidecars(&mut self, proxy: PathBuf, keepers: TaskTracker) -> Result<(), Error> {
        let kubeconfig = self.write("api-server.kubeconfig", &self.server.kubeconfig())?;
        let setup = Setup {
            proxy,
            directory: self.directory.clone(),
            kubeconfig,
            chain: self.chain.directory().to_owned(),
            public_key: self.key.public_key().to_string(),
            keepers,
        };
        let [zero, one] = Replica::BOTH.map(|replica| Sidecar::start(replica, &setup));
        let (zero, one) = tokio::try_join!(zero, one)?;
        for (replica, sidecar) in Replica::BOTH.into_iter().zip([zero, one]) {
            self.tasks
                .spawn(follow_sidecar(sidecar.admin.clone(), replica, self.facts.clone()));
            self.sidecars.push(sidecar);
        }
        Ok(())
    }

    /// Starts a controller behind each sidecar.
    pub(crate) fn start_controllers(&mut self, keepers: &TaskTracker) -> Result<(), Error> {
        let program = std::env::current_exe().map_err(Error::file("find", Path::new("this executable")))?;
        for (replica, sidecar) in Replica::BOTH.into_iter().zip(&self.sidecars) {
            let kubeconfig = self.write(
                &format!("{}.kubeconfig", replica.name()),
                &plain_kubeconfig(sidecar.api),
            )?;
            let mut command = Command::new(&program);
            command
                .arg("demo-controller")
                .arg("--kubeconfig")
                .arg(kubeconfig)
                .args(["--name", replica.name()])
                .env_clear();
            let name = format!("controller-{}", replica.number());
            let (process, stdout) = Process::start(&name, command, &self.directory, keepers)?;
            self.tasks.spawn(follow_controller(stdout, replica, self.facts.clone()));
            self.controllers.push(process);
        }
        Ok(())
    }

    /// Puts new rules into the chain's volume, and returns their generation. Whether they are in force, the sidecars' status tells.
    pub(crate) fn publish(&mut self, rules: &Rules) -> Result<u64, Error> {
        self.publish_with(rules, &[])
    }

    /// As [`Self::publish`], with more entries.
    pub(crate) fn publish_with(&mut self, rules: &Rules, added: &[Added]) -> Result<u64, Error> {
        self.generation += 1;
        self.chain.write(&rules.files(added, self.generation, &self.key))?;
        Ok(self.generation)
    }

    /// Asks both sidecars now.
    pub(crate) async fn ask_sidecars(&self) -> Result<(), Error> {
        for (replica, sidecar) in Replica::BOTH.into_iter().zip(&self.sidecars) {
            let found = ask(&sidecar.admin).await?;
            self.facts.with(|facts| *facts.sidecars.of_mut(replica) = found);
        }
        Ok(())
    }

    /// Has a user change widgets from now on.
    pub(crate) async fn start_load(&mut self) -> Result<(), Error> {
        let stop = CancellationToken::new();
        let load = load::run(self.client().await?, self.facts.clone(), stop.clone());
        self.load = Some((stop, tokio::spawn(load)));
        Ok(())
    }

    /// Ends that, and waits for the last change.
    pub(crate) async fn stop_load(&mut self) {
        if let Some((stop, load)) = self.load.take() {
            stop.cancel();
            // It neither panics nor is aborted.
            let _ = load.await;
        }
    }

    /// Has a user change every widget, one right after the other.
    pub(crate) async fn start_burst(&mut self) -> Result<(), Error> {
        self.bursts += 1;
        let burst = load::burst(self.client().await?, self.facts.clone(), self.bursts);
        self.tasks.spawn(burst);
        Ok(())
    }

    /// The API server's knobs.
    pub(crate) fn server_faults(&self) -> &Faults {
        self.server.faults()
    }

    /// The API server ends all watches, as it does every few minutes.
    pub(crate) fn end_watches(&self) {
        self.server.end_watches();
    }

    /// Requests of this verb that the API server has seen.
    pub(crate) fn requests(&self, verb: &str) -> u64 {
        self.server.requests().count(verb)
    }

    /// A client past the sidecars.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        let path = || PathBuf::from("of the in-memory API server");
        let problem = |source| Error::Kubeconfig {
            path: path(),
            source: Box::new(source),
        };
        let kubeconfig = Kubeconfig::from_yaml(&self.server.kubeconfig()).map_err(problem)?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(problem)?;
        Client::try_from(config).map_err(Error::client("a client of the API server"))
    }

    /// How many sidecars' answers name the shard of their replica: the next version of the plugin does that.
    pub(crate) async fn answers_that_name_the_shard(&self) -> Result<u64, Error> {
        let mut named = 0;
        for (replica, sidecar) in Replica::BOTH.into_iter().zip(&self.sidecars) {
            let expected = format!("widgets-{}", replica.number());
            named += u64::from(sidecar.shard_in_answer().await?.as_deref() == Some(&expected));
        }
        Ok(named)
    }

    /// Sidecars and controllers that run.
    pub(crate) fn running(&self) -> u64 {
        self.processes().filter(|process| process.is_running()).count() as u64
    }

    /// Ends when one of the processes has ended by itself.
    pub(crate) fn casualty(&self) -> impl Future<Output = Error> + use<> {
        let ended: Vec<_> = self.processes().map(|process| Box::pin(process.ended())).collect();
        async move { futures_util::future::select_all(ended).await.0 }
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.sidecars
            .iter()
            .map(|sidecar| &sidecar.process)
            .chain(&self.controllers)
    }

    fn write(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        let path = self.directory.join(name);
        std::fs::write(&path, content).map_err(Error::file("write", &path))?;
        Ok(path)
    }
}

/// What a controller gets: an address, and no credentials at all.
fn plain_kubeconfig(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: sidecar\n\
         clusters: [{{ name: sidecar, cluster: {{ server: 'http://{address}' }} }}]\n\
         users: [{{ name: sidecar, user: {{}} }}]\n\
         contexts: [{{ name: sidecar, context: {{ cluster: sidecar, user: sidecar }} }}]\n"
    )
}

async fn follow_controller(stdout: ChildStdout, replica: Replica, facts: Shared) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(report) = serde_json::from_str::<Report>(&line) {
            facts.with(|facts| facts.reported(replica, report));
        }
    }
}

async fn follow_sidecar(admin: Admin, replica: Replica, facts: Shared) {
    let mut tick = tokio::time::interval(ASK_EVERY);
    loop {
        tick.tick().await;
        // A sidecar that is gone is noticed as a process; the picture can wait for the next answer.
        if let Ok(found) = ask(&admin).await {
            facts.with(|facts| *facts.sidecars.of_mut(replica) = found);
        }
    }
}
