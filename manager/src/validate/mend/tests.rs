//! Each change by an object that needs it, and what it leaves alone.

use serde_json::{Value, json};

use super::*;
use crate::samples::object;
use crate::validate::validate;

/// All changes, and the document after them.
fn mended(document: &Value) -> (Vec<String>, Value) {
    let (mut told, mut document) = (Vec::new(), document.clone());
    while let Some(mend) = mend(&document) {
        assert!(told.len() < 20, "it does not end: {told:?}");
        told.push(mend.to_string());
        document = mend.apply(&document).unwrap();
    }
    (told, document)
}

fn root(selector: &Value) -> Value {
    let root = json!({
        "prefix": "p", "targetStatefulSet": "t", "auto": {"shardingSize": 2, "everyShardReplicas": 1},
        "resourceSelector": [{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}]}],
    });
    object("ShardingConfig", "root", &json!({"root": root, "selector": selector}))
}

#[test]
fn pods_go_from_the_selector_of_a_root_with_what_holds_nothing_else() {
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
        let (told, document) = mended(&root(&selector));
        assert_eq!(told, [expected], "{selector}");
        assert!(validate(&document).is_accepted(), "{document}");
    }
    let shard = json!({"selector": {"matchLabels": {POD: "t-0"}}, "limits": [{"relateResources": []}]});
    assert_eq!(mend(&object("ShardingConfig", "s", &shard)), None, "it is no root");
}

#[test]
fn limits_are_put_where_they_belong() {
    let selector = json!({"matchLabels": {"a": "b"}});
    let limit = json!({"objectSelector": {
        "relatedResources": [{"apiGroups": ["*"], "resources": ["configmap", "pods", "pod"]}], "selector": selector,
    }});
    let spec = json!({"selector": selector, "limits": [limit]});
    let (told, document) = mended(&object("ShardingConfig", "s", &spec));
    assert_eq!(
        told,
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
    let (told, document) = mended(&root);
    assert_eq!(told, ["spec.resourceSelector: moved into root beside it"]);
    assert!(validate(&document).is_accepted(), "{}", validate(&document).mistakes);
}

#[test]
fn matches_of_faults_get_their_names() {
    let matches = [
        json!([{"method": "POST", "url": "https://*.com/*/off"}]),
        json!({"relatedResources": [{"apiGroups": [""], "resources": ["Pod"], "verbs": ["delete"]}]}),
    ];
    let faults = matches.map(|matching| json!({"match": matching, "abort": {"httpStatus": 500}}));
    let (told, document) = mended(&object(
        "FaultInjection",
        "f",
        &json!({"selector": {}, "httpFault": faults}),
    ));
    assert_eq!(
        told,
        [
            "spec.httpFault[0].match: put below httpMatch",
            "spec.httpFault[1].match.relatedResources: renamed to resources",
            "spec.httpFault[1].match.resources[0].resources[0]: is \"pods\" now",
        ]
    );
    assert!(validate(&document).is_accepted(), "{}", validate(&document).mistakes);
}

#[test]
fn words_of_the_schema_are_corrected_where_nothing_else_can_be_meant() {
    let rule = json!({
        "name": "a", "triggerPolicy": "limiteronly", "bucket": {"limit": 1, "interval": "1s", "burst": 1},
        "resourceRule": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
    });
    let spec = json!({"selector": {"matchLabels": {"a": 1, "b": true}}, "rateLimitings": [rule]});
    let (told, document) = mended(&object("CircuitBreaker", "b", &spec));
    assert_eq!(
        told,
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
fn decisions_are_left_to_a_person() {
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
        assert_eq!(mend(&document), None, "{document}");
    }
}
