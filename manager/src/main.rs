//! The manager's process: orders the steps, maps failures to exit codes.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ctrlmesh_manager::args::{Args, Command};
use ctrlmesh_manager::cluster::Error;
use ctrlmesh_manager::process;
use ctrlmesh_manager_uninstall::{self as uninstall, Definitions};

/// `sysexits.h`: the configuration is wrong.
const EX_CONFIG: u8 = 78;

fn main() -> ExitCode {
    let args = Args::parse();
    let checked = args.check().map_err(Error::from);
    if let Err(error) = checked.and_then(|()| process::log_to_stderr(&args)) {
        print_error(&error);
        return ExitCode::from(EX_CONFIG);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "failed to start the event loop");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match args.command {
            Some(Command::Uninstall {
                keep,
                with_definitions,
                timeout_seconds,
            }) => {
                let definitions = if with_definitions {
                    Definitions::Deleted
                } else {
                    Definitions::Kept
                };
                prepare_uninstall((!keep).then_some(Duration::from_secs(timeout_seconds)), definitions).await
            }
            None => process::run(args).await,
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "manager failed");
            ExitCode::FAILURE
        }
    }
}

/// Runs before managers are deleted. `max_wait`: deletes the ShardingConfigs and waits so long for them; `None`: deletes nothing.
async fn prepare_uninstall(max_wait: Option<Duration>, definitions: Definitions) -> Result<(), Error> {
    let cluster = uninstall::Cluster::infer().await?;
    if let Some(max_wait) = max_wait {
        let log_line = |line: &str| tracing::info!(line, "uninstalling");
        uninstall::run(&cluster, max_wait, log_line).await?;
    }
    // Objects of other kinds wait only if somebody deletes them.
    if max_wait.is_none() || definitions == Definitions::Deleted {
        uninstall::check_held_objects(&cluster, definitions).await?;
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "there is no log yet")]
fn print_error(error: &Error) {
    eprintln!("ctrlmesh-manager: {error}");
}
