//! The compiled matches of one rule of a plugin.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{MatchRule, Request, Traffic, Verb};

use crate::non_resource::{NonResource, NonResourceRule};
use crate::pattern::Lists;
use crate::resource::{MatchKind, Resource, ResourceRule};
use crate::rest::{Rest, RestRule};

/// Maximum length of a rule's name, which is part of state keys, metric labels and answers.
const MAX_NAME_BYTES: usize = 128;

/// Checks the name of a rule: 1 to 128 bytes without line breaks or other control characters.
///
/// # Errors
///
/// If the name is invalid.
pub fn checked_name(name: &str) -> Result<&str, Invalid> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
        let message = format!("{name:?} is no name; write 1 to {MAX_NAME_BYTES} characters without line breaks");
        return Err(Invalid::new(message));
    }
    Ok(name)
}

/// The matches of one rule of a plugin, any of which is enough. Empty by default.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    resources: Vec<Resource>,
    non_resources: Vec<NonResource>,
    rests: Vec<Rest>,
}

impl Rules {
    /// The three lists of a breaker's or limit's rule, all of them with required lists.
    ///
    /// # Errors
    ///
    /// If a rule is invalid; names the list, the index and the field.
    pub fn required(
        resources: Option<&[ResourceRule]>,
        non_resources: Option<&[NonResourceRule]>,
        rests: Option<&[RestRule]>,
    ) -> Result<Self, Invalid> {
        let mut rules = Self::default();
        let added = rules.add_resources(resources.unwrap_or_default(), Lists::Required);
        added.map_err(|error| error.field("resourceRules"))?;
        let added = rules.add_non_resources(non_resources.unwrap_or_default(), Lists::Required);
        added.map_err(|error| error.field("nonResourceRules"))?;
        let added = rules.add_rests(rests.unwrap_or_default(), Lists::Required);
        added.map_err(|error| error.field("restRules"))?;
        Ok(rules)
    }

    /// Adds rules for requests about resources.
    ///
    /// # Errors
    ///
    /// If a rule is invalid; names index and field, and the caller adds the list.
    pub fn add_resources(&mut self, rules: &[ResourceRule], lists: Lists) -> Result<(), Invalid> {
        for (index, rule) in rules.iter().enumerate() {
            let compiled = Resource::new(rule, lists).map_err(|error| error.index(index))?;
            self.resources.push(compiled);
        }
        Ok(())
    }

    /// Adds rules for requests to the API server that name no resource.
    ///
    /// # Errors
    ///
    /// Like [`Rules::add_resources`].
    pub fn add_non_resources(&mut self, rules: &[NonResourceRule], lists: Lists) -> Result<(), Invalid> {
        for (index, rule) in rules.iter().enumerate() {
            let compiled = NonResource::new(rule, lists).map_err(|error| error.index(index))?;
            self.non_resources.push(compiled);
        }
        Ok(())
    }

    /// Adds rules for calls to external services.
    ///
    /// # Errors
    ///
    /// Like [`Rules::add_resources`].
    pub fn add_rests(&mut self, rules: &[RestRule], lists: Lists) -> Result<(), Invalid> {
        for (index, rule) in rules.iter().enumerate() {
            let compiled = Rest::new(rule, lists).map_err(|error| error.index(index))?;
            self.rests.push(compiled);
        }
        Ok(())
    }

    /// Whether nothing can match, which deserves a warning.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_rules().is_empty()
    }

    /// Verbs of requests that can match; [`Verb::NonResource`] stands for requests that name no resource, and for calls to external
    /// services.
    #[must_use]
    pub fn verbs(&self) -> Vec<Verb> {
        let mut verbs: Vec<Verb> = self.resources.iter().flat_map(Resource::possible_verbs).collect();
        if !self.non_resources.is_empty() || !self.rests.is_empty() {
            verbs.push(Verb::NonResource);
        }
        verbs
    }

    /// Whether the request matches. One for a leader-election lock matches only if a rule names its resource.
    #[must_use]
    pub fn matches(&self, req: &dyn Request) -> bool {
        if req.verb() != Verb::NonResource {
            return match self.match_kind(req) {
                MatchKind::Miss => false,
                MatchKind::Wildcard => !req.is_leader_lock(),
                MatchKind::Named => true,
            };
        }
        match req.traffic() {
            Traffic::Api => self.non_resources.iter().any(|rule| rule.matches(req)),
            Traffic::External => self.rests.iter().any(|rule| rule.matches(req)),
            Traffic::Webhook => false,
        }
    }

    /// Whether the request is about a leader-election lock and matched by name, not by a wildcard.
    #[must_use]
    pub fn names_lock(&self, req: &dyn Request) -> bool {
        self.match_kind(req) == MatchKind::Named && req.is_leader_lock()
    }

    /// The match rules for these rules alone; [`match_rules`](crate::match_rules) keeps the bounds for several.
    pub(crate) fn match_rules(&self) -> Vec<MatchRule> {
        let resources = self.resources.iter().flat_map(Resource::match_rules);
        let non_resources = self.non_resources.iter().filter_map(NonResource::match_rule);
        let rests = self.rests.iter().flat_map(Rest::match_rules);
        resources.chain(non_resources).chain(rests).collect()
    }

    fn match_kind(&self, req: &dyn Request) -> MatchKind {
        let hits = self.resources.iter().map(|rule| rule.match_kind(req));
        hits.max().unwrap_or(MatchKind::Miss)
    }
}
