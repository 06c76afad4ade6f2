//! Measures the sidecar: requests, plugin calls, large lists, watches, start, hot reload; each compared with direct requests and other
//! proxies, printed as tables of ratios and medians.
//!
//! Origin, proxies and load are separate processes, so that CPU time and memory can be attributed. Only ratios within a round are
//! reliable: processes on a shared machine are slow and fast together.

use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

mod bare_proxy;
mod bench_env;
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
mod start;
mod stats;
mod stream;
mod table;
mod watch;

use bench_env::BenchEnv;

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
    /// Open connections
    #[arg(long, default_value_t = 32)]
    connections: usize,
}

impl Scale {
    const fn round_time(&self) -> Duration {
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
    /// Answers like an idle API server.
    #[command(hide = true)]
    Origin,
    /// Forwards requests with hyper and nothing else.
    #[command(hide = true)]
    Bare { origin: std::net::SocketAddr },
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        match cli.role {
            Some(Role::Origin) => origin::serve_origin().await,
            Some(Role::Bare { origin }) => bare_proxy::serve_bare_proxy(origin).await,
            None => run_measurements(&cli).await,
        }
    })
}

async fn run_measurements(cli: &Cli) -> anyhow::Result<()> {
    let env = BenchEnv::start(cli.proxy.clone()).context("the processes can't be started")?;
    let scale = &cli.scale;
    for measurement in Measurement::value_variants() {
        if !cli.only.is_empty() && !cli.only.contains(measurement) {
            continue;
        }
        match measurement {
            Measurement::Requests => requests::measure_requests(&env, scale).await,
            Measurement::PluginCall => plugin_call::measure_plugin_calls(&env.program),
            Measurement::List => list::measure_lists(&env, scale).await,
            Measurement::WatchEvents => watch::measure_events(&env, scale).await,
            Measurement::Watches => watch::measure_many_watches(&env).await,
            Measurement::Start => start::measure_starts(&env, scale).await,
            Measurement::Reload => reload::measure_reloads(&env, scale).await,
        }
        .with_context(|| format!("measuring {measurement:?}"))?;
    }
    Ok(())
}
