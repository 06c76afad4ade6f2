//! The rules for nf_tables (`include/uapi/linux/netfilter/nf_tables.h`): a table of the sidecar's own, replaced as a whole.
//!
//! The rules, as `nft list table ip ctrlmesh` shows them:
//!
//! ```text
//! chain output {
//!     type nat hook output priority -101; policy accept;
//!     meta skuid 1359 return
//!     ip daddr 10.96.0.1 tcp dport 443 redirect to :5443
//! }
//! ```

use std::net::{IpAddr, SocketAddr};

use super::message::{ACKNOWLEDGE, APPEND, Attributes, CREATE, Message, REQUEST};

const TABLE: &str = "ctrlmesh";
const CHAIN: &str = "output";

/// `NF_INET_LOCAL_OUT`: packets that programs in the pod send.
const HOOK_OUTPUT: u32 = 3;
/// One before iptables' own (`NF_IP_PRI_NAT_DST`, -100): the first translation wins, and another mesh's could take all traffic.
const PRIORITY: i32 = -101;

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

const fn nf_tables(message: u16) -> u16 {
    (SUBSYSTEM << 8) | message
}
const NEW_TABLE: u16 = nf_tables(0);
const DELETE_TABLE: u16 = nf_tables(2);
const NEW_CHAIN: u16 = nf_tables(3);
const NEW_RULE: u16 = nf_tables(6);

/// `NFT_REG_1`. The expressions of a rule run one after another, so a single register is enough.
const REGISTER: u32 = 1;
const REGISTER_VERDICT: u32 = 0;
/// `NFT_RETURN`, -5: returns to the chain's policy, which accepts the packet.
const RETURN: u32 = 0xffff_fffb;
const META_SKUID: u32 = 10;
const META_L4PROTO: u32 = 16;
const PAYLOAD_NETWORK: u32 = 1;
const PAYLOAD_TRANSPORT: u32 = 2;
const EQUAL: u32 = 0;
const TCP: u8 = 6;
/// Offset of the destination port in TCP's header.
const PORT_OFFSET: u32 = 2;

/// Each address family has its own table: NAT in a table for both needs Linux 5.2, and a kernel may lack IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub(super) const fn family_of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
    const fn family_number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// Offset of the destination address in the family's header.
    const fn destination_offset(self) -> u32 {
        match self {
            Self::V4 => 16,
            Self::V6 => 24,
        }
    }
}

/// The redirected traffic and its new destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Redirect<'a> {
    /// API servers, all of one family.
    pub(super) servers: &'a [SocketAddr],
    /// Port of the sidecar on the family's loopback address.
    pub(super) port: u16,
    /// User whose traffic is not redirected.
    pub(super) user: u32,
}

/// The batch after which these rules are the sidecar's only ones in a family; without servers no table is left. It comes into force as a
/// whole, or not at all.
pub(super) fn rule_batch(family: Family, redirect: &Redirect<'_>) -> Vec<Message> {
    let message = |kind, flags, attributes| Message {
        kind,
        flags: REQUEST | ACKNOWLEDGE | flags,
        family: family.family_number(),
        resource: 0,
        attributes,
    };
    // Ensures that there is a table to delete.
    let mut messages = vec![
        batch_end(BATCH_BEGIN),
        message(NEW_TABLE, CREATE, table_attributes()),
        message(DELETE_TABLE, 0, table_attributes()),
    ];
    if !redirect.servers.is_empty() {
        messages.push(message(NEW_TABLE, CREATE, table_attributes()));
        messages.push(message(NEW_CHAIN, CREATE, chain_attributes()));
        let rules = redirect
            .servers
            .iter()
            .map(|server| redirect_expressions(*server, redirect.port));
        for expressions in std::iter::once(return_expressions(redirect.user)).chain(rules) {
            messages.push(message(NEW_RULE, CREATE | APPEND, rule_attributes(&expressions)));
        }
    }
    messages.push(batch_end(BATCH_END));
    messages
}

fn batch_end(kind: u16) -> Message {
    Message {
        kind,
        flags: REQUEST,
        family: 0,
        resource: SUBSYSTEM,
        attributes: Attributes::new(),
    }
}

fn table_attributes() -> Attributes {
    const NAME: u16 = 1;
    const FLAGS: u16 = 2;
    Attributes::new().text(NAME, TABLE).with_number(FLAGS, 0)
}

fn chain_attributes() -> Attributes {
    const TABLE_NAME: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const TYPE: u16 = 7;
    const NUMBER: u16 = 1;
    const AT: u16 = 2;
    let hook = Attributes::new()
        .with_number(NUMBER, HOOK_OUTPUT)
        .with_number(AT, PRIORITY.cast_unsigned());
    Attributes::new()
        .text(TABLE_NAME, TABLE)
        .text(NAME, CHAIN)
        .with_nested(HOOK, &hook)
        .text(TYPE, "nat")
}

