//! `ctrlmesh demo`: a real manager and real sidecars on one machine, offline, with an in-memory API server. [`picture`] and
//! [`screen`] show the progress, [`steps`] decides what happens; this file makes sure that no process and no file is left behind.
//!
//! | module | holds |
//! |---|---|
//! | `dev` | `ctrlmesh dev`: the processes without the scenario |
//! | `summary` | the result: checks and counts |
//! | `steps`, `plugin_steps`, `hash_shards` | steps 1 to 6, steps 7 to 10, steps 11 and 12 |
//! | `scenario` | what all steps need: waiting, counting, effects of fault rules |
//! | `screen`, `picture` | the picture, and where it goes |
//! | `environment` | everything that runs, and its order |
//! | `sidecar`, `manager`, `cluster`, `kubelet`, `observer`, `load`, `process` | the parts of the environment; each process is a child that ends with the demo |
//! | `plugin_documents` | the objects that steps 7 to 9 apply |
//! | `kubectl` | what a user does |
//! | `observations` | everything that the demo has observed |
//! | `applied_objects` | the user's objects, and how far each has come |
//! | `sharding_plan`, `controller` | the user's ShardingConfigs, and the controller that is sharded |
//! | `audit`, `checks`, `cpu_monitor` | what must hold, and whether it did |
//! | `metrics`, `progress`, `report`, `replica`, `widget`, `gadget` | plain values: counters, steps, reports, replicas, objects |

mod applied_objects;
mod audit;
mod checks;
mod cluster;
pub(crate) mod controller;
mod cpu_monitor;
pub(crate) mod dev;
mod environment;
mod gadget;
mod hash_shards;
mod kubectl;
mod kubelet;
mod load;
mod manager;
mod metrics;
mod observations;
mod observer;
mod picture;
mod plugin_documents;
mod plugin_steps;
mod process;
mod progress;
mod replica;
mod report;
mod scenario;
mod screen;
mod sharding_plan;
mod sidecar;
mod steps;
mod summary;
mod widget;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::TaskTracker;

use crate::args::{DemoArgs, Output};
use crate::error::Error;
use crate::print;
use checks::{Checks, Outcome};
use cpu_monitor::CpuMonitor;
use environment::DemoEnv;
use progress::Progress;
use scenario::Scenario;
use screen::Screen;
use summary::Summary;

const PROXY: &str = "ctrlmesh-proxy";
const MANAGER: &str = "ctrlmesh-manager";

#[derive(Debug, Clone)]
struct Binaries {
    proxy: PathBuf,
    manager: PathBuf,
}

/// Exits 1 if a check fails, and with [`print::INCONCLUSIVE`] if the machine is too slow to decide.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, Error> {
    let binaries = Binaries {
        proxy: find_binary(PROXY, "--proxy", args.proxy.clone())?,
        manager: find_binary(MANAGER, "--manager", args.manager.clone())?,
    };
    let directory = tempfile::Builder::new().prefix("ctrlmesh-demo-").tempdir();
    let directory = directory.map_err(Error::file("create", &std::env::temp_dir()))?;
    let screen = Screen::new(args.output.format);
    let (keepers, mut checks) = (TaskTracker::new(), Checks::default());
    let monitor = CpuMonitor::default();
    let probe = monitor.start_probe()?;
    let result = tokio::select! {
        result = run_steps(&args, binaries, directory.path(), &keepers, &screen, &mut checks, &monitor) => result,
        interrupted = wait_for_interrupt() => Err(interrupted),
    };
    let result = result.map_err(|error| monitor.explain_timeout(error, &checks));
    drop(probe);
    // Whatever happened, no process and no file may be left behind.
    keepers.close();
    keepers.wait().await;
    screen.leave_picture();
    let path = directory.path().to_owned();
    directory.close().map_err(Error::file("remove", &path))?;
    let is_text = args.output.format == Output::Text;
    if is_text && !checks.as_slice().is_empty() {
        print::painted_line(&format!(
            "\n{}",
            summary::check_table(&checks, screen.paint(), print::terminal_width())
        ));
    }
    print::painted_line(&result?.result_text(args.output.format, screen.paint(), print::terminal_width())?);
    Ok(match checks.outcome() {
        Outcome::Holds => ExitCode::SUCCESS,
        Outcome::Fails => ExitCode::FAILURE,
        Outcome::Inconclusive => ExitCode::from(print::INCONCLUSIVE),
    })
}

