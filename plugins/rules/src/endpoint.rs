//! Host and port of a call to an external service, and patterns for them.

use std::net::Ipv6Addr;

use ctrlmesh_sdk::Request;
use ctrlmesh_sdk::settings::Invalid;
use regex_lite::{Regex, RegexBuilder};

/// Maximum length of a regular expression.
const MAX_REGEX_BYTES: usize = 1024;
/// Maximum memory of a compiled regular expression; an instance has 16 MiB in all.
const MAX_REGEX_SIZE: usize = 128 * 1024;

/// Compiles an expression that matches anywhere in a text, as Go's `regexp.MatchString` does.
pub(crate) fn compile_regex(text: &str) -> Result<Regex, Invalid> {
    if text.len() > MAX_REGEX_BYTES {
        let message = format!("{} bytes of regular expression; at most {MAX_REGEX_BYTES}", text.len());
        return Err(Invalid::new(message));
    }
    let built = RegexBuilder::new(text).size_limit(MAX_REGEX_SIZE).build();
    built.map_err(|error| Invalid::new(format!("{text:?} is no regular expression: {error}")))
}

/// The target of a call to an external service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// In lower case, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    pub(crate) fn from_request(req: &dyn Request) -> Self {
        Self {
            host: normal_host(&req.host()),
            port: req.port(),
        }
    }

    fn with_port(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// The host in lower case, and an address without brackets.
pub(crate) fn normal_host(host: &str) -> String {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host).to_ascii_lowercase()
}

/// Splits `host:port`; `None` if the port is no number. `b.com`, `b.com:*` and `::1` have no port.
pub(crate) fn split_port(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
        _ => return Some((normal_host(text), None)),
    };
    let port = if port == "*" { None } else { Some(port.parse().ok()?) };
    Some((normal_host(host), port))
}

/// A pattern for the target `host[:port]` of a call to an external service.
#[derive(Clone, Debug)]
pub struct HostPattern(Shape);

#[derive(Clone, Debug)]
enum Shape {
    Exact { host: String, port: Option<u16> },
    Regex(Regex),
}

impl HostPattern {
    /// `b.com` matches any port, `b.com:8443` only that one.
    ///
    /// # Errors
    ///
    /// If the text is a URL, if the port is no number, or if the host has a colon and is no IPv6 address: no request would match.
    pub fn exact(text: &str) -> Result<Self, Invalid> {
        if text.contains('/') {
            let message = format!("{text:?} is a URL or a path; write host or host:port");
            return Err(Invalid::new(message));
        }
        let Some((host, port)) = split_port(text) else {
            let message = format!("the port of {text:?} is no number from 0 to 65535");
            return Err(Invalid::new(message));
        };
        if host.contains(':') && host.parse::<Ipv6Addr>().is_err() {
            let message = format!("{text:?} is no IPv6 address; write host, host:port or [address]:port");
            return Err(Invalid::new(message));
        }
        Ok(Self(Shape::Exact { host, port }))
    }

    /// A regular expression that must match somewhere in `host` or in `host:port`, both in lower case; write `^` and `$` for
    /// the whole text.
    ///
    /// # Errors
    /// If the text is not a valid regular expression.
    pub fn regex(text: &str) -> Result<Self, Invalid> {
        compile_regex(text).map(|regex| Self(Shape::Regex(regex)))
    }

    /// Whether the target of this request matches.
    #[must_use]
    pub fn matches(&self, req: &dyn Request) -> bool {
        self.is_for(&Endpoint::from_request(req))
    }

    pub(crate) fn is_for(&self, endpoint: &Endpoint) -> bool {
        match &self.0 {
            Shape::Exact { host, port } => *host == endpoint.host && port.is_none_or(|port| port == endpoint.port),
            Shape::Regex(regex) => regex.is_match(&endpoint.host) || regex.is_match(&endpoint.with_port()),
        }
    }

    /// The host for a match rule; `None`: any.
    pub(crate) fn host(&self) -> Option<&str> {
        match &self.0 {
            Shape::Exact { host, .. } => Some(host),
            Shape::Regex(_) => None,
        }
    }
}
