//! The command line. What a command does with its arguments is the command's.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ctrlmesh_contract::names::ports;

/// Shard, canary and protect Kubernetes controllers that know nothing of it.
#[derive(Debug, Parser)]
#[command(name = "ctrlmesh", version, disable_help_subcommand = true, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows it all on this machine, without a cluster: a manager gets custom resources; two replicas of a controller are
    /// sharded, re-sharded, get new plugin code and a crashing plugin, a rate limit, a circuit breaker and faults, while
    /// they work. Counts what it claims; exits 1 if a claim fails, 75 if this machine is too slow to tell.
    Demo(DemoArgs),
    /// For people who write plugins.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// What a sidecar says of its chain. Fails if something is wrong with it.
    Status(StatusArgs),
    /// Prints the CustomResourceDefinitions: `ctrlmesh crd | kubectl apply --server-side -f -`.
    Crd,
    /// Tells what is wrong with custom resources and chains, by the rules of manager and sidecar. Exits 1 if something is.
    Lint(LintArgs),
    /// Deletes every ShardingConfig of the cluster in use while its manager runs, and waits until all are gone. Managers,
    /// webhooks and definitions can be removed afterwards. Exits 1 if some wait for longer.
    Uninstall(UninstallArgs),
    /// Runs an API server in memory, a manager, two sidecars and a controller, and builds and restarts them when a source file changes:
    /// `make dev`. Ends with Ctrl-C.
    #[command(hide = true)]
    Dev(DevArgs),
    /// The demo's controller. Knows a kubeconfig and nothing else.
    #[command(hide = true)]
    DemoController(ControllerArgs),
}

/// Arguments of `ctrlmesh uninstall`.
#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    /// Delete them. Nothing can be undone, so it has to be said.
    #[arg(long)]
    pub(crate) yes: bool,

    /// Seconds to wait.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Writes a crate with a complete small plugin into a new folder.
    New(NewArgs),
    /// Tells what a .wasm file is, and whether a sidecar takes it. Fails if not.
    Inspect(InspectArgs),
    /// Asks the bytes of a plugin about requests, in the engine of a sidecar, and compares what it says with what is expected. Exits 1
    /// if it differs.
    Test(TestArgs),
    /// Runs an API server in memory, to try a plugin without a cluster. Ends with Ctrl-C; nothing is kept.
    ApiServer(ApiServerArgs),
}

/// How a command writes its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Text,
    /// One JSON document on standard output.
    Json,
}

/// Arguments of `ctrlmesh demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How the result is written.
    #[arg(long, short, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,

    /// Without pauses for readers.
    #[arg(long, conflicts_with = "slow")]
    pub(crate) fast: bool,

    /// With time to look at each step.
    #[arg(long)]
    pub(crate) slow: bool,

    /// The sidecar's binary. Default: `ctrlmesh-proxy` beside this executable.
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy: Option<PathBuf>,

    /// The manager's binary. Default: `ctrlmesh-manager` beside this executable.
    #[arg(long, value_name = "FILE")]
    pub(crate) manager: Option<PathBuf>,
}

impl DemoArgs {
    /// How long a finished step stays before the next begins.
    pub(crate) const fn pause(&self) -> Duration {
        match (self.fast, self.slow) {
            (true, _) => Duration::ZERO,
            (_, true) => Duration::from_secs(4),
            _ => Duration::from_millis(500),
        }
    }
}

/// Arguments of `ctrlmesh plugin new`.
#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the crate and of the folder: lower-case letters, digits and hyphens.
    pub(crate) name: String,

    /// The folder `sdk` of a checkout of ctrlmesh, for a plugin that follows the checkout. Default: the release of the SDK with this
    /// command's version, from crates.io.
    #[arg(long, value_name = "DIR")]
    pub(crate) sdk: Option<PathBuf>,
}

/// Arguments of `ctrlmesh plugin inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A WebAssembly component.
    pub(crate) file: PathBuf,

    /// How the result is written.
    #[arg(long, short, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
}