/// The path of a binary: the one that the flag names, or the one beside our own executable.
fn find_binary(name: &'static str, flag: &'static str, named: Option<PathBuf>) -> Result<PathBuf, Error> {
    let path = match named {
        Some(path) => path,
        None => std::env::current_exe()
            .map_err(Error::file("find", Path::new("this executable")))?
            .with_file_name(name),
    };
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::NoBinary { name, flag, path })
    }
}

async fn run_steps(
    args: &DemoArgs,
    binaries: Binaries,
    directory: &Path,
    keepers: &TaskTracker,
    screen: &Screen,
    checks: &mut Checks,
    monitor: &CpuMonitor,
) -> Result<Summary, Error> {
    let progress = Progress::new();
    screen.print_steps(&progress);
    let mut env = DemoEnv::new(directory).await?;
    let observations = env.observations.clone();
    let follow = screen.redraw_until_dropped(&observations, &progress);
    let result = async {
        screen.print_event(
            &progress,
            "an API server with 200 widgets in 8 namespaces runs; a manager starts, then two sidecars",
        );
        env.start_manager(binaries.manager, keepers.clone()).await?;
        screen.print_event(
            &progress,
            "the manager has labelled the widgets with the hash buckets of their namespaces",
        );
        env.start_sidecars(binaries.proxy.clone(), keepers.clone()).await?;
        env.start_controllers(keepers)?;
        let casualty = env.wait_for_exit();
        let gadget_sidecars = sidecar::Setup {
            await_entry: Some(hash_shards::AWAITED),
            ..env.sidecar_setup(binaries.proxy, keepers.clone())
        };
        let mut scenario = Scenario {
            env,
            gadget_sidecars,
            checks,
            monitor: monitor.clone(),
            progress: progress.clone(),
            screen,
            pause: args.pause(),
            shown: BTreeMap::new(),
            fired: Vec::new(),
        };
        tokio::select! {
            result = scenario.run_sharding_steps() => result?,
            error = casualty => return Err(error),
        }
        Ok(scenario)
    };
    let scenario = tokio::select! {
        result = result => result?,
        () = follow => return Err(Error::Interrupted),
    };
    screen.draw_picture(&observations, &progress);
    Ok(build_summary(&scenario))
}

fn build_summary(scenario: &Scenario<'_>) -> Summary {
    let (reconciles, requests, updates) = scenario.observations().with_observations(|observations| {
        let [zero, one] = observations.controllers.both().map(|controller| controller.reconciles);
        let [first, second] = observations.sidecars.both().map(|sidecar| sidecar.requests);
        (
            replica::PerReplica::new(zero, one),
            replica::PerReplica::new(first, second),
            observations.updates,
        )
    });
    Summary {
        holds: scenario.checks.outcome() == Outcome::Holds,
        is_inconclusive: scenario.checks.outcome() == Outcome::Inconclusive,
        seconds: scenario.progress.elapsed_seconds(),
        checks: scenario.checks.as_slice().to_vec(),
        steps: scenario.progress.steps(),
        reconciles,
        requests,
        updates,
        faults: scenario.fired.clone(),
    }
}

/// Returns on Ctrl-C or SIGTERM.
async fn wait_for_interrupt() -> Error {
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        match signal(kind) {
            Ok(signal) => signals.push(signal),
            Err(error) => return Error::Runtime(error),
        }
    }
    let received: Vec<_> = signals.iter_mut().map(|signal| Box::pin(signal.recv())).collect();
    futures_util::future::select_all(received).await;
    Error::Interrupted
}
