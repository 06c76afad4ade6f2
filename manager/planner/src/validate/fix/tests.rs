//! Each change by an object that needs it, and objects that must not be changed.

use serde_json::{Value, json};

use super::*;
use crate::samples::object;
use crate::validate::validate;

/// All changes, and the document after them.
fn fix_all(document: &Value) -> (Vec<String>, Value) {
    let (mut fixes, mut document) = (Vec::new(), document.clone());
    while let Some(fix) = next_fix(&document) {
        assert!(fixes.len() < 20, "it does not end: {fixes:?}");
        fixes.push(fix.to_string());
        document = fix.apply(&document).unwrap();
    }
    (fixes, document)
}

fn root(selector: &Value) -> Value {
    let root = json!({
        "prefix": "p", "targetStatefulSet": "t", "auto": {"shardingSize": 2, "everyShardReplicas": 1},
        "resourceSelector": [{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}]}],
    });
    object("ShardingConfig", "root", &json!({"root": root, "selector": selector}))
}

#[test]
fn pod_names_are_removed_from_selector_of_root() {
    const POD: &str = "statefulset.kubernetes.io/pod-name";
    let pods = json!({"key": POD, "operator": "In", "values": ["t-0"]});
    let other = json!({"key": "a", "operator": "Exists"});
    for (selector, expected) in [
        (json!({"matchExpressions": [pods]}), "spec.selector: removed"),
        (json!({"matchLabels": {POD: "t-0"}}), "spec.selector: removed"),
        (
            json!({"matchExpressions": [other, pods]}),
            "spec.selector.matchExpressions[1]: removed",
        ),
        (
            json!({"matchExpressions": [pods], "matchLabels": {"a": "b"}}),
            "spec.selector.matchExpressions: removed",
        ),
        (
            json!({"matchExpressions": [other], "matchLabels": {POD: "t-0"}}),
            "spec.selector.matchLabels: removed",
        ),
        (
            json!({"matchLabels": {POD: "t-0", "a": "b"}}),
            "spec.selector.matchLabels.\"statefulset.kubernetes.io/pod-name\": removed",
        ),
    ] {
        let (fixes, document) = fix_all(&root(&selector));
        assert_eq!(fixes, [expected], "{selector}");
        assert!(validate(&document).is_accepted(), "{document}");
    }
    let shard = json!({"selector": {"matchLabels": {POD: "t-0"}}, "limits": [{"relateResources": []}]});
    assert_eq!(next_fix(&object("ShardingConfig", "s", &shard)), None, "it is no root");
}

#[test]
fn misplaced_limits_are_moved() {
    let selector = json!({"matchLabels": {"a": "b"}});
    let limit = json!({"objectSelector": {
        "relatedResources": [{"apiGroups": ["*"], "resources": ["configmap", "pods", "pod"]}], "selector": selector,
    }});
    let spec = json!({"selector": selector, "limits": [limit]});
    let (fixes, document) = fix_all(&object("ShardingConfig", "s", &spec));
    assert_eq!(
        fixes,
        [
            "spec.limits[0].objectSelector: removed, and its fields put in its place",
            "spec.limits[0].relatedResources: renamed to relateResources",
            "spec.limits[0].relateResources[0].resources[0]: is \"configmaps\" now",
            "spec.limits[0].relateResources[0].resources[2]: removed",
        ]
    );
    let limits =
        json!([{"relateResources": [{"apiGroups": ["*"], "resources": ["configmaps", "pods"]}], "selector": selector}]);
    assert_eq!(document["spec"]["limits"], limits);

    let mut root = root(&Value::Null);
    let list = root["spec"]["root"].as_object_mut().unwrap().remove("resourceSelector");
    root["spec"]["resourceSelector"] = list.unwrap();
    let (fixes, document) = fix_all(&root);
    assert_eq!(fixes, ["spec.resourceSelector: moved into root beside it"]);
    assert!(validate(&document).is_accepted(), "{}", validate(&document).mistakes);
}

#[test]
fn match_fields_of_faults_are_wrapped_and_renamed() {
    let matches = [
        json!([{"method": "POST", "url": "https://*.com/*/off"}]),
        json!({"relatedResources": [{"apiGroups": [""], "resources": ["Pod"], "verbs": ["delete"]}]}),
    ];
    let faults = matches.map(|matching| json!({"match": matching, "abort": {"httpStatus": 500}}));
    let (fixes, document) = fix_all(&object(
        "FaultInjection",
        "f",
        &json!({"selector": {}, "httpFault": faults}),
    ));
    assert_eq!(
        fixes,
        [
            "spec.httpFault[0].match: put below httpMatch",
            "spec.httpFault[1].match.relatedResources: renamed to resources",
            "spec.httpFault[1].match.resources[0].resources[0]: is \"pods\" now",
        ]
    );
    assert!(validate(&document).is_accepted(), "{}", validate(&document).mistakes);
}

