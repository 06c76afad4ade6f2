//! `ctrlmesh plugin`: commands for plugin authors.
//!
//! | file | holds |
//! |---|---|
//! | `template` | `plugin new`: a crate that builds |
//! | `inspect` | `plugin inspect`: describes a component, and whether a sidecar accepts it |
//! | `test`, `cases`, `objects` | `plugin test`: the verdicts of a plugin; the file with its cases; objects that it keeps |
//! | `api_server` | `plugin api-server`: an API server in memory |

mod api_server;
mod cases;
mod inspect;
mod objects;
mod template;
mod test;

use std::process::ExitCode;

use crate::args::PluginCommand;
use crate::error::Error;

pub(crate) async fn run(command: &PluginCommand) -> Result<ExitCode, Error> {
    match command {
        PluginCommand::New(args) => template::run(args),
        PluginCommand::Inspect(args) => inspect::run(args),
        PluginCommand::Test(args) => test::run(args),
        PluginCommand::ApiServer(args) => api_server::run(args).await,
    }
}
