//! Converts custom resources into settings of the built-in plugins.

use ctrlmesh_manager_api::circuit_breaker::{RateLimiting, TrafficInterceptRule, TriggerPolicy};
use ctrlmesh_manager_api::sharding_config::NamedGets;
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::built_in::BuiltIn;

/// Fields of a rule that have no effect in a rate limit. Validation refuses the last four there.
const NOT_FOR_LIMITS: [&str; 6] = ["recoverPolicy", "properties", "trip", "failures", "probes", "recover"];
/// Fields of a rule that validation refuses in a breaker.
const NOT_FOR_BREAKERS: [&str; 2] = ["maxInFlight", "queue"];

/// The plugin that handles a rule.
pub(crate) const fn plugin_of(rule: &RateLimiting) -> BuiltIn {
    match rule.trigger_policy {
        TriggerPolicy::LimiterOnly => BuiltIn::RateLimit,
        TriggerPolicy::Normal | TriggerPolicy::ForceOpened | TriggerPolicy::ForceClosed => BuiltIn::CircuitBreaker,
    }
}

/// `None`: the object has no rate limits.
pub(crate) fn rate_limit(breaker: &CircuitBreaker) -> Option<Value> {
    let rules = plugin_rules(breaker, BuiltIn::RateLimit);
    (!rules.is_empty()).then(|| json!({"rateLimitings": rules}))
}

/// `lists`: the object's own lists of external services, and allow lists of other objects for the same pods, because what one of
/// them allows is allowed. `None`: the object has no breakers and lists.
pub(crate) fn circuit_breaker(breaker: &CircuitBreaker, lists: &[&TrafficInterceptRule]) -> Option<Value> {
    let rules = plugin_rules(breaker, BuiltIn::CircuitBreaker);
    let lists: Vec<Value> = lists.iter().map(json_of).collect();
    let mut settings = Map::new();
    for (field, list) in [("rateLimitings", rules), ("trafficInterceptRules", lists)] {
        if !list.is_empty() {
            settings.insert(field.to_owned(), list.into());
        }
    }
    (!settings.is_empty()).then_some(Value::Object(settings))
}

/// `None`: the object has no rules.
pub(crate) fn fault_inject(faults: &FaultInjection) -> Option<Value> {
    if faults.spec.http_fault.is_empty() {
        return None;
    }
    let mut settings = json_of(&faults.spec);
    if let Value::Object(fields) = &mut settings {
        fields.retain(|field, _| field != "selector" && field != "disabled");
    }
    Some(settings)
}

/// The limits and the lock of one shard.
pub(crate) fn shard_selector(config: &ShardingConfig) -> Value {
    let limits: Value = config.spec.limits.iter().flatten().map(json_of).collect();
    let mut settings = Map::from_iter([("limits".to_owned(), limits)]);
    if let Some(controller) = &config.spec.controller {
        settings.insert("leaderElectionName".to_owned(), json!(controller.leader_election_name));
        settings.insert("shard".to_owned(), json!(config.metadata.name));
    }
    if config.spec.named_gets != NamedGets::Pass {
        settings.insert("namedGets".to_owned(), json_of(&config.spec.named_gets));
    }
    settings.into()
}

/// A rule in the form that its plugin accepts.
pub(crate) fn plugin_rule(rule: &RateLimiting) -> Value {
    let mut value = json_of(rule);
    let others: &[&str] = match plugin_of(rule) {
        BuiltIn::RateLimit => &NOT_FOR_LIMITS,
        _ => &NOT_FOR_BREAKERS,
    };
    if let Value::Object(fields) = &mut value {
        fields.retain(|field, _| !others.contains(&field.as_str()));
        if is_forced(rule) {
            // The bucket is not used, and in kill switches of KusionStack it contains zeros, which no plugin accepts.
            fields.remove("bucket");
        }
    }
    value
}

const fn is_forced(rule: &RateLimiting) -> bool {
    matches!(
        rule.trigger_policy,
        TriggerPolicy::ForceOpened | TriggerPolicy::ForceClosed
    )
}

fn plugin_rules(breaker: &CircuitBreaker, plugin: BuiltIn) -> Vec<Value> {
    let rules = breaker
        .spec
        .rate_limitings
        .iter()
        .filter(|rule| plugin_of(rule) == plugin);
    rules.map(plugin_rule).collect()
}

pub(crate) fn json_of(value: &impl Serialize) -> Value {
    #[expect(
        clippy::expect_used,
        reason = "the types of `api` have texts as keys, and nothing in them fails to serialise"
    )]
    serde_json::to_value(value).expect("a custom resource is JSON")
}
