//! Decides which addresses external traffic may reach.
//!
//! Guarantees: special addresses (`ctrlmesh_contract::addresses`) are refused unless a flag allows them; the sidecar's own ports and the
//! API server are always out of reach. A cluster's own ranges (10/8 and similar) pass, because controllers call other services of the
//! cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ctrlmesh_contract::addresses::{SpecialAddress, embedded_ipv4_addresses, reachable_through, special_address};
use ipnet::IpNet;

use super::api_server::ApiServer;
use super::settings::Allow;

pub(super) struct AddressPolicy {
    nets: Vec<IpNet>,
    hosts: Vec<String>,
    own: Vec<SocketAddr>,
    pub(super) api_server: ApiServer,
    is_this_machine: fn(IpAddr) -> bool,
}

impl AddressPolicy {
    pub(super) fn new(allowed: &[Allow], own: Vec<SocketAddr>, api_server: ApiServer) -> Self {
        let mut policy = Self {
            nets: Vec::new(),
            hosts: Vec::new(),
            own,
            api_server,
            is_this_machine,
        };
        for allow in allowed {
            match allow {
                Allow::Net(net) => policy.nets.push(*net),
                Allow::Host(host) => policy.hosts.push(host.clone()),
            }
        }
        policy
    }

    /// Checks whether this host name may be looked up at all.
    ///
    /// # Errors
    /// The reason for a refusal, for users.
    pub(super) fn check_name(&self, host: &str, port: u16) -> Result<(), String> {
        if self.api_server.is_named(host, port) {
            return Err(is_api_server(&format!("{host}:{port}")));
        }
        Ok(())
    }

    /// Checks whether `host` may be connected to at `address`, which it resolved to.
    ///
    /// # Errors
    /// The reason for a refusal, for users.
    pub(super) fn check_address(&self, host: &str, address: SocketAddr) -> Result<(), String> {
        let ip = address.ip().to_canonical();
        if self.is_own(ip, address.port()) {
            return Err(format!(
                "{address} is a port of this sidecar, which is out of reach from here"
            ));
        }
        self.check_not_api_server(ip, address)?;
        if self.hosts.iter().any(|allowed| allowed == host) || self.nets.iter().any(|net| net.contains(&ip)) {
            return Ok(());
        }
        match special_address(ip) {
            Some(what) => Err(format!(
                "{ip} is {what}; if it is meant, allow it with --external-allow (CTRLMESH_EXTERNAL_ALLOW)"
            )),
            None => Ok(()),
        }
    }

    fn check_not_api_server(&self, ip: IpAddr, address: SocketAddr) -> Result<(), String> {
        let Some(known) = self.api_server.known_addresses(address.port()) else {
            return Err(format!(
                "{address} could be the API server, whose address is not known yet; try again"
            ));
        };
        let meant = reachable_through(ip);
        let is_here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified() || (self.is_this_machine)(ip);
        let is_same = |known: &IpAddr| {
            let known = known.to_canonical();
            known == ip
                || meant
                    .iter()
                    .any(|inner| known == *inner || (is_here(known) && is_here(*inner)))
        };
        if known.iter().any(is_same) {
            return Err(is_api_server(&address.to_string()));
        }
        Ok(())
    }

    fn is_own(&self, ip: IpAddr, port: u16) -> bool {
        let mut own = self.own.iter().filter(|own| own.port() == port).peekable();
        own.peek().is_some()
            && (own.any(|own| own.ip().to_canonical() == ip)
                || ip.is_loopback()
                || ip.is_unspecified()
                || embedded_ipv4_addresses(ip)
                    .iter()
                    .any(|inner| inner.is_loopback() || inner.is_unspecified())
                || special_address(ip) == Some(SpecialAddress::Loopback)
                || (self.is_this_machine)(ip))
    }
}

fn is_api_server(address: &str) -> String {
    format!(
        "{address} is the API server, which is out of reach from here: send requests for it to the sidecar's --api-address"
    )
}

