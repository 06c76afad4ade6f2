//! Flags about the sidecars that the manager puts into pods.

use std::net::IpAddr;
use std::str::FromStr;

use clap::{ArgAction, Args, ValueEnum};
use ctrlmesh_contract::names::ports;

use super::LogFormat;

/// What sidecars are like. Pods say more by labels and annotations (docs/injection.md).
#[derive(Clone, Debug, Args)]
pub struct ProxyArgs {
    /// Image of the sidecar. Without it no pod gets one: those that ask for it are refused.
    #[arg(long, env = "CTRLMESH_PROXY_IMAGE", default_value = "", value_name = "IMAGE")]
    pub proxy_image: String,

    /// Image of the init container that redirects traffic, for pods that ask for that. Without it the sidecar's.
    #[arg(long, env = "CTRLMESH_INIT_IMAGE", value_name = "IMAGE")]
    pub init_image: Option<String>,

    /// When nodes pull these images.
    #[arg(long, env = "CTRLMESH_PROXY_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    pub proxy_image_pull_policy: PullPolicy,

    /// Secret to pull these images with. It must be in the pod's namespace. May be given several times.
    #[arg(
        long = "proxy-image-pull-secret",
        env = "CTRLMESH_PROXY_IMAGE_PULL_SECRETS",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub proxy_image_pull_secrets: Vec<String>,

    /// CPU of a sidecar, requested and at most. Empty: unbounded.
    #[arg(long, env = "CTRLMESH_PROXY_CPU", default_value = "500m", value_name = "QUANTITY", value_parser = quantity)]
    pub proxy_cpu: String,

    /// Memory of a sidecar, requested and at most. Empty: unbounded.
    #[arg(long, env = "CTRLMESH_PROXY_MEMORY", default_value = "256Mi", value_name = "QUANTITY", value_parser = quantity)]
    pub proxy_memory: String,

    /// Disk of a sidecar (compiled plugins and logs), requested and at most. Empty: unbounded.
    #[arg(long, env = "CTRLMESH_PROXY_EPHEMERAL_STORAGE", default_value = "1Gi", value_name = "QUANTITY", value_parser = quantity)]
    pub proxy_ephemeral_storage: String,

    /// Environment of every sidecar: NAME=value;NAME=value.
    #[arg(long, env = "CTRLMESH_PROXY_EXTRA_ENVS", default_value = "", value_name = "ENV")]
    pub proxy_extra_envs: Environment,

    /// Whether sidecars are init containers that are restarted, which start before and end after everything else in the pod. By
    /// itself: from Kubernetes 1.32 on, where every kubelet that may be there knows them.
    #[arg(long, env = "CTRLMESH_NATIVE_SIDECAR", default_value = "auto", value_name = "WHEN")]
    pub native_sidecar: NativeSidecar,

    /// Address in its pod at which a sidecar serves probes, metrics and status. `::`, which takes IPv4 as well, where the first address of
    /// pods is one of IPv6.
    #[arg(long, env = "CTRLMESH_PROXY_ADMIN_IP", default_value = "0.0.0.0", value_name = "IP")]
    pub proxy_admin_ip: IpAddr,

    /// Port on a sidecar's loopback for calls to other services. 0: none.
    #[arg(long, env = "CTRLMESH_PROXY_EXTERNAL_PORT", default_value_t = ports::EXTERNAL, value_name = "PORT")]
    pub proxy_external_port: u16,

    /// Names and addresses of the API server that certificates of sidecars are for besides those that every cluster has:
    /// `kubernetes.default.svc.example.org`. With commas between.
    #[arg(
        long,
        env = "CTRLMESH_PROXY_SERVING_NAMES",
        value_name = "NAME",
        value_delimiter = ','
    )]
    pub proxy_serving_names: Vec<String>,

    /// Whether pods may have their traffic redirected, or TLS on loopback: the manager makes authorities and certificates for them. Without,
    /// it needs no right to make Secrets in their namespaces, and such pods are refused.
    #[arg(long, env = "CTRLMESH_MESH_CA", default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub mesh_ca: bool,

    /// What sidecars log: a level, or targets and levels (`info,access=debug` writes a line per request).
    #[arg(long, env = "CTRLMESH_PROXY_LOG", default_value = "info", value_name = "FILTER")]
    pub proxy_log: String,

    /// How sidecars log.
    #[arg(
        long,
        env = "CTRLMESH_PROXY_LOG_FORMAT",
        default_value = "text",
        value_name = "FORMAT"
    )]
    pub proxy_log_format: LogFormat,
}

/// When nodes pull an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// The word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Whether sidecars are restartable init containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NativeSidecar {
    /// Where every node has them.
    Auto,
    /// They are.
    On,
    /// They are the first of the other containers.
    Off,
}

/// Variables of an environment.
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

/// Loosely: an API server would refuse every pod for a mistake here.
fn quantity(text: &str) -> Result<String, String> {
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
    use crate::args::Args;

    fn parse(flag: &str) -> Result<ProxyArgs, String> {
        let args = Args::try_parse_from(["ctrlmesh-manager", flag]);
        args.map(|args| args.proxy).map_err(|error| error.to_string())
    }

    #[test]
    fn quantities_are_checked_before_every_pod_is_refused() {
        for text in ["", "1", "0.5", "500m", "512Mi", "1Gi", "2G"] {
            assert_eq!(parse(&format!("--proxy-cpu={text}")).unwrap().proxy_cpu, text);
        }
        for text in ["much", "1 Gi", "-1", "1GiB", "512mi"] {
            let problem = parse(&format!("--proxy-memory={text}")).unwrap_err();
            assert!(problem.contains("such as 500m"), "{problem}");
        }
    }

    #[test]
    fn environments_are_pairs() {
        let args = parse("--proxy-extra-envs=A=1; B=x=y ;C=").unwrap();
        let pairs: Vec<(&str, &str)> = args.proxy_extra_envs.0.iter().map(|(a, b)| (&**a, &**b)).collect();
        assert_eq!(pairs, [("A", "1"), ("B", "x=y"), ("C", "")]);
        for text in ["A", "=1", "A=1;B"] {
            assert!(parse(&format!("--proxy-extra-envs={text}")).is_err(), "{text}");
        }
    }

    #[test]
    fn words_are_those_of_kubernetes() {
        for word in ["Always", "IfNotPresent", "Never"] {
            let args = parse(&format!("--proxy-image-pull-policy={word}")).unwrap();
            assert_eq!(args.proxy_image_pull_policy.name(), word);
        }
    }
}
