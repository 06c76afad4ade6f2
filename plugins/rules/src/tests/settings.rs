use ctrlmesh_sdk::testing::{Bench, TestRequest};
use serde_json::json;

use super::{Probe, is_match};

/// Settings, and the beginning of their error.
type Refused = (&'static str, &'static str);

const RESOURCES: [Refused; 7] = [
    (
        r#"{"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["lst"], "namespaces": ["*"]}]}"#,
        "resourceRules[0].verbs[0]: unknown verb \"lst\"; use get, list",
    ),
    (
        r#"{"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]}"#,
        "resourceRules[0].namespaces: missing; write [\"*\"] for all",
    ),
    (
        r#"{"resourceRules": [{"apiGroups": [""], "resources": ["a", "Pods"], "verbs": ["*"], "namespaces": ["*"]}]}"#,
        "resourceRules[0].resources[1]: \"Pods\" is no resource",
    ),
    (
        r#"{"resourceRules": [{"apiGroups": [""], "resources": ["pods/"], "verbs": ["*"], "namespaces": ["*"]}]}"#,
        "resourceRules[0].resources[0]: \"pods/\" has nothing after the '/'",
    ),
    (
        r#"{"resourceRules": [{"apiGroups": [""], "resources": ["*"], "verbs": ["*"], "namespaces": ["a*b"]}]}"#,
        "resourceRules[0].namespaces[0]: \"a*b\" has a '*' inside",
    ),
    (
        r#"{"resourceRules": [{"apigroups": []}]}"#,
        "resourceRules[0].apigroups: unknown field",
    ),
    (
        r#"{"nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["healthz"]}]}"#,
        "nonResourceRules[0].nonResourceURLs[0]: a path begins with '/'",
    ),
];

const RESTS: [Refused; 10] = [
    (r#"{"restRules": [{"method": "*"}]}"#, "restRules[0].url: missing"),
    (r#"{"restRules": [{"url": "*"}]}"#, "restRules[0].method: missing"),
    (
        r#"{"restRules": [{"url": ["http://a.com", "ftp://b.com"], "method": "*"}]}"#,
        "restRules[0].url[1]: \"ftp://b.com\" has an unknown scheme",
    ),
    (
        r#"{"restRules": [{"url": "http:///x", "method": "*"}]}"#,
        "restRules[0].url: \"http:///x\" has no host",
    ),
    (
        r#"{"restRules": [{"url": "http://a:b/x", "method": "*"}]}"#,
        "restRules[0].url: \"http://a:b/x\" has a port",
    ),
    (
        r#"{"restRules": [{"url": 1, "method": "*"}]}"#,
        "restRules[0].url: write a text or a list of texts",
    ),
    (
        r#"{"restRules": [{"host": {"regex": "("}, "method": "*"}]}"#,
        "restRules[0].host.regex: \"(\" is no regular expression",
    ),
    (
        r#"{"restRules": [{"host": {"exact": "b:x"}, "method": "*"}]}"#,
        "restRules[0].host.exact: the port of \"b:x\"",
    ),
    (
        r#"{"restRules": [{"host": {"exact": "https://b:443"}, "method": "*"}]}"#,
        "restRules[0].host.exact: \"https://b:443\" is a URL or a path; write host or host:port",
    ),
    (
        r#"{"restRules": [{"url": "*", "method": "*", "headers": [{"name": "Authorization"}]}]}"#,
        "restRules[0].headers[0].name: \"Authorization\" can't be matched",
    ),
];

fn settings_error(settings: &str) -> String {
    let error = Bench::<Probe>::new(settings).err();
    error.unwrap_or_else(|| panic!("{settings} was accepted"))
}

#[test]
fn invalid_settings_are_refused_by_field() {
    for (settings, expected) in RESOURCES.into_iter().chain(RESTS) {
        let error = settings_error(settings);
        assert!(error.starts_with(expected), "{settings} gave {error}");
    }
}

#[test]
fn regular_expression_is_bounded_in_text_and_size() {
    for (regex, expected) in [
        ("a".repeat(1025), "1025 bytes of"),
        ("((a{99}){99}){99}".to_owned(), "\"((a"),
    ] {
        let settings = json!({"restRules": [{"path": {"regex": regex}, "method": "*"}]}).to_string();
        let error = settings_error(&settings);
        assert!(
            error.starts_with(&format!("restRules[0].path.regex: {expected}")),
            "{error}"
        );
    }
}

/// Beyond the interface's bounds, the subscription is wider, and the verdicts stay the same.
#[test]
fn subscription_keeps_the_bounds() {
    let rule = |index: usize| json!({"apiGroups": [""], "resources": [format!("r{index}")], "verbs": ["*"], "namespaces": ["*"]});
    let bench = |count: usize| {
        let settings = json!({"resourceRules": (0..count).map(rule).collect::<Vec<_>>()});
        Bench::<Probe>::new(&settings.to_string()).unwrap()
    };
    let mut small = bench(256);
    assert_eq!(small.subscription.rules.len(), 256);
    assert!(!small.wakes(&TestRequest::list("", "r256")));
    assert!(is_match(&mut small, &TestRequest::list("", "r255")));
    let mut large = bench(257);
    assert_eq!(large.subscription.rules.len(), 1);
    assert!(is_match(&mut large, &TestRequest::list("", "r256")));
    assert!(!is_match(&mut large, &TestRequest::list("", "r257")));
    assert!(!large.wakes(&TestRequest::external("GET", "b.com", "/")));

    let wide = json!({"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"],
        "names": (0..400).map(|index| format!("{index:0>200}")).collect::<Vec<_>>()}]});
    let mut wide = Bench::<Probe>::new(&wide.to_string()).unwrap();
    assert!(wide.subscription.rules[0].names.is_empty());
    assert!(is_match(
        &mut wide,
        &TestRequest::get("", "pods", &format!("{:0>200}", 399))
    ));
    assert!(!is_match(&mut wide, &TestRequest::get("", "pods", "400")));
}

#[test]
fn equal_rules_are_subscribed_once() {
    let rule = json!({"apiGroups": ["*"], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]});
    let settings = json!({"resourceRules": [rule, rule]}).to_string();
    assert_eq!(Bench::<Probe>::new(&settings).unwrap().subscription.rules.len(), 1);
}
