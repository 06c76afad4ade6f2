//! Flags and environment of the manager. Names that KusionStack's manager has keep their meaning.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use ctrlmesh_contract::names::{labels, ports};
use ctrlmesh_manager_inject::flags::{LogFormat, ProxyArgs};
use ctrlmesh_manager_planner::LabelKeys;

/// The Secret of KusionStack's manager. One with another name (`SECRET_NAME`) needs a Role of its own.
pub const WEBHOOK_SECRET: &str = "ctrlmesh-webhook-certs";

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Delete every ShardingConfig and wait until a running manager has released them. Exits 1 if some are left after the
    /// timeout.
    Uninstall {
        /// Check only, and delete nothing. Exits 1 if there are objects that only a running manager releases.
        #[arg(long)]
        keep: bool,

        /// State that the CustomResourceDefinitions are deleted afterwards, and every object with them. It changes only
        /// the advice in the error message.
        #[arg(long)]
        with_definitions: bool,

        /// Seconds to wait until all are released.
        #[arg(
            long,
            default_value_t = 300,
            value_name = "SECONDS",
            value_parser = clap::value_parser!(u64).range(1..=86_400)
        )]
        timeout_seconds: u64,
    },
}

/// The control plane of ctrlmesh: compiles custom resources into the chains that sidecars run.
#[derive(Clone, Debug, Parser)]
#[command(name = "ctrlmesh-manager", version, about)]
pub struct Args {
    /// Runs a command instead of the manager.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Name of this pod. It identifies the holder of the lease, so it must differ between replicas. Default: the host
    /// name.
    #[arg(long, env = "POD_NAME", default_value_t = host_name(), hide_default_value = true, value_name = "NAME")]
    pub pod_name: String,

    /// Namespace of the manager, with its lease, keys and certificates.
    #[arg(long, env = "POD_NAMESPACE", default_value = "ctrlmesh", value_name = "NAME")]
    pub namespace: String,

