//! Properties of any rules: what matches is in the subscription, and globs agree with a slow, simple matcher.

use ctrlmesh_sdk::Verb;
use ctrlmesh_sdk::testing::{Bench, TestRequest};
use proptest::prelude::*;
use serde_json::json;

use super::{Probe, is_match};
use crate::url::{matches_glob, widen_to_prefix};

fn any_values_of(values: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(values), 0..3)
}

/// By definition: a star is empty, or one character and a star.
fn matches_by_definition(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => matches_by_definition(rest, text),
        (Some((b'*', rest)), Some((_, tail))) => {
            matches_by_definition(rest, text) || matches_by_definition(pattern, tail)
        }
        (Some((a, rest)), Some((b, tail))) => a == b && matches_by_definition(rest, tail),
        _ => false,
    }
}

proptest! {
    #[test]
    fn globs_match_by_definition(pattern in "[ab*/]{0,8}", text in "[ab/]{0,10}") {
        let expected = matches_by_definition(pattern.as_bytes(), text.as_bytes());
        prop_assert_eq!(matches_glob(&pattern, &text), expected);
        if expected {
            prop_assert!(matches_by_definition(widen_to_prefix(&pattern).as_bytes(), text.as_bytes()));
        }
    }

    #[test]
    fn subscription_covers_all_matches_of_resource_rules(
        groups in any_values_of(&["", "apps", "*", "*.io"]),
        resources in any_values_of(&["pods", "pods/status", "pods/*", "*/status", "*", "deploy*", "*/s*"]),
        verbs in any_values_of(&["get", "list", "update", "*"]),
        namespaces in any_values_of(&["", "a", "*", "a*"]),
        names in any_values_of(&["x", "y*"]),
        absent_is_all in any::<bool>(),
        verb in prop::sample::select(vec![Verb::Get, Verb::List, Verb::Update, Verb::NonResource]),
        group in prop::sample::select(vec!["", "apps", "b.io"]),
        resource in prop::sample::select(vec!["pods", "deployments"]),
        subresource in prop::sample::select(vec!["", "status", "scale"]),
        namespace in prop::sample::select(vec!["", "a", "ab"]),
        name in prop::sample::select(vec!["", "x", "yy"]),
    ) {
        let settings = json!({"absentIsAll": absent_is_all, "resourceRules": [{"apiGroups": groups, "resources": resources,
            "verbs": verbs, "namespaces": namespaces, "names": names}]});
        let mut bench = Bench::<Probe>::new(&settings.to_string()).unwrap();
        let req = TestRequest::api(verb, group, resource).subresource(subresource).namespace(namespace).name(name);
        is_match(&mut bench, &req);
    }

    #[test]
    fn subscription_covers_all_matches_of_rest_rules(
        scheme in prop::sample::select(vec!["", "http://", "https://", "*://"]),
        host in "[ab*]{1,3}",
        path in prop::sample::select(vec!["", "/", "/*", "/a", "/a/*", "/*/b", "/a*b/*", "*"]),
        req_host in "[abAB]{1,3}",
        req_path in prop::sample::select(vec!["", "/", "/a", "/a/", "/a/b", "/ab/b"]),
        port in prop::sample::select(vec![80_u16, 443, 1]),
    ) {
        let url = format!("{scheme}{host}{path}");
        let settings = json!({"restRules": [{"url": url, "method": "*"}]});
        let mut bench = Bench::<Probe>::new(&settings.to_string()).unwrap();
        // The host shows names in lower case.
        is_match(&mut bench, &TestRequest::external("GET", &req_host.to_lowercase(), req_path).with_port(port));
    }
}
