//! `ctrlmesh demo`: the whole story on one machine, offline: an API server in memory, a real manager and real sidecars. Leaves what
//! is shown to [`view`] and [`screen`], what happens to [`steps`]; makes sure that nothing is left behind.

mod acts;
mod added;
mod claims;
mod cluster;
pub(crate) mod controller;
pub(crate) mod dev;
mod facts;
mod kubectl;
mod kubelet;
mod ledger;
mod load;
mod machine;
mod manager;
mod metrics;
mod observer;
mod plan;
mod process;
mod replica;
mod report;
mod screen;
mod sidecar;
mod stage;
mod steps;
mod story;
mod summary;
mod view;
mod widget;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::TaskTracker;

use crate::args::{DemoArgs, Output};
use crate::error::Error;
use crate::print;
use claims::{Claims, Outcome};
use machine::Machine;
use screen::Screen;
use stage::Stage;
use story::Story;
use summary::Summary;
use world::World;

/// Names of the binaries.
const PROXY: &str = "ctrlmesh-proxy";
const MANAGER: &str = "ctrlmesh-manager";

/// Where they are.
#[derive(Debug, Clone)]
struct Binaries {
    proxy: PathBuf,
    manager: PathBuf,
}

/// Runs the demo. The exit code is a failure if a claim fails, and [`print::INCONCLUSIVE`] if the machine is too slow to tell.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, Error> {
    let binaries = Binaries {
        proxy: binary(PROXY, "--proxy", args.proxy.clone())?,
        manager: binary(MANAGER, "--manager", args.manager.clone())?,
    };
    let directory = tempfile::Builder::new().prefix("ctrlmesh-demo-").tempdir();
    let directory = directory.map_err(Error::file("create", &std::env::temp_dir()))?;
    let screen = Screen::new(args.output);
    let (keepers, mut claims) = (TaskTracker::new(), Claims::default());
    let machine = Machine::default();
    let probe = machine.probe()?;
    let told = tokio::select! {
        told = tell(&args, binaries, directory.path(), &keepers, &screen, &mut claims, &machine) => told,
        interrupted = interrupted() => Err(interrupted),
    };
    let told = told.map_err(|error| machine.explain(error, &claims));
    drop(probe);
    // Whatever happened: no process and no file is left behind.
    keepers.close();
    keepers.wait().await;
    screen.leave();
    let path = directory.path().to_owned();
    directory.close().map_err(Error::file("remove", &path))?;
    let is_text = args.output == Output::Text;
    if is_text && !claims.all().is_empty() {
        print::line(&format!("\n{}", summary::text(&claims, screen.paint(), print::width())));
    }
    let summary = told?;
    if is_text {
        print::line(&summary.faults(print::width()));
    }
    print::line(&if is_text {
        summary.verdict(screen.paint())
    } else {
        summary.json()?
    });
    Ok(match claims.outcome() {
        Outcome::Holds => ExitCode::SUCCESS,
        Outcome::Fails => ExitCode::FAILURE,
        Outcome::Inconclusive => ExitCode::from(print::INCONCLUSIVE),
    })
}

/// A binary, which lies beside ours unless a flag names it.
fn binary(name: &'static str, flag: &'static str, named: Option<PathBuf>) -> Result<PathBuf, Error> {
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

async fn tell(
    args: &DemoArgs,
    binaries: Binaries,
    directory: &Path,
    keepers: &TaskTracker,
    screen: &Screen,
    claims: &mut Claims,
    machine: &Machine,
) -> Result<Summary, Error> {
    let stage = Stage::new();
    screen.list(&stage);
    let mut world = World::new(directory).await?;
    let facts = world.facts.clone();
    let follow = screen.follow(&facts, &stage);
    let told = async {
        screen.say(
            &stage,
            "an API server with 200 widgets in 8 namespaces runs; a manager starts, then two sidecars",
        );
        world.start_manager(binaries.manager, keepers.clone()).await?;
        screen.say(
            &stage,
            "the manager has labelled the widgets with the buckets of their namespaces",
        );
        world.start_sidecars(binaries.proxy, keepers.clone()).await?;
        world.start_controllers(keepers)?;
        let casualty = world.casualty();
        let mut story = Story {
            world,
            claims,
            machine: machine.clone(),
            stage: stage.clone(),
            screen,
            pause: args.pause(),
            shown: BTreeMap::new(),
            fired: Vec::new(),
        };
        tokio::select! {
            told = story.tell() => told?,
            error = casualty => return Err(error),
        }
        Ok(story)
    };
    let story = tokio::select! {
        told = told => told?,
        () = follow => return Err(Error::Interrupted),
    };
    screen.draw(&facts, &stage);
    Ok(summary(&story))
}

fn summary(story: &Story<'_>) -> Summary {
    let (reconciles, requests, updates) = story.facts().with(|facts| {
        let [zero, one] = facts.controllers.both().map(|controller| controller.reconciles);
        let [first, second] = facts.sidecars.both().map(|sidecar| sidecar.requests);
        (
            replica::PerReplica::new(zero, one),
            replica::PerReplica::new(first, second),
            facts.updates,
        )
    });
    Summary {
        holds: story.claims.outcome() == Outcome::Holds,
        is_inconclusive: story.claims.outcome() == Outcome::Inconclusive,
        seconds: story.stage.seconds(),
        claims: story.claims.all().to_vec(),
        steps: story.stage.steps(),
        reconciles,
        requests,
        updates,
        faults: story.fired.clone(),
    }
}

/// Ends with Ctrl-C, or when someone wants the process to end.
async fn interrupted() -> Error {
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
