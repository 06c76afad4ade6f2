//! `ctrlmesh-proxy init`: makes the kernel redirect a pod's traffic for the API server to the sidecar (docs/adr/0022).
//!
//! Runs once, before the pod's containers, in the pod's network, with the capability `NET_ADMIN` only; it reads no file. A second run leads
//! to the same rules. Existing connections are not affected.
//!
//! | file | holds |
//! |---|---|
//! | `netlink` | sends a batch to the kernel |
//! | `error` | reasons why rules are not set, with instructions |
//! | `rules` | the rules for nf_tables |
//! | `message` | netlink messages as bytes |

mod error;
mod message;
mod netlink;
mod rules;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use clap::Args;
use ctrlmesh_contract::names::{pod, ports};

pub use error::Error;
use rules::{Family, Redirect};

/// Maximum number of API servers: a few for each address family.
const MAX_SERVERS: usize = 64;

/// The traffic to redirect.
#[derive(Debug, Clone, Args)]
pub struct Init {
    /// IP addresses of the API server, separated by commas.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", value_delimiter = ',', value_name = "IP")]
    pub host: Vec<String>,

    /// Port of the API server.
    #[arg(
        long,
        env = "KUBERNETES_SERVICE_PORT",
        default_value_t = 443,
        value_parser = clap::value_parser!(u16).range(1..),
        value_name = "N"
    )]
    pub port: u16,

    /// Port of the sidecar, on the loopback address of the same family.
    #[arg(long, default_value_t = ports::API, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    pub to: u16,

    /// User id whose traffic is not redirected: the sidecar's.
    #[arg(long, default_value_t = pod::UID, value_name = "UID")]
    pub user: u32,

    /// Remove the rules.
    #[arg(long)]
    pub clean: bool,
}

/// Sets the rules, or removes them.
///
/// # Errors
/// See [`Error`]. The rules of a family come into force as a whole, or not at all.
pub fn run(init: &Init) -> Result<(), Error> {
    let servers = if init.clean {
        Vec::new()
    } else {
        server_addresses(init)?
    };
    for family in Family::ALL {
        let of_family: Vec<SocketAddr> = servers
            .iter()
            .copied()
            .filter(|server| Family::family_of(server.ip()) == family)
            .collect();
        let redirect = Redirect {
            servers: &of_family,
            port: init.to,
            user: init.user,
        };
        let committed = netlink::send_batch(&rules::rule_batch(family, &redirect))
            .map_err(|source| Error::from_kernel(family, source));
        match committed {
            // In a family that the kernel lacks there is nothing to remove.
            Err(Error::Unsupported { .. }) if of_family.is_empty() => {}
            committed => committed?,
        }
    }
    if init.clean {
        tracing::info!("traffic to the API server is no longer redirected");
    } else {
        let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
        let servers = servers.join(",");
        tracing::info!(
            servers,
            to = init.to,
            but_for_user = init.user,
            "traffic to the API server is redirected"
        );
    }
    Ok(())
}

/// The addresses of the API server.
fn server_addresses(init: &Init) -> Result<Vec<SocketAddr>, Error> {
    let mut servers = BTreeSet::new();
    for host in init.host.iter().map(|host| host.trim()).filter(|host| !host.is_empty()) {
        servers.insert(SocketAddr::new(parse_host(host)?, init.port));
    }
    match servers.len() {
        0 => Err(Error::NoServer),
        count if count > MAX_SERVERS => Err(Error::TooMany {
            count,
            max: MAX_SERVERS,
        }),
        _ => Ok(servers.into_iter().collect()),
    }
}

/// Names are refused: one would be looked up once and might resolve to another address later, so that traffic bypasses the sidecar.
fn parse_host(host: &str) -> Result<IpAddr, Error> {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    bare.parse::<IpAddr>()
        .ok()
        .map(|address| address.to_canonical())
        .filter(|address| !address.is_unspecified() && !address.is_multicast())
        .ok_or_else(|| Error::Host { host: host.to_owned() })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        init: Init,
    }

    fn servers_of(flags: &[&str]) -> Result<Vec<SocketAddr>, Error> {
        server_addresses(&Program::parse_from([&["init"], flags].concat()).init)
    }

    fn parse_addresses(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn servers_of_both_families_are_read_once() {
        let flags = [
            "--host=10.96.0.1, fd00::1,[fd00::2]",
            "--host=::ffff:10.96.0.1,10.96.0.1",
            "--port=6443",
        ];
        let expected = ["10.96.0.1:6443", "[fd00::1]:6443", "[fd00::2]:6443"];
        assert_eq!(servers_of(&flags).unwrap(), parse_addresses(&expected));
        assert_eq!(
            servers_of(&["--host=10.96.0.1"]).unwrap(),
            parse_addresses(&["10.96.0.1:443"])
        );
    }

    #[test]
    fn kubeconfig_without_usable_server_is_refused_by_name() {
        for host in [
            "api.example.com",
            "10.96.0",
            "0.0.0.0",
            "::",
            "ff02::1",
            "224.0.0.1",
            "10.96.0.1:443",
            "[fd00::1",
            "10.0.0.1,x",
        ] {
            let refused = servers_of(&[&format!("--host={host}")]).unwrap_err();
            assert!(
                matches!(&refused, Error::Host { host: named } if host.ends_with(named.as_str())),
                "{refused}"
            );
        }
        let many: Vec<String> = (0..65).map(|last| format!("10.0.0.{last}")).collect();
        assert!(matches!(
            servers_of(&[&format!("--host={}", many.join(","))]),
            Err(Error::TooMany { count: 65, max: 64 })
        ));
        assert!(matches!(servers_of(&["--host="]), Err(Error::NoServer)));
    }

    #[test]
    fn kernel_error_names_remedy() {
        let message_of = |number| Error::from_kernel(Family::V6, std::io::Error::from_raw_os_error(number)).to_string();
        assert!(
            message_of(1).contains("capabilities.add: [NET_ADMIN]"),
            "{}",
            message_of(1)
        );
        for missing in [2, 93, 95, 97] {
            assert!(
                message_of(missing).contains("no nf_tables with NAT for IPv6"),
                "{}",
                message_of(missing)
            );
        }
        assert!(
            message_of(12).contains("failed to set the rules for IPv6"),
            "{}",
            message_of(12)
        );
    }
}