/// Whether an address belongs to this machine: only then a socket that is connected to it has the same local address. Sends nothing.
fn is_this_machine(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let near = UdpSocket::bind((any, 0)).and_then(|socket| {
        // The discard port; any other would do.
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    near.is_ok_and(|near| near.ip().to_canonical() == ip)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check_ip(policy: &AddressPolicy, host: &str, ip: &str) -> Result<(), String> {
        policy.check_address(host, SocketAddr::new(ip.parse().unwrap(), 80))
    }

    fn unrelated_api_server() -> ApiServer {
        ApiServer::with_addresses("192.0.2.99", 6443, &[])
    }

    fn policy_allowing(allowed: &[&str]) -> AddressPolicy {
        let allowed: Vec<Allow> = allowed.iter().map(|text| text.parse().unwrap()).collect();
        AddressPolicy::new(&allowed, Vec::new(), unrelated_api_server())
    }

    #[test]
    fn special_addresses_are_refused_and_others_pass() {
        let policy = policy_allowing(&[]);
        for ip in [
            "127.0.0.1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "fd00:ec2::254",
        ] {
            let error = check_ip(&policy, "host", ip).unwrap_err();
            assert!(error.contains("--external-allow"), "{ip}: {error}");
        }
        for ip in ["10.0.0.1", "93.184.216.34", "fd00:10:96::a", "64:ff9b::808:808"] {
            check_ip(&policy, "host", ip).unwrap();
        }
    }

    #[test]
    fn allowed_addresses_and_names_pass() {
        let policy = policy_allowing(&["127.0.0.0/8", "fe80::/10", "metadata.example"]);
        check_ip(&policy, "any", "127.0.0.2").unwrap();
        check_ip(&policy, "any", "::ffff:127.0.0.2").unwrap();
        check_ip(&policy, "any", "fe80::2").unwrap();
        check_ip(&policy, "metadata.example", "169.254.169.254").unwrap();
        assert!(check_ip(&policy, "other.example", "169.254.169.254").is_err());
        assert!(check_ip(&policy, "sub.metadata.example", "::1").is_err());
    }

    #[test]
    fn sidecars_own_ports_are_out_of_reach_whatever_is_allowed() {
        let own = ["127.0.0.1:5443", "0.0.0.0:5441", "192.0.2.7:15002"].map(|text| text.parse().unwrap());
        let allowed = ["0.0.0.0/0", "::/0", "host"].map(|text| text.parse().unwrap());
        let mut policy = AddressPolicy::new(&allowed, own.to_vec(), unrelated_api_server());
        policy.is_this_machine = |ip| ip == IpAddr::from([198, 51, 100, 9]);
        for address in [
            "127.0.0.1:5443",
            "127.0.0.9:5443",
            "[::1]:5443",
            "[::ffff:127.0.0.1]:5441",
            "0.0.0.0:5441",
            "[::]:15002",
            "192.0.2.7:15002",
            "[64:ff9b::7f00:1]:5443",
            "[64:ff9b::]:5443",
            "[::ffff:0:127.0.0.1]:5443",
            "[64:ff9b:1:7f00:0:100::]:5443",
            "[2001:db8::7f00:1]:5443",
            "198.51.100.9:5441",
        ] {
            let error = policy.check_address("host", address.parse().unwrap()).unwrap_err();
            assert!(error.contains("a port of this sidecar"), "{address}: {error}");
        }
        policy.check_address("host", "127.0.0.1:80".parse().unwrap()).unwrap();
        policy.check_address("host", "192.0.2.8:5443".parse().unwrap()).unwrap();
    }

    #[test]
    fn api_server_is_out_of_reach_whatever_is_allowed() {
        let allowed = ["0.0.0.0/0", "::/0", "api.example", "host"].map(|text| text.parse().unwrap());
        let check = |api_server: ApiServer, address: &str| {
            let mut policy = AddressPolicy::new(&allowed, Vec::new(), api_server);
            policy.is_this_machine = |ip| ip == IpAddr::from([198, 51, 100, 9]);
            policy.check_address("host", address.parse().unwrap())
        };
        let named = || ApiServer::with_addresses("api.example", 6443, &["192.0.2.7", "2001:db8::7"]);
        for address in [
            "192.0.2.7:6443",
            "[::ffff:192.0.2.7]:6443",
            "[64:ff9b::c000:207]:6443",
            "[2002:c000:207::1]:6443",
            "[2001:db8::7]:6443",
        ] {
            let error = check(named(), address).unwrap_err();
            assert!(error.contains("is the API server"), "{address}: {error}");
        }
        check(named(), "192.0.2.7:443").unwrap();
        check(named(), "192.0.2.8:6443").unwrap();
        for address in [
            "127.0.0.1:6443",
            "0.0.0.0:6443",
            "[::1]:6443",
            "127.9.9.9:6443",
            "198.51.100.9:6443",
        ] {
            let error = check(ApiServer::with_addresses("127.0.0.1", 6443, &[]), address).unwrap_err();
            assert!(error.contains("is the API server"), "{address}: {error}");
        }
        let error = check(ApiServer::with_addresses("api.example", 6443, &[]), "192.0.2.7:6443").unwrap_err();
        assert!(error.contains("not known yet"), "{error}");
        let policy = AddressPolicy::new(&allowed, Vec::new(), named());
        assert!(policy.check_name("kubernetes.default.svc", 443).is_err());
        policy.check_name("service.default.svc", 443).unwrap();
    }

    #[test]
    fn machines_own_address_is_known() {
        assert!(is_this_machine("127.0.0.1".parse().unwrap()));
        assert!(!is_this_machine("192.0.2.1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn address_inside_another_is_treated_like_itself(bits: u32) {
            let policy = policy_allowing(&[]);
            let inner = Ipv4Addr::from_bits(bits);
            let plain = policy.check_address("host", SocketAddr::new(inner.into(), 80)).is_ok();
            let [a, b, c, d] = inner.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for outer in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 1, 2, 3, 4, high, low),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(policy.check_address("host", SocketAddr::new(outer.into(), 80)).is_ok(), plain, "{}", outer);
            }
        }
    }
}
