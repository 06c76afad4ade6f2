//! The rules that select a pod: at most one shard, and any number of breakers and faults.
//!
//! Only their selectors are parsed: a rule that is invalid elsewhere still says which pods it is for.

use std::collections::BTreeMap;

use ctrlmesh_contract::LabelSelector;
use ctrlmesh_contract::names::{finalizers, labels};
use serde::Deserialize;
use serde_json::Value;

use super::refusal::Refusal;

/// The pods that a custom resource selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    kind: String,
    name: String,
    pods: Pods,
    /// The object is a deleted shard that our finalizer holds.
    is_held: bool,
    /// The object has rules for external services.
    is_external: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pods {
    /// Pods that this selector selects.
    Selected(LabelSelector),
    /// Pods of this StatefulSet, through the shards that the root makes.
    Root {
        stateful_set: String,
        selector: LabelSelector,
    },
    Nobody,
    /// The selector is unreadable.
    Unknown,
}

const SHARD: &str = "ShardingConfig";

#[derive(Deserialize)]
struct Spec {
    selector: Option<LabelSelector>,
    root: Option<Root>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Root {
    disable: Option<bool>,
    target_stateful_set: String,
}

impl Rule {
    /// `None`: the object is being deleted, and its pods need no sidecar. Those of a shard need one until our finalizer is removed,
    /// because without one they would act beside other shards; until then the chain has an entry that shows them nothing.
    #[must_use]
    pub fn from_document(document: &Value) -> Option<Self> {
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_deleted = document.pointer("/metadata/deletionTimestamp").is_some();
        if is_deleted && !is_held_shard(document) {
            return None;
        }
        let kind = text("/kind").to_owned();
        let spec = document.get("spec").cloned().unwrap_or_default();
        let pods = match serde_json::from_value::<Spec>(spec) {
            Ok(spec) => pods_of_spec(&kind, spec),
            Err(_) => Pods::Unknown,
        };
        Some(Self {
            name: text("/metadata/name").to_owned(),
            is_external: is_external(document),
            is_held: is_deleted,
            kind,
            pods,
        })
    }

    fn is_shard_of(&self, pod: &BTreeMap<String, String>) -> bool {
        self.kind == SHARD && self.selects(pod)
    }

    fn selects(&self, pod: &BTreeMap<String, String>) -> bool {
        matches!(&self.pods, Pods::Selected(selector) if selector.matches(pod))
    }

    /// Whether the object makes the shards of the pod's StatefulSet.
    fn is_root_of(&self, pod: &BTreeMap<String, String>) -> bool {
        let Pods::Root { stateful_set, selector } = &self.pods else {
            return false;
        };
        let name = pod.get(labels::STATEFUL_SET_POD_NAME);
        let number = name.and_then(|name| name.strip_prefix(stateful_set)?.strip_prefix('-'));
        number.is_some_and(|number| number.parse::<u32>().is_ok()) && selector.matches(pod)
    }
}

fn is_held_shard(document: &Value) -> bool {
    let finalizers = document.pointer("/metadata/finalizers").and_then(Value::as_array);
    let is_held = finalizers.is_some_and(|all| all.iter().any(|finalizer| finalizer == finalizers::HAND_OVER));
    let is_root = document.pointer("/spec/root").is_some_and(|root| !root.is_null());
    document.pointer("/kind").is_some_and(|kind| kind == SHARD) && is_held && !is_root
}

/// Whether a CircuitBreaker or a FaultInjection has rules for external services. A disabled one counts, because it may be enabled
/// while its pods run.
fn is_external(document: &Value) -> bool {
    let has = |object: &Value, pointer: &str| {
        let list = object.pointer(pointer).and_then(Value::as_array);
        list.is_some_and(|list| !list.is_empty())
    };
    let any = |list: &str, pointer: &str| {
        let rules = document.pointer(list).and_then(Value::as_array);
        rules.into_iter().flatten().any(|rule| has(rule, pointer))
    };
    has(document, "/spec/trafficInterceptRules")
        || any("/spec/rateLimitings", "/restRules")
        || any("/spec/httpFault", "/match/httpMatch")
}

/// Whether a rule for external services selects the pod.
pub(super) fn has_external_rules(pod: &BTreeMap<String, String>, rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.is_external && rule.selects(pod))
}

