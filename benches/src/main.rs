//! Measures the sidecar: requests per second, CPU per request and latency, direct, through a bare hyper proxy, through the
//! sidecar without an entry and with shard-selector; all in one run, printed as ratios.
//!
//! Origin, proxies and load each are a process of their own, so that CPU time is told apart. The figure to trust is CPU per
//! request of the proxy's process, as a ratio to the bare proxy measured in the same minute.

use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};

mod bare;
mod load;
mod origin;
mod process;
mod stand;
mod table;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Rounds; the table shows medians of the rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Open connections.
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// The sidecar's binary; default: beside this one.
    #[arg(long)]
    proxy: Option<std::path::PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Answers every request with the same small JSON.
    #[command(hide = true)]
    Origin,
    /// Passes requests on with hyper and nothing else.
    #[command(hide = true)]
    Bare { origin: std::net::SocketAddr },
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        match cli.role {
            Some(Role::Origin) => origin::serve().await,
            Some(Role::Bare { origin }) => bare::serve(origin).await,
            None => measure(&cli).await,
        }
    })
}

async fn measure(cli: &Cli) -> anyhow::Result<()> {
    let stand = stand::Stand::start(cli.proxy.clone())
        .await
        .context("the processes can't be started")?;
    let time = Duration::from_secs(cli.seconds);
    let mut rows = table::Rows::default();
    for round in 0..cli.rounds {
        for case in stand.cases() {
            let before = case.process.as_ref().map(process::Process::cpu).transpose()?;
            let load = load::run(case.address, &case.target, cli.connections, time).await?;
            let spent = match (&case.process, before) {
                (Some(process), Some(before)) => Some(process.cpu()? - before),
                _ => None,
            };
            let memory = case.process.as_ref().map(process::Process::peak_memory).transpose()?;
            rows.add(round, case.name, &load, spent, memory);
        }
    }
    rows.print();
    Ok(())
}
