//! Switches of KusionStack's sidecar: without these variables in a pod's containers, it ignored faults and lists of external
//! services. ctrlmesh does not read them (docs/adr/0038). So that nothing begins to act by migration alone, objects of
//! KusionStack's manager are held back until a person activates them or they act here already. Pure.

use ctrlmesh_contract::names::annotations;
use ctrlmesh_contract::names::finalizers::PROTECTED;
use ctrlmesh_contract::{Chain, Entry, Origin};
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use crate::origin::origin_of;

/// Why faults are held back.
pub(crate) const FAULTS: &str = "under KusionStack, the faults acted only in pods with ENABLE_FAULT_INJECTION or ENABLE_REST_FAULT_INJECTION \
     set to \"true\". ctrlmesh does not read these switches, and the faults do nothing until the object has annotation \
     ctrlmesh.kusionstack.io/activate: \"true\"";
/// Why lists are held back.
pub(crate) const LISTS: &str = "under KusionStack, trafficInterceptRules acted only in pods with ENABLE_REST_BREAKER set to \"true\". ctrlmesh \
     does not read this switch, and the rules do nothing until the object has annotation ctrlmesh.kusionstack.io/activate: \"true\"; its \
     rateLimitings act already";

/// Switches, and how to get the same effect here.
const OF_PODS: [(&str, &str); 4] = [
    (
        "DISABLE_CIRCUIT_BREAKER",
        "every CircuitBreaker whose spec.selector selects this pod acts on it; let the selector leave it out",
    ),
    (
        "ENABLE_FAULT_INJECTION",
        "a FaultInjection acts on the pods that it selects, whatever they say",
    ),
    (
        "ENABLE_REST_FAULT_INJECTION",
        "a FaultInjection acts on the pods that it selects, whatever they say",
    ),
    (
        "ENABLE_REST_BREAKER",
        "trafficInterceptRules of a CircuitBreaker act on the pods that it selects, whatever they say",
    ),
];

/// Whether KusionStack's manager had an object, and nobody has activated it since.
fn is_theirs(metadata: &ObjectMeta) -> bool {
    had_by_them(metadata) && !is_activated(metadata)
}

/// Whether KusionStack's manager had an object.
pub(crate) fn had_by_them(metadata: &ObjectMeta) -> bool {
    metadata.finalizers.iter().flatten().any(|it| it == PROTECTED)
}

/// Whether somebody has activated an object.
pub(crate) fn is_activated(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(annotations::ACTIVATE))
        .is_some_and(|value| value == "true")
}

pub(crate) fn has_faults(faults: &FaultInjection) -> bool {
    !faults.spec.disabled && !faults.spec.http_fault.is_empty()
}

/// Whether the faults of a FaultInjection are held back. `last`: the chain that was distributed last, in which they may act already.
pub(crate) fn holds_back_faults(faults: &FaultInjection, last: Option<&Chain>) -> bool {
    has_faults(faults) && is_theirs(&faults.metadata) && !is_in_chain(&origin_of(faults), last, |_| true)
}

/// Whether the lists of a CircuitBreaker are held back.
pub(crate) fn holds_back_lists(breaker: &CircuitBreaker, last: Option<&Chain>) -> bool {
    let has_lists = |entry: &Entry| {
        let lists = entry.settings.value().get("trafficInterceptRules");
        lists.and_then(Value::as_array).is_some_and(|lists| !lists.is_empty())
    };
    !breaker.spec.traffic_intercept_rules.is_empty()
        && is_theirs(&breaker.metadata)
        && !is_in_chain(&origin_of(breaker), last, has_lists)
}

fn is_in_chain(origin: &Origin, chain: Option<&Chain>, is_it: impl Fn(&Entry) -> bool) -> bool {
    let entries = chain.into_iter().flat_map(|chain| &chain.entries);
    let of_object = |entry: &&Entry| {
        let from = entry.origin.as_ref();
        from.is_some_and(|from| (&from.kind, &from.name) == (&origin.kind, &origin.name))
    };
    entries.filter(of_object).any(is_it)
}

/// Why a stored object does not act, or not completely; `None`: no switch applies to it.
pub fn why_held_back(document: &Value, chain: &Chain) -> Option<&'static str> {
    match document.get("kind").and_then(Value::as_str)? {
        "FaultInjection" => {
            let faults = FaultInjection::deserialize(document).ok()?;
            holds_back_faults(&faults, Some(chain)).then_some(FAULTS)
        }
        "CircuitBreaker" => {
            let breaker = CircuitBreaker::deserialize(document).ok()?;
            holds_back_lists(&breaker, Some(chain)).then_some(LISTS)
        }
        _ => None,
    }
}

/// Warnings about switches that containers of a pod set.
pub fn pod_warnings(pod: &Value) -> Vec<String> {
    let list = |field: &str| pod.pointer(field).and_then(Value::as_array).into_iter().flatten();
    let text = |object: &Value, field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut warnings = Vec::new();
    let init = list("/spec/initContainers").map(|container| ("init container", container));
    let containers = list("/spec/containers").map(|container| ("container", container));
    for (kind, container) in init.chain(containers) {
        let variables = container.get("env").and_then(Value::as_array).into_iter().flatten();
        for variable in variables {
            let switch = OF_PODS.iter().find(|(name, _)| *name == text(variable, "name"));
            if let Some((name, instead)) = switch {
                let container = text(container, "name");
                warnings.push(format!(
                    "{kind} {container} sets {name}, which ctrlmesh does not read: {instead} (docs/migration.md)"
                ));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_with_switches_are_warned_of() {
        let container =
            |name: &str, variable: &str| json!({"name": name, "env": [{"name": variable, "value": "true"}]});
        let pod = json!({"spec": {"containers": [
            container("manager", "DISABLE_CIRCUIT_BREAKER"),
            container("helper", "ENABLE_REST_BREAKER"),
            container("other", "ENABLE_SOMETHING"),
            {"name": "none"},
        ], "initContainers": [container("agent", "ENABLE_FAULT_INJECTION")]}});
        let mut warnings = pod_warnings(&pod);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        let first = warnings.remove(0);
        assert!(
            first.starts_with("init container agent sets ENABLE_FAULT_INJECTION"),
            "{first}"
        );
        assert!(
            warnings[0].starts_with("container manager sets DISABLE_CIRCUIT_BREAKER, which ctrlmesh does not read"),
            "{warnings:?}"
        );
        assert!(
            warnings[1].starts_with("container helper sets ENABLE_REST_BREAKER"),
            "{warnings:?}"
        );
    }

    #[test]
    fn documented_query_reads_the_containers_that_warnings_name() {
        let page = include_str!("../../../docs/migration.md");
        let (_, query) = page.split_once("kubectl get pods -A -o json | jq -r '").unwrap();
        let (query, _) = query.split_once("```").unwrap();
        assert!(
            query.contains("any(.spec | (.containers[], .initContainers[]?) | .env[]?; "),
            "{query}"
        );
        assert!(query.contains("DISABLE_CIRCUIT_BREAKER"), "{query}");
    }
}
