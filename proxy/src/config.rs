//! Settings of the process, from flags and environment variables (flags win). All mistakes are reported at once.
//!
//! | file | holds |
//! |---|---|
//! | `memory_limit` | the memory limit of this process, from its control groups |
//!
//! Nothing here changes while the process runs. Rules for traffic come from the chain.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ctrlmesh_contract::signature::PublicKeys;

pub use crate::commands::init::Init;
pub use crate::commands::precompile::Precompile;
use crate::error::Error;
pub use crate::external::{Allow, ExternalSettings};
pub use crate::observe::telemetry::LogFormat;

pub(crate) mod memory_limit;

/// The sidecar of ctrlmesh: a programmable proxy between a Kubernetes controller and its API server.
#[derive(Debug, Parser)]
#[command(name = "ctrlmesh-proxy", version, about, disable_help_subcommand = true)]
// A hook has the environment of its container, with settings that need others, which are flags of the sidecar.
#[command(subcommand_negates_reqs = true)]
pub struct Cli {
    /// A command of kubelet, or for building images. Without a subcommand the sidecar runs.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Settings of the sidecar.
    #[command(flatten)]
    pub settings: Settings,
}

/// Subcommands besides running the sidecar.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Compile one component from standard input to standard output, under limits. Used by the sidecar itself.
    #[command(hide = true)]
    Compile(Compile),
    /// Wait until the sidecar in the same pod is ready; fail if that takes too long. Kubelet runs it as the postStart hook of every
    /// sidecar and starts the containers behind the sidecar afterwards.
    WaitReady(Wait),
    /// Redirect the pod's traffic to the API server to the sidecar, by nftables rules in the pod's network. Needs the capability
    /// NET_ADMIN. Runs in the init container of pods whose traffic is redirected.
    Init(Init),
    /// Compile plugins for images. Artifacts run on any processor of this architecture, with this version of ctrlmesh-proxy.
    Precompile(Precompile),
}

/// A setting that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// Settings of `compile`.
#[derive(Debug, Clone, Copy, Args)]
pub struct Compile {
    /// Bytes of memory that compiling may take. Default: no limit.
    #[arg(long, value_name = "BYTES")]
    pub memory_bytes: Option<u64>,
}

/// The sidecar to wait for, and for how long.
#[derive(Debug, Clone, Copy, Args)]
pub struct Wait {
    /// Address of the sidecar's admin port, which serves /readyz.
    #[arg(
        long,
        env = "CTRLMESH_ADMIN_ADDRESS",
        default_value = "127.0.0.1:5441",
        value_name = "IP:PORT"
    )]
    pub admin_address: SocketAddr,

    /// Seconds to wait at most. Compiling plugins on a tenth of a processor takes less.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub seconds: u64,
}

