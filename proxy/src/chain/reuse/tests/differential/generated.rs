//! Random chains, requests and operations.

use proptest::prelude::*;
use proptest::strategy::Union;

use super::*;

const FACTS: [&str; 20] = [
    "traffic",
    "verb",
    "group",
    "version",
    "resource",
    "subresource",
    "namespace",
    "name",
    "facts",
    "method",
    "path",
    "host",
    "port",
    "size",
    "userAgent",
    "labelSelector",
    "fieldSelector",
    "isLeaderLock",
    "isRecheck",
    "note",
];

/// Answers that questions may get in the streams.
const ANSWERS: [&str; 14] = [
    "",
    "a",
    "b",
    "1",
    "2",
    "none",
    "pods",
    "true",
    "Verb::Get",
    "Verb::List",
    "GET",
    "x/1",
    "a=b",
    "None",
];

fn fact() -> impl Strategy<Value = Json> {
    prop_oneof![
        8 => prop::sample::select(&FACTS[..]).prop_map(Json::from),
        4 => prop::sample::select(vec!["x-a", "X-A", "x-b", "authorization"]).prop_map(|name| json!({"header": name})),
        4 => prop::sample::select(vec!["q", "Q", "watch"]).prop_map(|name| json!({"query": name})),
        3 => prop::sample::select(vec!["k", "l"]).prop_map(|key| json!({"cell": key})),
        1 => Just(json!({"cells": ["k", "l"]})),
        1 => (0_u64..400).prop_map(|ms| json!({"isAfter": 1_000_000_000 + ms})),
    ]
}

fn outcome_rule() -> impl Strategy<Value = Json> {
    let cells = prop::sample::select(vec![json!([]), json!(["k"]), json!(["k", "l"])]);
    let thresholds = prop::sample::select(vec![(Some(2), None), (None, Some(50)), (Some(3), Some(70))]);
    let tally = prop::sample::select(vec!["o", "q"]);
    (tally, cells, any::<bool>(), thresholds).prop_map(|(tally, cells, at_head, (failures, percent))| {
        json!({"tally": tally, "cells": cells, "atHead": at_head, "failures": failures, "percent": percent})
    })
}

/// Actions besides edits of label selectors. The last is no valid verdict, which is a fault like a trap.
pub(super) fn actions() -> Vec<Json> {
    let field = |name: &str, value: &str| json!({"name": name, "value": value});
    let details = json!({"group": "apps", "kind": "deployments", "name": "x", "causes": ["FieldValueInvalid"]});
    let refusal = json!({"code": 429, "reason": "R", "message": "m", "retryAfterSeconds": 3, "cause": "c"});
    vec![
        json!({"proceed": [{"setHeader": field("x-a", "9")}, {"removeHeader": "x-b"}]}),
        json!({"proceed": [{"andFieldSelector": "metadata.name=x"}, {"setQuery": field("limit", "7")}]}),
        json!({"proceed": [{"removeQuery": "q"}, {"renameObject": {"from": "x", "to": "y"}}]}),
        json!({"proceed": [{"dropFields": ["metadata.managedFields"]}]}),
        json!({"proceed": [{"andLabelSelector": "a in (1, 2)"}, {"keepObjects": {"names": ["x"], "labels": "a=1"}}]}),
        json!({"refuse": {"code": 403, "details": details}}),
        json!({"refuse": refusal}),
        json!({"answer": {"code": 200, "headers": [field("x-a", "1")], "body": "b", "closeConnection": true}}),
        json!({"reset": "close"}),
        json!({"reset": "hang"}),
        json!({"refuseConnections": 5}),
        json!({"proceed": [{"andLabelSelector": ""}]}),
    ]
}

