//! Header hygiene between two connections: hop-by-hop fields are removed, all other fields pass unchanged.
//!
//! Rules: RFC 9110 §7.6.1 (Connection), RFC 9112 §9.6, RFC 9113 §8.2.2. A `Connection` that names an end-to-end field (`Connection:
//! Impersonate-User` would turn an impersonated call into the controller's own) is refused, not obeyed.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL,
    TE, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::connection::field_size;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Fields that never pass.
static HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HTTP2_SETTINGS,
];

/// A `Connection` field names a field that is not hop-by-hop.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the Connection header names {0:?}, which is not a connection option")]
pub(crate) struct NotAnOption(String);

/// The `Host` field violates RFC 9112 §3.2. Go's HTTP server, which API servers use, also answers 400.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum HostError {
    #[error("the request has no Host header, which HTTP/1.1 demands")]
    Missing,
    #[error("the request has more than one Host header")]
    Repeated,
    #[error("the Host header holds a character that no host has")]
    Malformed,
}

/// Maximum number of header fields. Go's clients send about ten; a field takes more memory than its bytes.
pub(crate) const MAX_FIELDS: usize = 256;

/// What a walk over the fields of a client's request finds. One walk is cheaper than a lookup for each field. Valid until a field other
/// than a hop-by-hop one is changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FoundFields {
    /// Bytes that the fields count.
    pub(crate) bytes: usize,
    pub(crate) own: OwnFields,
    host: Host,
    has_hop_by_hop: bool,
}

/// Fields of the client's own that the sidecar would add.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OwnFields {
    pub(crate) has_credentials: bool,
    pub(crate) has_user_agent: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Host {
    #[default]
    Missing,
    Valid,
    Malformed,
    Repeated,
}

impl FoundFields {
    pub(crate) fn new(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            found.bytes += field_size(name, value);
            match name.as_str() {
                "host" => found.host = found.host.and(value),
                "user-agent" => found.own.has_user_agent = true,
                "authorization" => found.own.has_credentials = true,
                "sec-websocket-protocol" => found.own.has_credentials |= has_token(value),
                other => found.has_hop_by_hop |= is_hop_by_hop(other),
            }
        }
        found
    }

    /// Checks that there is exactly one `Host`. HTTP/2 has `:authority` instead, and HTTP/1.0 had none.
    ///
    /// # Errors
    /// As in [`HostError`].
    pub(crate) fn check_host(&self, version: Version) -> Result<(), HostError> {
        match self.host {
            Host::Missing if version == Version::HTTP_11 => Err(HostError::Missing),
            Host::Malformed => Err(HostError::Malformed),
            Host::Repeated => Err(HostError::Repeated),
            Host::Missing | Host::Valid => Ok(()),
        }
    }

    /// Removes the hop-by-hop fields from the fields that were walked over. Returns the protocols that the client wants to upgrade to.
    ///
    /// # Errors
    /// The `Connection` field names an end-to-end field.
    pub(crate) fn strip_hop_by_hop(&self, headers: &mut HeaderMap) -> Result<Option<HeaderValue>, NotAnOption> {
        if self.has_hop_by_hop {
            strip_hop_by_hop(headers)
        } else {
            Ok(None)
        }
    }
}

impl OwnFields {
    /// Looks the fields up, for fields that were changed after the walk.
    pub(crate) fn look_up(headers: &HeaderMap) -> Self {
        Self {
            has_credentials: has_credentials(headers),
            has_user_agent: headers.contains_key(USER_AGENT),
        }
    }
}

impl Host {
    /// The same with one more `Host` field.
    fn and(self, value: &HeaderValue) -> Self {
        match self {
            Self::Missing if value.as_bytes().iter().copied().all(is_host_byte) => Self::Valid,
            Self::Missing => Self::Malformed,
            Self::Valid | Self::Malformed | Self::Repeated => Self::Repeated,
        }
    }
}

/// As golang.org/x/net `http/httpguts.ValidHostHeader`.
fn is_host_byte(byte: u8) -> bool {
    // A pattern, because `contains` searches anew for each byte.
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9')
        || matches!(
            byte,
            b'!' | b'$' | b'%' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'-' | b'.'
        )
        || matches!(byte, b':' | b';' | b'=' | b'@' | b'[' | b']' | b'_' | b'~')
}

/// Prefix of the WebSocket subprotocol with which a browser sends its bearer token (k8s.io/apiserver
/// `pkg/authentication/request/websocket/protocol.go`).
const WEBSOCKET_TOKEN: &[u8] = b"base64url.bearer.authorization.k8s.io.";

/// Whether the client sends its own credentials. A request to impersonate a user is not one: it needs the credentials of somebody who may.
fn has_credentials(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION) || headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(has_token)
}

