//! Restricts the calls to external services that a controller may make, by lists of hosts with methods. A deny list wins over an allow
//! list; once there is an allow list, calls that are on none are forbidden.

use ctrlmesh_plugin_rules::HostPattern;
use ctrlmesh_sdk::Request;
use ctrlmesh_sdk::settings::Invalid;

use crate::settings::{ContentType, InterceptRule, InterceptType};

#[derive(Clone, Debug, Default)]
pub(crate) struct Intercept {
    allow: Vec<CallList>,
    deny: Vec<CallList>,
}

#[derive(Clone, Debug)]
struct CallList {
    name: String,
    /// `None` matches every host.
    hosts: Option<Vec<HostPattern>>,
    /// In upper case. `None` matches every method.
    methods: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenialReason<'a> {
    /// A deny list of this name.
    By(&'a str),
    /// Absence from all allow lists.
    NotAllowed,
}

impl Intercept {
    pub(crate) fn new(rules: &[InterceptRule]) -> Result<Self, Invalid> {
        let mut intercept = Self::default();
        for (index, rule) in rules.iter().enumerate() {
            let list = CallList::new(rule).map_err(|error| error.index(index))?;
            match rule.intercept_type {
                InterceptType::Whitelist => intercept.allow.push(list),
                InterceptType::Blacklist => intercept.deny.push(list),
            }
        }
        Ok(intercept)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Checks a call to an external service.
    pub(crate) fn check(&self, req: &dyn Request) -> Result<(), DenialReason<'_>> {
        if let Some(list) = self.deny.iter().find(|list| list.matches_call(req)) {
            return Err(DenialReason::By(&list.name));
        }
        if self.allow.is_empty() || self.allow.iter().any(|list| list.matches_call(req)) {
            Ok(())
        } else {
            Err(DenialReason::NotAllowed)
        }
    }
}

impl CallList {
    fn new(rule: &InterceptRule) -> Result<Self, Invalid> {
        if rule.name.is_empty() {
            return Err(Invalid::new("missing; a refusal names the list").field("name"));
        }
        let pattern = |(index, text): (usize, &String)| {
            let pattern = match rule.content_type {
                ContentType::Normal => HostPattern::exact(text),
                ContentType::Regexp => HostPattern::regex(text),
            };
            pattern.map_err(|error| error.index(index).field("contents"))
        };
        let is_any = rule.content_type == ContentType::Normal && rule.contents.iter().any(|text| text == "*");
        let hosts: Result<Vec<HostPattern>, Invalid> = rule.contents.iter().enumerate().map(pattern).collect();
        let has_any_method = rule.methods.iter().any(|method| method == "*");
        let methods = rule.methods.iter().map(|method| method.to_ascii_uppercase()).collect();
        Ok(Self {
            name: rule.name.clone(),
            hosts: Some(hosts?).filter(|_| !is_any),
            methods: Some(methods).filter(|_| !has_any_method),
        })
    }

    fn matches_call(&self, req: &dyn Request) -> bool {
        let is_method = self
            .methods
            .as_ref()
            .is_none_or(|methods| methods.contains(&req.method()));
        is_method && (self.hosts.as_ref()).is_none_or(|hosts| hosts.iter().any(|pattern| pattern.matches(req)))
    }
}