/// Settings of the sidecar.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Addresses that controllers connect to, separated by commas; HTTP/1.1, h2c and (with --tls-dir) TLS on one port. Keep them on
    /// loopback: requests are sent with the pod's credentials. Addresses after the first are skipped if the pod's network lacks them.
    #[arg(
        long,
        env = "CTRLMESH_API_ADDRESS",
        default_value = "127.0.0.1:5443",
        value_delimiter = ',',
        value_name = "IP:PORT"
    )]
    pub api_address: Vec<SocketAddr>,

    /// Address of the admin port: /readyz, /livez, /metrics and /status, all read-only.
    #[arg(
        long,
        env = "CTRLMESH_ADMIN_ADDRESS",
        default_value = "127.0.0.1:5441",
        value_name = "IP:PORT"
    )]
    pub admin_address: SocketAddr,

    /// Kubeconfig of the API server. Default: the pod's service account. $KUBECONFIG and ~/.kube/config are not read.
    #[arg(long, env = "CTRLMESH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, env = "CTRLMESH_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,

    /// Directory with `chain.yaml` and the plugins, as kubelet mounts it. Without it the sidecar changes nothing.
    #[arg(long, env = "CTRLMESH_CHAIN_DIR", value_name = "DIR")]
    pub chain_dir: Option<PathBuf>,

    /// Downward-API file with the pod's labels (`metadata.labels`). Without it the pod has none for the chain.
    #[arg(long, env = "CTRLMESH_LABELS_FILE", value_name = "FILE", requires = "chain_dir")]
    pub labels_file: Option<PathBuf>,

    /// Public keys (`ed25519:` and base64) separated by commas, one of which must have signed the chain: the value `public` of the
    /// manager's Secret ctrlmesh-chain-key. If set, unsigned chains are refused.
    #[arg(long, env = "CTRLMESH_PUBLIC_KEY", value_name = "KEY", requires = "chain_dir")]
    pub public_key: Option<String>,

    /// Do not serve traffic until the chain contains this entry for the pod, such as `shard-selector/left`. A trailing slash matches
    /// any entry below. Keeps a new pod from seeing every object before its shard is known. A restarted sidecar (see --state-dir)
    /// does not wait.
    #[arg(long, env = "CTRLMESH_AWAIT_ENTRY", value_name = "NAME", requires = "chain_dir")]
    pub await_entry: Option<String>,

    /// Directory for compiled plugins, so that a restart is ready in milliseconds. Default: none, each start compiles.
    #[arg(long, env = "CTRLMESH_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,

    /// Directories with precompiled plugins (see `ctrlmesh-proxy precompile`), separated by commas, so that the first start compiles
    /// nothing. Files that anybody but root can change are refused.
    #[arg(
        long,
        env = "CTRLMESH_PRECOMPILED_DIR",
        default_value = "/usr/lib/ctrlmesh/precompiled",
        value_delimiter = ',',
        value_name = "DIR"
    )]
    pub precompiled_dir: Vec<PathBuf>,

    /// Directory that outlives a restart of the sidecar, such as an emptyDir, and belongs to this pod alone. The sidecar saves there
    /// which chains it served. Default: none, each start counts as the pod's first.
    #[arg(long, env = "CTRLMESH_STATE_DIR", value_name = "DIR", requires = "chain_dir")]
    pub state_dir: Option<PathBuf>,

    /// Directory with `tls.crt` and `tls.key` for TLS clients. Reloaded when it changes.
    #[arg(long, env = "CTRLMESH_TLS_DIR", value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,

    /// Worker threads. Two keep a controller busy; more help only with many busy connections.
    #[arg(long, env = "CTRLMESH_WORKERS", default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,

    /// Memory that the sidecar may use, such as 256Mi. Plugins share what it does not need itself. The container's memory limit
    /// applies if it is smaller. Default: the container's memory limit.
    #[arg(long, env = "CTRLMESH_MEMORY_LIMIT", value_name = "SIZE", value_parser = memory_limit::parse)]
    pub memory_limit: Option<u64>,

    /// Maximum number of client connections. A controller needs a handful; HTTP/1.1 clients need one for each open watch.
    #[arg(long, env = "CTRLMESH_MAX_CONNECTIONS", default_value_t = 4096, value_name = "N")]
    pub max_connections: u32,

    /// Seconds after which an idle client connection is closed. Keep it above the clients' own idle timeout (Go: 90), so that they
    /// close first and never send a request into a closing connection.
    #[arg(long, env = "CTRLMESH_IDLE_TIMEOUT", default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: u64,

    /// Seconds to wait for a response head, except for long-running requests such as watch, exec and log. The API server itself gives
    /// up after 60.
    #[arg(
        long,
        env = "CTRLMESH_RESPONSE_TIMEOUT",
        default_value_t = 75,
        value_name = "SECONDS"
    )]
    pub response_timeout: u64,

    /// Whether verdicts that plugins mark as reusable are repeated without a call while nothing that they depend on has changed.
    #[arg(long, env = "CTRLMESH_PLUGIN_REUSE", default_value = "on", value_name = "SWITCH")]
    pub plugin_reuse: Switch,

    /// One in this many repeated verdicts is checked by calling the plugin. A plugin that decides differently then is reported, and its
    /// verdicts are not repeated any more.
    #[arg(long, env = "CTRLMESH_PLUGIN_AUDIT", default_value = "1000", value_name = "N")]
    pub plugin_audit: NonZeroU64,

    /// Seconds that requests in flight have to finish after SIGTERM. Keep it below the pod's grace period (default 30).
    #[arg(long, env = "CTRLMESH_DRAIN_TIMEOUT", default_value_t = 20, value_name = "SECONDS")]
    pub drain_timeout: u64,

    /// Calls to other services than the API server.
    #[command(flatten)]
    pub external: ExternalSettings,

    /// Log filter: a level, or `target=level` pairs (`info,access=debug` writes one line per request).
    #[arg(long, env = "CTRLMESH_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,

    /// Log format.
    #[arg(long, env = "CTRLMESH_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// Name of the pod.
    #[arg(long, env = "POD_NAME", default_value = "", value_name = "NAME")]
    pub pod_name: String,

    /// Namespace of the pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = "", value_name = "NAME")]
    pub pod_namespace: String,
}