/// Whether one of the WebSocket subprotocols is a bearer token.
pub(crate) fn has_token(protocols: &HeaderValue) -> bool {
    protocols.as_bytes().split(|byte| *byte == b',').any(|protocol| {
        let start = protocol.trim_ascii().get(..WEBSOCKET_TOKEN.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(WEBSOCKET_TOKEN)
    })
}

/// The protocols that the API server and its subresources switch to.
const UPGRADES: [&str; 2] = ["websocket", "SPDY/3.1"];

/// The offered protocols that may pass, in the client's order (RFC 9110 §7.8); `None` if there are none. `h2c` may not, because requests
/// inside it would pass unseen.
fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let offered = headers.get_all(UPGRADE).iter().filter_map(|value| value.to_str().ok());
    let kept: Vec<&str> = offered
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .filter(|protocol| UPGRADES.iter().any(|known| known.eq_ignore_ascii_case(protocol)))
        .collect();
    HeaderValue::from_str(&kept.join(", "))
        .ok()
        .filter(|value| !value.is_empty())
}

/// Whether the protocol that a server has switched to was offered to it.
pub(crate) fn is_offered(offered: &HeaderValue, switched: &HeaderMap) -> bool {
    let offered = offered.to_str().unwrap_or_default();
    let mut chosen = switched.get_all(UPGRADE).iter();
    match (chosen.next().and_then(|value| value.to_str().ok()), chosen.next()) {
        (Some(chosen), None) => offered
            .split(", ")
            .any(|protocol| protocol.eq_ignore_ascii_case(chosen.trim())),
        _ => false,
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) -> Result<Option<HeaderValue>, NotAnOption> {
    let mut upgrade = false;
    for value in headers.get_all(CONNECTION) {
        let text = value
            .to_str()
            .map_err(|_| NotAnOption("bytes outside ASCII".to_owned()))?;
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            if option.eq_ignore_ascii_case("upgrade") {
                upgrade = true;
            } else if !is_connection_option(option) {
                return Err(NotAnOption(option.to_owned()));
            }
        }
    }
    let protocols = if upgrade { requested_upgrade(headers) } else { None };
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    Ok(protocols)
}

fn is_connection_option(option: &str) -> bool {
    option.eq_ignore_ascii_case("close") || HOP_BY_HOP.iter().any(|name| option.eq_ignore_ascii_case(name.as_str()))
}

/// Fields between a client and its proxy (RFC 9110 §11.7).
const PROXY: [HeaderName; 3] = [
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-authentication-info"),
];

/// Removes the hop-by-hop fields of a message that a forward proxy passes on: the standard ones, and those that its `Connection` names. The
/// sidecar depends on none of the fields that a client could name there.
pub(crate) fn strip_forwarded(headers: &mut HeaderMap) {
    // A proxy that forwards a message with both must not forward `Content-Length` (RFC 9112 §6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|text| text.split(','))
            .filter_map(|option| option.trim().parse().ok())
            // `Connection` must not remove framing and target.
            .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP.iter().chain(&PROXY) {
        headers.remove(name);
    }
}

