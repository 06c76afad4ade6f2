//! The `ctrlmesh` command: parses the command line, runs one command, maps its result to an exit code. A library for the sake of
//! [`command`], from which the reference of its flags is written.
//!
//! | room | holds |
//! |---|---|
//! | `demo` | `demo` and `dev`: real programs against an API server in memory |
//! | `lint` | `lint`, with `--fix` |
//! | `plugin` | `plugin new`, `inspect`, `test`, `api-server` |
//! | `status` | `status`: a sidecar, by its admin port |
//! | `uninstall` | `uninstall` |
//! | `crd` | `crd` |
//! | `admin` | a sidecar's admin port |
//! | `print`, `paint` | output, errors and exit codes; colours |
//! | `error` | every error of the command |
//! | `args` | the command line |

mod admin;
mod args;
mod crd;
mod demo;
mod error;
mod lint;
mod paint;
mod plugin;
mod print;
mod status;
mod uninstall;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::args::{Cli, Command};
use crate::error::Error;

/// The command line, as clap has it.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command that the process's arguments name.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print::print_usage(&error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return print::print_failure(&Error::Runtime(error)),
    };
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => demo::run(args).await,
            Command::Plugin(command) => plugin::run(&command).await,
            Command::Status(args) => status::run(args).await,
            Command::Crd => crd::run(),
            Command::Lint(args) => lint::run(&args),
            Command::Uninstall(args) => uninstall::run(&args).await,
            Command::Dev(args) => demo::dev::run(args).await,
            Command::DemoController(args) => demo::controller::run(args).await,
        }
    });
    print::exit_code(outcome)
}
