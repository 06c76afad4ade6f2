//! `ctrlmesh dev`: the demo's processes without its scenario, for people who change the code. When a source file changes, the programs are
//! built; those that are new are restarted, and objects in the API server stay. Only a new `ctrlmesh`, which the API server is part of,
//! begins from nothing. A build that fails changes nothing.

mod build;
mod sources;
mod tail;

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::ExitCode;

use tokio_util::task::TaskTracker;

use super::environment::DemoEnv;
use super::sharding_plan::ShardingPlan;
use super::{Binaries, MANAGER, PROXY, find_binary, wait_for_interrupt};
use crate::args::DevArgs;
use crate::error::Error;
use crate::print;
use build::{Build, Rebuilt};
use sources::Sources;

/// Runs until it is interrupted.
pub(crate) async fn run(args: DevArgs) -> Result<ExitCode, Error> {
    let program = std::env::current_exe().map_err(Error::file("find", Path::new("this executable")))?;
    let binaries = Binaries {
        proxy: find_binary(PROXY, "--proxy", args.proxy.clone())?,
        manager: find_binary(MANAGER, "--manager", args.manager.clone())?,
    };
    let directory = tempfile::Builder::new().prefix("ctrlmesh-dev-").tempdir();
    let directory = directory.map_err(Error::file("create", &std::env::temp_dir()))?;
    let keepers = TaskTracker::new();
    let build = Build::new(&args, &program, &binaries);
    let ended = tokio::select! {
        ended = rebuild_until_replaced(&args, &binaries, directory.path(), &keepers, build) => ended,
        interrupted = wait_for_interrupt() => Err(interrupted),
    };
    // Whatever happened: no process and no file is left behind.
    keepers.close();
    keepers.wait().await;
    let path = directory.path().to_owned();
    directory.close().map_err(Error::file("remove", &path))?;
    match ended {
        Ok(()) => {
            print::line("dev: ctrlmesh itself is new; all programs and the API server begin again");
            let again = std::process::Command::new(&program)
                .args(std::env::args_os().skip(1))
                .exec();
            Err(Error::Spawn {
                name: program.display().to_string(),
                source: again,
            })
        }
        Err(Error::Interrupted) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    }
}

/// Returns when `ctrlmesh` itself is new.
async fn rebuild_until_replaced(
    args: &DevArgs,
    binaries: &Binaries,
    directory: &Path,
    keepers: &TaskTracker,
    mut build: Build<'_>,
) -> Result<(), Error> {
    let mut sources = Sources::in_folder(&args.sources)?;
    let mut env = DemoEnv::new(directory).await?;
    let _tails = tail::follow(directory);
    env.start_manager(binaries.manager.clone(), keepers.clone()).await?;
    env.start_sidecars(binaries.proxy.clone(), keepers.clone()).await?;
    env.start_controllers(keepers)?;
    for document in ShardingPlan::initial().documents(&env.cluster.registry.tls_host()) {
        env.kubectl.apply(&document).await?;
    }
    print::line(&environment_text(&env, &args.sources));
    loop {
        let changed = tokio::select! {
            changed = sources.changed() => changed?,
            error = env.wait_for_exit() => {
                print::line(&format!("dev: {error}; change a file to start it again"));
                build.forget();
                sources.changed().await?
            }
        };
        let Some(rebuilt) = build.run(changed).await? else {
            print::line("dev: the build failed; the programs go on as they are");
            continue;
        };
        if rebuilt.command {
            return Ok(());
        }
        if let Err(error) = restart_programs(&mut env, binaries, keepers, rebuilt).await {
            print::line(&format!("dev: {error}; change a file to try again"));
            build.forget();
        }
    }
}

async fn restart_programs(
    env: &mut DemoEnv,
    binaries: &Binaries,
    keepers: &TaskTracker,
    rebuilt: Rebuilt,
) -> Result<(), Error> {
    if rebuilt.manager {
        env.restart_manager(binaries.manager.clone(), keepers.clone()).await?;
        print::line("dev: restarted ctrlmesh-manager");
    }
    if rebuilt.proxy {
        env.restart_sidecars(binaries.proxy.clone(), keepers.clone()).await?;
        print::line("dev: restarted ctrlmesh-proxy");
    }
    if !rebuilt.manager && !rebuilt.proxy {
        print::line("dev: the programs are the same");
    }
    Ok(())
}

fn environment_text(env: &DemoEnv, sources: &Path) -> String {
    let mut lines = vec![
        "dev: an API server in memory, a manager, two sidecars and a controller behind each run".to_owned(),
        format!(
            "  KUBECONFIG={} kubectl get shardingconfigs,widgets -A",
            env.kubeconfig().display()
        ),
    ];
    lines.extend(env.sidecars().map(|(replica, sidecar)| {
        format!(
            "  ctrlmesh status --address {}    # {}; its controller connects to http://{}",
            sidecar.admin.address(),
            replica.name(),
            sidecar.api
        )
    }));
    lines.push(format!(
        "dev: watching {}; Ctrl-C ends everything",
        sources.canonicalize().unwrap_or_else(|_| sources.to_owned()).display()
    ));
    lines.join("\n")
}
