//! Each rule, by an object that breaks only this one (`cases.json`).

use serde_json::{Value, json};

use super::*;
use crate::samples as objects;

fn mistakes_of(document: &Value) -> Vec<String> {
    let findings = validate(document);
    let mistakes = findings.mistakes.list().iter();
    mistakes.map(|it| format!("{}: {}", it.path, it.problem)).collect()
}

/// A valid object with fields replaced at JSON pointers; `null` removes one.
fn with_changes(document: &Value, changes: &Value) -> Value {
    let mut document = document.clone();
    for (pointer, value) in changes.as_object().unwrap() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
        let parent = parent.as_object_mut().unwrap_or_else(|| panic!("{pointer}"));
        match value {
            Value::Null => drop(parent.remove(field)),
            value => drop(parent.insert(field.to_owned(), value.clone())),
        }
    }
    document
}

fn shard() -> Value {
    objects::shard("s", &[objects::plugin("audit", 0)])
}

fn root() -> Value {
    let spec = json!({"controller": {"leaderElectionName": "lock"}, "root": {
        "prefix": "p", "targetStatefulSet": "t", "auto": {"shardingSize": 2, "everyShardReplicas": 1},
        "canary": {"replicas": 1, "inNamespaces": ["a"]},
        "resourceSelector": [{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}]}],
    }});
    objects::object("ShardingConfig", "root", &spec)
}

fn breaker() -> Value {
    let rules = [objects::limit("LimiterOnly", "slow"), objects::limit("Normal", "break")];
    let lists = [objects::list("hosts", "Whitelist", "a.example")];
    objects::breaker("b", &json!({}), &rules, &lists)
}

fn faults() -> Value {
    objects::faults("f")
}

/// Each change makes one mistake, whose text starts with the path and contains the words.
fn assert_each_mistake(document: &Value, group: &str) {
    assert_eq!(mistakes_of(document), Vec::<String>::new());
    let cases: Value = serde_json::from_str(include_str!("cases.json")).unwrap();
    for case in cases[group].as_array().unwrap() {
        let mistakes = mistakes_of(&with_changes(document, &case["set"]));
        let expected = case["says"].as_str().unwrap();
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with(expected),
            "{case}: {mistakes:?}"
        );
    }
}

#[test]
fn document_fields_are_validated() {
    assert_each_mistake(&shard(), "documents");
    let changes = json!({"/metadata/name": null, "/metadata/generateName": "s-", "/spec/controller": null});
    assert_eq!(mistakes_of(&with_changes(&shard(), &changes)), Vec::<String>::new());
    assert!(!validate(&json!("text")).is_accepted());
}

#[test]
fn ignore_label_skips_rules_but_not_schema() {
    let ignored = json!({"/metadata/labels": {"ctrlmesh.kusionstack.io/ignore-validate": ""}});
    let shard = with_changes(&shard(), &ignored);
    let without_limits = with_changes(&shard, &json!({"/spec/limits": null}));
    assert_eq!(mistakes_of(&without_limits), Vec::<String>::new());
    let Ok(object) = read(&without_limits) else {
        panic!("it can be read")
    };
    assert!(
        !check_object(&object, &LabelKeys::default()).is_accepted(),
        "what compiles does not follow from the label"
    );
    let wrong_type = with_changes(&shard, &json!({"/spec/limits": 1}));
    assert_eq!(mistakes_of(&wrong_type), ["spec.limits: is 1; write a list"]);
}

#[test]
fn built_in_plugin_without_image_warns_of_clients_that_must_not_have_it() {
    let settings = json!({"rules": [{"resources": [{"resources": ["pods"]}]}]});
    let plugins = json!([{"name": "trim-objects", "order": 7, "settings": settings}]);
    let findings = validate(&with_changes(&shard(), &json!({"/spec/plugins": plugins})));
    assert_eq!(findings.mistakes.list(), []);
    let [warning] = findings.warnings.list() else {
        panic!("{:?}", findings.warnings.list())
    };
    assert_eq!(warning.path, "spec.plugins[0].settings.rules[0]");
    assert!(warning.problem.contains("Extract"), "{}", warning.problem);
}

#[test]
fn shard_rules_refuse_invalid_fields() {
    assert_each_mistake(&shard(), "shards");
}

#[test]
fn root_rules_refuse_invalid_fields() {
    assert_each_mistake(&root(), "roots");
    let disabled = with_changes(&root(), &json!({"/spec/root/disable": true, "/spec/root/auto": null}));
    assert_eq!(mistakes_of(&disabled), Vec::<String>::new());
    let findings = validate(&disabled);
    let warning = &findings.warnings.list()[0];
    assert_eq!(warning.path, "spec.root.disable");
    assert!(
        warning.problem.contains("one of them gets everything"),
        "{}",
        warning.problem
    );
    let findings = validate(&with_changes(&disabled, &json!({"/spec/controller": null})));
    let warning = &findings.warnings.list()[0];
    assert!(warning.problem.contains("to zero first"), "{}", warning.problem);
    assert!(validate(&root()).warnings.list().is_empty());
}