/// Removes the hop-by-hop fields of a response.
pub(crate) fn strip_response(headers: &mut HeaderMap) {
    if !headers.keys().any(|name| is_hop_by_hop(name.as_str())) {
        return;
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Whether the field is one of [`HOP_BY_HOP`]. Most messages have none of these: one walk is cheaper than a lookup for each, and a text is
/// compared by its length first.
fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection" | "keep-alive" | "proxy-connection" | "te" | "transfer-encoding" | "upgrade" | "http2-settings"
    )
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::connection::head_size;

    fn header_map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    fn strip(headers: &mut HeaderMap) -> Result<Option<HeaderValue>, NotAnOption> {
        FoundFields::new(headers).strip_hop_by_hop(headers)
    }

    fn some_fields() -> impl Strategy<Value = HeaderMap> {
        let mut names = HOP_BY_HOP.to_vec();
        names.extend([HOST, AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, USER_AGENT, CONTENT_LENGTH]);
        let values = vec!["", "a", "a b", "v4, base64url.bearer.authorization.k8s.io.eHk"];
        prop::collection::vec((select(names), select(values)), 0..8).prop_map(|fields| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(name, HeaderValue::from_static(value));
            }
            headers
        })
    }

    proptest! {
        #[test]
        fn walk_finds_what_lookups_find(headers in some_fields()) {
            let found = FoundFields::new(&headers);
            prop_assert_eq!(found.own, OwnFields::look_up(&headers));
            prop_assert_eq!(found.has_hop_by_hop, HOP_BY_HOP.iter().any(|name| headers.contains_key(name)));
            let mut hosts = headers.get_all(HOST).iter();
            let expected = match (hosts.next(), hosts.next()) {
                (None, _) => Err(HostError::Missing),
                (Some(_), Some(_)) => Err(HostError::Repeated),
                (Some(host), None) if host.as_bytes().contains(&b' ') => Err(HostError::Malformed),
                (Some(_), None) => Ok(()),
            };
            prop_assert_eq!(found.check_host(Version::HTTP_11), expected);
            prop_assert_eq!("/".len() + found.bytes, head_size(&Uri::from_static("/"), &headers));
        }
    }

    #[test]
    fn all_hop_by_hop_fields_are_recognized() {
        assert!(HOP_BY_HOP.iter().all(|name| is_hop_by_hop(name.as_str())));
        assert!(!is_hop_by_hop(HOST.as_str()));
    }

    #[test]
    fn host_has_bytes_of_go() {
        let others = b"!$%&'()*+,-.:;=@[]_~";
        for byte in 0..=u8::MAX {
            let is_known = byte.is_ascii_alphanumeric() || others.contains(&byte);
            assert_eq!(is_host_byte(byte), is_known, "{byte}");
        }
    }

    #[test]
    fn hop_by_hop_fields_are_removed_and_others_pass() {
        let mut headers = header_map(&[
            ("connection", "keep-alive, TE"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("accept", "a"),
        ]);
        assert_eq!(strip(&mut headers), Ok(None));
        assert_eq!(headers, header_map(&[("accept", "a")]));
    }

    #[test]
    fn upgrade_is_recognized_and_h2c_is_not_one() {
        let mut headers = header_map(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert_eq!(strip(&mut headers), Ok(Some(HeaderValue::from_static("SPDY/3.1"))));
        let mut headers = header_map(&[("connection", "upgrade, http2-settings"), ("upgrade", "h2c")]);
        assert_eq!(strip(&mut headers), Ok(None));
        let mut headers = header_map(&[("upgrade", "websocket")]);
        assert_eq!(strip(&mut headers), Ok(None), "without Connection it is no upgrade");
    }

    #[test]
    fn only_websocket_and_spdy_upgrades_pass() {
        for (offered, passed) in [
            (&["h2c, websocket"][..], Some("websocket")),
            (&["H2C"], None),
            (&["h2c", "SPDY/3.1"], Some("SPDY/3.1")),
            (&["WebSocket ,\tspdy/3.1,TLS/1.0"], Some("WebSocket, spdy/3.1")),
            (&["websocket2", "", ","], None),
        ] {
            let mut headers = header_map(&[("connection", "upgrade")]);
            for value in offered {
                headers.append(UPGRADE, HeaderValue::from_str(value).unwrap());
            }
            let kept = strip(&mut headers).unwrap();
            assert_eq!(kept, passed.map(HeaderValue::from_static), "{offered:?}");
        }
    }

    #[test]
    fn switch_to_unoffered_protocol_is_detected() {
        let offered = HeaderValue::from_static("websocket, SPDY/3.1");
        assert!(is_offered(&offered, &header_map(&[("upgrade", "spdy/3.1")])));
        assert!(!is_offered(&offered, &header_map(&[("upgrade", "h2c")])));
        assert!(!is_offered(&offered, &HeaderMap::new()));
    }

    #[test]
    fn websocket_token_is_clients_own_identity() {
        for (name, value, expected) in [
            ("authorization", "", true),
            (
                "sec-websocket-protocol",
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.eHk",
                true,
            ),
            ("sec-websocket-protocol", "Base64URL.bearer.authorization.k8s.io.", true),
            ("sec-websocket-protocol", "v4.channel.k8s.io", false),
            ("impersonate-user", "jane", false),
        ] {
            let headers = header_map(&[(name, value)]);
            let found = FoundFields::new(&headers).own.has_credentials;
            assert_eq!(
                (has_credentials(&headers), found),
                (expected, expected),
                "{name}: {value}"
            );
        }
    }

    #[test]
    fn http1_requests_have_one_host() {
        let check = |version, hosts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, HeaderValue::from_static(host));
            }
            FoundFields::new(&headers).check_host(version)
        };
        assert_eq!(check(Version::HTTP_11, &[]), Err(HostError::Missing));
        assert_eq!(check(Version::HTTP_11, &["a", "a"]), Err(HostError::Repeated));
        assert_eq!(check(Version::HTTP_2, &["a", "b"]), Err(HostError::Repeated));
        assert_eq!(check(Version::HTTP_11, &["a/b"]), Err(HostError::Malformed));
        for (version, hosts) in [
            (Version::HTTP_11, &["[fe80::1%25eth0]:1"][..]),
            (Version::HTTP_11, &[""]),
            (Version::HTTP_10, &[]),
            (Version::HTTP_2, &[]),
        ] {
            assert_eq!(check(version, hosts), Ok(()), "{version:?} {hosts:?}");
        }
    }

    #[test]
    fn forward_proxy_removes_fields_named_by_connection_and_proxy_fields() {
        let mut headers = header_map(&[
            ("connection", "close, x-hop, Content-Length"),
            ("x-hop", "1"),
            ("content-length", "3"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("authorization", "Bearer x"),
            ("upgrade", "websocket"),
            ("te", "trailers"),
        ]);
        strip_forwarded(&mut headers);
        assert_eq!(
            headers,
            header_map(&[("content-length", "3"), ("authorization", "Bearer x")])
        );
    }

    #[test]
    fn connection_can_not_remove_end_to_end_field() {
        for name in ["Impersonate-User", "authorization", "content-length"] {
            let mut headers = HeaderMap::new();
            headers.append(CONNECTION, HeaderValue::from_static("close"));
            headers.append(CONNECTION, HeaderValue::from_str(name).unwrap());
            assert_eq!(strip(&mut headers), Err(NotAnOption(name.to_owned())));
        }
    }
}
