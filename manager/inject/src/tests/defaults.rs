//! Pods as API servers send them when they call a webhook again: with all defaults filled in (`SetDefaults_*` of Kubernetes'
//! `pkg/apis/core/v1/defaults.go`), also in the injected parts.

use serde_json::{Value, json};

use super::golden::cases;
use crate::inject_sidecar;

/// Sets the missing fields.
fn fill_defaults(value: &mut Value, defaults: &Value) {
    let Value::Object(fields) = value else { return };
    for (field, default) in defaults.as_object().unwrap() {
        fields.entry(field).or_insert_with(|| default.clone());
    }
}

fn for_each_element(value: Option<&mut Value>, change: impl FnMut(&mut Value)) {
    let list = value.and_then(Value::as_array_mut);
    list.into_iter().flatten().for_each(change);
}

fn fill_container(container: &mut Value) {
    let messages = json!({"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
    fill_defaults(container, &messages);
    fill_defaults(container, &json!({"imagePullPolicy": "IfNotPresent", "resources": {}}));
    for_each_element(container.get_mut("ports"), |port| {
        fill_defaults(port, &json!({"protocol": "TCP"}))
    });
    for_each_element(container.get_mut("env"), |variable| {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            fill_defaults(field, &json!({"apiVersion": "v1"}));
        }
    });
    for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe) else {
            continue;
        };
        fill_defaults(probe, &json!({"timeoutSeconds": 1, "periodSeconds": 10}));
        fill_defaults(probe, &json!({"successThreshold": 1, "failureThreshold": 3}));
        if let Some(get) = probe.get_mut("httpGet") {
            fill_defaults(get, &json!({"scheme": "HTTP", "path": "/"}));
        }
    }
}

fn fill_volume(volume: &mut Value) {
    for source in ["projected", "configMap", "secret", "downwardAPI"] {
        if let Some(source) = volume.get_mut(source) {
            fill_defaults(source, &json!({"defaultMode": 420}));
        }
    }
    for_each_element(volume.pointer_mut("/projected/sources"), |source| {
        if let Some(token) = source.get_mut("serviceAccountToken") {
            fill_defaults(token, &json!({"expirationSeconds": 3600}));
        }
        for_each_element(source.pointer_mut("/downwardAPI/items"), |item| {
            if let Some(field) = item.get_mut("fieldRef") {
                fill_defaults(field, &json!({"apiVersion": "v1"}));
            }
        });
    });
}

fn with_defaults(mut pod: Value) -> Value {
    let spec = &mut pod["spec"];
    fill_defaults(
        spec,
        &json!({"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}}),
    );
    fill_defaults(
        spec,
        &json!({"schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30}),
    );
    for list in ["containers", "initContainers"] {
        for_each_element(spec.get_mut(list), fill_container);
    }
    for_each_element(spec.get_mut("volumes"), fill_volume);
    pod
}

#[test]
fn reinjection_changes_nothing_in_pod_with_defaults() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let once = with_defaults(inject_sidecar(&case.pod, &known, &settings).unwrap());
        let again = with_defaults(inject_sidecar(&once, &known, &settings).unwrap());
        assert_eq!(again, once, "{}", path.display());
    }
}

#[test]
fn sidecar_is_same_in_pod_with_defaults() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let late = with_defaults(inject_sidecar(&case.pod, &known, &settings).unwrap());
        let early = with_defaults(inject_sidecar(&with_defaults(case.pod.clone()), &known, &settings).unwrap());
        assert_eq!(early, late, "{}", path.display());
    }
}
