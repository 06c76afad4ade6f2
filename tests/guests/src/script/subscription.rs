//! Match rules, as JSON.

use ctrlmesh_sdk::{MatchRule, Traffic, Verb};
use serde::Deserialize;

/// One match rule, with the fields of the contract.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RuleLine {
    traffic: Vec<TrafficText>,
    verbs: Vec<VerbText>,
    groups: Vec<String>,
    resources: Vec<String>,
    subresources: Vec<String>,
    namespaces: Vec<String>,
    names: Vec<String>,
    paths: Vec<String>,
    hosts: Vec<String>,
    user_agents: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TrafficText {
    Api,
    Webhook,
    External,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum VerbText {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    Deletecollection,
    Proxy,
    NonResource,
}

impl From<RuleLine> for MatchRule {
    fn from(rule: RuleLine) -> Self {
        MatchRule {
            traffic: rule.traffic.into_iter().map(Into::into).collect(),
            verbs: rule.verbs.into_iter().map(Into::into).collect(),
            groups: rule.groups,
            resources: rule.resources,
            subresources: rule.subresources,
            namespaces: rule.namespaces,
            names: rule.names,
            paths: rule.paths,
            hosts: rule.hosts,
            user_agents: rule.user_agents,
        }
    }
}

impl From<TrafficText> for Traffic {
    fn from(text: TrafficText) -> Self {
        match text {
            TrafficText::Api => Traffic::Api,
            TrafficText::Webhook => Traffic::Webhook,
            TrafficText::External => Traffic::External,
        }
    }
}

impl From<VerbText> for Verb {
    fn from(text: VerbText) -> Self {
        match text {
            VerbText::Get => Verb::Get,
            VerbText::List => Verb::List,
            VerbText::Watch => Verb::Watch,
            VerbText::Create => Verb::Create,
            VerbText::Update => Verb::Update,
            VerbText::Patch => Verb::Patch,
            VerbText::Delete => Verb::Delete,
            VerbText::Deletecollection => Verb::Deletecollection,
            VerbText::Proxy => Verb::Proxy,
            VerbText::NonResource => Verb::NonResource,
        }
    }
}
