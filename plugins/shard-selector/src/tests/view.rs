//! The selector that applies to each resource.

use ctrlmesh_sdk::settings::parse;

use crate::settings::Settings;
use crate::view::View;

fn parse_view(limits: &str) -> Result<View, String> {
    let settings: Settings = parse(&format!("{{\"limits\": {limits}}}"))?;
    Ok(View::new(settings.limits.as_deref().unwrap_or_default())?)
}

fn selector_for(limits: &str, group: &str, resource: &str) -> Option<String> {
    parse_view(limits).unwrap().selector_for(group, resource)
}

/// One limit with the selector `shard=a` on these groups and resources.
fn limits_json(groups: &str, resources: &str) -> String {
    format!(
        r#"[{{"relateResources": [{{"apiGroups": {groups}, "resources": {resources}}}],
              "selector": {{"matchLabels": {{"shard": "a"}}}}}}]"#
    )
}

#[test]
fn limit_covers_all_pairs_of_groups_and_resources() {
    for (groups, resources, group, resource, expected) in [
        (r#"[""]"#, r#"["pods"]"#, "", "pods", true),
        (r#"[""]"#, r#"["pods"]"#, "", "podss", false),
        (r#"[""]"#, r#"["pods"]"#, "metrics.k8s.io", "pods", false),
        (
            r#"["", "apps"]"#,
            r#"["pods", "deployments"]"#,
            "apps",
            "deployments",
            true,
        ),
        (r#"["", "apps"]"#, r#"["pods", "deployments"]"#, "apps", "pods", true),
        (r#"["*"]"#, r#"["pods"]"#, "metrics.k8s.io", "pods", true),
        (r#"["*"]"#, r#"["pods"]"#, "", "nodes", false),
        (r#"["apps"]"#, r#"["*"]"#, "apps", "deployments", true),
        (r#"["apps"]"#, r#"["*"]"#, "", "pods", false),
        (r#"["*"]"#, r#"["*"]"#, "x.example.com", "things", true),
        ("[]", r#"["pods"]"#, "", "pods", false),
        (r#"[""]"#, "[]", "", "pods", false),
        ("null", r#"["pods"]"#, "", "pods", false),
    ] {
        let actual = selector_for(&limits_json(groups, resources), group, resource);
        assert_eq!(
            actual.as_deref(),
            expected.then_some("shard=a"),
            "{groups} × {resources}: {group}/{resource}"
        );
    }
}

#[test]
fn limit_without_resources_covers_every_resource() {
    for related in ["", r#""relateResources": null,"#, r#""relateResources": [],"#] {
        let limits = format!(r#"[{{{related} "selector": {{"matchLabels": {{"shard": "a"}}}}}}]"#);
        assert_eq!(
            selector_for(&limits, "coordination.k8s.io", "leases").as_deref(),
            Some("shard=a"),
            "{limits}"
        );
    }
}

#[test]
fn both_spellings_are_accepted() {
    let limits = limits_json(r#"[""]"#, r#"["pods"]"#).replace("relateResources", "relatedResources");
    assert_eq!(selector_for(&limits, "", "pods").as_deref(), Some("shard=a"));
}

#[test]
fn empty_selector_restricts_nothing_and_is_warned_about() {
    for limits in [
        "[{}]",
        r#"[{"selector": null}]"#,
        r#"[{"selector": {}}]"#,
        r#"[{"selector": {"matchLabels": {}}}]"#,
    ] {
        let view = parse_view(limits).unwrap();
        assert_eq!(view.selector_for("", "pods"), None, "{limits}");
        assert_eq!(view.match_rules(false).count(), 0, "{limits}");
        assert_eq!(
            view.warnings().collect::<Vec<_>>(),
            ["limits[0] has no selector and restricts nothing"],
            "{limits}"
        );
    }
}

#[test]
fn rule_that_matches_nothing_is_warned_about() {
    let view = parse_view(&limits_json("[]", r#"["pods"]"#)).unwrap();
    assert_eq!(view.match_rules(false).count(), 0);
    let warnings: Vec<_> = view.warnings().collect();
    assert!(matches!(warnings[..], [warning] if warning.starts_with("limits[0].relateResources[0] matches nothing")));
}

#[test]
fn matching_limits_are_anded_even_on_one_key() {
    let limits = r#"[
        {"relateResources": [{"apiGroups": [""], "resources": ["pods"]}], "selector": {"matchLabels": {"shard": "a"}}},
        {"relateResources": [{"apiGroups": [""], "resources": ["*"]}], "selector": {"matchLabels": {"shard": "b"}}},
        {"relateResources": [{"apiGroups": ["apps"], "resources": ["*"]}], "selector": {"matchLabels": {"shard": "c"}}}
    ]"#;
    assert_eq!(selector_for(limits, "", "pods").as_deref(), Some("shard=a,shard=b"));
    assert_eq!(selector_for(limits, "", "nodes").as_deref(), Some("shard=b"));
    assert_eq!(selector_for(limits, "apps", "deployments").as_deref(), Some("shard=c"));
    assert_eq!(selector_for(limits, "batch", "jobs"), None);
}

/// Checks that `limits` is refused with this path and hint.
fn assert_refused(limits: &str, path: &str, hint: &str) {
    let error = parse_view(limits)
        .err()
        .unwrap_or_else(|| panic!("{limits} was accepted"));
    assert!(
        error.starts_with(path) && error.contains(hint),
        "{limits}\ngave {error}\nexpected {path} … {hint}"
    );
}

#[test]
fn star_among_others_is_refused() {
    assert_refused(
        &limits_json(r#"["*", "apps"]"#, r#"["pods"]"#),
        "limits[0].relateResources[0].apiGroups: ",
        "only element",
    );
    assert_refused(
        &limits_json(r#"[""]"#, r#"["pods", "*"]"#),
        "limits[0].relateResources[0].resources: ",
        "only element",
    );
    assert_refused(
        &limits_json(r#"["*", "*"]"#, r#"["pods"]"#),
        "limits[0].relateResources[0].apiGroups: ",
        "only element",
    );
}

#[test]
fn invalid_group_or_resource_is_refused() {
    for (resource, hint) in [
        ("Pods", "lower case"),
        ("pods/status", "subresource"),
        ("pod*", "\"*\" alone"),
        ("", "plural"),
        ("deployments.apps", "plural"),
    ] {
        let limits = limits_json(r#"[""]"#, &format!(r#"["nodes", "{resource}"]"#));
        assert_refused(&limits, "limits[0].relateResources[0].resources[1]: ", hint);
    }
    for (group, hint) in [
        ("apps/v1", "without version"),
        ("*.io", "\"*\" alone"),
        ("Apps", "without version"),
    ] {
        let limits = limits_json(&format!(r#"["{group}"]"#), r#"["pods"]"#);
        assert_refused(&limits, "limits[0].relateResources[0].apiGroups[0]: ", hint);
    }
}

#[test]
fn mistake_is_named_with_its_path() {
    let first = r#"{"selector": {"matchLabels": {"a": "1"}}}"#;
    let second = r#"{"selector": {"matchExpressions": [{"key": "a", "operator": "Inn"}]}}"#;
    assert_refused(
        &format!("[{first}, {second}]"),
        "limits[1].selector.matchExpressions[0].operator: ",
        "use In, NotIn",
    );
    assert_refused(r#"[{"selecter": {}}]"#, "limits[0].selecter: ", "unknown field");
}

#[test]
fn selectors_are_bounded_together() {
    let limit = |values: usize| {
        let values: Vec<String> = (0..values).map(|value| format!("\"{value:063}\"")).collect();
        let values = values.join(",");
        format!(r#"{{"selector": {{"matchExpressions": [{{"key": "k", "operator": "In", "values": [{values}]}}]}}}}"#)
    };
    assert!(parse_view(&format!("[{}]", limit(200))).is_ok());
    let error = parse_view(&format!("[{},{}]", limit(200), limit(200))).unwrap_err();
    assert!(
        error.starts_with("limits[1].selector: ") && error.contains("fewer values"),
        "{error}"
    );

    let labels: Vec<String> = (0..300).map(|key| format!("\"k{key}\": \"\"")).collect();
    let error = parse_view(&format!(
        r#"[{{"selector": {{"matchLabels": {{{}}}}}}}]"#,
        labels.join(",")
    ))
    .unwrap_err();
    assert!(error.contains("300 requirements"), "{error}");
}

#[test]
fn subscription_stays_within_the_bounds_of_the_host() {
    let limits = |elements: usize, resources: usize| {
        let names: Vec<String> = (0..resources).map(|name| format!("\"r{name:060}\"")).collect();
        let element = format!(r#"{{"apiGroups": ["apps"], "resources": [{}]}}"#, names.join(","));
        let elements = vec![element; elements].join(",");
        format!(r#"[{{"relateResources": [{elements}], "selector": {{"matchLabels": {{"a": "1"}}}}}}]"#)
    };
    assert_eq!(parse_view(&limits(200, 1)).unwrap().match_rules(false).count(), 200);
    assert_refused(&limits(201, 1), "limits[0].relateResources: ", "201 elements");
    assert_refused(&limits(1, 600), "limits[0].relateResources: ", "bytes of names");
}
