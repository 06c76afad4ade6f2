//! `ctrlmesh plugin`: commands for plugin authors.

mod api_server;
mod cases;
mod inspect;
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
