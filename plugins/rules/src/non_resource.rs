//! Rules for requests to the API server that name no resource: discovery, `/healthz`, `/metrics`.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{MatchRule, Request, Verb};
use serde::Deserialize;

use crate::pattern::{Lists, Patterns};

/// Requests that name no resource, in the terms of `flowcontrol.apiserver.k8s.io` and RBAC.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NonResourceRule {
    /// HTTP methods in any case: `get`. `*` matches every one.
    pub verbs: Option<Vec<String>>,
    /// Decoded paths: `/healthz`; a `*` at the end matches any rest: `/apis/*`.
    #[serde(rename = "nonResourceURLs")]
    pub non_resource_urls: Option<Vec<String>>,
}

/// A validated [`NonResourceRule`].
#[derive(Clone, Debug)]
pub(crate) struct NonResource {
    methods: Patterns,
    paths: Patterns,
}

impl NonResource {
    pub(crate) fn new(rule: &NonResourceRule, lists: Lists) -> Result<Self, Invalid> {
        let verbs = lists.values_of(rule.verbs.as_deref(), "verbs")?;
        let verbs: Vec<String> = verbs.iter().map(|verb| verb.to_ascii_uppercase()).collect();
        let paths = lists.values_of(rule.non_resource_urls.as_deref(), "nonResourceURLs")?;
        let parsed = Patterns::parse(paths).map_err(|error| error.field("nonResourceURLs"))?;
        if let Some(index) = paths.iter().position(|path| !path.starts_with('/') && path != "*") {
            let error = Invalid::new("a path begins with '/'; \"*\" alone is every path");
            return Err(error.index(index).field("nonResourceURLs"));
        }
        Ok(Self {
            methods: Patterns::parse(&verbs).map_err(|error| error.field("verbs"))?,
            paths: parsed,
        })
    }

    /// Matches only requests to the API server that name no resource.
    pub(crate) fn matches(&self, req: &dyn Request) -> bool {
        self.paths.matches(|| req.path()) && self.methods.matches(|| req.method())
    }

    pub(crate) fn match_rule(&self) -> Option<MatchRule> {
        let is_empty = self.methods.is_empty() || self.paths.is_empty();
        (!is_empty).then(|| {
            MatchRule::api()
                .verbs([Verb::NonResource])
                .paths(self.paths.match_rule_texts())
        })
    }
}