    /// Address that serves /metrics. `:8080` listens on every address.
    #[arg(
        long,
        env = "CTRLMESH_METRICS_ADDRESS",
        default_value = "0.0.0.0:8080",
        value_name = "IP:PORT",
        value_parser = bind_address
    )]
    pub metrics_bind_address: SocketAddr,

    /// Address that serves /healthz and /readyz. `:8081` listens on every address.
    #[arg(
        long,
        env = "CTRLMESH_HEALTH_ADDRESS",
        default_value = "0.0.0.0:8081",
        value_name = "IP:PORT",
        value_parser = bind_address
    )]
    pub health_probe_bind_address: SocketAddr,

    /// Seconds that the lease is valid without a renewal: how long a standby waits after the leader died.
    #[arg(
        long,
        env = "CTRLMESH_LEASE_SECONDS",
        default_value_t = 15,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(3..=300)
    )]
    pub lease_seconds: u64,

    /// Seconds to go on answering webhooks after SIGTERM, until every API server has dropped this replica from the Service. A second
    /// signal ends the wait.
    #[arg(
        long,
        env = "CTRLMESH_SHUTDOWN_DELAY_SECONDS",
        default_value_t = 8,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(0..=300)
    )]
    pub shutdown_delay_seconds: u64,

    /// Milliseconds to collect changes, counted from the first, before they are written together.
    #[arg(
        long,
        env = "CTRLMESH_DEBOUNCE_MS",
        default_value_t = 50,
        value_name = "MILLISECONDS",
        value_parser = clap::value_parser!(u64).range(0..=10_000)
    )]
    pub debounce_ms: u64,

    /// Port at which sidecars serve their status.
    #[arg(long, env = "CTRLMESH_SIDECAR_PORT", default_value_t = ports::ADMIN, value_name = "PORT")]
    pub sidecar_port: u16,

    /// Seconds between two status requests to a sidecar that runs its desired chain.
    #[arg(
        long,
        env = "CTRLMESH_POLL_SECONDS",
        default_value_t = 10,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub poll_seconds: u64,

    /// Milliseconds that the sidecars of a shard which gives objects away must have been quiet before another shard gets the objects. The
    /// controller behind them needs this time to finish its work.
    #[arg(
        long,
        env = "CTRLMESH_SETTLE_MS",
        default_value_t = 2000,
        value_name = "MILLISECONDS",
        value_parser = clap::value_parser!(u64).range(0..=600_000)
    )]
    pub settle_ms: u64,

    /// Requests per second to the API server, for the whole manager.
    #[arg(
        long = "rest-config-qps",
        env = "CTRLMESH_QPS",
        default_value_t = 50,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub qps: u32,

    /// Requests to the API server that may exceed the rate at once.
    #[arg(
        long = "rest-config-burst",
        env = "CTRLMESH_BURST",
        default_value_t = 100,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub burst: u32,

    /// Key of the label with the hash bucket of an object's namespace.
    #[arg(long, env = "CTRLMESH_LABEL_SHARD_HASH", default_value = labels::SHARD_HASH, value_name = "KEY")]
    pub label_shard_hash: String,

    /// Key of the label with an object's namespace.
    #[arg(long, env = "CTRLMESH_LABEL_NAMESPACE", default_value = labels::NAMESPACE, value_name = "KEY")]
    pub label_namespace: String,

    /// Key of the label that says whether an object is managed.
    #[arg(long, env = "CTRLMESH_LABEL_CONTROL", default_value = labels::CONTROL, value_name = "KEY")]
    pub label_mesh_control: String,

    /// ConfigMap that lists the kinds whose objects are labelled.
    #[arg(
        long,
        env = "CTRLMESH_RESOURCE_CONFIGMAP",
        default_value = "ctrlmesh-sharding-resource",
        value_name = "NAME"
    )]
    pub resource_configmap_name: String,

    /// Address that the webhook server listens on.
    #[arg(long, env = "CTRLMESH_WEBHOOK_ADDRESS", default_value = "0.0.0.0", value_name = "IP")]
    pub webhook_bind_address: IpAddr,

    /// Port that the webhook server listens on.
    #[arg(long, env = "WEBHOOK_PORT", default_value_t = 9443, value_name = "PORT")]
    pub webhook_port: u16,

    /// Name or address at which API servers call the webhooks, if not their Service. It is added to the certificate's names.
    #[arg(long, env = "WEBHOOK_HOST", value_name = "HOST")]
    pub webhook_host: Option<String>,

    /// Service of the webhooks. The certificate is issued for its name.
    #[arg(
        long,
        env = "SERVICE_NAME",
        default_value = "ctrlmesh-manager-webhook",
        value_name = "NAME"
    )]
    pub webhook_service_name: String,

    /// Secret with the certificate of the webhooks. Another name needs a Role of its own.
    #[arg(long, env = "SECRET_NAME", default_value = WEBHOOK_SECRET, value_name = "NAME")]
    pub webhook_secret_name: String,

    /// Directory with tls.crt and tls.key from another issuer (cert-manager). The manager then issues no certificate and writes no caBundle.
    #[arg(long, env = "WEBHOOK_CERT_DIR", value_name = "DIR")]
    pub webhook_cert_dir: Option<PathBuf>,

    /// PEM file with the CAs of the client certificates that API servers present to webhooks. Without it, the webhooks answer any client
    /// and leave names of other objects out of refusals.
    #[arg(long, env = "CTRLMESH_WEBHOOK_CLIENT_CA_FILE", value_name = "FILE")]
    pub webhook_client_ca_file: Option<PathBuf>,

    /// Common name that an API server's client certificate must have. May be repeated; the variable takes a list
    /// separated by commas. Default: any.
    #[arg(
        long = "webhook-client-name",
        env = "CTRLMESH_WEBHOOK_CLIENT_NAMES",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub webhook_client_names: Vec<String>,

    /// PEM file with CAs to trust for registries, in addition to the system's.
    #[arg(long, env = "CTRLMESH_REGISTRY_CA_FILE", value_name = "FILE")]
    pub registry_ca_file: Option<PathBuf>,

    /// Registry to reach over plain HTTP: HOST or HOST:PORT. May be repeated; the variable takes a list separated by
    /// commas.
    #[arg(
        long = "insecure-registry",
        env = "CTRLMESH_INSECURE_REGISTRIES",
        value_name = "HOST",
        value_delimiter = ','
    )]
    pub insecure_registries: Vec<String>,

    /// Host that registries may name for tokens. May be repeated; the variable takes a list separated by commas.
    /// Default: hosts in the registry's own domain.
    #[arg(
        long = "registry-auth-host",
        env = "CTRLMESH_REGISTRY_AUTH_HOSTS",
        value_name = "HOST",
        value_delimiter = ','
    )]
    pub registry_auth_hosts: Vec<String>,

    /// MiB of packed plugins to keep in memory, 1 to 1024.
    #[arg(long, env = "CTRLMESH_PLUGIN_CACHE_MIB", default_value_t = 64, value_name = "MIB", value_parser = cache_mib)]
    pub plugin_cache_mib: usize,

    /// Settings of sidecars.
    #[command(flatten)]
    pub proxy: ProxyArgs,

    /// Log filter: a level, or targets with levels (`warn,ctrlmesh_manager=debug`). Warnings of the Kubernetes client are off by default,
    /// because the manager logs what follows from them.
    #[arg(
        long,
        env = "CTRLMESH_LOG",
        default_value = "info,kube_client=error,kube_runtime=error",
        value_name = "FILTER"
    )]
    pub log: String,

    /// Log format.
    #[arg(long, env = "CTRLMESH_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

fn cache_mib(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(mib @ 1..=1024) => Ok(mib),
        _ => Err("write a number of MiB from 1 to 1024".to_owned()),
    }
}

