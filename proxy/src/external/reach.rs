//! Which addresses external traffic may reach.
//!
//! Guarantees: an address inside another (IPv4 in IPv6: mapped, compatible, translated, NAT64 with any prefix length, 6to4,
//! Teredo, ISATAP) is judged by what is inside; the sidecar's own ports and the API server are out of reach whatever is allowed.
//! Ranges that are a cluster's own (10/8 and the like) pass: calls
//! to other services of the cluster are what a controller makes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ipnet::IpNet;

use super::api_server::ApiServer;
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
    pub(super) api_server: ApiServer,
    is_this_machine: fn(IpAddr) -> bool,
}

impl Reach {
    pub(super) fn new(allowed: &[Allow], own: Vec<SocketAddr>, api_server: ApiServer) -> Self {
        let mut reach = Self {
            nets: Vec::new(),
            hosts: Vec::new(),
            own,
            api_server,
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

    /// Whether a host of this name may be looked up at all.
    ///
    /// # Errors
    /// Why not, for people.
    pub(super) fn judge_name(&self, host: &str, port: u16) -> Result<(), String> {
        if self.api_server.is_named(host, port) {
            return Err(is_api_server(&format!("{host}:{port}")));
        }
        Ok(())
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
        self.judge_api_server(ip, address)?;
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

    fn judge_api_server(&self, ip: IpAddr, address: SocketAddr) -> Result<(), String> {
        let Some(known) = self.api_server.addresses(address.port()) else {
            return Err(format!(
                "{address} could be the API server, whose address is not known yet; try again"
            ));
        };
        let meant = meant_by(ip);
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
                || embedded(ip)
                    .iter()
                    .any(|inner| inner.is_loopback() || inner.is_unspecified())
                || refused_behind_own_prefix(ip) == Some(LOOPBACK)
                || (self.is_this_machine)(ip))
    }
}

fn is_api_server(place: &str) -> String {
    format!(
        "{place} is the API server, which is out of reach from here: send requests for it to the sidecar's --api-address"
    )
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

const LOOPBACK: &str = "a loopback address";

/// What is wrong with an address.
fn refused(ip: IpAddr) -> Option<&'static str> {
    let inner = embedded(ip);
    if !inner.is_empty() {
        return inner.into_iter().find_map(|inner| refused(IpAddr::V4(inner)));
    }
    if let Some(what) = refused_behind_own_prefix(ip) {
        return Some(what);
    }
    if METADATA.contains(&ip) {
        return Some("a cloud's metadata service");
    }
    if ip.is_loopback() {
        return Some(LOOPBACK);
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

/// The IPv4 addresses that an IPv6 one of a well-known form holds: mapped and compatible (RFC 4291 §2.5.5), translated (RFC 2765
/// §2.1), NAT64 (RFC 6052 §2.1, RFC 8215), 6to4 (RFC 3056), Teredo (RFC 4380 §4: server and client), ISATAP (RFC 5214 §6.1).
fn embedded(ip: IpAddr) -> Vec<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return Vec::new() };
    let quad = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Vec::new(),
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => vec![quad(high, low)],
        [0x64, 0xff9b, 1, ..] => {
            let lengths = [Nat64::P48, Nat64::P56, Nat64::P64, Nat64::P96];
            lengths.into_iter().filter_map(|length| length.inner(ip)).collect()
        }
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            vec![quad(high, low), quad(!client_high, !client_low)]
        }
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => vec![quad(high, low)],
        _ => Vec::new(),
    }
}

/// How an address is put behind a NAT64 prefix, by the prefix's length in bits (RFC 6052 §2.2).
#[derive(Clone, Copy)]
enum Nat64 {
    P32,
    P40,
    P48,
    P56,
    P64,
    P96,
}

impl Nat64 {
    const ALL: [Self; 6] = [Self::P32, Self::P40, Self::P48, Self::P56, Self::P64, Self::P96];

