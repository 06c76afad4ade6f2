//! Rules as a plugin uses them: parsed from settings, compiled, subscribed to and matched.

mod duration;
mod key;
mod properties;
mod resources;
mod rests;
mod settings;

use ctrlmesh_sdk::testing::{Bench, TestRequest};
use ctrlmesh_sdk::{Host, InstanceInfo, Phases, Plugin, Refusal, Request, RequestVerdict, Subscription};
use serde::Deserialize;

use crate::{Lists, NonResourceRule, ResourceRule, RestRule, Rules, match_rules};

/// A plugin that refuses what its rules match.
struct Probe(Rules);

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    resource_rules: Vec<ResourceRule>,
    non_resource_rules: Vec<NonResourceRule>,
    rest_rules: Vec<RestRule>,
    absent_is_all: bool,
}

impl Plugin for Probe {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        let lists = if settings.absent_is_all {
            Lists::AbsentIsAll
        } else {
            Lists::Required
        };
        let mut rules = Rules::default();
        let added = rules.add_resources(&settings.resource_rules, lists);
        added.map_err(|error| error.field("resourceRules"))?;
        let added = rules.add_non_resources(&settings.non_resource_rules, lists);
        added.map_err(|error| error.field("nonResourceRules"))?;
        let added = rules.add_rests(&settings.rest_rules, lists);
        added.map_err(|error| error.field("restRules"))?;
        let subscription = Subscription::new(Phases::ON_REQUEST, match_rules([&rules]));
        Ok((Self(rules), subscription))
    }

    fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
        if self.0.matches(req) {
            RequestVerdict::refuse(Refusal::new(403, "matched"))
        } else {
            RequestVerdict::proceed()
        }
    }
}

/// A bench with one resource rule, with the four lists that the CRD requires.
fn resource_bench(groups: &str, resources: &str, verbs: &str, namespaces: &str) -> Bench<Probe> {
    let settings = format!(
        r#"{{"resourceRules": [{{"apiGroups": {groups}, "resources": {resources}, "verbs": {verbs}, "namespaces": {namespaces}}}]}}"#
    );
    Bench::new(&settings).unwrap()
}

/// A bench with one rule for calls to external services.
fn rest_bench(rule: &str) -> Bench<Probe> {
    Bench::new(&format!(r#"{{"restRules": [{rule}], "absentIsAll": true}}"#)).unwrap()
}

/// Whether the rules match, after checking that the request is subscribed.
fn is_match(bench: &mut Bench<Probe>, req: &TestRequest) -> bool {
    let is_hit = bench.on_request(req) != RequestVerdict::proceed();
    assert!(!is_hit || bench.wakes(req), "matches, but is not subscribed: {req:?}");
    is_hit
}