fn pods_of_spec(kind: &str, spec: Spec) -> Pods {
    let selector = spec.selector;
    match (spec.root, selector) {
        (Some(root), _) if root.disable == Some(true) => Pods::Nobody,
        (Some(root), selector) => Pods::Root {
            stateful_set: root.target_stateful_set,
            selector: selector.unwrap_or_default(),
        },
        // A shard without a selector selects no pod; a breaker with an empty selector selects every pod.
        (None, Some(selector)) if kind == SHARD && selector == LabelSelector::default() => Pods::Nobody,
        (None, Some(selector)) => Pods::Selected(selector),
        (None, None) => Pods::Nobody,
    }
}

/// The name of the pod's shard; `None`: only breakers and faults select it.
///
/// # Errors
/// Two shards select the pod, or nothing does, or shards should and do not.
pub(super) fn shard_of_pod<'r>(
    pod: &BTreeMap<String, String>,
    namespace: &str,
    rules: &'r [Rule],
) -> Result<Option<&'r str>, Refusal> {
    let mut shards: Vec<&Rule> = rules.iter().filter(|rule| rule.is_shard_of(pod)).collect();
    // A pod may have moved from a deleted shard to another one.
    if shards.iter().any(|shard| !shard.is_held) {
        shards.retain(|shard| !shard.is_held);
    }
    let mut shards: Vec<&str> = shards.iter().map(|rule| rule.name.as_str()).collect();
    shards.sort_unstable();
    match *shards.as_slice() {
        [first, second, ..] => Err(Refusal::TwoShards {
            first: first.to_owned(),
            second: second.to_owned(),
        }),
        [one] => Ok(Some(one)),
        [] => match rules.iter().find(|rule| rule.is_root_of(pod)) {
            Some(root) => Err(Refusal::NoShardOfRoot {
                root: root.name.clone(),
            }),
            None if rules.iter().any(|rule| rule.selects(pod)) => Ok(None),
            None => Err(Refusal::NotSelected {
                namespace: namespace.to_owned(),
                unread: unreadable_rules(rules),
            }),
        },
    }
}

