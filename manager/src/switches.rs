//! Switches of KusionStack's sidecar: variables in a pod's containers without which it ignored faults and lists of other services. They are
//! not read here (docs/adr/0038). So that nothing begins to act by migration alone, objects that KusionStack's manager had stay as inert as
//! they were, until a person says otherwise or they act here already. Pure.

use ctrlmesh_contract::names::annotations;
use ctrlmesh_contract::names::finalizers::PROTECTED;
use ctrlmesh_contract::{Chain, Entry, Origin};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use crate::api::{CircuitBreaker, FaultInjection};
use crate::compile::origin;

/// Why faults do nothing.
pub(crate) const FAULTS: &str = "did nothing under KusionStack but in pods with ENABLE_FAULT_INJECTION or ENABLE_REST_FAULT_INJECTION set \
     to \"true\"; these switches are not read here, and it does nothing until annotation ctrlmesh.kusionstack.io/activate: \"true\" says \
     that it shall";
/// Why lists do nothing.
pub(crate) const LISTS: &str = "did nothing under KusionStack but in pods with ENABLE_REST_BREAKER set to \"true\"; that switch is not \
     read here, and the lists do nothing until annotation ctrlmesh.kusionstack.io/activate: \"true\" says that they shall (rateLimitings \
     act)";

/// Switches, and what holds here instead.
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

/// Whether KusionStack's manager had an object, and nobody has said since that it shall act.
fn is_theirs(metadata: &ObjectMeta) -> bool {
    let finalizers = metadata.finalizers.iter().flatten();
    let is_activated = metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(annotations::ACTIVATE));
    finalizers.into_iter().any(|it| it == PROTECTED) && is_activated.is_none_or(|value| value != "true")
}

/// Whether a FaultInjection is as inert as it was. `last`: the chain that was distributed last, where it may act already.
pub(crate) fn holds_faults(faults: &FaultInjection, last: Option<&Chain>) -> bool {
    let is_meant = !faults.spec.disabled && !faults.spec.http_fault.is_empty();
    is_meant && is_theirs(&faults.metadata) && !acts(&origin(faults), last, |_| true)
}

/// Whether the lists of a CircuitBreaker are as inert as they were.
pub(crate) fn holds_lists(breaker: &CircuitBreaker, last: Option<&Chain>) -> bool {
    let has_lists = |entry: &Entry| {
        let lists = entry.settings.value().get("trafficInterceptRules");
        lists.and_then(Value::as_array).is_some_and(|lists| !lists.is_empty())
    };
    !breaker.spec.traffic_intercept_rules.is_empty()
        && is_theirs(&breaker.metadata)
        && !acts(&origin(breaker), last, has_lists)
}

fn acts(origin: &Origin, chain: Option<&Chain>, is_it: impl Fn(&Entry) -> bool) -> bool {
    let entries = chain.into_iter().flat_map(|chain| &chain.entries);
    let of_object = |entry: &&Entry| {
        let from = entry.origin.as_ref();
        from.is_some_and(|from| (&from.kind, &from.name) == (&origin.kind, &origin.name))
    };
    entries.filter(of_object).any(is_it)
}

/// Why an object that is stored does not act, or not as a whole; `None`: it is not for these switches.
pub(crate) fn why_inert(document: &Value, chain: &Chain) -> Option<&'static str> {
    match document.get("kind").and_then(Value::as_str)? {
        "FaultInjection" => {
            let faults = FaultInjection::deserialize(document).ok()?;
            holds_faults(&faults, Some(chain)).then_some(FAULTS)
        }
        "CircuitBreaker" => {
            let breaker = CircuitBreaker::deserialize(document).ok()?;
            holds_lists(&breaker, Some(chain)).then_some(LISTS)
        }
        _ => None,
    }
}

/// Warnings about switches that containers of a pod set.
pub(crate) fn warnings(pod: &Value) -> Vec<String> {
    let list = |field: &str| pod.pointer(field).and_then(Value::as_array).into_iter().flatten();
    let text = |object: &Value, field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut warnings = Vec::new();
    for container in list("/spec/containers") {
        let variables = container.get("env").and_then(Value::as_array).into_iter().flatten();
        for variable in variables {
            let switch = OF_PODS.iter().find(|(name, _)| *name == text(variable, "name"));
            if let Some((name, instead)) = switch {
                let container = text(container, "name");
                warnings.push(format!(
                    "container {container} sets {name}, which ctrlmesh does not read: {instead} (docs/migration.md)"
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
        ]}});
        let warnings = warnings(&pod);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].starts_with("container manager sets DISABLE_CIRCUIT_BREAKER, which ctrlmesh does not read"),
            "{warnings:?}"
        );
        assert!(
            warnings[1].starts_with("container helper sets ENABLE_REST_BREAKER"),
            "{warnings:?}"
        );
    }
}
