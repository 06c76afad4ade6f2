//! Rules for calls to external services, in the shapes of both CRDs.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{MatchRule, Request, Traffic};
use regex_lite::Regex;
use serde::Deserialize;

use crate::endpoint::{Endpoint, HostPattern, compile_regex};
use crate::pattern::Lists;
use crate::url::UrlPattern;

/// Headers that plugins never see (`wit/plugin.wit`).
const HIDDEN: [&str; 2] = ["authorization", "cookie"];

/// Calls to external services. All fields that are set must match.
///
/// CircuitBreaker has `url` and `method`; FaultInjection `host`, `path`, `method` and `headers`, or lists of `url` and
/// `method`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestRule {
    /// URLs with `*` for any characters; `http://b.com/*` also matches `http://b.com`. Without a scheme: any port.
    pub url: Option<OneOrMany>,
    /// `host[:port]`. Without a port: any.
    pub host: Option<TextRule>,
    pub path: Option<TextRule>,
    /// HTTP methods in any case; `*` or an empty text matches every one.
    pub method: Option<OneOrMany>,
    pub headers: Option<Vec<HeaderRule>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "write a text or a list of texts")]
pub enum OneOrMany {
    One(String),
    /// One of these must match.
    Many(Vec<String>),
}

/// An exact text or a regular expression. If both are set, `exact` counts, as in the CRD; if none is set, every text matches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextRule {
    pub exact: Option<String>,
    /// A regular expression that must match somewhere in the text; write `^` and `$` for the whole.
    pub regex: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderRule {
    /// Name, in any case.
    pub name: String,
    /// The whole first value. Absent, empty or `*`: the header only has to be present.
    pub value: Option<String>,
}

/// A validated [`RestRule`].
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    /// `None`: any.
    urls: Option<Vec<UrlPattern>>,
    host: Option<HostPattern>,
    path: Option<PathPattern>,
    /// Upper case. `None`: any.
    methods: Option<Vec<String>>,
    headers: Vec<(String, Option<String>)>,
}

#[derive(Clone, Debug)]
enum PathPattern {
    Exact(String),
    Regex(Regex),
}

impl OneOrMany {
    fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }

    /// Adds the index to the error, if this is a list.
    fn error_at(&self, index: usize, error: Invalid) -> Invalid {
        match self {
            Self::One(_) => error,
            Self::Many(_) => error.index(index),
        }
    }
}

impl TextRule {
    fn exact(&self) -> Option<&str> {
        self.exact.as_deref().filter(|text| !text.is_empty())
    }

    fn regex_text(&self) -> Option<&str> {
        self.regex.as_deref().filter(|text| !text.is_empty())
    }

    fn host(&self) -> Result<Option<HostPattern>, Invalid> {
        if let Some(text) = self.exact() {
            return HostPattern::exact(text).map(Some).map_err(|error| error.field("exact"));
        }
        let pattern = self.regex_text().map(HostPattern::regex).transpose();
        pattern.map_err(|error| error.field("regex"))
    }

    fn path(&self) -> Result<Option<PathPattern>, Invalid> {
        if let Some(text) = self.exact() {
            return Ok(Some(PathPattern::Exact(text.to_owned())));
        }
        let pattern = self.regex_text().map(compile_regex).transpose();
        Ok(pattern.map_err(|error| error.field("regex"))?.map(PathPattern::Regex))
    }
}

impl Rest {
    pub(crate) fn new(rule: &RestRule, lists: Lists) -> Result<Self, Invalid> {
        let has_target = rule.url.is_some() || rule.host.is_some() || rule.path.is_some();
        if lists == Lists::Required && !has_target {
            return Err(Invalid::new("missing; write \"*\" for every URL").field("url"));
        }
        if lists == Lists::Required && rule.method.is_none() {
            return Err(Invalid::new("missing; write \"*\" for every method").field("method"));
        }
        let host = rule.host.as_ref().map(TextRule::host).transpose();
        let path = rule.path.as_ref().map(TextRule::path).transpose();
        Ok(Self {
            urls: rule
                .url
                .as_ref()
                .map(|written| parse_urls(written, lists))
                .transpose()?
                .flatten(),
            host: host.map_err(|error| error.field("host"))?.flatten(),
            path: path.map_err(|error| error.field("path"))?.flatten(),
            methods: rule.method.as_ref().and_then(|written| parse_methods(written, lists)),
            headers: parse_headers(rule.headers.as_deref().unwrap_or_default())
                .map_err(|error| error.field("headers"))?,
        })
    }