#[test]
fn plugin_rules_refuse_invalid_fields() {
    let key = "-----BEGIN PUBLIC KEY-----\n\
        MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAENDQdKzgkTQxd4hufxO8iQGhF7sSV\n\
        8fB8WzJ8DAddqTVs3k2dv0Xze2BkG9LArOQnX7J+l7emTIaDy65hw3JzeA==\n\
        -----END PUBLIC KEY-----\n";
    let mut shard = shard();
    shard["spec"]["plugins"][0]["verificationKey"] = key.into();
    assert_each_mistake(&shard, "plugins");
    shard["spec"]["plugins"][0]["settings"] = json!({"text": "x".repeat(300_000)});
    let mistakes = mistakes_of(&shard);
    assert!(
        mistakes[0].starts_with("spec.plugins[0].settings: has 300011 bytes"),
        "{mistakes:?}"
    );
}

#[test]
fn circuit_breaker_rules_refuse_invalid_fields() {
    assert_each_mistake(&breaker(), "circuit_breakers");
}

#[test]
fn too_many_rules_for_one_plugin_are_reported() {
    let many = |policy: &str, count: usize| -> Vec<Value> {
        (0..count).map(|n| objects::limit(policy, &format!("r{n}"))).collect()
    };
    for (policy, most) in [("Normal", 24), ("LimiterOnly", 64)] {
        let of = |count| with_changes(&breaker(), &json!({"/spec/rateLimitings": many(policy, count)}));
        assert_eq!(mistakes_of(&of(most)), Vec::<String>::new());
        let mistakes = mistakes_of(&of(most + 1));
        let expected = format!("spec.rateLimitings: {} rules; at most", most + 1);
        assert!(
            mistakes.len() == 1 && mistakes[0].starts_with(&expected),
            "{mistakes:?}"
        );
    }
}

#[test]
fn fault_injection_rules_refuse_invalid_fields() {
    assert_each_mistake(&faults(), "fault_injections");
    let conflict = with_changes(
        &faults(),
        &json!({"/spec/httpFault/0/abort": null, "/spec/httpFault/0/do": "conflict"}),
    );
    assert_eq!(mistakes_of(&conflict), Vec::<String>::new());
    let unknown = mistakes_of(&with_changes(&conflict, &json!({"/spec/httpFault/0/do": "conflct"})));
    assert!(unknown[0].starts_with("spec.httpFault[0].do"), "{unknown:?}");
    let mut fault = faults()["spec"]["httpFault"][0].clone();
    fault["name"] = "a".into();
    let twice = mistakes_of(&with_changes(&faults(), &json!({"/spec/httpFault": [fault, fault]})));
    let expected = "spec.httpFault[1].name: \"a\" is the name of another rule too";
    assert!(twice.len() == 1 && twice[0].starts_with(expected), "{twice:?}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let mistakes = mistakes_of(&with_changes(
        &breaker(),
        &json!({
            "/spec/rateLimitings/0/bucket/interval": "x",
            "/spec/rateLimitings/1/bucket/interval": "y",
            "/spec/selector": {"matchLabels": {"a": "b c"}},
        }),
    ));
    assert_eq!(mistakes.len(), 3, "{mistakes:?}");
}

#[test]
fn rules_check_fields_that_schema_accepts() {
    let wrong = with_changes(
        &breaker(),
        &json!({
            "/spec/selecter": {},
            "/spec/rateLimitings/0/maxInFligt": 1,
            "/spec/rateLimitings/0/bucket/interval": "x",
            "/spec/rateLimitings/1/bucket/interval": "y",
        }),
    );
    let mistakes = mistakes_of(&wrong);
    let begins = [
        "spec.rateLimitings[0].maxInFligt: is not a field here",
        "spec.selecter: is not a field here",
        "spec.rateLimitings[0].bucket.interval: \"x\" is no duration",
        "spec.rateLimitings[1].bucket.interval: \"y\" is no duration",
    ];
    let all_match = mistakes
        .iter()
        .zip(begins)
        .all(|(mistake, begin)| mistake.starts_with(begin));
    assert!(mistakes.len() == begins.len() && all_match, "{mistakes:?}");
    let unnamed = with_changes(
        &breaker(),
        &json!({"/metadata/name": null, "/spec/rateLimitings/1/bucket/interval": "y"}),
    );
    assert_eq!(validate(&unnamed).mistakes.list().len(), 2);
}

