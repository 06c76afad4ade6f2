//! The command line. Each command interprets its own arguments.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ctrlmesh_contract::names::{labels, ports};
use ctrlmesh_manager_planner::LabelKeys;
use ctrlmesh_wire::is_label_key;

/// Shard, canary and protect unmodified Kubernetes controllers.
#[derive(Debug, Parser)]
#[command(name = "ctrlmesh", version, disable_help_subcommand = true, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the demo: everything on this machine, without a cluster. Two replicas of a controller are sharded and re-sharded, get new
    /// plugin code, a crashing plugin, a rate limit, a circuit breaker and faults while they work. Exits 1 if a check fails, 75 if
    /// this machine is too slow to decide.
    Demo(DemoArgs),
    /// Create, inspect and test plugins.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Show the status of a sidecar and its chain. Exits 1 if the sidecar is not ready or an entry does not work.
    Status(StatusArgs),
    /// Print the CustomResourceDefinitions: `ctrlmesh crd | kubectl apply -f -`.
    Crd,
    /// Check custom resources and chains by the rules of manager and sidecar. Exits 1 on any error.
    Lint(LintArgs),
    /// Delete every ShardingConfig of the current cluster while its manager runs, and wait until all are gone. Managers, webhooks
    /// and definitions can be removed afterwards. Exits 1 if some remain after the timeout, and 0 if nothing is installed.
    Uninstall(UninstallArgs),
    /// Run an API server in memory, a manager, two sidecars and a controller, and build and restart them when a source file changes
    /// (`make dev`). Ends with Ctrl-C.
    #[command(hide = true)]
    Dev(DevArgs),
    /// The controller of the demo. It knows a kubeconfig and nothing else.
    #[command(hide = true)]
    DemoController(ControllerArgs),
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArgs {
    /// Confirm the deletion, which cannot be undone.
    #[arg(long)]
    pub(crate) yes: bool,

    /// Seconds to wait until all are gone.
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = parse_timeout)]
    pub(crate) timeout: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Create a crate with a complete small plugin in a new folder.
    New(NewArgs),
    /// Describe a .wasm file and check whether a sidecar accepts it. Exits 1 if not.
    Inspect(InspectArgs),
    /// Run a plugin on requests in the sidecar's engine and compare its verdicts with the expected ones. Exits 1 on any difference.
    Test(TestArgs),
    /// Run an in-memory API server to try a plugin without a cluster. Ends with Ctrl-C; nothing is kept.
    ApiServer(ApiServerArgs),
}

/// Output format of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document on standard output.
    Json,
}

// No doc comment: clap would take it for the description of each command that has the flag.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputFlag {
    /// Output format.
    #[arg(long = "output", short = 'o', value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) format: Output,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) output: OutputFlag,

    /// Run without pauses for readers.
    #[arg(long, conflicts_with = "slow")]
    pub(crate) fast: bool,

    /// Leave time to read each step.
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
    /// How long a finished step stays on the screen.
    pub(crate) const fn pause(&self) -> Duration {
        match (self.fast, self.slow) {
            (true, _) => Duration::ZERO,
            (_, true) => Duration::from_secs(4),
            _ => Duration::from_millis(500),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Name of the crate and of the folder: lower-case letters, digits and hyphens.
    pub(crate) name: String,

    /// The `sdk` folder of a ctrlmesh clone. Needed until ctrlmesh-sdk is on crates.io: without it, the package depends on a release
    /// that is not there yet.
    #[arg(long, value_name = "DIR")]
    pub(crate) sdk: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The WebAssembly component.
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) output: OutputFlag,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// The WebAssembly component.
    pub(crate) file: PathBuf,

    /// YAML file with the plugin's `settings`, and `requests` with the expected verdicts: docs/plugin-guide.md, step 5. Without it,
    /// the plugin is loaded and configured without settings.
    #[arg(long, value_name = "FILE")]
    pub(crate) cases: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ApiServerArgs {
    /// Where to write the kubeconfig of the API server, for the sidecar.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,

    /// Port on 127.0.0.1 for the kubeconfig; 0 picks a free one.
    #[arg(long, default_value_t = 0, value_name = "PORT", value_parser = parse_port)]
    pub(crate) port: u16,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Address of the sidecar's admin port.
    #[arg(long, default_value_t = SocketAddr::from(([127, 0, 0, 1], ports::ADMIN)), value_name = "IP:PORT", value_parser = parse_address)]
    pub(crate) address: SocketAddr,

    #[command(flatten)]
    pub(crate) output: OutputFlag,
}

#[derive(Debug, Args)]
pub(crate) struct LintArgs {
    /// Files with YAML or JSON documents, up to 32 MiB each, and folders with such files (`*.yaml`, `*.yml`, `*.json`, also in
    /// subfolders), where files without an object of Kubernetes are skipped. `-` is standard input.
    #[arg(value_name = "PATH", required_unless_present = "filenames")]
    paths: Vec<PathBuf>,

    /// The same as PATH, as in kubectl. May be repeated.
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    filenames: Vec<PathBuf>,

    /// Correct mistakes in the files, where no decision is needed. Everything else in the files stays as it is,
    /// comments included.
    #[arg(long)]
    pub(crate) fix: bool,

    #[command(flatten)]
    pub(crate) output: OutputFlag,

    /// Key of the label with the hash bucket of an object's namespace, as set by the manager's flag of this name.
    #[arg(
        long,
        env = "CTRLMESH_LABEL_SHARD_HASH",
        default_value = labels::SHARD_HASH,
        value_name = "KEY",
        value_parser = parse_label_key
    )]
    pub(crate) label_shard_hash: String,

    /// Key of the label with an object's namespace.
    #[arg(
        long,
        env = "CTRLMESH_LABEL_NAMESPACE",
        default_value = labels::NAMESPACE,
        value_name = "KEY",
        value_parser = parse_label_key
    )]
    pub(crate) label_namespace: String,

    /// Key of the label that says whether an object is managed.
    #[arg(
        long,
        env = "CTRLMESH_LABEL_CONTROL",
        default_value = labels::CONTROL,
        value_name = "KEY",
        value_parser = parse_label_key
    )]
    pub(crate) label_mesh_control: String,
}

