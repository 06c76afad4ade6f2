//! Process settings, from flags and environment variables (flags win). All mistakes are reported at once.
//!
//! Every setting has a default with its reason beside it. Leaves the chain, which decides about traffic, to `chain`:
//! nothing here changes while the process runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ctrlmesh_contract::signature::PublicKeys;

use crate::error::Error;
pub use crate::external::{Allow, ExternalSettings};
use crate::memory_limit;
pub use crate::redirect::Init;

/// The sidecar of ctrlmesh: a programmable proxy between a Kubernetes controller and its API server.
#[derive(Debug, Parser)]
#[command(name = "ctrlmesh-proxy", version, about, disable_help_subcommand = true)]
// A hook has the environment of its container, with settings that need others, which are flags of the sidecar.
#[command(subcommand_negates_reqs = true)]
pub struct Cli {
    /// What to do; without a subcommand the sidecar runs.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Settings of the sidecar.
    #[command(flatten)]
    pub settings: Settings,
}

/// Subcommands besides running the sidecar.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Compiles one component from standard input to standard output, under limits. Used by the sidecar itself.
    #[command(hide = true)]
    Compile(Compile),
    /// Waits until the sidecar in the same pod is ready, and fails if that takes too long. Kubelet runs it as the postStart hook of
    /// every sidecar, and starts what stands behind it afterwards.
    WaitReady(Wait),
    /// Redirects what the pod sends to its API server to the sidecar, by rules of the pod's network; needs the capability NET_ADMIN.
    /// The init container of a pod whose traffic is redirected runs it.
    Init(Init),
}

/// How a component is compiled.
#[derive(Debug, Clone, Copy, Args)]
pub struct Compile {
    /// Bytes of memory that compiling may take. Default: no limit but that of the address space.
    #[arg(long, value_name = "BYTES")]
    pub memory_bytes: Option<u64>,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, Args)]
pub struct Wait {
    /// Where /readyz answers.
    #[arg(
        long,
        env = "CTRLMESH_ADMIN_ADDRESS",
        default_value = "127.0.0.1:5441",
        value_name = "IP:PORT"
    )]
    pub admin_address: SocketAddr,

    /// Seconds to wait at most. Longer than compiling the plugins takes on a tenth of a processor.
    #[arg(long, default_value_t = 300, value_name = "N")]
    pub seconds: u64,
}

