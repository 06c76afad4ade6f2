//! The sidecar's process: orders the steps, maps failures to exit codes.

use std::process::ExitCode;

use clap::Parser;
use ctrlmesh_proxy::app::App;
use ctrlmesh_proxy::commands::{announce, init, wait_ready};
use ctrlmesh_proxy::config::{Cli, Command, Init, Settings};
use ctrlmesh_proxy::observe::telemetry;
use ctrlmesh_proxy::{termination, wasm};

/// Thread-local heaps suit one event loop per thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `sysexits.h`: the configuration is wrong.
const EX_CONFIG: u8 = 78;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Compile(compile)) => wasm::compile_child_main(compile.memory_bytes),
        Some(Command::WaitReady(wait)) => wait_ready::run(wait.admin_address, wait.time()),
        Some(Command::Init(init)) => rules(&init, &cli.settings),
        None => sidecar(cli.settings),
    }
}

fn rules(init: &Init, settings: &Settings) -> ExitCode {
    let done = telemetry::init(&settings.log, settings.log_format)
        .and_then(|()| init::run(init).map_err(|error| error.to_string()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            announce::failure(&message);
            ExitCode::from(EX_CONFIG)
        }
    }
}

fn sidecar(settings: Settings) -> ExitCode {
    if let Err(message) = telemetry::init(&settings.log, settings.log_format) {
        announce::failure(&message);
        return ExitCode::from(EX_CONFIG);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no event loop");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(run(settings))
}

async fn run(settings: Settings) -> ExitCode {
    let app = match App::build(settings).await {
        Ok(app) => app,
        Err(error) => {
            tracing::error!(%error, "the sidecar can't start");
            return ExitCode::from(EX_CONFIG);
        }
    };
    announce::listening(app.addresses());
    match app.run(termination::requested()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the sidecar ended badly");
            ExitCode::FAILURE
        }
    }
}