impl LintArgs {
    /// Files and folders, in both notations.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().chain(&self.filenames).map(PathBuf::as_path)
    }

    /// Label keys of the manager that the objects are for.
    pub(crate) fn label_keys(&self) -> LabelKeys {
        LabelKeys {
            shard_hash: self.label_shard_hash.clone(),
            namespace: self.label_namespace.clone(),
            control: self.label_mesh_control.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The ctrlmesh clone to watch and build.
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) sources: PathBuf,

    /// The program that builds, with the command line of `cargo`.
    #[arg(long, env = "CARGO", default_value = "cargo", value_name = "FILE")]
    pub(crate) cargo: PathBuf,

    /// Sidecar binary. Default: `ctrlmesh-proxy` beside this executable.
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy: Option<PathBuf>,

    /// Manager binary. Default: `ctrlmesh-manager` beside this executable.
    #[arg(long, value_name = "FILE")]
    pub(crate) manager: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ControllerArgs {
    /// Kubeconfig of the API server.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,

    /// Name of this replica, written into the objects that it handles.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,

    /// Handle gadgets instead of widgets.
    #[arg(long)]
    pub(crate) gadgets: bool,

    /// While this file exists, wait before each write.
    #[arg(long, value_name = "FILE")]
    pub(crate) pause_file: Option<PathBuf>,
}

/// Longest timeout of an uninstallation: a day.
const MAX_SECONDS: u64 = 86_400;

fn parse_timeout(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_SECONDS).contains(number));
    number.ok_or_else(|| format!("write a number of seconds from 1 to {MAX_SECONDS}"))
}

fn parse_port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| "write a number from 0 to 65535".to_owned())
}

fn parse_label_key(text: &str) -> Result<String, String> {
    if is_label_key(text) {
        Ok(text.to_owned())
    } else {
        Err("it is not a label key; write it as name or example.com/name".to_owned())
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
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
    fn invalid_value_error_says_what_to_write() {
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
            (
                ["lint", "--label-shard-hash=a b", "a.yaml"],
                "invalid value 'a b' for '--label-shard-hash <KEY>': it is not a label key",
            ),
            (
                ["lint", "--label-namespace=/a", "a.yaml"],
                "invalid value '/a' for '--label-namespace <KEY>'",
            ),
            (
                ["lint", "--label-mesh-control=a/b/c", "a.yaml"],
                "invalid value 'a/b/c' for '--label-mesh-control <KEY>'",
            ),
        ] {
            let error = Cli::try_parse_from(["ctrlmesh"].into_iter().chain(arguments)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.exit_code(), 2, "{error}");
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
