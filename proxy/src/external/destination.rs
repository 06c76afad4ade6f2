//! The destination of an external request, read from its target or its header, in one spelling for rules, connections and the wire.
//!
//! Pure. Rules: RFC 9112 §3.2 (forms of a target; the host in the target counts, `Host` does not), RFC 9110 §4.2.4 (no user in a URL),
//! §9.3.6 (CONNECT). A host that one parser could read as an address and another as a name is refused.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::HOST;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderName, Method, Uri};
use rustls_pki_types::ServerName;

use super::targets::TargetKey;
use crate::observe::ProxyForm;

/// Header with the URL that a request is for (KusionStack controller-mesh). Never sent on.
pub(super) const ENDPOINT: HeaderName = HeaderName::from_static("mesh-real-endpoint");

/// Maximum length of path and query, as for API traffic.
const MAX_URI: usize = crate::request::MAX_URI;

/// The form in which a client asked for an external request.
pub(super) fn proxy_form_of(method: &Method, headers: &HeaderMap) -> ProxyForm {
    if method == Method::CONNECT {
        ProxyForm::Connect
    } else if headers.contains_key(ENDPOINT) {
        ProxyForm::Header
    } else {
        ProxyForm::Absolute
    }
}

/// Why a request has no destination. Each message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DestinationError {
    #[error(
        "this port forwards requests to other services: send a whole URL as the request target (HTTP_PROXY), CONNECT host:port \
         (HTTPS_PROXY), or the header Mesh-Real-Endpoint with a URL"
    )]
    NoTarget,
    #[error("the header Mesh-Real-Endpoint must be there once, with a URL such as https://host/path")]
    Endpoint,
    #[error("CONNECT takes host:port and no header Mesh-Real-Endpoint")]
    Connect,
    #[error("only http:// and https:// are forwarded")]
    Scheme,
    #[error("the URL has a user or password in it: send them in the header Authorization")]
    User,
    #[error("{host:?} is no host name")]
    Host { host: String },
    #[error(
        "{host:?} is an odd spelling of an address: write four decimal numbers, or a name that does not end in a number"
    )]
    OddAddress { host: String },
    #[error("port 0 can't be connected to")]
    Port,
    #[error("the request has more than one Host header")]
    ManyHosts,
    #[error("the request has no Host header, which HTTP/1.1 requires (RFC 9112 §3.2)")]
    NoHost,
    #[error("the URL is longer than {limit} bytes")]
    TooLong { limit: usize },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) form: ProxyForm,
    pub(super) target: TargetKey,
    /// For CONNECT, only host and port.
    pub(super) uri: Uri,
}

impl Destination {
    /// Reads the destination of a request that arrived in this form.
    ///
    /// # Errors
    /// The request names none, or an ambiguous one.
    pub(super) fn read(form: ProxyForm, uri: &Uri, headers: &HeaderMap) -> Result<Self, DestinationError> {
        if headers.get_all(HOST).iter().count() > 1 {
            return Err(DestinationError::ManyHosts);
        }
        match form {
            ProxyForm::Connect => Self::connect(uri, headers),
            ProxyForm::Absolute => Self::from_url(form, uri.clone()),
            ProxyForm::Header => {
                let mut fields = headers.get_all(ENDPOINT).iter();
                let (Some(field), None) = (fields.next(), fields.next()) else {
                    return Err(DestinationError::Endpoint);
                };
                let url = field.to_str().ok().and_then(|text| text.trim().parse::<Uri>().ok());
                let url = url.filter(|url| url.scheme().is_some() && url.authority().is_some());
                Self::from_url(form, url.ok_or(DestinationError::Endpoint)?)
            }
        }
    }

    fn connect(uri: &Uri, headers: &HeaderMap) -> Result<Self, DestinationError> {
        let authority = uri.authority().ok_or(DestinationError::Connect)?;
        let is_bare = uri.scheme().is_none() && uri.path_and_query().is_none();
        let port = authority
            .port_u16()
            .filter(|_| is_bare && !headers.contains_key(ENDPOINT));
        let port = port.ok_or(DestinationError::Connect)?;
        Ok(Self {
            form: ProxyForm::Connect,
            target: parse_target_key(authority, port, false)?,
            uri: uri.clone(),
        })
    }

    fn from_url(form: ProxyForm, uri: Uri) -> Result<Self, DestinationError> {
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(DestinationError::NoTarget);
        };
        let (is_tls, default_port) = match scheme {
            scheme if *scheme == Scheme::HTTP => (false, 80),
            scheme if *scheme == Scheme::HTTPS => (true, 443),
            _ => return Err(DestinationError::Scheme),
        };
        if uri
            .path_and_query()
            .is_some_and(|target| target.as_str().len() > MAX_URI)
        {
            return Err(DestinationError::TooLong { limit: MAX_URI });
        }
        // An empty port is the default one (RFC 3986 §3.2.3); any other port that is not a number is invalid.
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str().ends_with(|end: char| end.is_ascii_digit()) && has_bad_port(authority) => {
                return Err(DestinationError::Port);
            }
            None => default_port,
        };
        Ok(Self {
            form,
            target: parse_target_key(authority, port, is_tls)?,
            uri,
        })
    }

    /// Name or address in the form that rules see: lower case, no brackets, no dot at the end.
    pub(super) fn host(&self) -> Cow<'_, str> {
        self.target.name.to_str()
    }
}

/// Whether the host is followed by a number that `http` does not accept as a port: larger than 65535.
fn has_bad_port(authority: &Authority) -> bool {
    authority.as_str().len() > authority.host().len() && authority.port().is_none()
}

fn parse_target_key(authority: &Authority, port: u16, is_tls: bool) -> Result<TargetKey, DestinationError> {
    if authority.as_str().contains('@') {
        return Err(DestinationError::User);
    }
    if port == 0 {
        return Err(DestinationError::Port);
    }
    Ok(TargetKey {
        is_tls,
        name: server_name(authority.host())?,
        port,
    })
}

/// The canonical spelling of a host. An IPv4 address inside an IPv6 one becomes an IPv4 address.
///
/// # Errors
/// The text is not a host, or resembles an address without being written as one.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>, DestinationError> {
    let wrong = || DestinationError::Host { host: host.to_owned() };
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']').and_then(|text| text.parse::<Ipv6Addr>().ok());
        return Ok(ServerName::IpAddress(address.ok_or_else(wrong)?.to_canonical().into()));
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    if let Ok(address) = name.parse::<Ipv4Addr>() {
        return Ok(ServerName::IpAddress(IpAddr::V4(address).into()));
    }
    // One dot at the end marks the name as absolute; the name must not have another.
    if name.ends_with('.') {
        return Err(wrong());
    }
    // The system's resolver reads 2130706433, 0x7f.1 and 0177.0.0.1 as addresses (inet_aton).
    if name.rsplit('.').next().is_some_and(is_number) {
        return Err(DestinationError::OddAddress { host: host.to_owned() });
    }
    match ServerName::try_from(name) {
        Ok(name @ ServerName::DnsName(_)) => Ok(name),
        _ => Err(wrong()),
    }
}

/// A number as the URL standard defines it: digits, or `0x` with hexadecimal digits or nothing.
fn is_number(label: &str) -> bool {
    let digits = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit());
    let hexadecimal = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits || label.strip_prefix("0x").is_some_and(hexadecimal)
}

#[cfg(test)]
#[path = "destination/tests.rs"]
mod tests;
