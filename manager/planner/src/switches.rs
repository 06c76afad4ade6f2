//! Switches of KusionStack's sidecar: without these variables in a pod's containers, it ignored faults and lists of external
//! services. ctrlmesh does not read them (docs/adr/0038). So that nothing begins to act by migration alone, objects of
//! KusionStack's manager stay inert until a person activates them or they act here already. Pure.

use ctrlmesh_contract::names::annotations;
use ctrlmesh_contract::names::finalizers::PROTECTED;
use ctrlmesh_contract::names::labels::{CIRCUIT_BREAKER_DISABLE, FAULT_INJECTION_DISABLE};
use ctrlmesh_contract::{Chain, Entry, Origin};
use ctrlmesh_manager_api::circuit_breaker::RateLimiting;
use ctrlmesh_manager_api::fault_injection::Fault;
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use crate::origin::origin;
use crate::validate::Object;

/// Why faults are inert.
pub(crate) const FAULTS: &str = "under KusionStack, the faults acted only in pods with ENABLE_FAULT_INJECTION or ENABLE_REST_FAULT_INJECTION \
     set to \"true\". ctrlmesh does not read these switches, and the faults do nothing until the object has annotation \
     ctrlmesh.kusionstack.io/activate: \"true\"";
/// Why lists are inert.
pub(crate) const LISTS: &str = "under KusionStack, trafficInterceptRules acted only in pods with ENABLE_REST_BREAKER set to \"true\". ctrlmesh \
     does not read this switch, and the rules do nothing until the object has annotation ctrlmesh.kusionstack.io/activate: \"true\"; its \
     rateLimitings act already";

/// For faults in a file: KusionStack's manager may have had them in another cluster, or never.
const FAULTS_OF_FILE: &str = "acts in every pod that spec.selector selects as soon as this is applied. Under KusionStack it acted only in pods with \
     ENABLE_FAULT_INJECTION or ENABLE_REST_FAULT_INJECTION set to \"true\". To keep the faults off, write spec.disabled: true. To let them act \
     without this warning, set annotation ctrlmesh.kusionstack.io/activate: \"true\"";
/// For lists in a file.
const LISTS_OF_FILE: &str = "act in every pod that spec.selector selects as soon as this is applied. Under KusionStack they acted only in pods with \
     ENABLE_REST_BREAKER set to \"true\". To keep them off, remove them. To let them act without this warning, set annotation \
     ctrlmesh.kusionstack.io/activate: \"true\"";

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

fn had_by_them(metadata: &ObjectMeta) -> bool {
    metadata.finalizers.iter().flatten().any(|it| it == PROTECTED)
}

fn is_activated(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(annotations::ACTIVATE))
        .is_some_and(|value| value == "true")
}

fn has_faults(faults: &FaultInjection) -> bool {
    !faults.spec.disabled && !faults.spec.http_fault.is_empty()
}

/// The warning for an object that is applied from a file, with the path of the field: under KusionStack the same file may have done
/// nothing. `None`: the object does nothing here either, or somebody has activated it.
fn of_file(object: &Object) -> Option<(&'static str, &'static str)> {
    let metadata = object.metadata();
    if had_by_them(metadata) || is_activated(metadata) {
        return None;
    }
    match object {
        Object::FaultInjection(faults) if has_faults(faults) && !is_disabled(metadata, FAULT_INJECTION_DISABLE) => {
            Some(("spec.httpFault", FAULTS_OF_FILE))
        }
        Object::CircuitBreaker(breaker)
            if !breaker.spec.traffic_intercept_rules.is_empty() && !is_disabled(metadata, CIRCUIT_BREAKER_DISABLE) =>
        {
            Some(("spec.trafficInterceptRules", LISTS_OF_FILE))
        }
        _ => None,
    }
}

/// As [`of_file`], but `None` for what was written for ctrlmesh, by the fields that only ctrlmesh has: in every fault, or for all of them.
/// Lists have no such fields, so those of any limit beside them count.
pub(crate) fn of_new(object: &Object) -> Option<(&'static str, &'static str)> {
    let is_written_for_us = match object {
        Object::FaultInjection(faults) => {
            let spec = &faults.spec;
            spec.seed.is_some() || spec.class.is_some() || spec.http_fault.iter().all(is_our_fault)
        }
        Object::CircuitBreaker(breaker) => breaker.spec.rate_limitings.iter().any(is_our_limit),
        _ => false,
    };
    of_file(object).filter(|_| !is_written_for_us)
}

/// Whether a rule has fields that KusionStack's definitions drop.
fn is_our_fault(fault: &Fault) -> bool {
    let chooses = [fault.nth, fault.every, fault.first, fault.max_count, fault.max_active];
    fault.fault.is_some()
        || fault.percent.is_some()
        || fault.disabled.is_some()
        || fault.max_duration.is_some()
        || chooses.iter().any(Option::is_some)
}

fn is_our_limit(limit: &RateLimiting) -> bool {
    limit.key.is_some()
        || limit.max_in_flight.is_some()
        || limit.queue.is_some()
        || limit.trip.is_some()
        || limit.failures.is_some()
        || limit.probes.is_some()
        || limit.recover.is_some()
}

fn is_disabled(metadata: &ObjectMeta, label: &str) -> bool {
    metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(label))
}

/// Whether the faults of a FaultInjection stay inert. `last`: the chain that was distributed last, in which they may act already.
pub(crate) fn holds_faults(faults: &FaultInjection, last: Option<&Chain>) -> bool {
    has_faults(faults) && is_theirs(&faults.metadata) && !is_in_chain(&origin(faults), last, |_| true)
}