/// A flag with its variable, and what is wrong with its value.
#[derive(Debug, thiserror::Error)]
#[error("{0}: {1}")]
pub struct FlagError(pub &'static str, pub String);

impl Args {
    /// Keys of the labels that selectors of shards use.
    #[must_use]
    pub fn label_keys(&self) -> LabelKeys {
        LabelKeys {
            shard_hash: self.label_shard_hash.clone(),
            namespace: self.label_namespace.clone(),
            control: self.label_mesh_control.clone(),
        }
    }

    /// Checks what no single flag shows.
    ///
    /// # Errors
    /// The first invalid flag.
    pub fn check(&self) -> Result<(), FlagError> {
        if self.pod_name.is_empty() {
            let problem =
                "is empty, and the host has no name; write the pod's name, which no other replica has".to_owned();
            return Err(FlagError("--pod-name (POD_NAME)", problem));
        }
        if !self.webhook_client_names.is_empty() && self.webhook_client_ca_file.is_none() {
            return Err(FlagError(
                "--webhook-client-name (CTRLMESH_WEBHOOK_CLIENT_NAMES)",
                "has no effect without --webhook-client-ca-file; nobody is asked for a certificate".to_owned(),
            ));
        }
        let flags = [
            "--label-shard-hash (CTRLMESH_LABEL_SHARD_HASH)",
            "--label-namespace (CTRLMESH_LABEL_NAMESPACE)",
            "--label-mesh-control (CTRLMESH_LABEL_CONTROL)",
        ];
        self.label_keys()
            .check(flags)
            .map_err(|(flag, problem)| FlagError(flag, problem))
    }

    /// Names that the webhooks' certificate is for; KusionStack's has the same.
    #[must_use]
    pub fn webhook_names(&self) -> Vec<String> {
        let service = format!("{}.{}.svc", self.webhook_service_name, self.namespace);
        let mut names = vec![service, "localhost".to_owned(), "127.0.0.1".to_owned()];
        let host = self
            .webhook_host
            .iter()
            .filter(|host| !host.is_empty() && !names.contains(host));
        let host: Vec<String> = host.cloned().collect();
        names.extend(host);
        names
    }

    /// How long changes are collected.
    #[must_use]
    pub const fn debounce_time(&self) -> Duration {
        Duration::from_millis(self.debounce_ms)
    }
}

/// Empty if there is none. Containers have it in the environment.
fn host_name() -> String {
    let name = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    let name = name.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    name.unwrap_or_default().trim().to_owned()
}

/// Parses an address as Go does: `:8080` is every address.
fn bind_address(text: &str) -> Result<SocketAddr, String> {
    let address = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.to_owned(),
    };
    address
        .parse()
        .map_err(|_| "write an address and a port, such as 127.0.0.1:8080 or [::]:8080, or only :8080".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_make_sense_together() {
        Args::command().debug_assert();
        let args = Args::parse_from(["ctrlmesh-manager"]);
        assert_eq!(args.label_keys(), LabelKeys::default());
        assert!(args.check().is_ok(), "hosts have names");
    }

    #[test]
    fn addresses_may_lack_a_host() {
        for (text, address) in [
            (":9090", Some("0.0.0.0:9090")),
            ("127.0.0.1:0", Some("127.0.0.1:0")),
            ("[::]:8080", Some("[::]:8080")),
            ("8080", None),
            (":", None),
            ("localhost:8080", None),
        ] {
            for flag in ["metrics-bind-address", "health-probe-bind-address"] {
                let args = Args::try_parse_from(["ctrlmesh-manager".to_owned(), format!("--{flag}={text}")]);
                let parsed = args.ok().map(|args| match flag {
                    "metrics-bind-address" => args.metrics_bind_address,
                    _ => args.health_probe_bind_address,
                });
                assert_eq!(parsed.map(|it| it.to_string()).as_deref(), address, "{flag} {text}");
            }
        }
    }

    #[test]
    fn replicas_have_names_of_their_own() {
        let named = Args::parse_from(["ctrlmesh-manager"]).pod_name;
        assert!(!named.is_empty() && named != "ctrlmesh-manager", "{named}");
        let problem = Args::parse_from(["ctrlmesh-manager", "--pod-name="]).check();
        assert!(
            problem
                .unwrap_err()
                .to_string()
                .contains("--pod-name (POD_NAME): is empty")
        );
    }

    #[test]
    fn label_keys_are_keys_and_differ() {
        for (flag, says) in [
            (
                "--label-namespace=a b",
                "--label-namespace (CTRLMESH_LABEL_NAMESPACE): ",
            ),
            (
                "--label-shard-hash=",
                "--label-shard-hash (CTRLMESH_LABEL_SHARD_HASH): ",
            ),
            (
                "--label-mesh-control=/control",
                "--label-mesh-control (CTRLMESH_LABEL_CONTROL): ",
            ),
            (
                "--label-mesh-control=ctrlmesh.kusionstack.io/namespace",
                "is the key of another label, too; write three that differ",
            ),
        ] {
            let problem = Args::parse_from(["ctrlmesh-manager", flag]).check().unwrap_err();
            assert!(problem.to_string().contains(says), "{flag}: {problem}");
        }
        let own = [
            "--label-shard-hash=a/b",
            "--label-namespace=a/c",
            "--label-mesh-control=d",
        ];
        let args = Args::parse_from(["ctrlmesh-manager"].iter().chain(&own));
        assert!(args.check().is_ok());
    }
}
