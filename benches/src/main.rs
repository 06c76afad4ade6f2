//! Measures the sidecar: requests, calls of plugins, large lists, watches, start, hot reload; each in one run against
//! direct requests and other proxies, printed as tables of ratios and medians.
//!
//! Origin, proxies and load each are a process of their own, so that CPU time and memory are told apart. Figures to trust
//! are ratios of one round: processes on a shared machine are slow and fast together.

use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

mod bare;
mod builtins;
mod chain;
mod list;
mod load;
mod nginx;
mod origin;
mod plugin_call;
mod process;
mod reload;
mod requests;
mod sidecar;
mod stand;
mod start;
mod stats;
mod stream;
mod table;
mod watch;

use stand::Stand;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    /// Run only these; default: all.
    #[arg(long, value_enum)]
    only: Vec<Measurement>,
    #[command(flatten)]
    scale: Scale,
    /// The sidecar's binary; default: beside this one.
    #[arg(long)]
    proxy: Option<std::path::PathBuf>,
}

/// How long and how much is measured.
#[derive(Debug, clap::Args)]
struct Scale {
    /// Seconds of each measurement in a round.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Rounds; the tables show medians of the rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Open connections.
    #[arg(long, default_value_t = 32)]
    connections: usize,
}

impl Scale {
    const fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// Requests per second and CPU per request.
    Requests,
    /// A warm call of a plugin.
    PluginCall,
    /// A large list.
    List,
    /// Latency of a watch's events.
    WatchEvents,
    /// Memory of a thousand open watches.
    Watches,
    /// Time to ready and idle memory.
    Start,
    /// Hot reload under load.
    Reload,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Answers like an API server that has nothing to do.
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
    let stand = Stand::start(cli.proxy.clone()).context("the processes can't be started")?;
    let scale = &cli.scale;
    for measurement in Measurement::value_variants() {
        if !cli.only.is_empty() && !cli.only.contains(measurement) {
            continue;
        }
        match measurement {
            Measurement::Requests => requests::measure(&stand, scale).await,
            Measurement::PluginCall => plugin_call::measure(&stand.program),
            Measurement::List => list::measure(&stand, scale).await,
            Measurement::WatchEvents => watch::events(&stand, scale).await,
            Measurement::Watches => watch::many(&stand).await,
            Measurement::Start => start::measure(&stand, scale).await,
            Measurement::Reload => reload::measure(&stand, scale).await,
        }
        .with_context(|| format!("measuring {measurement:?}"))?;
    }
    Ok(())
}
