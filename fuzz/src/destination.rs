//! The destination of an external request: a first line with the method, a second one with the request target, then the value of
//! `Mesh-Real-Endpoint` (none if it is empty).

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderValue, Method, Uri};
use rustls_pki_types::ServerName;

use crate::observe::ProxyForm;
use parser::{Destination, ENDPOINT, proxy_form_of};

/// The source file itself: the sidecar's crate would add the plugin engine as a dependency.
#[allow(dead_code, reason = "the sidecar's metrics and logs use the rest")]
#[path = "../../proxy/src/external/destination.rs"]
mod parser;

/// The parts of the sidecar that the parser uses.
mod targets {
    use rustls_pki_types::ServerName;

    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct TargetKey {
        pub(super) is_tls: bool,
        pub(super) name: ServerName<'static>,
        pub(super) port: u16,
    }
}

/// No panic; the host has one spelling, in which no resolver can read an address that the sidecar did not read; and that spelling has the
/// same destination in all three ways.
pub fn destination(data: &[u8]) {
    let (method, rest) = crate::split_line(data);
    let (target, endpoint) = crate::split_line(rest);
    let mut headers = HeaderMap::new();
    if !endpoint.is_empty() {
        let Ok(endpoint) = HeaderValue::from_bytes(endpoint) else {
            return;
        };
        headers.append(ENDPOINT, endpoint);
    }
    let (Ok(method), Ok(uri)) = (Method::from_bytes(method), Uri::try_from(target)) else {
        return;
    };
    let form = proxy_form_of(&method, &headers);
    let Ok(found) = Destination::read(form, &uri, &headers) else {
        return;
    };
    assert_ne!(found.target.port, 0);
    let scheme = found.uri.scheme_str().unwrap_or_default();
    assert_eq!(found.target.is_tls, scheme.eq_ignore_ascii_case("https"));
    assert!(
        !found
            .uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
    );
    one_spelling(&found);
    every_way(&found);
}

fn one_spelling(found: &Destination) {
    let host = found.host();
    match &found.target.name {
        ServerName::IpAddress(address) => {
            let address = IpAddr::from(*address);
            assert_eq!(host.parse::<IpAddr>(), Ok(address), "{host}");
            assert_eq!(
                address.to_canonical(),
                address,
                "an IPv4 address inside is read as itself"
            );
        }
        _ => {
            assert!(!host.is_empty() && !host.ends_with('.') && host.is_ascii(), "{host}");
            assert_eq!(host, host.to_ascii_lowercase());
            assert!(!host.contains(['@', ':', '/', '[', ']', '%', '\\', '?', '#']), "{host}");
            assert_eq!(inet_aton(&host), None, "a resolver reads {host} as an address");
        }
    }
}

/// The same destination as a target URL, in the header, and by CONNECT; also with an upper-case name, or with a trailing dot. Two of those
/// dots are invalid.
fn every_way(found: &Destination) {
    let target = &found.target;
    let host = match target.name {
        ServerName::IpAddress(address) if IpAddr::from(address).is_ipv6() => format!("[{}]", found.host()),
        _ => found.host().into_owned(),
    };
    let mut spellings = vec![host.clone(), host.to_ascii_uppercase()];
    if !host.starts_with('[') {
        spellings.push(format!("{host}."));
        let twice = format!("http://{host}../").parse().expect("a URI");
        assert!(
            Destination::read(ProxyForm::Absolute, &twice, &HeaderMap::new()).is_err(),
            "{twice}"
        );
    }
    for host in spellings {
        let authority = format!("{host}:{}", target.port);
        let url = format!("{}://{authority}/", if target.is_tls { "https" } else { "http" });
        let mut headers = HeaderMap::new();
        let absolute = parse_destination(ProxyForm::Absolute, &url, &headers);
        let connect = parse_destination(ProxyForm::Connect, &authority, &headers);
        headers.append(ENDPOINT, HeaderValue::from_str(&url).expect("a URL is a header value"));
        let header = parse_destination(ProxyForm::Header, "/", &headers);
        assert_eq!((&absolute.target, &header.target), (target, target), "{url}");
        assert_eq!(
            (&connect.target.name, connect.target.port),
            (&target.name, target.port),
            "{authority}"
        );
    }
}

fn parse_destination(form: ProxyForm, target: &str, headers: &HeaderMap) -> Destination {
    let uri = target.parse().unwrap_or_else(|error| panic!("{target}: {error}"));
    Destination::read(form, &uri, headers).unwrap_or_else(|error| panic!("{target}: {error}"))
}

/// Reads numbers and dots like libc's `inet_aton`: one to four parts, decimal, octal or hexadecimal; the last one fills up.
fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u32> = text.split('.').map(parse_number).collect::<Option<_>>()?;
    let (last, bytes) = parts.split_last()?;
    let bits = 8 * (4_u32.checked_sub(u32::try_from(bytes.len()).ok()?)?);
    if bits == 0 || u64::from(*last) >= 1 << bits || bytes.iter().any(|byte| *byte > 255) {
        return None;
    }
    let high = bytes.iter().fold(0_u64, |high, byte| high << 8 | u64::from(*byte));
    u32::try_from(high << bits | u64::from(*last))
        .ok()
        .map(Ipv4Addr::from_bits)
}

fn parse_number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    u32::from_str_radix(digits, radix).ok().filter(|_| is_plain)
}