fn effect() -> impl Strategy<Value = Json> {
    prop_oneof![
        6 => Just(json!({})),
        2 => (0_u64..3, any::<bool>()).prop_map(|(by, at_once)| {
            json!({"counts": [["seen", "l", by], ["more", "", 1]], "countsAtOnce": at_once})
        }),
        // One key may hold a cell, or be read as one that does not exist; the other is read by `adds`.
        2 => (prop::sample::select(vec!["k", "n"]), 0_u64..3)
            .prop_map(|(key, by)| json!({"increments": [[key, by], ["m", 1]]})),
        1 => (0_u64..3).prop_map(|note| json!({"note": note})),
        1 => Just(json!({"rule": "r"})),
        3 => (1_u32..4, prop::sample::select(vec![0, 50]))
            .prop_map(|(burst, wait)| json!({"tokens": {"key": "t", "burst": burst, "maxWaitMs": wait}})),
        2 => (1_u32..3).prop_map(|max| json!({"place": {"key": "p", "burst": max}})),
        4 => outcome_rule().prop_map(|rule| json!({"outcome": rule})),
        4 => prop::sample::select(actions()).prop_map(|action| json!({"then": action})),
        2 => (1_u32..30).prop_map(|ms| json!({"delayMs": ms})),
        2 => prop::sample::select(vec!["none", "response", "complete"]).prop_map(|later| json!({"later": later})),
        1 => Just(json!({"write": "k"})),
        1 => Just(json!({"remove": "l"})),
        1 => Just(json!({"adds": "n"})),
        1 => (0_u32..3).prop_map(|level| json!({"gauge": level})),
        1 => (0_u32..3).prop_map(|number| json!({"report": number})),
        1 => prop::sample::select(vec!["logs", "prints", "draws", "readsClock"]).prop_map(|does| json!({does: true})),
        1 => Just(json!({"traps": true})),
    ]
}

fn leaf() -> impl Strategy<Value = Json> {
    let reuse = prop_oneof![
        6 => Just(json!("whileUnchanged")),
        1 => Just(json!("never")),
        1 => (0_u64..400).prop_map(|ms| json!({"until": 1_000_000_000 + ms})),
    ];
    let edit = prop::sample::select(vec!["", "a=1", "a=2", "a=3"]);
    (edit, reuse, prop::collection::vec(effect(), 1..4)).prop_map(|(edit, reuse, effects)| {
        let mut leaf = json!({"edit": edit, "reuse": reuse});
        for effect in effects {
            leaf.as_object_mut()
                .unwrap()
                .extend(effect.as_object().unwrap().clone());
        }
        json!({"leaf": leaf})
    })
}

pub(super) fn chain() -> impl Strategy<Value = Vec<EntrySpec>> {
    prop::collection::vec(prop_oneof![3 => tree(), 1 => builtin()], 1..4)
}

fn tree() -> impl Strategy<Value = EntrySpec> {
    let node = leaf().prop_recursive(4, 16, 3, |node| {
        let answers = prop::collection::vec((prop::sample::select(&ANSWERS[..]), node.clone()), 1..3);
        (fact(), answers, node)
            .prop_map(|(ask, answers, otherwise)| {
                json!({"question": {"ask": ask, "answers": answers, "otherwise": otherwise}})
            })
            .boxed()
    });
    node.prop_map(|root| EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": root}),
    })
}

/// The built-in plugins with settings that wake them for the requests of the streams.
fn builtin() -> impl Strategy<Value = EntrySpec> {
    prop_oneof![3 => other_builtin(), 2 => fault_inject()]
}

/// The plugin `fault-inject` with one rule, whose name is always the same: the rule of a later chain goes on from its counts.
fn fault_inject() -> impl Strategy<Value = EntrySpec> {
    let matches = [
        json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}),
        json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}),
    ];
    let fields = [
        json!({"do": {"delay": {"for": "5ms"}}, "percent": 50}),
        json!({"do": "refuse"}),
        json!({"do": {"delay": {"for": "5ms"}}, "maxActive": 1}),
        json!({"do": "refuse", "maxCount": 2}),
        json!({"do": {"lose": {"how": "retry"}}}),
        json!({"do": "refuse", "effectiveTime": {"endTime": LAST_ACTIVE_SECOND}}),
    ];
    let matches = prop::sample::select(matches.to_vec());
    (matches, prop::sample::select(fields.to_vec())).prop_map(|(matches, mut rule)| {
        rule["match"] = json!({"resources": [matches]});
        faults(&[rule])
    })
}

/// The second in which the clock of a sidecar starts: [`Sidecar::new`] advances it by a million seconds.
pub(super) const LAST_ACTIVE_SECOND: &str = "13:46:40";

