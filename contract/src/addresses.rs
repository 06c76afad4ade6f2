//! Addresses to which nobody should be sent by accident: those of the machine itself, of its network alone, and of metadata services,
//! where clouds tell a machine its credentials. The sidecar asks for external traffic, the manager for registries.
//!
//! An address inside another (IPv4 in IPv6: mapped, compatible, translated, NAT64 with any prefix length, 6to4, Teredo, ISATAP) is
//! judged by what is inside. Ranges that are a cluster's own (10/8 and the like) are ordinary addresses. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services beside 169.254.169.254 (which is link-local): Alibaba, Azure, Oracle; AWS and Google over IPv6.
const METADATA: [IpAddr; 6] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // EKS Pod Identity.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// Why an address is not an ordinary one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialAddress {
    /// Where a cloud tells a machine its credentials.
    Metadata,
    /// The machine itself.
    Loopback,
    /// No address: systems take it for the machine itself.
    Unspecified,
    /// A group of machines.
    Multicast,
    /// The network that the machine is connected to; clouds have their metadata service there.
    LinkLocal,
    /// 0.0.0.0/8 of RFC 1122.
    ThisNetwork,
    /// 240.0.0.0/4 of RFC 1112, with the broadcast address.
    Reserved,
    /// Deprecated by RFC 3879, and some systems still route it as link-local.
    SiteLocal,
}

impl fmt::Display for SpecialAddress {
    /// With its article, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "a cloud's metadata service",
            Self::Loopback => "a loopback address",
            Self::Unspecified => "the unspecified address",
            Self::Multicast => "a multicast address",
            Self::LinkLocal => "a link-local address, where clouds have their metadata service",
            Self::ThisNetwork => "an address of this network",
            Self::Reserved => "a reserved address",
            Self::SiteLocal => "a site-local address",
        })
    }
}

/// Why an address is not an ordinary one; `None`: it is.
#[must_use]
pub fn special_address(ip: IpAddr) -> Option<SpecialAddress> {
    let ip = ip.to_canonical();
    let inner = embedded_ipv4_addresses(ip);
    if !inner.is_empty() {
        return inner.into_iter().find_map(|inner| special_address(IpAddr::V4(inner)));
    }
    if let Some(found) = special_behind_unknown_prefix(ip) {
        return Some(found);
    }
    if METADATA.contains(&ip) {
        return Some(SpecialAddress::Metadata);
    }
    if ip.is_loopback() {
        return Some(SpecialAddress::Loopback);
    }
    if ip.is_unspecified() {
        return Some(SpecialAddress::Unspecified);
    }
    if ip.is_multicast() {
        return Some(SpecialAddress::Multicast);
    }
    match ip {
        IpAddr::V4(ip) if ip.is_link_local() => Some(SpecialAddress::LinkLocal),
        IpAddr::V4(ip) if ip.octets()[0] == 0 => Some(SpecialAddress::ThisNetwork),
        IpAddr::V4(ip) if ip.octets()[0] >= 240 => Some(SpecialAddress::Reserved),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(SpecialAddress::LinkLocal),
        IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfec0 => Some(SpecialAddress::SiteLocal),
        _ => None,
    }
}

/// The IPv4 addresses that an IPv6 one of a well-known form holds: mapped and compatible (RFC 4291 §2.5.5), translated (RFC 2765
/// §2.1), NAT64 (RFC 6052 §2.1, RFC 8215), 6to4 (RFC 3056), Teredo (RFC 4380 §4: server and client), ISATAP (RFC 5214 §6.1).
#[must_use]
pub fn embedded_ipv4_addresses(ip: IpAddr) -> Vec<Ipv4Addr> {
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
            lengths
                .into_iter()
                .filter_map(|length| length.embedded_address(ip))
                .collect()
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
    fn embedded_address(self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
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

/// The addresses that a connection to this one may reach: those inside it, also behind a NAT64 prefix of the network's own, or else
/// itself.
#[must_use]
pub fn reachable_through(ip: IpAddr) -> Vec<IpAddr> {
    let inner = embedded_ipv4_addresses(ip);
    if !inner.is_empty() {
        return inner.into_iter().map(IpAddr::V4).collect();
    }
    let behind: Vec<Ipv4Addr> = match ip {
        IpAddr::V6(ip) => Nat64::ALL
            .into_iter()
            .filter_map(|length| length.embedded_address(ip))
            .collect(),
        IpAddr::V4(_) => Vec::new(),
    };
    let is_plausible = |inner: &Ipv4Addr| !inner.is_unspecified();
    let behind = behind.into_iter().filter(is_plausible).map(IpAddr::V4);
    std::iter::once(ip).chain(behind).collect()
}

/// The special address behind a NAT64 prefix of the network's own, which nobody here knows: a loopback, link-local or metadata
/// address where such a prefix would put one. No ordinary address looks like that.
fn special_behind_unknown_prefix(ip: IpAddr) -> Option<SpecialAddress> {
    let IpAddr::V6(ip) = ip else { return None };
    let inner = Nat64::ALL.into_iter().filter_map(|length| length.embedded_address(ip));
    inner
        .filter(|inner| inner.is_loopback() || inner.is_link_local() || METADATA.contains(&IpAddr::V4(*inner)))
        .find_map(|inner| special_address(IpAddr::V4(inner)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Addresses of this machine, of its network alone, or of metadata services.
    const SPECIAL: &[&str] = &[
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
    const ORDINARY: &[&str] = &[
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
    fn special_addresses_are_known_in_every_spelling() {
        for text in SPECIAL {
            assert!(special_address(text.parse().unwrap()).is_some(), "{text}");
        }
        for text in ORDINARY {
            assert_eq!(special_address(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn special_addresses_say_what_they_are() {
        for (text, expected) in [
            ("fd00:ec2::254", SpecialAddress::Metadata),
            ("64:ff9b::6464:64c8", SpecialAddress::Metadata),
            ("::1", SpecialAddress::Loopback),
            ("2001:db8::7f00:1", SpecialAddress::Loopback),
            ("64:ff9b::", SpecialAddress::Unspecified),
            ("169.254.169.254", SpecialAddress::LinkLocal),
            ("255.255.255.255", SpecialAddress::Reserved),
            ("0.1.2.3", SpecialAddress::ThisNetwork),
            ("ff02::1", SpecialAddress::Multicast),
            ("fec0::1", SpecialAddress::SiteLocal),
        ] {
            assert_eq!(special_address(text.parse().unwrap()), Some(expected), "{text}");
        }
    }

    proptest! {
        #[test]
        fn address_inside_another_is_judged_like_itself(bits: u32) {
            let inner = Ipv4Addr::from_bits(bits);
            let [a, b, c, d] = inner.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for outer in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(special_address(outer.into()), special_address(inner.into()), "{}", outer);
            }
        }
    }
}
