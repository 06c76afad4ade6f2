//! What a controller may call at all, outside of the API server: lists of hosts with methods. A deny list is stronger than
//! an allow list; as soon as there is an allow list, what is on none is refused.

use ctrlmesh_plugin_rules::HostPattern;
use ctrlmesh_sdk::Request;
use ctrlmesh_sdk::settings::Invalid;

use crate::settings::{ContentType, InterceptRule, InterceptType};

/// All lists of an entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Intercept {
    allow: Vec<List>,
    deny: Vec<List>,
}

#[derive(Clone, Debug)]
struct List {
    name: String,
    /// `None`: every host.
    hosts: Option<Vec<HostPattern>>,
    /// Upper case. `None`: every method.
    methods: Option<Vec<String>>,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied<'a> {
    /// It is on this list.
    By(&'a str),
    /// It is on no list of those that there are.
    NotAllowed,
}

impl Intercept {
    pub(crate) fn new(rules: &[InterceptRule]) -> Result<Self, Invalid> {
        let mut intercept = Self::default();
        for (index, rule) in rules.iter().enumerate() {
            let list = List::new(rule).map_err(|error| error.index(index))?;
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

    /// For a call to another service.
    pub(crate) fn check(&self, req: &dyn Request) -> Result<(), Denied<'_>> {
        if let Some(list) = self.deny.iter().find(|list| list.has(req)) {
            return Err(Denied::By(&list.name));
        }
        if self.allow.is_empty() || self.allow.iter().any(|list| list.has(req)) {
            Ok(())
        } else {
            Err(Denied::NotAllowed)
        }
    }
}

impl List {
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

    fn has(&self, req: &dyn Request) -> bool {
        let is_method = self
            .methods
            .as_ref()
            .is_none_or(|methods| methods.contains(&req.method()));
        is_method && (self.hosts.as_ref()).is_none_or(|hosts| hosts.iter().any(|pattern| pattern.matches(req)))
    }
}
