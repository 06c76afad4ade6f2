//! Warns of new objects that act here, and may have done nothing under KusionStack (docs/adr/0038).

use ctrlmesh_contract::names::labels::{CIRCUIT_BREAKER_DISABLE, FAULT_INJECTION_DISABLE};
use ctrlmesh_manager_api::circuit_breaker::RateLimiting;
use ctrlmesh_manager_api::fault_injection::Fault;

use super::findings::Findings;
use super::read::Object;
use crate::labels::has_label;
use crate::switches::{had_by_them, has_faults, is_activated};

/// For faults in a file: KusionStack's manager may have had them in another cluster, or never.
const FAULTS_OF_FILE: &str = "acts in every pod that spec.selector selects as soon as this is applied. Under KusionStack it acted only in pods with \
     ENABLE_FAULT_INJECTION or ENABLE_REST_FAULT_INJECTION set to \"true\". To keep the faults off, write spec.disabled: true. To let them act \
     without this warning, set annotation ctrlmesh.kusionstack.io/activate: \"true\"";
/// For lists in a file.
const LISTS_OF_FILE: &str = "act in every pod that spec.selector selects as soon as this is applied. Under KusionStack they acted only in pods with \
     ENABLE_REST_BREAKER set to \"true\". To keep them off, remove them. To let them act without this warning, set annotation \
     ctrlmesh.kusionstack.io/activate: \"true\"";

/// Warns of a new object, in a file or at admission, that may have done nothing under KusionStack. There is no warning for an
/// object with fields of ctrlmesh, which KusionStack could not have had. Not for updates at admission: each apply would repeat the
/// warning.
pub fn warn_of_new(object: &Object, findings: &mut Findings) {
    if let Some((path, problem)) = reason_in_new_object(object) {
        findings.warn(path, problem);
    }
}

/// The warning for an object that is applied from a file, with the path of the field: under KusionStack the same file may have done
/// nothing. `None`: the object does nothing here either, or somebody has activated it.
fn reason_in_file(object: &Object) -> Option<(&'static str, &'static str)> {
    let metadata = object.metadata();
    if had_by_them(metadata) || is_activated(metadata) {
        return None;
    }
    match object {
        Object::FaultInjection(faults) if has_faults(faults) && !has_label(metadata, FAULT_INJECTION_DISABLE) => {
            Some(("spec.httpFault", FAULTS_OF_FILE))
        }
        Object::CircuitBreaker(breaker)
            if !breaker.spec.traffic_intercept_rules.is_empty() && !has_label(metadata, CIRCUIT_BREAKER_DISABLE) =>
        {
            Some(("spec.trafficInterceptRules", LISTS_OF_FILE))
        }
        _ => None,
    }
}

/// As [`reason_in_file`], but `None` for what was written for ctrlmesh, by the fields that only ctrlmesh has: in every fault, or for all of them.
/// Lists have no such fields, so those of any limit beside them count.
fn reason_in_new_object(object: &Object) -> Option<(&'static str, &'static str)> {
    let is_written_for_us = match object {
        Object::FaultInjection(faults) => {
            let spec = &faults.spec;
            spec.seed.is_some() || spec.class.is_some() || spec.http_fault.iter().all(is_our_fault)
        }
        Object::CircuitBreaker(breaker) => breaker.spec.rate_limitings.iter().any(is_our_limit),
        _ => false,
    };
    reason_in_file(object).filter(|_| !is_written_for_us)
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

#[cfg(test)]
mod tests {
    use ctrlmesh_contract::names::finalizers::PROTECTED;
    use serde_json::{Value, json};

    use super::*;
    use crate::samples;
    use crate::validate::read;

    fn object(kind: &str, spec: &Value, metadata: &Value) -> Object {
        let mut document = samples::object(kind, "a", spec);
        let fields = metadata.as_object().cloned().unwrap_or_default();
        document["metadata"].as_object_mut().unwrap().extend(fields);
        read(&document).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    /// The paths of warnings for an object in a file.
    fn warning_paths(kind: &str, spec: &Value, metadata: &Value) -> Vec<&'static str> {
        reason_in_file(&object(kind, spec, metadata))
            .into_iter()
            .map(|(path, _)| path)
            .collect()
    }

    #[test]
    fn new_objects_are_warned_of_when_kusionstack_could_have_had_them() {
        let is_warned_of =
            |kind: &str, spec: &Value, metadata: &Value| reason_in_new_object(&object(kind, spec, metadata)).is_some();
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
