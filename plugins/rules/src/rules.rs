//! All that one rule of a plugin matches, compiled.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{MatchRule, Request, Traffic, Verb};

use crate::non_resource::{NonResource, NonResourceRule};
use crate::resource::{Hit, Resource, ResourceRule};
use crate::rest::{Rest, RestRule};

/// Longest name of a rule: it is part of keys of the host's state, of metrics' labels, and of answers.
const MAX_NAME_BYTES: usize = 128;

/// The name of a rule: 1 to 128 bytes without line breaks or other control characters.
///
/// # Errors
///
/// What is no such name.
pub fn checked_name(name: &str) -> Result<&str, Invalid> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
        let message = format!("{name:?} is no name; write 1 to {MAX_NAME_BYTES} characters without line breaks");
        return Err(Invalid::new(message));
    }
    Ok(name)
}

/// What a list means that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// It must be there, as in a CircuitBreaker; an empty one matches nothing.
    Required,
    /// Absent or empty, it matches everything, as in a FaultInjection.
    AbsentIsAll,
}

impl Lists {
    /// The values to compare with.
    pub(crate) fn of<'a>(self, written: Option<&'a [String]>, field: &str) -> Result<&'a [String], Invalid> {
        match (self, written) {
            (Self::Required, None) => Err(Invalid::new("missing; write [\"*\"] for all").field(field)),
            (Self::Required, Some(values)) => Ok(values),
            (Self::AbsentIsAll, Some(values)) if !values.is_empty() => Ok(values),
            (Self::AbsentIsAll, _) => Ok(all()),
        }
    }
}

/// `["*"]`.
fn all() -> &'static [String] {
    static ALL: std::sync::LazyLock<[String; 1]> = std::sync::LazyLock::new(|| ["*".to_owned()]);
    &*ALL
}

/// What one rule of a plugin matches: any of these. Nothing at first.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    resources: Vec<Resource>,
    non_resources: Vec<NonResource>,
    rests: Vec<Rest>,
}

impl Rules {
    /// The three lists of a breaker's or a limit's rule, each with its lists required.
    ///
    /// # Errors
    ///
    /// Names the list, the element and its field.
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

    /// Adds requests about resources.
    ///
    /// # Errors
    ///
    /// Names the element and its field; the caller adds the name of the list.
    pub fn add_resources(&mut self, rules: &[ResourceRule], lists: Lists) -> Result<(), Invalid> {
        for (index, rule) in rules.iter().enumerate() {
            let compiled = Resource::new(rule, lists).map_err(|error| error.index(index))?;
            self.resources.push(compiled);
        }
        Ok(())
    }

    /// Adds requests to the API server about no resource.
    ///
    /// # Errors
    ///
    /// As [`Rules::add_resources`].
    pub fn add_non_resources(&mut self, rules: &[NonResourceRule], lists: Lists) -> Result<(), Invalid> {
        for (index, rule) in rules.iter().enumerate() {
            let compiled = NonResource::new(rule, lists).map_err(|error| error.index(index))?;
            self.non_resources.push(compiled);
        }
        Ok(())
    }

    /// Adds calls to other services.
    ///
    /// # Errors
    ///
    /// As [`Rules::add_resources`].
    pub fn add_rests(&mut self, rules: &[RestRule], lists: Lists) -> Result<(), Invalid> {
        for (index, rule) in rules.iter().enumerate() {
            let compiled = Rest::new(rule, lists).map_err(|error| error.index(index))?;
            self.rests.push(compiled);
        }
        Ok(())
    }

    /// Whether nothing can match: a mistake worth a warning.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_rules().is_empty()
    }

    /// Verbs that a request can have that is meant; [`Verb::NonResource`] stands for requests about no resource, and for calls
    /// to other services.
    #[must_use]
    pub fn verbs(&self) -> Vec<Verb> {
        let mut verbs: Vec<Verb> = self.resources.iter().flat_map(Resource::possible_verbs).collect();
        if !self.non_resources.is_empty() || !self.rests.is_empty() {
            verbs.push(Verb::NonResource);
        }
        verbs
    }

    /// Whether the request is meant. One for a leader election's lock is so only if its resource is named.
    #[must_use]
    pub fn matches(&self, req: &dyn Request) -> bool {
        let facts = req.facts();
        match (facts.traffic, facts.verb) {
            (Traffic::Api, Verb::NonResource) => self.non_resources.iter().any(|rule| rule.matches(req)),
            (Traffic::Api, _) => match self.hit(req) {
                Hit::Miss => false,
                Hit::Wildcard => !req.is_leader_lock(),
                Hit::Named => true,
            },
            (Traffic::External, _) => self.rests.iter().any(|rule| rule.matches(req)),
            (Traffic::Webhook, _) => false,
        }
    }

    /// Whether the request is about a leader election's lock, and meant by name and not by a wildcard.
    #[must_use]
    pub fn names_lock(&self, req: &dyn Request) -> bool {
        let facts = req.facts();
        facts.traffic == Traffic::Api && self.hit(req) == Hit::Named && req.is_leader_lock()
    }

    /// What these rules alone have to see; [`match_rules`](crate::match_rules) keeps the bounds for several.
    pub(crate) fn match_rules(&self) -> Vec<MatchRule> {
        let resources = self.resources.iter().flat_map(Resource::match_rules);
        let non_resources = self.non_resources.iter().filter_map(NonResource::match_rule);
        let rests = self.rests.iter().flat_map(Rest::match_rules);
        resources.chain(non_resources).chain(rests).collect()
    }

    fn hit(&self, req: &dyn Request) -> Hit {
        let facts = req.facts();
        let hits = self.resources.iter().map(|rule| rule.hit(facts));
        hits.max().unwrap_or(Hit::Miss)
    }
}
