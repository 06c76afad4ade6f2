//! Rules for requests about resources of the Kubernetes API.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{MatchRule, Request, Traffic, Verb};
use serde::Deserialize;

use crate::pattern::{Lists, Patterns, TextPattern};

/// Every verb of a request about a resource, as rules spell it.
const VERBS: [(&str, Verb); 9] = [
    ("get", Verb::Get),
    ("list", Verb::List),
    ("watch", Verb::Watch),
    ("create", Verb::Create),
    ("update", Verb::Update),
    ("patch", Verb::Patch),
    ("delete", Verb::Delete),
    ("deletecollection", Verb::Deletecollection),
    ("proxy", Verb::Proxy),
];

/// The spelling of a verb in rules; empty for requests that name no resource.
#[must_use]
pub fn verb_name(verb: Verb) -> &'static str {
    let names = VERBS.iter().find(|(_, known)| *known == verb);
    names.map_or("none", |(name, _)| *name)
}

/// Subresources whose requests last as long as the client wants (kube-apiserver exempts them from `--max-requests-inflight`).
const LONG_RUNNING: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// Whether a request lasts as long as the client wants, like a watch or a tunnel (`CONNECT`): its end says nothing about the server.
#[must_use]
pub fn is_long_running(req: &dyn Request) -> bool {
    match req.verb() {
        Verb::Watch | Verb::Proxy => true,
        Verb::NonResource => req.traffic() == Traffic::External && req.method() == "CONNECT",
        _ => LONG_RUNNING.contains(&req.subresource()),
    }
}

/// Requests about resources. All fields must match; in each, one value is enough. `*` matches every value; in groups, namespaces, names,
/// and on either side of a resource's `/`, a `*` at one end of a text matches any rest. The plugin decides what an absent or empty list
/// means ([`Lists`]).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceRule {
    /// API groups; `""` is the core group.
    pub api_groups: Option<Vec<String>>,
    /// `pods` matches the resource itself, `pods/status` a subresource, `pods/*` every subresource of pods, `*/scale` that subresource of
    /// every resource, `*` (or `*/*`) every resource and subresource.
    pub resources: Option<Vec<String>>,
    /// Kubernetes verbs, lower case.
    pub verbs: Option<Vec<String>>,
    /// Namespaces; `""` is cluster scope and lists over all namespaces.
    pub namespaces: Option<Vec<String>>,
    /// Names of objects; absent or empty: any. A create has its name in the body, so a rule with names never matches it.
    pub names: Option<Vec<String>>,
}

/// How a rule matches a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MatchKind {
    Miss,
    /// By a wildcard for the resource.
    Wildcard,
    /// By the resource's own name.
    Named,
}

/// A validated [`ResourceRule`].
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    groups: Patterns,
    /// `None`: every resource and subresource.
    resources: Option<Vec<Kind>>,
    verbs: Vec<Verb>,
    namespaces: Patterns,
    names: Patterns,
}

/// One element of `resources`.
#[derive(Clone, Debug)]
struct Kind {
    /// `None`: any.
    resource: Option<TextPattern>,
    subresource: Subresource,
}

#[derive(Clone, Debug)]
enum Subresource {
    /// None: the resource itself.
    Itself,
    /// Any, but not the resource itself.
    Every,
    Of(TextPattern),
}

impl Resource {
    pub(crate) fn new(rule: &ResourceRule, lists: Lists) -> Result<Self, Invalid> {
        let groups = lists.values_of(rule.api_groups.as_deref(), "apiGroups")?;
        let resources = lists.values_of(rule.resources.as_deref(), "resources")?;
        let verbs = lists.values_of(rule.verbs.as_deref(), "verbs")?;
        let namespaces = lists.values_of(rule.namespaces.as_deref(), "namespaces")?;
        let names = Lists::AbsentIsAll.values_of(rule.names.as_deref(), "names")?;
        Ok(Self {
            groups: Patterns::parse(groups).map_err(|error| error.field("apiGroups"))?,
            resources: parse_kinds(resources).map_err(|error| error.field("resources"))?,
            verbs: parse_verbs(verbs).map_err(|error| error.field("verbs"))?,
            namespaces: Patterns::parse(namespaces).map_err(|error| error.field("namespaces"))?,
            names: Patterns::parse(names).map_err(|error| error.field("names"))?,
        })
    }

    /// Reads facts with few values first, and none that does not matter.
    pub(crate) fn match_kind(&self, req: &dyn Request) -> MatchKind {
        if !self.verbs.contains(&req.verb()) || !self.groups.matches(|| req.group()) {
            return MatchKind::Miss;
        }
        let kind = match &self.resources {
            None => MatchKind::Wildcard,
            Some(kinds) => kinds
                .iter()
                .map(|kind| kind.match_kind(req))
                .max()
                .unwrap_or(MatchKind::Miss),
        };
        let is_object = || self.namespaces.matches(|| req.namespace()) && self.names.matches(|| req.name());
        if kind != MatchKind::Miss && is_object() {
            kind
        } else {
            MatchKind::Miss
        }
    }

