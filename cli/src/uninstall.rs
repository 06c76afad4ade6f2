//! `ctrlmesh uninstall`: prints the cluster and the number of its ShardingConfigs, deletes them in the right order, and prints what to
//! delete next. Without `--yes` it stops after printing the number.

use std::process::ExitCode;
use std::time::Duration;

use ctrlmesh_manager_uninstall::{self as uninstall, Cluster};

use crate::args::UninstallArgs;
use crate::error::Error;
use crate::print;

pub(crate) async fn run(args: &UninstallArgs) -> Result<ExitCode, Error> {
    let cluster = Cluster::infer().await?;
    if !args.yes {
        print::line(&cluster.searching_text());
        let Some(plan) = cluster.plan().await? else {
            print::line(&cluster.not_installed_text());
            return Ok(ExitCode::SUCCESS);
        };
        print::line(&format!("{cluster}: would delete {plan}"));
        return Err(Error::NotConfirmed);
    }
    uninstall::run(&cluster, Duration::from_secs(args.timeout), print::line).await?;
    Ok(ExitCode::SUCCESS)
}
