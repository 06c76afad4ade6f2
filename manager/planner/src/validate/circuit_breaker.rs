//! Rules of a CircuitBreaker.

use std::collections::HashSet;

use ctrlmesh_manager_api::CircuitBreaker;
use ctrlmesh_manager_api::circuit_breaker::{RateLimiting, TriggerPolicy};
use serde_json::json;

use super::rule_check::RuleCheck;
use super::{Findings, resource_names};
use crate::built_in::BuiltIn;
use crate::settings;

pub(crate) fn check_circuit_breaker(breaker: &CircuitBreaker) -> Findings {
    let mut findings = Findings::default();
    let namespace = breaker.metadata.namespace.as_deref().unwrap_or_default();
    breaker.spec.selector.validate("spec.selector", &mut findings.mistakes);
    if breaker.spec.rate_limitings.is_empty() && breaker.spec.traffic_intercept_rules.is_empty() {
        let problem = "has no rule and no effect; write rateLimitings or trafficInterceptRules";
        findings.warnings.add("spec", problem);
    }
    for (index, rule) in breaker.spec.rate_limitings.iter().enumerate() {
        check_misplaced_fields(rule, &format!("spec.rateLimitings[{index}]"), &mut findings);
        let check = RuleCheck {
            plugin: settings::plugin_of(rule),
            namespace,
            settings: json!({"rateLimitings": [settings::plugin_rule(rule)]}),
            rules: "rateLimitings",
            lists: &["resourceRules", "nonResourceRules", "restRules"],
        };
        check.add_mistakes(index, &mut findings);
    }
    for (index, list) in breaker.spec.traffic_intercept_rules.iter().enumerate() {
        let check = RuleCheck {
            plugin: BuiltIn::CircuitBreaker,
            namespace,
            settings: json!({"trafficInterceptRules": [settings::json_of(list)]}),
            rules: "trafficInterceptRules",
            lists: &["contents"],
        };
        check.add_mistakes(index, &mut findings);
    }
    check_unique_names(breaker, &mut findings);
    resource_names::warn_of_names_in_breaker(breaker, &mut findings);
    if findings.is_accepted() {
        check_all_rules(breaker, namespace, &mut findings);
    }
    findings
}

/// Names must be unique. The API server enforces this by `x-kubernetes-list-map-keys`; objects that were made in memory have met no
/// API server.
fn check_unique_names(breaker: &CircuitBreaker, findings: &mut Findings) {
    let rules = breaker.spec.rate_limitings.iter().map(|rule| rule.name.as_str());
    let lists = breaker
        .spec
        .traffic_intercept_rules
        .iter()
        .map(|list| list.name.as_str());
    for (field, names) in [
        ("rateLimitings", rules.collect::<Vec<_>>()),
        ("trafficInterceptRules", lists.collect()),
    ] {
        let mut seen = HashSet::new();
        for (index, name) in names.into_iter().enumerate() {
            if !seen.insert(name) {
                let path = format!("spec.{field}[{index}].name");
                findings.refuse(path, format!("{name:?} is the name of another one too; write another"));
            }
        }
    }
}

/// Checks all rules together for limits on their number.
fn check_all_rules(breaker: &CircuitBreaker, namespace: &str, findings: &mut Findings) {
    let lists: Vec<_> = breaker.spec.traffic_intercept_rules.iter().collect();
    for (plugin, settings) in [
        (BuiltIn::RateLimit, settings::rate_limit(breaker)),
        (BuiltIn::CircuitBreaker, settings::circuit_breaker(breaker, &lists)),
    ] {
        if let Some(settings) = settings {
            findings.ask_whole(plugin, &settings, namespace, &|path| format!("spec.{path}"));
        }
    }
}

/// Refuses fields of rate limits in breakers, and the reverse.
fn check_misplaced_fields(rule: &RateLimiting, path: &str, findings: &mut Findings) {
    let for_limits = [
        ("maxInFlight", rule.max_in_flight.is_some()),
        ("queue", rule.queue.is_some()),
    ];
    let for_breakers = [
        ("trip", rule.trip.is_some()),
        ("failures", rule.failures.is_some()),
        ("probes", rule.probes.is_some()),
        ("recover", rule.recover.is_some()),
    ];
    let is_limit = rule.trigger_policy == TriggerPolicy::LimiterOnly;
    let (without_effect, other) = if is_limit {
        (&for_breakers[..], "another triggerPolicy than LimiterOnly")
    } else {
        (&for_limits[..], "triggerPolicy LimiterOnly")
    };
    for (field, is_written) in without_effect {
        if *is_written {
            let problem = format!("has an effect only with {other}; remove it, or write a rule of its own for it");
            findings.refuse(format!("{path}.{field}"), problem);
        }
    }
}
