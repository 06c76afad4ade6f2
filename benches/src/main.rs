//! Measures the sidecar beside other proxies: requests, plugin calls, lists, watches, start, hot reload; printed as tables of ratios and
//! medians, and of the budgets that they meet or miss. Or counts its instructions, and compares them with baselines.
//!
//! Origin, proxies and load are separate processes, so that CPU time and memory can be attributed. Only ratios within a round are
//! reliable: processes on a shared machine are slow and fast together.
//!
//! | file | holds |
//! |---|---|
//! | `budgets_page` | a test: the budgets in docs/benchmarks.md are those of this program |
//! | `requests`, `tls_requests` | CPU time of small requests; of small lists through a TLS upstream |
//! | `latency` | latency at fixed rates |
//! | `plugin_call` | cost of a warm plugin call, and of an instance |
//! | `list` | throughput, CPU time and memory of large lists |
//! | `object_filter` | throughput of filtered lists, and the time that a watch event takes, without HTTP |
//! | `watch_events`, `watches` | latency of watch events; memory of a thousand open watches |
//! | `filtered_watches` | memory of a hundred watches that the sidecar filters |
//! | `start`, `reload` | time to ready, and memory of an idle sidecar; hot reload under load |
//! | `instructions` | instructions for a request, compared with baselines |
//! | `valgrind`, `callgrind` | a sidecar in valgrind, and what callgrind writes about it |
//! | `image` | a folder with the program and precompiled plugins, as an image has them |
//! | `cost` | CPU time that each request costs, as a ratio within a round |
//! | `open_loop`, `closed_loop` | load at a fixed rate, and from clients that wait for each response |
//! | `bench_env` | what all measurements share |
//! | `scale` | how long and how much is measured |
//! | `report`, `table` | the result of a run; Markdown tables |
//! | `stats` | median, spread and percentiles |
//! | `contestants` | the proxies that do the same work |
//! | `chain`, `builtins` | the folder of a sidecar, and built-in plugins as entries of its chain |
//! | `origin`, `tls` | the API server of the benchmarks, and its certificate |
//! | `stream`, `client` | clients for streaming and for small responses |
//! | `work` | the requests that are measured |
//! | `process` | child processes, their CPU time and memory |
//! | `uids` | UIDs of objects |

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};

mod bench_env;
#[cfg(test)]
mod budgets_page;
mod builtins;
mod callgrind;
mod chain;
mod client;
mod closed_loop;
mod contestants;
mod cost;
mod filtered_watches;
mod image;
mod instructions;
mod latency;
mod list;
mod object_filter;
mod open_loop;
mod origin;
mod plugin_call;
mod process;
mod reload;
mod report;
mod requests;
mod scale;
mod start;
mod stats;
mod stream;
mod table;
mod tls;
mod tls_requests;
mod uids;
mod valgrind;
mod watch_events;
mod watches;
mod work;

use bench_env::{BenchEnv, Programs, default_output_directory};
use instructions::BaselineFlags;
use scale::Scale;
use tls::TlsFolder;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A thousand watches over HTTP/1.1 take two descriptors each in every proxy. Children inherit the limit.
const DESCRIPTORS: u64 = 1 << 16;

#[derive(Debug, Parser)]
#[command(about, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    /// Run only these measurements; default: those with a budget except `filtered-watches`, or with --all all except `instructions`
    #[arg(long, value_enum)]
    only: Vec<Measurement>,
    #[command(flatten)]
    scale: Scale,
    #[command(flatten)]
    programs: Programs,
    #[command(flatten)]
    baselines: BaselineFlags,
    /// Where bench.md and bench.json are written; default: bench in Cargo's target folder
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// CPU per request over plaintext
    Requests,
    /// CPU per request through a TLS upstream
    TlsRequests,
    /// CPU of creates and patches
    Writes,
    /// Latency at fixed rates
    Latency,
    /// A warm call of a plugin
    PluginCall,
    /// A list of 5,000 pods
    List,
    /// Filtering of lists and watch events, without HTTP
    ObjectFilter,
    /// Latency of watch events
    WatchEvents,
    /// Memory of a thousand open watches
    Watches,
    /// Memory of a hundred filtered watches of 50,000 pods
    FilteredWatches,
    /// Time to ready and idle memory
    Start,
    /// Hot reload under load
    Reload,
    /// Instructions per request, counted by valgrind
    Instructions,
}