impl Wait {
    #[must_use]
    pub const fn max_wait(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl Settings {
    /// Maximum time for a response head, for requests that are not long-running.
    #[must_use]
    pub const fn head_timeout(&self) -> Duration {
        Duration::from_secs(self.response_timeout)
    }

    /// Maximum idle time of a client's connection.
    #[must_use]
    pub const fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.idle_timeout)
    }

    /// Maximum time for draining.
    #[must_use]
    pub const fn drain_deadline(&self) -> Duration {
        Duration::from_secs(self.drain_timeout)
    }

    /// Checks the settings for mistakes that clap cannot detect, and reports all of them together.
    ///
    /// # Errors
    /// One line for each mistake: the setting, what is wrong, and what to write.
    pub fn validate(&self) -> Result<(), String> {
        let mut mistakes = Vec::new();
        if let Some(dir) = self.chain_dir.as_ref().filter(|dir| !dir.is_dir()) {
            mistakes.push(format!(
                "--chain-dir (CTRLMESH_CHAIN_DIR): {} is not a directory; mount the chain's volume there or leave the setting out",
                dir.display()
            ));
        }
        if let Some(dir) = self.tls_dir.as_ref().filter(|dir| !dir.is_dir()) {
            mistakes.push(format!(
                "--tls-dir (CTRLMESH_TLS_DIR): {} is not a directory; it must hold tls.crt and tls.key",
                dir.display()
            ));
        }
        mistakes.extend(self.port_conflicts());
        if let Err(error) = self.public_keys() {
            mistakes.push(error.to_string());
        }
        if self.chain_dir.is_some() && self.pod_namespace.is_empty() {
            mistakes
                .push("--pod-namespace (POD_NAMESPACE): is empty; plugins need to know where the pod lives".to_owned());
        }
        if self.response_timeout == 0 {
            mistakes
                .push("--response-timeout (CTRLMESH_RESPONSE_TIMEOUT): 0 would refuse everything; use 75".to_owned());
        }
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(mistakes.join("\n"))
        }
    }

    /// Pairs of settings that ask for one port.
    fn port_conflicts(&self) -> Vec<String> {
        let api = self.api_address.iter();
        let mut desired: Vec<(&str, SocketAddr)> = api
            .map(|address| ("--api-address (CTRLMESH_API_ADDRESS)", *address))
            .collect();
        desired.push(("--admin-address (CTRLMESH_ADMIN_ADDRESS)", self.admin_address));
        let external = self.external.external_address;
        desired.extend(external.map(|address| ("--external-address (CTRLMESH_EXTERNAL_ADDRESS)", address)));
        let mut conflicts = Vec::new();
        for (at, (setting, address)) in desired.iter().enumerate() {
            for (other_setting, other) in desired.iter().skip(at + 1) {
                if is_one_port(*address, *other) {
                    conflicts.push(format!(
                        "{setting}: {address} has the same port as {other} of {other_setting}; choose another for one"
                    ));
                }
            }
        }
        conflicts
    }

    /// Whether signatures of chains are checked, for the log.
    #[must_use]
    pub const fn chain_verification(&self) -> &'static str {
        match (&self.chain_dir, &self.public_key) {
            (None, _) => "no chains: there is no --chain-dir",
            (Some(_), None) => "chains are not verified: there is no --public-key",
            (Some(_), Some(_)) => "chains are verified",
        }
    }

    /// The keys of which one must have signed the chain; `None` accepts unsigned chains.
    ///
    /// # Errors
    /// [`Error::PublicKey`].
    pub fn public_keys(&self) -> Result<Option<PublicKeys>, Error> {
        let keys = self.public_key.as_deref().map(str::parse).transpose();
        keys.map_err(Error::PublicKey)
    }
}