#[test]
fn rules_check_rest_when_required_fields_are_missing_or_mistyped() {
    let wrong = with_changes(
        &breaker(),
        &json!({
            "/metadata/labels": {"a": 1},
            "/spec/rateLimitings/0/name": null,
            "/spec/rateLimitings/0/bucket/limit": "three",
            "/spec/rateLimitings/1/bucket/interval": "y",
            "/spec/selector": {"matchLabels": {"a": "b c"}},
        }),
    );
    let mistakes = mistakes_of(&wrong);
    let begins = [
        "spec.rateLimitings[0].bucket.limit: is the text \"three\"; write a whole number",
        "spec.rateLimitings[0].name: is missing; write a text",
        "metadata.labels.a: is 1; write a text",
        "spec.selector.matchLabels: \"b c\" is not a label value",
        "spec.rateLimitings[1].bucket.interval: \"y\" is no duration",
    ];
    assert_eq!(mistakes.len(), begins.len(), "{mistakes:?}");
    for begin in begins {
        assert!(
            mistakes.iter().any(|mistake| mistake.starts_with(begin)),
            "{begin}: {mistakes:?}"
        );
    }
}

#[test]
fn document_without_kind_or_version_is_refused_with_advice() {
    let kinds = "CircuitBreaker, FaultInjection, ManagerState, ShardingConfig";
    for (document, expected) in [
        (
            json!({"metadata": {"name": "a"}, "spec": {}}),
            vec![
                "apiVersion: is missing; write ctrlmesh.kusionstack.io/v1alpha1".to_owned(),
                format!("kind: is missing; write the kind of ctrlmesh.kusionstack.io/v1alpha1 that is meant: {kinds}"),
            ],
        ),
        (
            json!(["a"]),
            vec![": is no mapping; write apiVersion, kind, metadata and spec".to_owned()],
        ),
        (
            with_changes(&breaker(), &json!({"/spce": {}, "/metdata": {}})),
            ["metdata", "spce"]
                .into_iter()
                .zip(["metadata", "spec"])
                .map(|(field, meant)| {
                    format!("{field}: is not a field here; known are apiVersion, kind, metadata, spec, status; did you mean {meant}?")
                })
                .collect(),
        ),
    ] {
        let mut mistakes = mistakes_of(&document);
        mistakes.sort();
        assert_eq!(mistakes, expected, "{document}");
    }
}

#[test]
fn fields_and_names_without_effect_are_warned_of() {
    let warned = |document: &Value| {
        let findings = validate(document);
        assert!(findings.is_accepted(), "{document}: {}", findings.mistakes);
        let warnings = findings.warnings.list().iter();
        warnings
            .map(|it| format!("{}: {}", it.path, it.problem))
            .collect::<Vec<_>>()
    };
    let webhook = json!({"/spec/webhook": {"certDir": "/certs", "port": 9443}});
    let warnings = warned(&with_changes(&shard(), &webhook));
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("spec.webhook: has no effect"),
        "{warnings:?}"
    );
    let names = |of: &str| json!({of: ["configmap"]});
    for (document, path) in [
        (shard(), "/spec/limits/0/relateResources/0/resources"),
        (root(), "/spec/root/resourceSelector/0/relateResources/0/resources"),
        (breaker(), "/spec/rateLimitings/0/resourceRules/0/resources"),
        (faults(), "/spec/httpFault/0/match/resources/0/resources"),
    ] {
        assert_eq!(warned(&document), Vec::<String>::new());
        let warnings = warned(&with_changes(&document, &names(path)));
        let says = "\"configmap\" is the name of no resource, so nothing of it is meant; did you mean \"configmaps\"?";
        assert!(
            warnings.len() == 1 && warnings[0].ends_with(says),
            "{path}: {warnings:?}"
        );
        let place = warnings[0]
            .split_once(": ")
            .unwrap()
            .0
            .replace(['.', '['], "/")
            .replace(']', "");
        assert_eq!(format!("/{place}"), format!("{path}/0"));
    }
}

#[test]
fn legal_field_without_effect_is_warned_of() {
    let findings = validate(&with_changes(
        &breaker(),
        &json!({"/spec/rateLimitings/0/resourceRules": []}),
    ));
    assert!(findings.is_accepted());
    let warning = &findings.warnings.list()[0];
    assert_eq!(warning.path, "spec");
    assert!(warning.problem.contains("\"slow\" can't match"), "{}", warning.problem);
}

#[test]
fn fault_that_never_fires_is_warned_of_at_its_place() {
    let never = json!({
        "match": {"resources": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}, "do": "conflict",
    });
    let findings = validate(&with_changes(
        &faults(),
        &json!({"/spec/httpFault": [faults()["spec"]["httpFault"][0], never]}),
    ));
    assert!(findings.is_accepted(), "{findings:?}");
    let warnings: Vec<_> = findings.warnings.list().iter().collect();
    assert!(
        matches!(&warnings[..], [warning] if warning.path == "spec.httpFault[1]" && warning.problem.starts_with("never fires")),
        "{warnings:?}"
    );
}
