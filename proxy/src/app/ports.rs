//! The sidecar's ports. All are bound before anything serves, so that the start fails at once if a port is taken.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::config::Settings;
use crate::connection::Outage;
use crate::error::Error;
use crate::listen::accept;
use crate::listen::serve::Server;
use crate::plugin::verdict::Traffic;

/// Addresses on which the sidecar listens.
#[derive(Debug, Clone)]
pub struct Addresses {
    pub api: Vec<SocketAddr>,
    /// Address for probes, scrapers and the manager.
    pub admin: SocketAddr,
    /// Address for external traffic; `None` if disabled.
    pub external: Option<SocketAddr>,
}

impl Addresses {
    pub(super) fn bound_addresses(&self) -> Vec<SocketAddr> {
        let api = self.api.iter().copied();
        api.chain([self.admin]).chain(self.external).collect()
    }

    /// The line `{"listening":{"admin":…}}`, by which scripts and tests that start the sidecar on port 0 learn its addresses.
    #[must_use]
    pub fn to_json(&self) -> String {
        let named = [
            ("api", self.api.first().copied()),
            ("admin", Some(self.admin)),
            ("external", self.external),
        ];
        let listening: BTreeMap<_, _> = named
            .into_iter()
            .filter_map(|(name, address)| Some((name, address?.to_string())))
            .collect();
        serde_json::json!({ "listening": listening }).to_string()
    }
}

pub(super) struct Bound {
    api: Vec<TcpListener>,
    admin: TcpListener,
    external: Option<TcpListener>,
}

/// The bound sockets with the service behind each.
pub(super) struct Ports {
    pub(super) api: Vec<accept::Port>,
    pub(super) admin: TcpListener,
    pub(super) external: Option<accept::Port>,
}

impl Bound {
    pub(super) fn new(settings: &Settings) -> Result<(Self, Addresses), Error> {
        let (api, api_addresses) = bind_all(&settings.api_address)?;
        let (admin, admin_address) = bind_port("--admin-address (CTRLMESH_ADMIN_ADDRESS)", settings.admin_address)?;
        let desired = settings.external.external_address;
        let (external, external_address) = desired.map(|address| bind_port(EXTERNAL, address)).transpose()?.unzip();
        let addresses = Addresses {
            api: api_addresses,
            admin: admin_address,
            external: external_address,
        };
        Ok((Self { api, admin, external }, addresses))
    }

    /// `connections` is the maximum of each port.
    pub(super) fn into_ports(self, connections: usize, server: &Server) -> Ports {
        let external = self.external.zip(server.external.as_deref());
        let external = external.map(|(listener, external)| {
            port_of_listener(Traffic::External, EXTERNAL, listener, connections, &external.outage)
        });
        // All API addresses share the connections of one port.
        let permits = Arc::new(Semaphore::new(connections));
        let api = self.api.into_iter().map(|listener| accept::Port {
            permits: Arc::clone(&permits),
            ..port_of_listener(Traffic::Api, API, listener, connections, &server.outage)
        });
        Ports {
            api: api.collect(),
            admin: self.admin,
            external,
        }
    }
}

const API: &str = "--api-address (CTRLMESH_API_ADDRESS)";
const EXTERNAL: &str = "--external-address (CTRLMESH_EXTERNAL_ADDRESS)";

fn bind_port(setting: &'static str, desired: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let listener = accept::bind_listener(setting, desired)?;
    let address = listener.local_addr().map_err(|source| Error::Bind {
        setting,
        address: desired,
        source,
    })?;
    Ok((listener, address))
}

/// Binds all addresses. A network without IPv6 has no `[::1]`: addresses that do not exist are skipped, except the first.
fn bind_all(desired: &[SocketAddr]) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), Error> {
    let mut bound: (Vec<TcpListener>, Vec<SocketAddr>) = (Vec::new(), Vec::new());
    for address in desired {
        match bind_port(API, *address) {
            Ok(more) => bound.extend([more]),
            Err(Error::Bind { source, .. }) if !bound.0.is_empty() && is_not_there(&source) => {
                tracing::info!(%address, "address is not in the pod's network; not listening on it");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bound)
}

fn is_not_there(error: &io::Error) -> bool {
    /// `EAFNOSUPPORT`: the kernel does not support the address family.
    const NO_FAMILY: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(NO_FAMILY)
}

fn port_of_listener(
    traffic: Traffic,
    setting: &'static str,
    listener: TcpListener,
    connections: usize,
    outage: &Outage,
) -> accept::Port {
    accept::Port {
        traffic,
        setting,
        listener,
        permits: Arc::new(Semaphore::new(connections)),
        outage: outage.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound_addresses(desired: &[&str]) -> Result<Vec<SocketAddr>, Error> {
        let desired: Vec<SocketAddr> = desired.iter().map(|address| address.parse().unwrap()).collect();
        bind_all(&desired).map(|(_, addresses)| addresses)
    }

    #[tokio::test]
    async fn missing_addresses_are_skipped_except_first() {
        let addresses = bound_addresses(&["127.0.0.1:0", "192.0.2.1:0", "127.0.0.2:0"]).unwrap();
        let hosts: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
        assert_eq!(hosts, ["127.0.0.1", "127.0.0.2"]);
        assert!(matches!(
            bound_addresses(&["192.0.2.1:0", "127.0.0.1:0"]),
            Err(Error::Bind { .. })
        ));
        // A taken address is an error in any position.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().unwrap().to_string();
        assert!(matches!(
            bound_addresses(&["127.0.0.2:0", &taken]),
            Err(Error::Bind { .. })
        ));
    }
}