/// Whether two sockets can't both listen. Port 0 stands for any free one.
fn is_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    let is_one_address = one.ip() == other.ip() || (is_any && one.is_ipv4() == other.is_ipv4());
    is_one_address && one.port() == other.port() && one.port() != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings of the sidecar that the hook finds in its environment, without the flags that they require.
    #[test]
    fn wait_ready_accepts_settings_without_those_they_require() {
        let settings = [
            "ctrlmesh-proxy",
            "--public-key=ed25519:AAAA",
            "--await-entry=shard-selector/",
            "--state-dir=/var/lib/ctrlmesh/state",
        ];
        let gate = Cli::try_parse_from(settings.iter().copied().chain(["wait-ready"])).unwrap();
        assert!(matches!(gate.command, Some(Command::WaitReady(wait)) if wait.seconds == 300));
        assert!(Cli::try_parse_from(settings).is_err());
    }

    #[test]
    fn settings_with_one_port_are_named_both() {
        let validate = |flags: &[&str]| {
            let flags = ["ctrlmesh-proxy"].into_iter().chain(flags.iter().copied());
            Cli::try_parse_from(flags).unwrap().settings.validate()
        };
        let problem = validate(&["--api-address=0.0.0.0:5443", "--admin-address=127.0.0.1:5443"]).unwrap_err();
        assert_eq!(
            problem,
            "--api-address (CTRLMESH_API_ADDRESS): 0.0.0.0:5443 has the same port as 127.0.0.1:5443 of --admin-address \
             (CTRLMESH_ADMIN_ADDRESS); choose another for one"
        );
        let problem = validate(&["--admin-address=127.0.0.1:7", "--external-address=127.0.0.1:7"]).unwrap_err();
        assert!(problem.contains("--external-address"), "{problem}");
        for flags in [
            [
                "--api-address=127.0.0.1:5443,[::1]:5443",
                "--admin-address=127.0.0.2:5443",
            ],
            ["--api-address=127.0.0.1:0", "--admin-address=127.0.0.1:0"],
        ] {
            assert_eq!(validate(&flags), Ok(()));
        }
    }

    #[test]
    fn log_says_whether_chains_are_verified() {
        let tell = |flags: &[&str]| {
            let flags = ["ctrlmesh-proxy"].into_iter().chain(flags.iter().copied());
            Cli::try_parse_from(flags).unwrap().settings.chain_verification()
        };
        assert!(tell(&[]).contains("no --chain-dir"));
        assert!(tell(&["--chain-dir=/chain"]).contains("not verified"));
        assert_eq!(
            tell(&["--chain-dir=/chain", "--public-key=ed25519:AAAA"]),
            "chains are verified"
        );
    }

    #[test]
    fn idle_connection_stays_open_for_longer_than_clients_keep_theirs_by_default() {
        let idle = Cli::try_parse_from(["ctrlmesh-proxy"]).unwrap().settings.idle_timeout();
        assert!(
            idle >= Duration::from_secs(100),
            "{idle:?}: Go's clients keep theirs for 90 s"
        );
    }
}