    /// The IPv4 address inside, if byte 8 and the bytes behind it are 0, as they must be.
    fn inner(self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        let [_, _, _, _, b4, b5, b6, b7, 0, b9, b10, b11, b12, b13, b14, b15] = ip.octets() else {
            return None;
        };
        let (inner, suffix): (_, &[u8]) = match self {
            Self::P32 => ([b4, b5, b6, b7], &[b9, b10, b11, b12, b13, b14, b15]),
            Self::P40 => ([b5, b6, b7, b9], &[b10, b11, b12, b13, b14, b15]),
            Self::P48 => ([b6, b7, b9, b10], &[b11, b12, b13, b14, b15]),
            Self::P56 => ([b7, b9, b10, b11], &[b12, b13, b14, b15]),
            Self::P64 => ([b9, b10, b11, b12], &[b13, b14, b15]),
            Self::P96 => ([b12, b13, b14, b15], &[]),
        };
        suffix.iter().all(|byte| *byte == 0).then(|| inner.into())
    }
}

/// The addresses that a connection to this one may reach: those inside it, also behind a NAT64 prefix of the network's own, else
/// itself.
fn meant_by(ip: IpAddr) -> Vec<IpAddr> {
    let inner = embedded(ip);
    if !inner.is_empty() {
        return inner.into_iter().map(IpAddr::V4).collect();
    }
    let behind: Vec<Ipv4Addr> = match ip {
        IpAddr::V6(ip) => Nat64::ALL.into_iter().filter_map(|length| length.inner(ip)).collect(),
        IpAddr::V4(_) => Vec::new(),
    };
    let is_plausible = |inner: &Ipv4Addr| !inner.is_unspecified();
    let behind = behind.into_iter().filter(is_plausible).map(IpAddr::V4);
    std::iter::once(ip).chain(behind).collect()
}