    /// A create has its name in the body, so it never matches a rule with names.
    pub(crate) fn possible_verbs(&self) -> impl Iterator<Item = Verb> {
        let verbs = self.verbs.iter().copied();
        verbs.filter(|verb| *verb != Verb::Create || self.names.matches(|| ""))
    }

    /// One match rule for each named subresource, because the two lists of a match rule are a product.
    pub(crate) fn match_rules(&self) -> Vec<MatchRule> {
        let is_empty = self.verbs.is_empty()
            || [&self.groups, &self.namespaces, &self.names]
                .iter()
                .any(|patterns| patterns.is_empty());
        if is_empty {
            return Vec::new();
        }
        let rule = MatchRule::api()
            .verbs(self.verbs.iter().copied())
            .groups(self.groups.match_rule_texts())
            .namespaces(self.namespaces.match_rule_texts())
            .names(self.names.match_rule_texts());
        let Some(kinds) = &self.resources else {
            return vec![rule];
        };
        let mut rules: Vec<MatchRule> = Vec::new();
        for kind in kinds {
            let subresources: Vec<String> = match &kind.subresource {
                Subresource::Itself => vec![String::new()],
                Subresource::Every => Vec::new(),
                Subresource::Of(pattern) => vec![pattern.match_rule_text().to_owned()],
            };
            let resource = kind.resource.as_ref().map_or("*", TextPattern::match_rule_text);
            match rules.iter_mut().find(|rule| rule.subresources == subresources) {
                Some(rule) => rule.resources.push(resource.to_owned()),
                None => rules.push(rule.clone().resources([resource]).subresources(subresources)),
            }
        }
        rules
    }
}

impl Kind {
    fn match_kind(&self, req: &dyn Request) -> MatchKind {
        let subresource = req.subresource();
        let is_subresource = match &self.subresource {
            Subresource::Itself => subresource.is_empty(),
            Subresource::Every => !subresource.is_empty(),
            Subresource::Of(pattern) => pattern.matches(subresource) && !subresource.is_empty(),
        };
        match &self.resource {
            _ if !is_subresource => MatchKind::Miss,
            None => MatchKind::Wildcard,
            Some(pattern) if !pattern.matches(req.resource()) => MatchKind::Miss,
            Some(pattern) if pattern.is_exact() => MatchKind::Named,
            Some(_) => MatchKind::Wildcard,
        }
    }
}

/// `None`: everything.
fn parse_kinds(written: &[String]) -> Result<Option<Vec<Kind>>, Invalid> {
    let mut kinds = Vec::with_capacity(written.len());
    let mut has_any = false;
    for (index, text) in written.iter().enumerate() {
        match parse_kind(text).map_err(|error| error.index(index))? {
            Some(kind) => kinds.push(kind),
            None => has_any = true,
        }
    }
    Ok((!has_any).then_some(kinds))
}

fn parse_kind(text: &str) -> Result<Option<Kind>, Invalid> {
    if text == "*" || text == "*/*" {
        return Ok(None);
    }
    let (resource, subresource) = match text.split_once('/') {
        None => (text, Subresource::Itself),
        Some((_, "")) => return Err(Invalid::new(format!("{text:?} has nothing after the '/'"))),
        Some((resource, subresource)) => match TextPattern::parse(subresource)? {
            None => (resource, Subresource::Every),
            Some(pattern) => (resource, Subresource::Of(pattern)),
        },
    };
    if resource.is_empty() || resource.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let message =
            format!("{text:?} is no resource; write its plural name in lower case, such as pods or pods/status");
        return Err(Invalid::new(message));
    }
    let resource = TextPattern::parse(resource)?;
    Ok(Some(Kind { resource, subresource }))
}

fn parse_verbs(written: &[String]) -> Result<Vec<Verb>, Invalid> {
    let mut verbs = Vec::with_capacity(written.len());
    for (index, text) in written.iter().enumerate() {
        match VERBS.iter().find(|(name, _)| name == text) {
            Some((_, verb)) => verbs.push(*verb),
            None if text == "*" => return Ok(VERBS.map(|(_, verb)| verb).to_vec()),
            None => {
                let names = VERBS.map(|(name, _)| name).join(", ");
                return Err(Invalid::new(format!("unknown verb {text:?}; use {names}, or \"*\"")).index(index));
            }
        }
    }
    Ok(verbs)
}