fn rule_attributes(expressions: &Attributes) -> Attributes {
    const TABLE_NAME: u16 = 1;
    const CHAIN_NAME: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    Attributes::new()
        .text(TABLE_NAME, TABLE)
        .text(CHAIN_NAME, CHAIN)
        .with_nested(EXPRESSIONS, expressions)
}

fn return_expressions(user: u32) -> Attributes {
    const CODE: u16 = 1;
    const VERDICT: u16 = 2;
    let verdict = Attributes::new().with_number(CODE, RETURN);
    let content = Attributes::new().with_nested(VERDICT, &verdict);
    let expressions = add_meta(Attributes::new(), META_SKUID);
    // The register holds it in this machine's byte order.
    let expressions = add_comparison(expressions, &user.to_ne_bytes());
    add_immediate(expressions, REGISTER_VERDICT, &content)
}

fn redirect_expressions(server: SocketAddr, port: u16) -> Attributes {
    const VALUE: u16 = 1;
    let offset = Family::family_of(server.ip()).destination_offset();
    let octets = match server.ip() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let expressions = add_payload(Attributes::new(), PAYLOAD_NETWORK, offset, octets.len());
    let expressions = add_meta(add_comparison(expressions, &octets), META_L4PROTO);
    let expressions = add_payload(add_comparison(expressions, &[TCP]), PAYLOAD_TRANSPORT, PORT_OFFSET, 2);
    let expressions = add_comparison(expressions, &server.port().to_be_bytes());
    let to = Attributes::new().with_bytes(VALUE, &port.to_be_bytes());
    add_redirect(add_immediate(expressions, REGISTER, &to))
}

fn add_expression(list: Attributes, name: &str, content: &Attributes) -> Attributes {
    const ELEMENT: u16 = 1;
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let expression = Attributes::new().text(NAME, name).with_nested(DATA, content);
    list.with_nested(ELEMENT, &expression)
}

fn add_meta(list: Attributes, key: u32) -> Attributes {
    const TO: u16 = 1;
    const KEY: u16 = 2;
    let content = Attributes::new().with_number(KEY, key).with_number(TO, REGISTER);
    add_expression(list, "meta", &content)
}

fn add_payload(list: Attributes, base: u32, offset: u32, length: usize) -> Attributes {
    const TO: u16 = 1;
    const BASE: u16 = 2;
    const OFFSET: u16 = 3;
    const LENGTH: u16 = 4;
    let content = Attributes::new()
        .with_number(TO, REGISTER)
        .with_number(BASE, base)
        .with_number(OFFSET, offset)
        .with_number(LENGTH, u32::try_from(length).unwrap_or(u32::MAX));
    add_expression(list, "payload", &content)
}

/// An expression that ends the rule unless the register has this value.
fn add_comparison(list: Attributes, value: &[u8]) -> Attributes {
    const FROM: u16 = 1;
    const OPERATION: u16 = 2;
    const DATA: u16 = 3;
    const VALUE: u16 = 1;
    let content = Attributes::new()
        .with_number(FROM, REGISTER)
        .with_number(OPERATION, EQUAL)
        .with_nested(DATA, &Attributes::new().with_bytes(VALUE, value));
    add_expression(list, "cmp", &content)
}

fn add_immediate(list: Attributes, register: u32, value: &Attributes) -> Attributes {
    const TO: u16 = 1;
    const DATA: u16 = 2;
    let content = Attributes::new().with_number(TO, register).with_nested(DATA, value);
    add_expression(list, "immediate", &content)
}

/// Redirects to the family's loopback address (`nf_nat_redirect_ipv4`, `nf_nat_redirect_ipv6`), to the port in the register.
fn add_redirect(list: Attributes) -> Attributes {
    const PORT: u16 = 1;
    add_expression(list, "redir", &Attributes::new().with_number(PORT, REGISTER))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// Output of google/nftables for the same rules (`tests/golden/redirects.go`).
    const GOLDEN: &str = include_str!("../../../../tests/golden/redirects.jsonl");

    #[derive(Deserialize)]
    struct Line {
        family: u8,
        servers: Option<Vec<SocketAddr>>,
        port: u16,
        user: u32,
        messages: Vec<String>,
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn messages_are_those_of_google_nftables() {
        let lines: Vec<Line> = GOLDEN.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() >= 7);
        for line in lines {
            let family = Family::ALL
                .into_iter()
                .find(|family| family.family_number() == line.family)
                .unwrap();
            let servers = line.servers.unwrap_or_default();
            let redirect = Redirect {
                servers: &servers,
                port: line.port,
                user: line.user,
            };
            let messages = rule_batch(family, &redirect);
            let encoded: Vec<String> = messages.iter().map(|message| hex::encode(message.encode(0))).collect();
            assert_eq!(encoded, line.messages, "{servers:?}");
        }
    }
}