/// What is wrong with an address behind a NAT64 prefix of the network's own, which nobody here knows. Judged by what no
/// ordinary address looks like: a loopback, link-local or metadata address where one would be.
fn refused_behind_own_prefix(ip: IpAddr) -> Option<&'static str> {
    let IpAddr::V6(ip) = ip else { return None };
    let inner = Nat64::ALL.into_iter().filter_map(|length| length.inner(ip));
    inner
        .filter(|inner| inner.is_loopback() || inner.is_link_local() || METADATA.contains(&IpAddr::V4(*inner)))
        .find_map(|inner| refused(IpAddr::V4(inner)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn judge(reach: &Reach, host: &str, ip: &str) -> Result<(), String> {
        reach.judge(host, SocketAddr::new(ip.parse().unwrap(), 80))
    }

    fn elsewhere() -> ApiServer {
        ApiServer::at("192.0.2.99", 6443, &[])
    }

    fn reach(allowed: &[&str]) -> Reach {
        let allowed: Vec<Allow> = allowed.iter().map(|text| text.parse().unwrap()).collect();
        Reach::new(&allowed, Vec::new(), elsewhere())
    }

    /// Addresses of this machine, of its network alone, or of metadata services.
    const LOCAL: &[&str] = &[
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
        "::ffff:0:127.0.0.1",
        "::ffff:0:169.254.169.254",
        // RFC 8215 with prefixes of 48, 56, 64 and 96 bits.
        "64:ff9b:1:7f00:0:100::",
        "64:ff9b:1:27f:0:1::",
        "64:ff9b:1:2:7f:0:100::",
        "64:ff9b:1:2:3:4:7f00:1",
        "64:ff9b:1::",
        // A prefix of the network's own, of 32 to 96 bits.
        "2001:db8:a9fe:a9fe::",
        "2001:db8:1a9:fea9:fe::",
        "2001:db8:1:a9fe:a9:fe00::",
        "2001:db8:1:2a9:fe:a9fe::",
        "2001:db8:1:2:a9:fea9:fe00::",
        "2001:db8:1:2::a9fe:a9fe",
        "2001:db8::7f00:1",
        "fd00:64::6464:64c8",
        // Teredo, by its server and by its client.
        "2001:0:7f00:1::f7f7:f7f7",
        "2001:0:808:808::80ff:fffe",
        "2001:db8:1:2:0:5efe:7f00:1",
        "fe80::5efe:a9fe:a9fe",
        "fd00::200:5efe:a9fe:a9fe",
    ];

    /// Addresses that anybody may have.
    const ELSEWHERE: &[&str] = &[
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "93.184.216.34",
        "2606:4700::1111",
        "fd00::1",
        "64:ff9b::808:808",
        "2002:808:808::1",
        "::ffff:0:8.8.8.8",
        "64:ff9b:1::808:808",
        "64:ff9b:1:2:3:4:808:808",
        "2001:0:808:808::f7f7:f7f7",
        "2001:db8:1:2:0:5efe:a00:1",
        // Ordinary service and pod addresses of clusters.
        "fd00:10:96::a",
        "fd00:10:96::",
        "fd00:10:244:1::7f01",
        "2001:db8:0:7f00::1",
        "2600:1f18:a9fe:a9fe:7f::1",
    ];

    #[test]
    fn local_addresses_are_refused_in_every_spelling_and_others_pass() {
        let reach = reach(&[]);
        for ip in LOCAL {
            let error = judge(&reach, "host", ip).unwrap_err();
            assert!(error.contains("--external-allow"), "{ip}: {error}");
        }
        for ip in ELSEWHERE {
            judge(&reach, "host", ip).unwrap();
        }
    }

    #[test]
    fn allowed_addresses_and_names_pass() {
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
        let mut reach = Reach::new(&allowed, own.to_vec(), elsewhere());
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
            "[::ffff:0:127.0.0.1]:5443",
            "[64:ff9b:1:7f00:0:100::]:5443",
            "[2001:db8::7f00:1]:5443",
            "198.51.100.9:5441",
        ] {
            let error = reach.judge("host", address.parse().unwrap()).unwrap_err();
            assert!(error.contains("a port of this sidecar"), "{address}: {error}");
        }
        reach.judge("host", "127.0.0.1:80".parse().unwrap()).unwrap();
        reach.judge("host", "192.0.2.8:5443".parse().unwrap()).unwrap();
    }

    #[test]
    fn the_api_server_is_out_of_reach_whatever_is_allowed() {
        let allowed = ["0.0.0.0/0", "::/0", "api.example", "host"].map(|text| text.parse().unwrap());
        let judge = |api_server: ApiServer, address: &str| {
            let mut reach = Reach::new(&allowed, Vec::new(), api_server);
            reach.is_this_machine = |ip| ip == IpAddr::from([198, 51, 100, 9]);
            reach.judge("host", address.parse().unwrap())
        };
        let named = || ApiServer::at("api.example", 6443, &["192.0.2.7", "2001:db8::7"]);
        for address in [
            "192.0.2.7:6443",
            "[::ffff:192.0.2.7]:6443",
            "[64:ff9b::c000:207]:6443",
            "[2002:c000:207::1]:6443",
            "[2001:db8::7]:6443",
        ] {
            let error = judge(named(), address).unwrap_err();
            assert!(error.contains("is the API server"), "{address}: {error}");
        }
        judge(named(), "192.0.2.7:443").unwrap();
        judge(named(), "192.0.2.8:6443").unwrap();
        for address in [
            "127.0.0.1:6443",
            "0.0.0.0:6443",
            "[::1]:6443",
            "127.9.9.9:6443",
            "198.51.100.9:6443",
        ] {
            let error = judge(ApiServer::at("127.0.0.1", 6443, &[]), address).unwrap_err();
            assert!(error.contains("is the API server"), "{address}: {error}");
        }
        let error = judge(ApiServer::at("api.example", 6443, &[]), "192.0.2.7:6443").unwrap_err();
        assert!(error.contains("not known yet"), "{error}");
        let reach = Reach::new(&allowed, Vec::new(), named());
        assert!(reach.judge_name("kubernetes.default.svc", 443).is_err());
        reach.judge_name("service.default.svc", 443).unwrap();
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
                Ipv6Addr::new(0x64, 0xff9b, 1, 2, 3, 4, high, low),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(reach.judge("host", SocketAddr::new(outer.into(), 80)).is_ok(), plain, "{}", outer);
            }
        }
    }
}
