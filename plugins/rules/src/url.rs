//! URLs with `*`, as `restRules` of a CircuitBreaker and `url` of a FaultInjection have them.

use ctrlmesh_sdk::Request;
use ctrlmesh_sdk::settings::Invalid;

use crate::endpoint::{Endpoint, split_port};

/// A pattern for URLs.
///
/// The interface shows host, port, decoded path and single query parameters of a request, so these are compared: a scheme stands for its
/// port, and a query for the parameters that it names.
#[derive(Clone, Debug)]
pub(crate) struct UrlPattern {
    host: String,
    /// `None`: any.
    port: Option<u16>,
    path: String,
    query: Vec<(String, String)>,
}

impl UrlPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        let wrong = |what: &str| {
            Invalid::new(format!(
                "{text:?} {what}; write it like https://host[:port]/path, with '*' for any characters"
            ))
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("*", text));
        let default_port = match scheme.to_ascii_lowercase().as_str() {
            "http" => Some(80),
            "https" => Some(443),
            "*" => None,
            _ => return Err(wrong("has an unknown scheme")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') {
            return Err(wrong("has a fragment, which no request carries"));
        }
        if rest == "*" {
            return Ok(Self::new("*", default_port, "/*", query));
        }
        let split = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(split).unwrap_or((rest, ""));
        if authority.is_empty() || authority.contains('@') {
            return Err(wrong("has no host, or a user name"));
        }
        let (host, port) = split_port(authority).ok_or_else(|| wrong("has a port that is no number"))?;
        let port = if authority.ends_with(":*") {
            None
        } else {
            port.or(default_port)
        };
        Ok(Self::new(&host, port, if path.is_empty() { "/" } else { path }, query))
    }

    fn new(host: &str, port: Option<u16>, path: &str, query: &str) -> Self {
        let fields = query.split('&').filter(|field| !field.is_empty());
        Self {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
            query: fields
                .map(|field| field.split_once('=').unwrap_or((field, "")))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    pub(crate) fn matches(&self, req: &dyn Request, endpoint: &Endpoint, path: &str) -> bool {
        self.port.is_none_or(|port| port == endpoint.port)
            && matches_glob(&self.host, &endpoint.host)
            && self.matches_path(path)
            && self.query.iter().all(|(name, value)| {
                let actual = req.query(name);
                actual.is_some_and(|actual| matches_glob(value, &actual))
            })
    }

    /// `/a/*` also matches `/a`, which a rule for everything below means to include.
    fn matches_path(&self, path: &str) -> bool {
        let path = if path.is_empty() { "/" } else { path };
        let folder = self.path.strip_suffix("/*").filter(|folder| !folder.is_empty());
        matches_glob(&self.path, path) || folder.is_some_and(|folder| matches_glob(folder, path))
    }

    /// The host for a match rule.
    pub(crate) fn wide_host(&self) -> String {
        widen_to_prefix(&self.host)
    }

    /// The paths for a match rule.
    pub(crate) fn wide_paths(&self) -> Vec<String> {
        match self.path.strip_suffix("/*") {
            Some(folder) => vec![format!("{}*", widen_to_prefix(folder).trim_end_matches('*'))],
            None if self.path == "/" => vec!["/".to_owned(), String::new()],
            None => vec![widen_to_prefix(&self.path)],
        }
    }
}

/// Whether a text matches a pattern in which each `*` stands for any characters, including `/`.
pub(crate) fn matches_glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|start| text.strip_prefix(start)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(end) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        // The first match is right: it leaves the most to the following parts.
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(end)
}

/// The text up to the first `*`: a prefix that the host's matcher can compare, and that matches at least as much.
pub(crate) fn widen_to_prefix(pattern: &str) -> String {
    match pattern.split_once('*') {
        Some((start, _)) => format!("{start}*"),
        None => pattern.to_owned(),
    }
}
