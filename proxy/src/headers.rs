//! Header hygiene between two connections: hop-by-hop fields end here, everything else passes as it came.
//!
//! Rules: RFC 9110 §7.6.1 (Connection), RFC 9112 §9.6, RFC 9113 §8.2.2. A `Connection` that names an end-to-end field
//! (`Connection: Impersonate-User` would make an impersonated call the controller's own) is refused, not obeyed.

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

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

/// A `Connection` field names something that is not hop-by-hop.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the Connection header names {0:?}, which is not a connection option")]
pub(crate) struct NotAnOption(String);

/// Removes the hop-by-hop fields; returns the protocol that the client wants to upgrade to.
///
/// # Errors
/// The `Connection` field names an end-to-end field.
pub(crate) fn strip(headers: &mut HeaderMap) -> Result<Option<HeaderValue>, NotAnOption> {
    if !headers.keys().any(is_hop_by_hop) {
        return Ok(None);
    }
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
    let protocol = headers.get(UPGRADE).cloned().filter(|_| upgrade);
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    // h2c by upgrade is not offered (RFC 9113 removed it): such a request is an ordinary one.
    Ok(protocol.filter(|protocol| protocol != "h2c"))
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

/// Removes the hop-by-hop fields of a message that a forward proxy passes on: those that are always such, and those that its
/// `Connection` names. Nothing of ours depends on a field that a client could name there.
pub(crate) fn strip_forwarded(headers: &mut HeaderMap) {
    // Who forwards a message with both sends the length that it knows (RFC 9112 §6.3).
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
            // Framing and target are not the sender's to take away.
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
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Most messages have none of them: one walk is cheaper than a look-up for each.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    HOP_BY_HOP.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn hop_by_hop_fields_end_here_and_the_rest_passes() {
        let mut headers = map(&[
            ("connection", "keep-alive, TE"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("accept", "a"),
        ]);
        assert_eq!(strip(&mut headers), Ok(None));
        assert_eq!(headers, map(&[("accept", "a")]));
    }

    #[test]
    fn an_upgrade_is_told_and_h2c_is_not_one() {
        let mut headers = map(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        assert_eq!(strip(&mut headers), Ok(Some(HeaderValue::from_static("SPDY/3.1"))));
        let mut headers = map(&[("connection", "upgrade, http2-settings"), ("upgrade", "h2c")]);
        assert_eq!(strip(&mut headers), Ok(None));
        let mut headers = map(&[("upgrade", "websocket")]);
        assert_eq!(strip(&mut headers), Ok(None), "without Connection it is no upgrade");
    }

    #[test]
    fn a_forward_proxy_removes_what_connection_names_and_what_was_meant_for_it() {
        let mut headers = map(&[
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
        assert_eq!(headers, map(&[("content-length", "3"), ("authorization", "Bearer x")]));
    }

    #[test]
    fn connection_can_not_remove_an_end_to_end_field() {
        for name in ["Impersonate-User", "authorization", "content-length"] {
            let mut headers = HeaderMap::new();
            headers.append(CONNECTION, HeaderValue::from_static("close"));
            headers.append(CONNECTION, HeaderValue::from_str(name).unwrap());
            assert_eq!(strip(&mut headers), Err(NotAnOption(name.to_owned())));
        }
    }
}
