//! Flags about the sidecars that the manager puts into pods.

use std::net::IpAddr;
use std::str::FromStr;

use clap::{ArgAction, Args, ValueEnum};
use ctrlmesh_contract::names::ports;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Settings of sidecars. Pods can override some by labels and annotations (docs/injection.md).
#[derive(Clone, Debug, Args)]
pub struct ProxyArgs {
    /// Image of the sidecar. Without it, pods that ask for a sidecar are rejected.
    #[arg(long, env = "CTRLMESH_PROXY_IMAGE", default_value = "", value_name = "IMAGE")]
    pub proxy_image: String,

    /// Image of the init container that redirects traffic, for pods that ask for it. Default: the sidecar's image.
    #[arg(long, env = "CTRLMESH_INIT_IMAGE", value_name = "IMAGE")]
    pub init_image: Option<String>,

    /// Image pull policy of both containers.
    #[arg(
        long,
        env = "CTRLMESH_PROXY_IMAGE_PULL_POLICY",
        default_value = "IfNotPresent",
        value_name = "POLICY"
    )]
    pub proxy_image_pull_policy: PullPolicy,

    /// Secret to pull these images with, in the pod's namespace. May be repeated; the variable takes a list separated
    /// by commas.
    #[arg(
        long = "proxy-image-pull-secret",
        env = "CTRLMESH_PROXY_IMAGE_PULL_SECRETS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub proxy_image_pull_secrets: Vec<String>,

    /// CPU request and limit of a sidecar. Empty: none.
    #[arg(long, env = "CTRLMESH_PROXY_CPU", default_value = "500m", value_name = "QUANTITY", value_parser = parse_quantity)]
    pub proxy_cpu: String,

    /// Memory request and limit of a sidecar. Empty: none.
    #[arg(long, env = "CTRLMESH_PROXY_MEMORY", default_value = "256Mi", value_name = "QUANTITY", value_parser = parse_quantity)]
    pub proxy_memory: String,

    /// Ephemeral storage request and limit of a sidecar, for compiled plugins and logs. Empty: none.
    #[arg(long, env = "CTRLMESH_PROXY_EPHEMERAL_STORAGE", default_value = "1Gi", value_name = "QUANTITY", value_parser = parse_quantity)]
    pub proxy_ephemeral_storage: String,

    /// Environment variables of every sidecar: NAME=value;NAME=value.
    #[arg(long, env = "CTRLMESH_PROXY_EXTRA_ENVS", default_value = "", value_name = "ENV")]
    pub proxy_extra_envs: Environment,

    /// Whether sidecars are native (restartable init containers), which start before and stop after all other containers. `auto`: from
    /// Kubernetes 1.32 on, where every supported kubelet has them.
    #[arg(long, env = "CTRLMESH_NATIVE_SIDECAR", default_value = "auto", value_name = "WHEN")]
    pub native_sidecar: NativeSidecar,

    /// Address on which a sidecar serves probes, metrics and status in its pod. Use `::`, which accepts IPv4 too, in clusters whose pods have
    /// an IPv6 address first.
    #[arg(long, env = "CTRLMESH_PROXY_ADMIN_IP", default_value = "0.0.0.0", value_name = "IP")]
    pub proxy_admin_ip: IpAddr,

    /// Port on a sidecar's loopback for calls to other services. 0: disabled.
    #[arg(long, env = "CTRLMESH_PROXY_EXTERNAL_PORT", default_value_t = ports::EXTERNAL, value_name = "PORT")]
    pub proxy_external_port: u16,

    /// Extra names and addresses of the API server for the certificates of sidecars, such as `kubernetes.default.svc.example.org`.
    /// Separate them with commas.
    #[arg(
        long,
        env = "CTRLMESH_PROXY_SERVING_NAMES",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub proxy_serving_names: Vec<String>,

    /// Whether pods may ask for redirected traffic or TLS on loopback. The manager then issues CAs and certificates and needs the right to
    /// create Secrets in their namespaces. Without it, such pods are rejected.
    #[arg(long, env = "CTRLMESH_MESH_CA", default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub mesh_ca: bool,

    /// Log filter of sidecars: a level, or targets with levels (`info,access=debug` logs every request).
    #[arg(long, env = "CTRLMESH_PROXY_LOG", default_value = "info", value_name = "FILTER")]
    pub proxy_log: String,

    /// Log format of sidecars.
    #[arg(
        long,
        env = "CTRLMESH_PROXY_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub proxy_log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NativeSidecar {
    /// From Kubernetes 1.32 on.
    Auto,
    /// Always.
    On,
    /// Never: the sidecar is the first of the ordinary containers.
    Off,
}

/// Environment variables as a flag: `NAME=value;NAME=value`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(pub Vec<(String, String)>);

impl FromStr for Environment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let pairs = text.split(';').map(str::trim).filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(format!("{pair:?} is no NAME=value")),
        });
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

/// Checks loosely, because an API server would refuse every pod for a mistake here.
fn parse_quantity(text: &str) -> Result<String, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_number = number.parse::<f64>().is_ok_and(|number| number >= 0.0);
    let suffix = text.get(number.len()..).unwrap_or_default();
    let known = ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    if text.is_empty() || (is_number && known.contains(&suffix)) {
        Ok(text.to_owned())
    } else {
        Err("write a quantity such as 500m or 512Mi, or nothing".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Flags {
        #[command(flatten)]
        proxy: ProxyArgs,
    }

    fn parse(flag: &str) -> Result<ProxyArgs, String> {
        let flags = Flags::try_parse_from(["ctrlmesh-manager", flag]);
        flags.map(|flags| flags.proxy).map_err(|error| error.to_string())
    }

    #[test]
    fn quantity_flags_are_checked_at_start() {
        for text in ["", "1", "0.5", "500m", "512Mi", "1Gi", "2G"] {
            assert_eq!(parse(&format!("--proxy-cpu={text}")).unwrap().proxy_cpu, text);
        }
        for text in ["much", "1 Gi", "-1", "1GiB", "512mi"] {
            let problem = parse(&format!("--proxy-memory={text}")).unwrap_err();
            assert!(problem.contains("such as 500m"), "{problem}");
        }
    }

    #[test]
    fn environment_flag_is_list_of_pairs() {
        let args = parse("--proxy-extra-envs=A=1; B=x=y ;C=").unwrap();
        let pairs: Vec<(&str, &str)> = args.proxy_extra_envs.0.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(pairs, [("A", "1"), ("B", "x=y"), ("C", "")]);
        for text in ["A", "=1", "A=1;B"] {
            assert!(parse(&format!("--proxy-extra-envs={text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn flag_values_are_those_of_kubernetes() {
        for word in ["Always", "IfNotPresent", "Never"] {
            let args = parse(&format!("--proxy-image-pull-policy={word}")).unwrap();
            assert_eq!(args.proxy_image_pull_policy.name(), word);
        }
    }
}
