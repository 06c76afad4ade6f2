//! The settings of external traffic, from flags and environment variables.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use ipnet::IpNet;

use super::destination;

/// Settings of external traffic.
#[derive(Debug, Clone, Args)]
pub struct ExternalSettings {
    /// Address for the controller's calls to other services (HTTP_PROXY, HTTPS_PROXY, or header Mesh-Real-Endpoint), usually
    /// 127.0.0.1:15002. Default: disabled. Clients that reach it send requests from this pod's network address.
    #[arg(long, env = "CTRLMESH_EXTERNAL_ADDRESS", value_name = "IP:PORT")]
    pub external_address: Option<SocketAddr>,

    /// Allow external calls to an address range (CIDR) or host name that is refused by default: loopback, link-local, metadata
    /// services. Repeat the flag, or separate values with commas.
    #[arg(
        long,
        env = "CTRLMESH_EXTERNAL_ALLOW",
        value_name = "CIDR|HOST",
        value_delimiter = ',',
        requires = "external_address"
    )]
    pub external_allow: Vec<Allow>,

    /// PEM file of certificate authorities to trust for external calls, besides those of the system.
    #[arg(
        long,
        env = "CTRLMESH_EXTERNAL_CA_FILE",
        value_name = "FILE",
        requires = "external_address"
    )]
    pub external_ca_file: Option<PathBuf>,
}

/// An exception from what external traffic may not reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allow {
    Net(IpNet),
    /// A host name, wherever it leads; lower case.
    Host(String),
}

/// Neither a CIDR nor a host name.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither a CIDR (10.0.0.0/8), nor an address, nor a host name")]
pub struct NotAllowable(String);

impl FromStr for Allow {
    type Err = NotAllowable;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Net(net.trunc()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Net(address.to_canonical().into()));
        }
        let name = destination::server_name(text).map_err(|_| NotAllowable(text.to_owned()))?;
        Ok(Self::Host(name.to_str().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_networks_addresses_and_names_are_distinguished() {
        let net = |text: &str| Allow::Net(text.parse().unwrap());
        for (text, expected) in [
            ("10.1.0.0/16", net("10.1.0.0/16")),
            ("10.1.2.3/16", net("10.1.0.0/16")),
            ("127.0.0.1", net("127.0.0.1/32")),
            ("::ffff:127.0.0.1", net("127.0.0.1/32")),
            ("fd00::/8", net("fd00::/8")),
            ("LocalHost.", Allow::Host("localhost".to_owned())),
        ] {
            assert_eq!(text.parse::<Allow>().unwrap(), expected, "{text}");
        }
        for wrong in ["", "10.0.0.0/33", "a b", "http://x", "0x7f000001"] {
            assert!(wrong.parse::<Allow>().is_err(), "{wrong}");
        }
    }
}