/// The unreadable rules, which may select the pod.
fn unreadable_rules(rules: &[Rule]) -> String {
    let unread = rules.iter().filter(|rule| rule.pods == Pods::Unknown);
    let names: Vec<String> = unread.map(|rule| format!("{} {}", rule.kind, rule.name)).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(" (these can't be read: {})", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(kind: &str, name: &str, spec: &Value) -> Rule {
        let document = json!({"kind": kind, "metadata": {"name": name}, "spec": spec});
        Rule::from_document(&document).unwrap()
    }

    fn rule_for_app(app: &str) -> Value {
        json!({"selector": {"matchLabels": {"app": app}}})
    }

    fn found_shard(labels: &[(&str, &str)], rules: &[Rule]) -> Result<Option<String>, String> {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let found = shard_of_pod(&labels.collect(), "demo", rules);
        found
            .map(|name| name.map(str::to_owned))
            .map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn pod_is_in_one_shard_at_most() {
        let mut rules = vec![
            rule(SHARD, "b", &rule_for_app("x")),
            rule(SHARD, "other", &rule_for_app("y")),
        ];
        assert_eq!(found_shard(&[("app", "x")], &rules), Ok(Some("b".to_owned())));
        rules.push(rule(
            SHARD,
            "a",
            &json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}),
        ));
        let problem = found_shard(&[("app", "x")], &rules).unwrap_err();
        assert!(
            problem.starts_with("ShardingConfigs a and b both select this pod"),
            "{problem}"
        );
    }

    #[test]
    fn breaker_or_fault_is_enough_to_select_pod() {
        for kind in ["CircuitBreaker", "FaultInjection"] {
            assert_eq!(
                found_shard(&[("app", "x")], &[rule(kind, "a", &rule_for_app("x"))]),
                Ok(None)
            );
            assert_eq!(found_shard(&[], &[rule(kind, "a", &json!({"selector": {}}))]), Ok(None));
            assert!(found_shard(&[("app", "y")], &[rule(kind, "a", &rule_for_app("x"))]).is_err());
            assert!(
                found_shard(&[("app", "y")], &[rule(kind, "a", &json!({}))]).is_err(),
                "none selects nothing"
            );
        }
        let nobody = rule(SHARD, "a", &json!({"selector": {}}));
        let problem = found_shard(&[("app", "x")], &[nobody]).unwrap_err();
        assert!(
            problem.contains("in namespace demo selects this pod; apply one"),
            "{problem}"
        );
    }

    #[test]
    fn invalid_rule_selects_pods_by_its_valid_selector() {
        let wrong = json!({"selector": {"matchLabels": {"app": "x"}}, "limits": "none", "controller": 7});
        assert_eq!(
            found_shard(&[("app", "x")], &[rule(SHARD, "a", &wrong)]),
            Ok(Some("a".to_owned()))
        );
        let unreadable = json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}});
        let problem = found_shard(&[("app", "x")], &[rule(SHARD, "a", &unreadable)]).unwrap_err();
        assert!(problem.contains("these can't be read: ShardingConfig a"), "{problem}");
    }

    fn deleted(kind: &str, finalizer: &str, spec: &Value) -> Option<Rule> {
        let metadata = json!({"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer]});
        Rule::from_document(&json!({"kind": kind, "metadata": metadata, "spec": spec}))
    }

    #[test]
    fn deleted_shard_selects_pods_while_our_finalizer_holds_it() {
        let held = deleted(SHARD, finalizers::HAND_OVER, &rule_for_app("x")).unwrap();
        assert_eq!(
            found_shard(&[("app", "x")], std::slice::from_ref(&held)),
            Ok(Some("a".to_owned()))
        );
        let other = rule(SHARD, "b", &rule_for_app("x"));
        assert_eq!(
            found_shard(&[("app", "x")], &[held, other]),
            Ok(Some("b".to_owned())),
            "the pod has moved"
        );
    }

    #[test]
    fn other_deleted_objects_select_no_pod() {
        assert_eq!(deleted(SHARD, "example.com/other", &rule_for_app("x")), None);
        assert_eq!(
            deleted("CircuitBreaker", finalizers::HAND_OVER, &rule_for_app("x")),
            None
        );
        let root =
            json!({"selector": {"matchLabels": {"app": "x"}}, "root": {"prefix": "p", "targetStatefulSet": "op"}});
        assert_eq!(deleted(SHARD, finalizers::HAND_OVER, &root), None);
    }

    #[test]
    fn pod_of_root_is_refused_until_its_shard_exists() {
        let root = |disable: bool| {
            rule(
                SHARD,
                "r",
                &json!({"selector": {"matchLabels": {"app": "x"}}, "root": {"disable": disable, "prefix": "p", "targetStatefulSet": "op"}}),
            )
        };
        let breaker = rule("CircuitBreaker", "a", &json!({"selector": {}}));
        let pod = [("app", "x"), ("statefulset.kubernetes.io/pod-name", "op-3")];
        let problem = found_shard(&pod, &[root(false), breaker.clone()]).unwrap_err();
        assert!(
            problem.starts_with("no shard of ShardingConfig r selects this pod"),
            "{problem}"
        );
        assert_eq!(found_shard(&pod, &[root(true), breaker.clone()]), Ok(None));
        for other in ["op-2-3", "opera-3", "op"] {
            let pod = [("app", "x"), ("statefulset.kubernetes.io/pod-name", other)];
            assert_eq!(found_shard(&pod, &[root(false), breaker.clone()]), Ok(None), "{other}");
        }
        let one = json!({"selector": {"matchLabels": {"statefulset.kubernetes.io/pod-name": "op-3"}}});
        assert_eq!(
            found_shard(&pod, &[root(false), rule(SHARD, "p-1-normal", &one)]),
            Ok(Some("p-1-normal".to_owned()))
        );
    }
}
