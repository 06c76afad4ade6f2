//! The manager's process: orders the steps, maps failures to exit codes.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ctrlmesh_manager::args::{Args, Command};
use ctrlmesh_manager::{process, uninstall};

/// `sysexits.h`: the configuration is wrong.
const EX_CONFIG: u8 = 78;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Err(error) = args.check().and_then(|()| process::log_to_stderr(&args)) {
        complain(&error);
        return ExitCode::from(EX_CONFIG);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no event loop");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(async {
        match args.command {
            Some(Command::Uninstall { timeout_seconds }) => {
                let tell = |line: &str| tracing::info!(line, "uninstalling");
                match uninstall::Cluster::infer().await {
                    Ok(cluster) => uninstall::run(&cluster, Duration::from_secs(timeout_seconds), tell).await,
                    Err(error) => Err(error),
                }
            }
            None => process::run(args).await,
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the manager ended badly");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "there is no log yet")]
fn complain(error: &ctrlmesh_manager::Error) {
    eprintln!("ctrlmesh-manager: {error}");
}