/// Settings of the sidecar.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Where controllers connect; HTTP/1.1, h2c and (with --tls-dir) TLS on one port. Loopback: it hands out credentials. Several with
    /// commas between; all but the first are left out where the pod's network does not have them.
    #[arg(
        long,
        env = "CTRLMESH_API_ADDRESS",
        default_value = "127.0.0.1:5443",
        value_delimiter = ',',
        value_name = "IP:PORT"
    )]
    pub api_address: Vec<SocketAddr>,

    /// Where /readyz, /livez, /metrics and /status answer. Read-only.
    #[arg(
        long,
        env = "CTRLMESH_ADMIN_ADDRESS",
        default_value = "127.0.0.1:5441",
        value_name = "IP:PORT"
    )]
    pub admin_address: SocketAddr,

    /// Kubeconfig of the API server. Default: the pod's service account; $KUBECONFIG and ~/.kube/config are never looked at.
    #[arg(long, env = "CTRLMESH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current context.
    #[arg(long, env = "CTRLMESH_CONTEXT", value_name = "NAME", requires = "kubeconfig")]
    pub context: Option<String>,

    /// Directory with `chain.yaml` and the plugins, as kubelet mounts it. Without it nothing is ever changed: a plain proxy.
    #[arg(long, env = "CTRLMESH_CHAIN_DIR", value_name = "DIR")]
    pub chain_dir: Option<PathBuf>,

    /// Downward-API file with the pod's labels (`metadata.labels`). Without it the pod counts as having none.
    #[arg(long, env = "CTRLMESH_LABELS_FILE", value_name = "FILE", requires = "chain_dir")]
    pub labels_file: Option<PathBuf>,

    /// Public key (`ed25519:` and base64) that must have signed the chain, or several with commas between: part `public` of the
    /// manager's Secret ctrlmesh-chain-key. Once set, an unsigned chain is refused.
    #[arg(long, env = "CTRLMESH_PUBLIC_KEY", value_name = "KEY", requires = "chain_dir")]
    pub public_key: Option<String>,

    /// Entry that must be among the pod's before anything is served, with a slash at the end any below it: a chain that does not know
    /// the pod's shard yet would show it everything. A sidecar that follows another one in its pod (`--state-dir`) does not wait: that one has served.
    #[arg(long, env = "CTRLMESH_AWAIT_ENTRY", value_name = "NAME", requires = "chain_dir")]
    pub await_entry: Option<String>,

    /// Where compiled plugins are kept, so that a restart is ready in milliseconds. Default: nowhere, each start compiles.
    #[arg(long, env = "CTRLMESH_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,

    /// This pod's own directory that outlives a restart of the sidecar (an emptyDir): there it notes what the next one must
    /// know. Default: none, each start counts as the pod's first.
    #[arg(long, env = "CTRLMESH_STATE_DIR", value_name = "DIR", requires = "chain_dir")]
    pub state_dir: Option<PathBuf>,

    /// Directory with `tls.crt` and `tls.key` for TLS clients; read again when it changes.
    #[arg(long, env = "CTRLMESH_TLS_DIR", value_name = "DIR")]
    pub tls_dir: Option<PathBuf>,

    /// Threads that carry traffic. Two keep a controller busy; more only pay with many busy connections.
    #[arg(long, env = "CTRLMESH_WORKERS", default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,

    /// Memory that the sidecar may use, such as 256Mi; plugins get what it does not need itself. Default: the memory limit of its
    /// container, which also counts if it is the smaller one.
    #[arg(long, env = "CTRLMESH_MEMORY_LIMIT", value_name = "SIZE", value_parser = memory_limit::parse)]
    pub memory_limit: Option<u64>,

    /// Client connections at most. A controller needs a handful; HTTP/1.1 clients one for each open watch.
    #[arg(long, env = "CTRLMESH_MAX_CONNECTIONS", default_value_t = 4096, value_name = "N")]
    pub max_connections: u32,

    /// Seconds after which a client's connection without a request under way is closed. Longer than clients keep theirs (Go 90), so
    /// that they close first and never send a request into a connection that is being closed.
    #[arg(long, env = "CTRLMESH_IDLE_TIMEOUT", default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: u64,

    /// Seconds to wait for a response head of a request that is not a watch, exec, log or the like.
    /// The API server itself gives up after 60.
    #[arg(
        long,
        env = "CTRLMESH_RESPONSE_TIMEOUT",
        default_value_t = 75,
        value_name = "SECONDS"
    )]
    pub response_timeout: u64,

    /// Seconds for requests in flight to end after SIGTERM. Below the pod's grace period of 30.
    #[arg(long, env = "CTRLMESH_DRAIN_TIMEOUT", default_value_t = 20, value_name = "SECONDS")]
    pub drain_timeout: u64,

    /// Calls to other services than the API server.
    #[command(flatten)]
    pub external: ExternalSettings,

    /// What is logged: a level, or `target=level` pairs (`info,access=debug` writes one line per request).
    #[arg(long, env = "CTRLMESH_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,

    /// How it is logged.
    #[arg(long, env = "CTRLMESH_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// Name of the pod.
    #[arg(long, env = "POD_NAME", default_value = "", value_name = "NAME")]
    pub pod_name: String,

    /// Namespace of the pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = "", value_name = "NAME")]
    pub pod_namespace: String,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One readable line each.
    Text,
    /// One JSON object each.
    Json,
}

impl Wait {
    /// How long at most.
    #[must_use]
    pub const fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

impl Settings {
    /// How long a response head may take for a request that is not long-running.
    #[must_use]
    pub const fn head_timeout(&self) -> Duration {
        Duration::from_secs(self.response_timeout)
    }

    /// How long a client's connection may be idle.
    #[must_use]
    pub const fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.idle_timeout)
    }

    /// How long draining may take.
    #[must_use]
    pub const fn drain_deadline(&self) -> Duration {
        Duration::from_secs(self.drain_timeout)
    }

    /// Mistakes that clap can't see, all together.
    ///
    /// # Errors
    /// One line for each mistake: the setting, what is wrong, what to write.
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

    /// Who may sign the chain; `None`: nobody need do so.
    ///
    /// # Errors
    /// [`Error::PublicKey`].
    pub fn public_keys(&self) -> Result<Option<PublicKeys>, Error> {
        let keys = self.public_key.as_deref().map(str::parse).transpose();
        keys.map_err(Error::PublicKey)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn idle_connection_stays_open_for_longer_than_clients_keep_theirs_by_default() {
        let idle = Cli::try_parse_from(["ctrlmesh-proxy"]).unwrap().settings.idle_timeout();
        assert!(
            idle >= Duration::from_secs(100),
            "{idle:?}: Go's clients keep theirs for 90 s"
        );
    }
}
