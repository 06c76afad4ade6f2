//! Matches subscriptions with requests: the rules of `match-rule` in `wit/types.wit`, written for clearness. The host
//! has its own, compiled for speed; its tests and this one's keep them in step.

use super::request::TestRequest;
use crate::{MatchRule, Request, Subscription};

pub(super) fn matches(subscription: &Subscription, req: &TestRequest) -> bool {
    subscription.rules.iter().any(|rule| rule_matches(rule, req))
}

fn rule_matches(rule: &MatchRule, req: &TestRequest) -> bool {
    let facts = req.facts();
    is_allowed(&rule.traffic, &facts.traffic)
        && is_allowed(&rule.verbs, &facts.verb)
        && matches_any_pattern(&rule.groups, &facts.group)
        && matches_any_pattern(&rule.resources, &facts.resource)
        && matches_any_pattern(&rule.subresources, &facts.subresource)
        && matches_any_pattern(&rule.namespaces, &facts.namespace)
        && matches_any_pattern(&rule.names, &facts.name)
        && matches_any_pattern(&rule.paths, &req.path())
        && matches_any_pattern(&rule.hosts, &req.host())
        && matches_any_pattern(&rule.user_agents, &req.user_agent())
}

fn is_allowed<T: PartialEq>(allowed: &[T], value: &T) -> bool {
    allowed.is_empty() || allowed.contains(value)
}

fn matches_any_pattern(patterns: &[String], value: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern_matches(pattern, value))
}

fn pattern_matches(pattern: &str, value: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(""), _) => true,
        // `*x*`: both ends are free.
        (Some(rest), Some(_)) => value.contains(rest.strip_suffix('*').unwrap_or(rest)),
        (Some(end), None) => value.ends_with(end),
        (None, Some(start)) => value.starts_with(start),
        (None, None) => value == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phases, Verb};

    #[test]
    fn stars_match_at_either_end_and_alone() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "a", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*c", "abc", true),
            ("*c", "cb", false),
            ("*b*", "abc", true),
            ("a*c", "abc", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(
                pattern_matches(pattern, value),
                expected,
                "{pattern:?} against {value:?}"
            );
        }
    }

    #[test]
    fn all_set_fields_of_one_rule_must_match_and_one_rule_is_enough() {
        let pods_or_nodes = Subscription::new(
            Phases::ON_REQUEST,
            [
                MatchRule::api()
                    .verbs([Verb::List])
                    .groups([""])
                    .resources(["pods"])
                    .namespaces(["a"]),
                MatchRule::api().resources(["nodes"]),
            ],
        );
        assert!(matches(&pods_or_nodes, &TestRequest::list("", "pods").namespace("a")));
        assert!(!matches(&pods_or_nodes, &TestRequest::list("", "pods").namespace("b")));
        assert!(!matches(&pods_or_nodes, &TestRequest::watch("", "pods").namespace("a")));
        assert!(matches(&pods_or_nodes, &TestRequest::get("", "nodes", "n1")));
        assert!(!matches(
            &pods_or_nodes,
            &TestRequest::external("GET", "example.com", "/nodes")
        ));
    }

    /// A field of a rule, a rule by it that matches the request below, and one that does not.
    fn rules_by_field() -> Vec<(&'static str, MatchRule, MatchRule)> {
        vec![
            ("traffic", MatchRule::api(), MatchRule::of(crate::Traffic::External)),
            (
                "verbs",
                MatchRule::any().verbs([Verb::Update]),
                MatchRule::any().verbs([Verb::Get]),
            ),
            (
                "groups",
                MatchRule::any().groups(["apps"]),
                MatchRule::any().groups(["other"]),
            ),
            (
                "resources",
                MatchRule::any().resources(["deployments"]),
                MatchRule::any().resources(["other"]),
            ),
            (
                "subresources",
                MatchRule::any().subresources(["status"]),
                MatchRule::any().subresources([""]),
            ),
            (
                "namespaces",
                MatchRule::any().namespaces(["team"]),
                MatchRule::any().namespaces(["other"]),
            ),
            (
                "names",
                MatchRule::any().names(["web"]),
                MatchRule::any().names(["other"]),
            ),
            (
                "paths",
                MatchRule::any().paths(["/apis/*"]),
                MatchRule::any().paths(["/api/*"]),
            ),
            (
                "hosts",
                MatchRule::any().hosts(["*.svc"]),
                MatchRule::any().hosts(["other"]),
            ),
            (
                "user_agents",
                MatchRule::any().user_agents(["operator/*"]),
                MatchRule::any().user_agents(["other"]),
            ),
        ]
    }

    #[test]
    fn each_field_of_match_rule_is_compared() {
        let req = TestRequest::api(Verb::Update, "apps", "deployments")
            .subresource("status")
            .namespace("team")
            .name("web")
            .with_path("/apis/apps/v1/namespaces/team/deployments/web/status")
            .agent("operator/1");
        for (field, right, wrong) in rules_by_field() {
            assert!(rule_matches(&right, &req), "{field}");
            assert!(!rule_matches(&wrong, &req), "{field}");
        }
    }

    #[test]
    fn empty_subscription_matches_no_request() {
        assert!(!matches(&Subscription::none(), &TestRequest::list("", "pods")));
    }
}