impl Measurement {
    const fn has_budget(self) -> bool {
        match self {
            Self::Requests
            | Self::TlsRequests
            | Self::ObjectFilter
            | Self::WatchEvents
            | Self::Watches
            | Self::FilteredWatches
            | Self::Start
            | Self::Reload => true,
            Self::Writes | Self::Latency | Self::PluginCall | Self::List | Self::Instructions => false,
        }
    }

    /// Whether it runs although it was not named. Counts have baselines of the dev profile, unlike all that takes time.
    /// Filtered watches take more than a minute.
    const fn is_default(self, all: bool) -> bool {
        match self {
            Self::Instructions => false,
            Self::FilteredWatches => all,
            _ => all || self.has_budget(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Answers like an idle API server.
    #[command(hide = true)]
    Origin {
        /// The folder of its certificate.
        tls: PathBuf,
    },
    /// Forwards requests with hyper and nothing else.
    #[command(hide = true)]
    Bare {
        origin: SocketAddr,
        /// The CA of the origin's certificate; without it, the origin speaks plaintext.
        #[arg(long)]
        ca: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    rlimit::increase_nofile_limit(DESCRIPTORS).context("the limit of file descriptors can't be raised")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        match &cli.role {
            Some(Role::Origin { tls }) => origin::serve_origin(&TlsFolder::open(tls.clone())).await,
            Some(Role::Bare { origin, ca }) => contestants::bare_proxy::serve_bare_proxy(*origin, ca.as_deref()).await,
            None => run_measurements(&cli).await,
        }
    })
}

async fn run_measurements(cli: &Cli) -> anyhow::Result<()> {
    let output = match &cli.output_dir {
        Some(directory) => directory.clone(),
        None => default_output_directory()?,
    };
    let env = BenchEnv::start(&cli.programs, cli.scale.clone()).context("the processes can't be started")?;
    let result = measure_selected(cli, &env).await;
    // The measurements so far are kept, even if a later part failed.
    env.report.print_budgets();
    env.report.write_files(&output)?;
    result
}

async fn measure_selected(cli: &Cli, env: &BenchEnv) -> anyhow::Result<()> {
    for &measurement in Measurement::value_variants() {
        let is_selected = match cli.only.as_slice() {
            [] => measurement.is_default(cli.scale.all),
            only => only.contains(&measurement),
        };
        if is_selected {
            let result = measure(cli, env, measurement).await;
            result.with_context(|| format!("measuring {measurement:?}"))?;
        }
    }
    Ok(())
}

async fn measure(cli: &Cli, env: &BenchEnv, measurement: Measurement) -> anyhow::Result<()> {
    match measurement {
        Measurement::Requests => requests::measure_requests(env).await,
        Measurement::TlsRequests => tls_requests::measure_tls_requests(env).await,
        Measurement::Writes => requests::measure_writes(env).await,
        Measurement::Latency => latency::measure_latencies(env).await,
        Measurement::PluginCall => plugin_call::measure_plugin_calls(env),
        Measurement::List => list::measure_lists(env).await,
        Measurement::ObjectFilter => object_filter::measure_object_filter(env),
        Measurement::WatchEvents => watch_events::measure_events(env).await,
        Measurement::Watches => watches::measure_watches(env).await,
        Measurement::FilteredWatches => filtered_watches::measure_filtered_watches(env).await,
        Measurement::Start => start::measure_starts(env).await,
        Measurement::Reload => reload::measure_reloads(env).await,
        Measurement::Instructions => instructions::measure_instructions(env, &cli.baselines).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::{Cli, Measurement};

    /// `tests/documents` holds the help of the other programs.
    #[test]
    fn help_matches_snapshot() {
        let help = Cli::command().term_width(100).render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn measurements_without_a_name_are_those_with_a_budget_or_almost_all() {
        for (measurement, is_default, is_in_all) in [
            (Measurement::Watches, true, true),
            (Measurement::List, false, true),
            (Measurement::FilteredWatches, false, true),
            (Measurement::Instructions, false, false),
        ] {
            assert_eq!(measurement.is_default(false), is_default, "{measurement:?}");
            assert_eq!(measurement.is_default(true), is_in_all, "{measurement:?}");
        }
    }
}
