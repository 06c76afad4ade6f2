//! `ctrlmesh uninstall`: deletes every ShardingConfig in the right order, and says what to delete next.

use std::process::ExitCode;
use std::time::Duration;

use ctrlmesh_manager::uninstall;

use crate::args::UninstallArgs;
use crate::error::Error;
use crate::print;

/// Runs the command.
pub(crate) async fn run(args: &UninstallArgs) -> Result<ExitCode, Error> {
    if !args.yes {
        return Err(Error::NotConfirmed);
    }
    uninstall::run(Duration::from_secs(args.timeout), print::line).await?;
    print::line(uninstall::NEXT);
    Ok(ExitCode::SUCCESS)
}