#[test]
fn misspelt_schema_words_are_corrected_when_unambiguous() {
    let rule = json!({
        "name": "a", "triggerPolicy": "limiteronly", "bucket": {"limit": 1, "interval": "1s", "burst": 1},
        "resourceRule": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
    });
    let spec = json!({"selector": {"matchLabels": {"a": 1, "b": true}}, "rateLimitings": [rule]});
    let (fixes, document) = fix_all(&object("CircuitBreaker", "b", &spec));
    assert_eq!(
        fixes,
        [
            "spec.rateLimitings[0].resourceRule: renamed to resourceRules",
            "spec.rateLimitings[0].triggerPolicy: is \"LimiterOnly\" now",
            "spec.selector.matchLabels.a: is \"1\" now",
            "spec.selector.matchLabels.b: is \"true\" now",
        ]
    );
    assert!(validate(&document).is_accepted(), "{}", validate(&document).mistakes);
}

#[test]
fn misspelt_fields_of_object_and_metadata_are_renamed_and_texts_quoted() {
    let document = json!({
        "apiVersion": API_VERSION, "kind": "CircuitBreaker", "spce": {"selector": {}},
        "metadata": {"name": "a", "namspace": "demo", "lables": {"a": 1}, "colour": "red"},
    });
    let (fixes, document) = fix_all(&document);
    assert_eq!(
        fixes,
        [
            "spce: renamed to spec",
            "metadata.lables: renamed to labels",
            "metadata.labels.a: is \"1\" now",
            "metadata.namspace: renamed to namespace",
        ]
    );
    assert_eq!(
        document["metadata"],
        json!({"name": "a", "namespace": "demo", "labels": {"a": "1"}, "colour": "red"})
    );
}

#[test]
fn misspelt_keys_of_manager_labels_are_corrected() {
    const WRONG: &str = "ctrlmesh.kusionstack.io/sharding-hash";
    const RIGHT: &str = "ctrlmesh.kusionstack.io/shard-hash";
    let resources = json!([{"apiGroups": ["*"], "resources": ["pods"]}]);
    let expression = |key: &str| json!({"key": key, "operator": "In", "values": ["1"]});
    let spec = |key: &str| {
        json!({"selector": {"matchLabels": {"app": "a"}}, "limits": [
            {"relateResources": resources, "selector": {"matchExpressions": [expression(key)], "matchLabels": {key: "1"}}},
        ]})
    };
    let (fixes, document) = fix_all(&object("ShardingConfig", "s", &spec(WRONG)));
    let limit = "spec.limits[0].selector";
    assert_eq!(
        fixes,
        [
            format!("{limit}.matchLabels.{WRONG:?}: renamed to {RIGHT}"),
            format!("{limit}.matchExpressions[0].key: is {RIGHT:?} now"),
        ]
    );
    assert_eq!(document["spec"], spec(RIGHT));
    assert!(validate(&document).is_accepted(), "{}", validate(&document).mistakes);
    let both = json!({"matchLabels": {WRONG: "1", RIGHT: "2"}});
    let both = json!({"selector": {"matchLabels": {"app": "a"}}, "limits": [{"relateResources": resources, "selector": both}]});
    assert_eq!(
        next_fix(&object("ShardingConfig", "s", &both)),
        None,
        "one of both values is meant"
    );
}

#[test]
fn number_without_unit_or_in_place_of_word_is_not_corrected() {
    let matching = json!({"resources": [{"resources": ["pods"]}]});
    for delay in [
        json!({"fixedDelay": 5}),
        json!({"min": 1, "max": 2}),
        json!({"fixedDelay": 0.5}),
    ] {
        let faults = json!({"selector": {}, "httpFault": [{"match": matching, "delay": delay}]});
        let document = object("FaultInjection", "f", &faults);
        assert_eq!(next_fix(&document), None, "{document}");
    }
    let rule = |field: &str, value: Value| {
        let mut rule = crate::samples::limit("LimiterOnly", "a");
        rule[field] = value;
        object("CircuitBreaker", "b", &json!({"selector": {}, "rateLimitings": [rule]}))
    };
    assert_eq!(next_fix(&rule("queue", json!(5))), None);
    assert_eq!(next_fix(&rule("triggerPolicy", json!(1))), None);
    let (fixes, _) = fix_all(&rule("recover", json!(1)));
    assert_eq!(
        fixes,
        ["spec.rateLimitings[0].recover: is \"1\" now"],
        "any text will do"
    );
}

#[test]
fn ambiguous_mistakes_are_not_corrected() {
    let fault = json!({"match": {"resources": [{"resources": ["pods"]}]}, "abort": {"httpStatus": 500}});
    let mut rule = crate::samples::limit("Limiter", "a");
    rule["recoverPolicy"] = json!({"type": "SleepingWindow"});
    for document in [
        object("FaultInjection", "f", &json!({"httpFault": [fault]})),
        object("CircuitBreaker", "b", &json!({"selector": {}, "rateLimitings": [rule]})),
        object("ShardingConfig", "s", &json!({"selector": {"matchLabels": {"a": "b"}}})),
        object("ShardingConfig", "s", &json!({"resourceSelector": [], "selector": {}})),
        json!({"apiVersion": "example.com/v1", "kind": "ShardingConfig", "spec": {"limit": []}}),
        json!("text"),
    ] {
        assert_eq!(next_fix(&document), None, "{document}");
    }
}
