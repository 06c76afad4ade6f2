//! Inputs of injection besides the pod: flags of the manager, and information about the cluster.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ctrlmesh_contract::names::ports;
use serde_json::{Map, Value, json};

use super::Rule;
use crate::flags::{LogFormat, ProxyArgs};

/// The manager's flags about sidecars.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The sidecar's image. Empty: the flag is not set.
    pub(super) image: String,
    /// The image of the init container that sets iptables rules.
    pub(super) init_image: String,
    pub(super) pull_policy: &'static str,
    pub(super) pull_secrets: Vec<String>,
    pub(super) resources: Value,
    pub(super) env: Vec<(String, String)>,
    pub(super) log: String,
    pub(super) log_format: &'static str,
    /// Address of probes, metrics and status.
    pub(super) admin: SocketAddr,
    /// Port for calls to external services, in sidecars that serve them; 0: none does.
    pub(super) external_port: u16,
    /// Whether the manager issues certificates for sidecars.
    pub(super) has_mesh_ca: bool,
}

/// Information about the cluster and the namespace of the pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterInfo {
    /// Namespace of the pod.
    pub namespace: String,
    pub rules: Vec<Rule>,
    /// The key that chains are signed with, in the text form of [`ctrlmesh_contract::signature::PublicKeys`].
    pub public_key: String,
    /// Whether every kubelet supports restartable init containers.
    pub has_native_sidecars: bool,
    /// Addresses of the API server's Service, one of each of its families. Needed for redirected traffic; empty: not known.
    pub service_addresses: Vec<IpAddr>,
}

impl Settings {
    /// `admin_port`: port on which the manager polls sidecars.
    #[must_use]
    pub fn new(args: &ProxyArgs, admin_port: u16) -> Self {
        let init_image = args.init_image.as_ref().filter(|image| !image.is_empty());
        Self {
            init_image: init_image.unwrap_or(&args.proxy_image).clone(),
            image: args.proxy_image.clone(),
            pull_policy: args.proxy_image_pull_policy.name(),
            pull_secrets: args.proxy_image_pull_secrets.clone(),
            resources: default_resources(args),
            env: args.proxy_extra_envs.0.clone(),
            log: args.proxy_log.clone(),
            log_format: match args.proxy_log_format {
                LogFormat::Text => "text",
                LogFormat::Json => "json",
            },
            admin: SocketAddr::new(args.proxy_admin_ip, admin_port),
            external_port: args.proxy_external_port,
            has_mesh_ca: args.mesh_ca,
        }
    }

    /// Ports that every sidecar listens on in its pod.
    pub(super) const fn sidecar_ports(&self) -> [u16; 2] {
        [self.admin.port(), ports::API]
    }

    /// The admin address as the sidecar's own container reaches it.
    pub(super) fn admin_from_inside(&self) -> SocketAddr {
        let ip = match self.admin.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.admin.port())
    }
}

/// Requests and limits are equal, as with KusionStack, so that a Guaranteed pod stays Guaranteed.
fn default_resources(args: &ProxyArgs) -> Value {
    let quantities: BTreeMap<&str, &String> = [
        ("cpu", &args.proxy_cpu),
        ("memory", &args.proxy_memory),
        ("ephemeral-storage", &args.proxy_ephemeral_storage),
    ]
    .into_iter()
    .filter(|(_, quantity)| !quantity.is_empty())
    .collect();
    let mut resources = Map::new();
    if !quantities.is_empty() {
        resources.insert("requests".to_owned(), json!(quantities));
        resources.insert("limits".to_owned(), json!(quantities));
    }
    Value::Object(resources)
}
