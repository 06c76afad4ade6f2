//! The sidecar's process: runs the steps in order and maps failures to exit codes.

use std::process::ExitCode;

use clap::Parser;
use ctrlmesh_proxy::app::{App, disable_huge_pages};
use ctrlmesh_proxy::commands::{init, precompile, print_error, wait_ready};
use ctrlmesh_proxy::config::{Cli, Command, Init, Settings};
use ctrlmesh_proxy::observe::telemetry;
use ctrlmesh_proxy::wasm;
use tokio::signal::unix::{SignalKind, signal};

/// Thread-local heaps suit one event loop per thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `sysexits.h`: the configuration is wrong.
const EX_CONFIG: u8 = 78;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Compile(compile)) => wasm::compile_child_main(compile.memory_bytes),
        Some(Command::WaitReady(wait)) => wait_ready::run(wait.admin_address, wait.max_wait()),
        Some(Command::Precompile(files)) => precompile::run(&files),
        Some(Command::Init(init)) => run_init(&init, &cli.settings),
        None => run_sidecar(cli.settings),
    }
}

fn run_init(init: &Init, settings: &Settings) -> ExitCode {
    let done = telemetry::init(&settings.log, settings.log_format)
        .and_then(|()| init::run(init).map_err(|error| error.to_string()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            print_error(&message);
            ExitCode::from(EX_CONFIG)
        }
    }
}

fn run_sidecar(settings: Settings) -> ExitCode {
    if let Err(message) = telemetry::init(&settings.log, settings.log_format) {
        print_error(&message);
        return ExitCode::from(EX_CONFIG);
    }
    if let Err(error) = disable_huge_pages() {
        tracing::debug!(%error, "huge pages can't be disabled");
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "failed to start the event loop");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(serve(settings))
}

async fn serve(settings: Settings) -> ExitCode {
    let app = match App::build(settings).await {
        Ok(app) => app,
        Err(error) => {
            tracing::error!(%error, "failed to start");
            return ExitCode::from(EX_CONFIG);
        }
    };
    print_addresses(&app);
    match app.run(termination_signal()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "stopped with an error");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "this line is the process's interface")]
fn print_addresses(app: &App) {
    println!("{}", app.addresses().to_json());
}

/// Returns on SIGTERM or SIGINT. If signals cannot be received it never returns, and kubelet kills the sidecar after the grace period.
async fn termination_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("signals can't be received: the sidecar will be killed instead of drained");
        return std::future::pending().await;
    };
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "draining");
}
