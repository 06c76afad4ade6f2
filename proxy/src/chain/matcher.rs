//! Whether an entry wants a request: the rules of its subscription, compiled.
//!
//! Evaluated for each request of a controller, so it does not allocate: the two closed sets (traffic, verb) are bit masks in one word each,
//! and strings are compared only where a rule names some. Leaves the choice of entries to `snapshot.rs`.

use ctrlmesh_wire::Verb;
use http::HeaderMap;
use http::header::USER_AGENT;

use crate::plugin::request_view::RequestView;
use crate::plugin::verdict::{MatchRule, Subscription, Traffic};

/// All verbs, in the order of [`verb_index`].
pub(crate) const VERBS: [Verb; 11] = [
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Proxy,
    Verb::NonResource,
    Verb::Unknown,
];

/// Number of kinds of traffic; see [`traffic_index`].
pub(crate) const TRAFFICS: usize = 3;

/// The properties of a request that rules match on. All text as parsed, in the terms of `ctrlmesh_wire::RequestInfo`.
#[derive(Debug, Clone, Copy)]
pub struct MatchQuery<'a> {
    pub traffic: Traffic,
    pub verb: Verb,
    /// API group; empty for the core group.
    pub group: &'a str,
    pub resource: &'a str,
    /// Subresource; empty for the resource itself.
    pub subresource: &'a str,
    /// Namespace; empty if there is none.
    pub namespace: &'a str,
    /// Object name; empty if there is none.
    pub name: &'a str,
    pub path: &'a str,
    /// Host name without port.
    pub host: &'a str,
    /// User agent; empty if there is none.
    pub user_agent: &'a str,
}

impl<'a> MatchQuery<'a> {
    /// The properties of a request; `headers` are those of the view.
    pub fn new(view: &'a RequestView, headers: &'a HeaderMap) -> Self {
        let facts = &*view.facts;
        let user_agent = headers.get(USER_AGENT);
        Self {
            traffic: view.traffic,
            verb: facts.verb,
            group: &facts.group,
            resource: &facts.resource,
            subresource: &facts.subresource,
            namespace: &facts.namespace,
            name: &facts.name,
            path: view.uri.path(),
            host: &view.host,
            user_agent: user_agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default(),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Matcher {
    rules: Box<[Rule]>,
}

impl Matcher {
    /// Compiles a subscription's rules.
    #[must_use]
    pub fn new(subscription: &Subscription) -> Self {
        Self {
            rules: subscription.rules.iter().map(Rule::new).collect(),
        }
    }

    /// Whether one rule matches.
    #[must_use]
    pub fn matches(&self, query: &MatchQuery<'_>) -> bool {
        self.rules.iter().any(|rule| rule.matches(query))
    }

    /// Whether some rule might match a request of this traffic and verb. The index's first step is built from this.
    pub(crate) fn may_match(&self, traffic: usize, verb: usize) -> bool {
        self.rules
            .iter()
            .any(|rule| rule.traffic & (1 << traffic) != 0 && rule.verbs & (1 << verb) != 0)
    }
}

/// One rule; all parts must match.
#[derive(Debug, Clone)]
struct Rule {
    traffic: u8,
    verbs: u16,
    resources: Patterns,
    groups: Patterns,
    namespaces: Patterns,
    names: Patterns,
    subresources: Patterns,
    paths: Patterns,
    hosts: Patterns,
    user_agents: Patterns,
}

impl Rule {
    fn new(rule: &MatchRule) -> Self {
        let traffic = rule
            .traffic
            .iter()
            .fold(0, |bits, traffic| bits | 1 << traffic_index(*traffic));
        let verbs = rule.verbs.iter().fold(0, |bits, verb| bits | 1 << verb_index(*verb));
        Self {
            traffic: if rule.traffic.is_empty() { u8::MAX } else { traffic },
            verbs: if rule.verbs.is_empty() { u16::MAX } else { verbs },
            resources: Patterns::new(&rule.resources),
            groups: Patterns::new(&rule.groups),
            namespaces: Patterns::new(&rule.namespaces),
            names: Patterns::new(&rule.names),
            subresources: Patterns::new(&rule.subresources),
            paths: Patterns::new(&rule.paths),
            hosts: Patterns::new(&rule.hosts),
            user_agents: Patterns::new(&rule.user_agents),
        }
    }

    /// Compares the fields in which requests most likely differ first.
    fn matches(&self, query: &MatchQuery<'_>) -> bool {
        self.traffic & (1 << traffic_index(query.traffic)) != 0
            && self.verbs & (1 << verb_index(query.verb)) != 0
            && self.resources.matches(query.resource)
            && self.groups.matches(query.group)
            && self.namespaces.matches(query.namespace)
            && self.subresources.matches(query.subresource)
            && self.names.matches(query.name)
            && self.paths.matches(query.path)
            && self.hosts.matches(query.host)
            && self.user_agents.matches(query.user_agent)
    }
}

/// Values of one field, of which one must match. `None` matches anything.
#[derive(Debug, Clone)]
struct Patterns(Option<Box<[Pattern]>>);

impl Patterns {
    fn new(values: &[String]) -> Self {
        let patterns: Option<Box<[Pattern]>> = values.iter().map(|value| Pattern::new(value)).collect();
        // `collect` returns `None` as soon as one value is "any"; an empty list means the same.
        Self(patterns.filter(|patterns| !patterns.is_empty()))
    }

    fn matches(&self, value: &str) -> bool {
        self.0
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(value)))
    }
}

/// One value of one field.
#[derive(Debug, Clone)]
enum Pattern {
    Exact(Box<str>),
    StartsWith(Box<str>),
    EndsWith(Box<str>),
    Contains(Box<str>),
}

impl Pattern {
    /// Returns `None` for a value that matches anything.
    fn new(value: &str) -> Option<Self> {
        let (start, rest) = value.strip_prefix('*').map_or((false, value), |rest| (true, rest));
        let (end, rest) = rest.strip_suffix('*').map_or((false, rest), |rest| (true, rest));
        match (start, end) {
            (false, false) => Some(Self::Exact(rest.into())),
            _ if rest.is_empty() => None,
            (false, true) => Some(Self::StartsWith(rest.into())),
            (true, false) => Some(Self::EndsWith(rest.into())),
            (true, true) => Some(Self::Contains(rest.into())),
        }
    }

    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value == text.as_ref(),
            Self::StartsWith(text) => value.starts_with(text.as_ref()),
            Self::EndsWith(text) => value.ends_with(text.as_ref()),
            Self::Contains(text) => value.contains(text.as_ref()),
        }
    }
}

/// Position of a verb in [`VERBS`].
pub(crate) const fn verb_index(verb: Verb) -> usize {
    match verb {
        Verb::Get => 0,
        Verb::List => 1,
        Verb::Watch => 2,
        Verb::Create => 3,
        Verb::Update => 4,
        Verb::Patch => 5,
        Verb::Delete => 6,
        Verb::DeleteCollection => 7,
        Verb::Proxy => 8,
        Verb::NonResource => 9,
        Verb::Unknown => 10,
    }
}

/// A kind of traffic as a number below [`TRAFFICS`].
pub(crate) const fn traffic_index(traffic: Traffic) -> usize {
    match traffic {
        Traffic::Api => 0,
        Traffic::Webhook => 1,
        Traffic::External => 2,
    }
}

#[cfg(test)]
pub(crate) mod tests;