/// Arguments of `ctrlmesh plugin test`.
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// A WebAssembly component.
    pub(crate) file: PathBuf,

    /// A YAML file with the plugin's `settings`, and `requests` with what it should say to each: docs/plugin-guide.md, step 5. Without it,
    /// the plugin is loaded and configured without settings.
    #[arg(long, value_name = "FILE")]
    pub(crate) cases: Option<PathBuf>,
}

/// Arguments of `ctrlmesh plugin api-server`.
#[derive(Debug, Args)]
pub(crate) struct ApiServerArgs {
    /// Where the kubeconfig of the API server is written, for the sidecar.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,

    /// Port on 127.0.0.1 that the kubeconfig names; 0 takes a free one.
    #[arg(long, default_value_t = 0, value_name = "PORT", value_parser = port)]
    pub(crate) port: u16,
}

/// Arguments of `ctrlmesh status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The sidecar's admin port.
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], ports::ADMIN)), value_name = "IP:PORT", value_parser = address)]
    pub(crate) address: SocketAddr,

    /// How the result is written.
    #[arg(long, short, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
}

/// Arguments of `ctrlmesh lint`.
#[derive(Debug, Args)]
pub(crate) struct LintArgs {
    /// A file with one or more YAML or JSON documents; `-` is standard input. May be given several times.
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Mend what can be mended without a decision, in the files. The rest of them stays as it is, comments included.
    #[arg(long)]
    pub(crate) fix: bool,

    /// How the result is written.
    #[arg(long, short, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
}

/// Arguments of `ctrlmesh dev`.
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The checkout of ctrlmesh whose files are watched and built.
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) sources: PathBuf,

    /// The program that builds: it is called as `cargo` is.
    #[arg(long, env = "CARGO", default_value = "cargo", value_name = "FILE")]
    pub(crate) cargo: PathBuf,
}

/// Arguments of the demo's controller.
#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// Where the API server is.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,

    /// Name of this replica: what it writes into the objects that it handles.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
}

/// Longest wait of an uninstallation: a day.
const MAX_SECONDS: u64 = 86_400;

fn seconds(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_SECONDS).contains(number));
    number.ok_or_else(|| format!("write a number of seconds from 1 to {MAX_SECONDS}"))
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "write a number from 0 to 65535".to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(ip) => format!("it has no port; write {}", SocketAddr::new(ip, ports::ADMIN)),
        Err(_) => format!(
            "write an IP address and a port, such as 127.0.0.1:{port} or [::1]:{port}",
            port = ports::ADMIN
        ),
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_that_are_none_are_told_what_to_write() {
        for (arguments, says) in [
            (
                ["status", "--address", "localhost:5441"],
                "such as 127.0.0.1:5441 or [::1]:5441",
            ),
            (
                ["status", "--address", "10.0.0.1"],
                "it has no port; write 10.0.0.1:5441",
            ),
            (["status", "--address", "::1"], "it has no port; write [::1]:5441"),
            (
                ["uninstall", "--timeout", "0"],
                "write a number of seconds from 1 to 86400",
            ),
            (
                ["uninstall", "--timeout", "soon"],
                "write a number of seconds from 1 to 86400",
            ),
        ] {
            let error = Cli::try_parse_from(["ctrlmesh"].into_iter().chain(arguments)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let api_server = [
            "ctrlmesh",
            "plugin",
            "api-server",
            "--kubeconfig",
            "k",
            "--port",
            "70000",
        ];
        let error = Cli::try_parse_from(api_server).unwrap_err().to_string();
        assert!(error.contains("write a number from 0 to 65535"), "{error}");
        for good in ["127.0.0.1:1", "[::1]:1"] {
            assert!(Cli::try_parse_from(["ctrlmesh", "status", "--address", good]).is_ok());
        }
    }

    #[test]
    fn fast_and_slow_exclude_each_other() {
        assert!(Cli::try_parse_from(["ctrlmesh", "demo", "--fast", "--slow"]).is_err());
    }
}
