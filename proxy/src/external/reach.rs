//! Which addresses external traffic may reach.
//!
//! Guarantees: an address inside another (IPv4 in IPv6: mapped, compatible, 6to4, NAT64) is judged by what is inside; the
//! sidecar's own ports are out of reach whatever is allowed. Ranges that are a cluster's own (10/8 and the like) pass: calls
//! to other services of the cluster are what a controller makes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ipnet::IpNet;

use super::settings::Allow;

/// Where clouds tell a machine its credentials, beside 169.254.169.254 (which is link-local): Alibaba, Azure, Oracle; AWS and
/// Google over IPv6.
const METADATA: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // EKS Pod Identity.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// The rules.
pub(super) struct Reach {
    nets: Vec<IpNet>,
    hosts: Vec<String>,
    own: Vec<SocketAddr>,
    is_this_machine: fn(IpAddr) -> bool,
}

impl Reach {
    pub(super) fn new(allowed: &[Allow], own: Vec<SocketAddr>) -> Self {
        let mut reach = Self {
            nets: Vec::new(),
            hosts: Vec::new(),
            own,
            is_this_machine,
        };
        for allow in allowed {
            match allow {
                Allow::Net(net) => reach.nets.push(*net),
                Allow::Host(host) => reach.hosts.push(host.clone()),
            }
        }
        reach
    }

    /// Whether `host`, which was found at `address`, may be connected to.
    ///
    /// # Errors
    /// Why not, for people.
    pub(super) fn judge(&self, host: &str, address: SocketAddr) -> Result<(), String> {
        let ip = address.ip().to_canonical();
        if self.is_own(ip, address.port()) {
            return Err(format!(
                "{address} is a port of this sidecar, which is out of reach from here"
            ));
        }
        if self.hosts.iter().any(|allowed| allowed == host) || self.nets.iter().any(|net| net.contains(&ip)) {
            return Ok(());
        }
        match refused(ip) {
            Some(what) => Err(format!(
                "{ip} is {what}; if it is meant, allow it with --external-allow (CTRLMESH_EXTERNAL_ALLOW)"
            )),
            None => Ok(()),
        }
    }

    fn is_own(&self, ip: IpAddr, port: u16) -> bool {
        let mut own = self.own.iter().filter(|own| own.port() == port).peekable();
        own.peek().is_some()
            && (own.any(|own| own.ip().to_canonical() == ip)
                || ip.is_loopback()
                || ip.is_unspecified()
                || embedded(ip).is_some_and(|inner| inner.is_loopback() || inner.is_unspecified())
                || (self.is_this_machine)(ip))
    }
}

/// Whether an address is one of this machine's own: only then a socket towards it has the same one at its near end. Nothing
/// is sent.
fn is_this_machine(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let near = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Discard; any port would do.
        socket.connect((ip, 9))?;
        socket.local_addr()
    });
    near.is_ok_and(|near| near.ip().to_canonical() == ip)
}

/// What is wrong with an address.
fn refused(ip: IpAddr) -> Option<&'static str> {
    if let Some(inner) = embedded(ip) {
        return refused(IpAddr::V4(inner));
    }
    if METADATA.contains(&ip) {
        return Some("a cloud's metadata service");
    }
    if ip.is_loopback() {
        return Some("a loopback address");
    }
    if ip.is_unspecified() {
        return Some("the unspecified address");
    }
    if ip.is_multicast() {
        return Some("a multicast address");
    }
    match ip {
        IpAddr::V4(ip) if ip.is_link_local() => Some("a link-local address, where clouds have their metadata service"),
        IpAddr::V4(ip) if ip.octets()[0] == 0 => Some("an address of this network"),
        IpAddr::V4(ip) if ip.octets()[0] >= 240 => Some("a reserved address"),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some("a link-local address"),
        // Deprecated by RFC 3879, and some systems still route it as link-local.
        IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfec0 => Some("a site-local address"),
        _ => None,
    }
}

/// The IPv4 address in an IPv6 one: mapped and compatible (RFC 4291 §2.5.5), NAT64 (RFC 6052, RFC 8215), 6to4 (RFC 3056).
fn embedded(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    let quad = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..] => Some(quad(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judge(reach: &Reach, host: &str, ip: &str) -> Result<(), String> {
        reach.judge(host, SocketAddr::new(ip.parse().unwrap(), 80))
    }

    fn reach(allowed: &[&str]) -> Reach {
        let allowed: Vec<Allow> = allowed.iter().map(|text| text.parse().unwrap()).collect();
        Reach::new(&allowed, Vec::new())
    }

    #[test]
    fn what_is_this_machines_or_this_networks_is_refused_in_every_spelling() {
        let reach = reach(&[]);
        for ip in [
            "127.0.0.1",
            "127.8.9.1",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "169.254.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
        ] {
            let error = judge(&reach, "host", ip).unwrap_err();
            assert!(error.contains("--external-allow"), "{ip}: {error}");
        }
        for ip in [
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "93.184.216.34",
            "2606:4700::1111",
            "fd00::1",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ] {
            judge(&reach, "host", ip).unwrap();
        }
    }

    #[test]
    fn what_is_allowed_passes_by_address_or_by_name() {
        let reach = reach(&["127.0.0.0/8", "fe80::/10", "metadata.example"]);
        judge(&reach, "any", "127.0.0.2").unwrap();
        judge(&reach, "any", "::ffff:127.0.0.2").unwrap();
        judge(&reach, "any", "fe80::2").unwrap();
        judge(&reach, "metadata.example", "169.254.169.254").unwrap();
        assert!(judge(&reach, "other.example", "169.254.169.254").is_err());
        assert!(judge(&reach, "sub.metadata.example", "::1").is_err());
    }

    #[test]
    fn the_sidecars_own_ports_are_out_of_reach_whatever_is_allowed() {
        let own = ["127.0.0.1:5443", "0.0.0.0:5441", "192.0.2.7:15002"].map(|text| text.parse().unwrap());
        let allowed = ["0.0.0.0/0", "::/0", "host"].map(|text| text.parse().unwrap());
        let mut reach = Reach::new(&allowed, own.to_vec());
        reach.is_this_machine = |ip| ip == IpAddr::from([198, 51, 100, 9]);
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
            "198.51.100.9:5441",
        ] {
            let error = reach.judge("host", address.parse().unwrap()).unwrap_err();
            assert!(error.contains("a port of this sidecar"), "{address}: {error}");
        }
        reach.judge("host", "127.0.0.1:80".parse().unwrap()).unwrap();
        reach.judge("host", "192.0.2.8:5443".parse().unwrap()).unwrap();
    }

    #[test]
    fn a_machines_own_address_is_known() {
        assert!(is_this_machine("127.0.0.1".parse().unwrap()));
        assert!(!is_this_machine("192.0.2.1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn an_address_inside_another_is_judged_like_itself(bits: u32) {
            let reach = reach(&[]);
            let inner = Ipv4Addr::from_bits(bits);
            let plain = reach.judge("host", SocketAddr::new(inner.into(), 80)).is_ok();
            let [a, b, c, d] = inner.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for outer in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(reach.judge("host", SocketAddr::new(outer.into(), 80)).is_ok(), plain, "{}", outer);
            }
        }
    }
}