/// Whether the lists of a CircuitBreaker stay inert.
pub(crate) fn holds_lists(breaker: &CircuitBreaker, last: Option<&Chain>) -> bool {
    let has_lists = |entry: &Entry| {
        let lists = entry.settings.value().get("trafficInterceptRules");
        lists.and_then(Value::as_array).is_some_and(|lists| !lists.is_empty())
    };
    !breaker.spec.traffic_intercept_rules.is_empty()
        && is_theirs(&breaker.metadata)
        && !is_in_chain(&origin(breaker), last, has_lists)
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
pub fn why_inert(document: &Value, chain: &Chain) -> Option<&'static str> {
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
    use crate::samples;
    use crate::validate::read;

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

    fn object(kind: &str, spec: &Value, metadata: &Value) -> Object {
        let mut document = samples::object(kind, "a", spec);
        let fields = metadata.as_object().cloned().unwrap_or_default();
        document["metadata"].as_object_mut().unwrap().extend(fields);
        read(&document).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    /// The paths of warnings for an object in a file.
    fn warning_paths(kind: &str, spec: &Value, metadata: &Value) -> Vec<&'static str> {
        of_file(&object(kind, spec, metadata))
            .into_iter()
            .map(|(path, _)| path)
            .collect()
    }

    #[test]
    fn new_objects_are_warned_of_when_kusionstack_could_have_had_them() {
        let is_warned_of = |kind: &str, spec: &Value, metadata: &Value| of_new(&object(kind, spec, metadata)).is_some();
        let fault = |more: &Value| {
            let mut fault = json!({"match": {"resources": [{}]}, "abort": {"httpStatus": 500, "percent": "10"}});
            fault
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().cloned().unwrap());
            json!({"selector": {}, "httpFault": [fault]})
        };
        let none = json!({});
        assert!(is_warned_of("FaultInjection", &fault(&none), &none));
        for ours in [
            json!({"every": 3}),
            json!({"maxDuration": "1m"}),
            json!({"disabled": false}),
        ] {
            assert!(!is_warned_of("FaultInjection", &fault(&ours), &none), "{ours}");
        }
        let mut mixed = fault(&json!({"every": 3}));
        let plain = fault(&none)["httpFault"][0].take();
        mixed["httpFault"].as_array_mut().unwrap().push(plain);
        assert!(
            is_warned_of("FaultInjection", &mixed, &none),
            "one of two could be theirs"
        );
        let mut seeded = fault(&none);
        seeded["seed"] = json!(7);
        assert!(!is_warned_of("FaultInjection", &seeded, &none));
        let activated = json!({"annotations": {"ctrlmesh.kusionstack.io/activate": "true"}});
        assert!(
            !is_warned_of("FaultInjection", &fault(&none), &activated),
            "somebody has decided"
        );
        let held = json!({"finalizers": [PROTECTED]});
        assert!(
            !is_warned_of("FaultInjection", &fault(&none), &held),
            "another warning says that it does nothing"
        );

        let rule = json!({"name": "a", "interceptType": "Blacklist", "contentType": "Normal", "contents": ["https://a"], "methods": ["GET"]});
        let mut lists = json!({"selector": {}, "trafficInterceptRules": [rule]});
        assert!(is_warned_of("CircuitBreaker", &lists, &none));
        lists["rateLimitings"] = json!([{"name": "a", "triggerPolicy": "LimiterOnly", "maxInFlight": 1, "resourceRules": [
            {"apiGroups": ["*"], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"]},
        ]}]);
        assert!(!is_warned_of("CircuitBreaker", &lists, &none));
    }

    #[test]
    fn objects_in_files_that_begin_to_act_are_warned_of() {
        let faults = |more: &Value| {
            let mut spec = json!({"selector": {}, "httpFault": [{"match": {"resources": [{}]}, "do": "conflict"}]});
            spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            spec
        };
        let faults_of = |more: &Value, metadata: &Value| warning_paths("FaultInjection", &faults(more), metadata);
        let none = json!({});
        let activate = |value: &str| json!({"annotations": {"ctrlmesh.kusionstack.io/activate": value}});
        assert_eq!(faults_of(&none, &none), ["spec.httpFault"]);
        assert_eq!(faults_of(&none, &activate("false")), ["spec.httpFault"]);
        assert!(faults_of(&none, &activate("true")).is_empty(), "somebody has decided");
        let theirs = json!({"finalizers": [PROTECTED]});
        assert!(
            faults_of(&none, &theirs).is_empty(),
            "it does nothing, as another warning says"
        );
        assert!(faults_of(&json!({"disabled": true}), &none).is_empty());
        assert!(faults_of(&json!({"httpFault": []}), &none).is_empty());
        let label = json!({"labels": {FAULT_INJECTION_DISABLE: ""}});
        assert!(faults_of(&none, &label).is_empty());

        let rule = json!({"name": "a", "interceptType": "Blacklist", "contentType": "Normal", "contents": ["https://a"], "methods": ["GET"]});
        let lists = json!({"selector": {}, "trafficInterceptRules": [rule]});
        assert_eq!(
            warning_paths("CircuitBreaker", &lists, &none),
            ["spec.trafficInterceptRules"]
        );
        assert!(warning_paths("CircuitBreaker", &lists, &activate("true")).is_empty());
        assert!(
            warning_paths(
                "CircuitBreaker",
                &lists,
                &json!({"labels": {CIRCUIT_BREAKER_DISABLE: ""}})
            )
            .is_empty()
        );
        assert!(warning_paths("CircuitBreaker", &json!({"selector": {}}), &none).is_empty());
    }
}