/// The plugin `fault-inject` with rules of these fields, for all requests about resources unless the fields say otherwise.
pub(super) fn faults(rules: &[Json]) -> EntrySpec {
    let rules = rules.iter().enumerate().map(|(number, fields)| {
        let mut rule = json!({"name": format!("f{number}"), "match": {"resources": [{}]}});
        let fields = fields.as_object().unwrap().clone();
        rule.as_object_mut().unwrap().extend(fields);
        rule
    });
    EntrySpec {
        plugin: "fault-inject",
        settings: json!({"faults": rules.collect::<Vec<_>>()}),
    }
}

fn other_builtin() -> impl Strategy<Value = EntrySpec> {
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}]);
    let specs = [
        (
            "shard-selector",
            json!({
                "shard": "s",
                "limits": [{
                    "relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}],
                    "selector": {"matchLabels": {"shard": "s"}},
                }],
            }),
        ),
        (
            "rate-limit",
            json!({"rateLimitings": [
                {"name": "r", "resourceRules": rules, "bucket": {"limit": 5, "interval": "1s", "burst": 3}},
            ]}),
        ),
        (
            "circuit-breaker",
            json!({"rateLimitings": [{
                "name": "b", "resourceRules": rules, "triggerPolicy": "Normal",
                "trip": {"errorPercent": 50, "minimumRequests": 3, "window": "1s"},
                "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "1s"}, "key": "resource",
            }]}),
        ),
    ];
    let specs = specs.map(|(plugin, settings)| Just(EntrySpec { plugin, settings }));
    Union::new(specs)
}

pub(super) fn request_spec() -> impl Strategy<Value = RequestSpec> {
    let targets = [
        (Method::GET, "/api/v1/namespaces/a/pods/x"),
        (Method::GET, "/api/v1/namespaces/b/pods/x"),
        (Method::GET, "/api/v1/namespaces/a/pods/y"),
        (Method::GET, "/api/v1/pods"),
        (Method::GET, "/api/v1/pods?q=1"),
        (Method::GET, "/api/v1/pods?q=%31&q=2"),
        (Method::GET, "/api/v1/pods?Q=1"),
        (Method::GET, "/api/v1/pods?labelSelector=a%3Db"),
        (Method::GET, "/api/v1/pods?fieldSelector=a%3Db"),
        (Method::GET, "/api/v1/pods?watch=1"),
        (Method::GET, "/api/v1/p%6Fds"),
        (Method::PUT, "/apis/apps/v1/namespaces/a/deployments/x/status"),
        (Method::POST, "/apis/apps/v1/namespaces/a/deployments"),
        (Method::DELETE, "/api/v1/namespaces/a/pods/x"),
        (Method::GET, "/apis/coordination.k8s.io/v1/namespaces/a/leases/x"),
        (Method::GET, "/healthz"),
    ];
    let headers = [
        vec![],
        vec![("x-a", "1")],
        vec![("x-a", "2")],
        vec![("x-a", "1"), ("x-a", "2")],
        vec![("x-b", "1"), ("authorization", "1")],
        vec![("authorization", "2")],
        vec![("user-agent", "a"), ("content-length", "1")],
        vec![("user-agent", "b")],
    ];
    let target = prop::sample::select(targets.to_vec());
    (target, prop::sample::select(headers.to_vec()), any::<bool>()).prop_map(
        |((method, target), headers, is_leader_lock)| RequestSpec {
            method,
            target,
            headers,
            is_leader_lock,
        },
    )
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (0_usize..2, request_spec()).prop_map(|(worker, request)| Operation::Request { worker, request }),
        3 => (0_usize..8, prop::sample::select(vec![101, 200, 500]))
            .prop_map(|(place, status)| Operation::Head { place, status }),
        5 => (0_usize..8, prop::sample::select(vec![0, 101, 200, 404, 500]))
            .prop_map(|(place, status)| Operation::End { place, outcome: outcome(status) }),
        2 => (0_usize..8).prop_map(|place| Operation::Recheck { place }),
        2 => (0_u64..300).prop_map(Operation::Advance),
        1 => (500_u64..4_000).prop_map(Operation::AdvanceQuarantines),
        1 => prop::sample::select(vec!["k", "l"]).prop_map(Operation::Write),
        1 => prop::sample::select(vec!["k", "l"]).prop_map(Operation::Remove),
        1 => Just(Operation::Reload),
        1 => chain().prop_map(Operation::NewChain),
    ]
}