    /// Matches only calls to external services.
    pub(crate) fn matches(&self, req: &dyn Request) -> bool {
        if let Some(methods) = &self.methods
            && !methods.contains(&req.method())
        {
            return false;
        }
        let is_host = self.host.as_ref().is_none_or(|host| host.matches(req));
        let is_path = || match &self.path {
            None => true,
            Some(PathPattern::Exact(exact)) => *exact == req.path(),
            Some(PathPattern::Regex(regex)) => regex.is_match(&req.path()),
        };
        let is_url = || {
            self.urls.as_ref().is_none_or(|urls| {
                let (endpoint, path) = (Endpoint::from_request(req), req.path());
                urls.iter().any(|url| url.matches(req, &endpoint, &path))
            })
        };
        is_host
            && is_path()
            && is_url()
            && self.headers.iter().all(|(name, value)| {
                let actual = req.header(name);
                actual.is_some_and(|actual| value.as_ref().is_none_or(|value| *value == actual))
            })
    }

    /// One match rule for each URL, or a single one.
    pub(crate) fn match_rules(&self) -> Vec<MatchRule> {
        if self.methods.as_ref().is_some_and(Vec::is_empty) {
            return Vec::new();
        }
        match &self.urls {
            Some(urls) => urls
                .iter()
                .map(|url| external_match_rule([url.wide_host()], url.wide_paths()))
                .collect(),
            None => {
                let path = match &self.path {
                    Some(PathPattern::Exact(path)) => Some(path.clone()),
                    Some(PathPattern::Regex(_)) | None => None,
                };
                let host = self.host.as_ref().and_then(HostPattern::host);
                vec![external_match_rule(host.map(str::to_owned), path)]
            }
        }
    }
}

/// Leaves IPv6 addresses unrestricted: a host may show them with or without brackets.
fn external_match_rule(hosts: impl IntoIterator<Item = String>, paths: impl IntoIterator<Item = String>) -> MatchRule {
    let hosts = hosts.into_iter().filter(|host| !host.contains(':'));
    MatchRule::of(Traffic::External).hosts(hosts).paths(paths)
}

/// `None`: any.
fn parse_urls(written: &OneOrMany, lists: Lists) -> Result<Option<Vec<UrlPattern>>, Invalid> {
    let texts = written.texts();
    if texts.is_empty() && lists == Lists::AbsentIsAll {
        return Ok(None);
    }
    let parse = |(index, text): (usize, &String)| {
        UrlPattern::parse(text).map_err(|error| written.error_at(index, error).field("url"))
    };
    texts.iter().enumerate().map(parse).collect::<Result<_, _>>().map(Some)
}

/// `None`: any.
fn parse_methods(written: &OneOrMany, lists: Lists) -> Option<Vec<String>> {
    let texts = written.texts();
    let is_any = texts.iter().any(|text| text.is_empty() || text == "*");
    if is_any || texts.is_empty() && lists == Lists::AbsentIsAll {
        return None;
    }
    Some(texts.iter().map(|text| text.to_ascii_uppercase()).collect())
}

fn parse_headers(written: &[HeaderRule]) -> Result<Vec<(String, Option<String>)>, Invalid> {
    let check = |(index, header): (usize, &HeaderRule)| {
        let name = header.name.to_ascii_lowercase();
        if name.is_empty() || HIDDEN.contains(&name.as_str()) {
            let message = format!("{:?} can't be matched: a plugin is not shown credentials", header.name);
            return Err(Invalid::new(message).field("name").index(index));
        }
        let value = header.value.clone().filter(|value| !value.is_empty() && value != "*");
        Ok((name, value))
    };
    written.iter().enumerate().map(check).collect()
}
