//! Pods as API servers send them when they call a webhook again: with all defaults filled in (`SetDefaults_*` of Kubernetes'
//! `pkg/apis/core/v1/defaults.go`), also in the injected parts.

use serde_json::{Value, json};

use super::golden::cases;
use crate::injected;

/// Sets the missing fields.
fn fill(value: &mut Value, defaults: &Value) {
    let Value::Object(fields) = value else { return };
    for (field, default) in defaults.as_object().unwrap() {
        fields.entry(field).or_insert_with(|| default.clone());
    }
}

fn each(value: Option<&mut Value>, change: impl FnMut(&mut Value)) {
    let list = value.and_then(Value::as_array_mut);
    list.into_iter().flatten().for_each(change);
}

fn container(container: &mut Value) {
    let messages = json!({"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
    fill(container, &messages);
    fill(container, &json!({"imagePullPolicy": "IfNotPresent", "resources": {}}));
    each(container.get_mut("ports"), |port| {
        fill(port, &json!({"protocol": "TCP"}))
    });
    each(container.get_mut("env"), |variable| {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef") {
            fill(field, &json!({"apiVersion": "v1"}));
        }
    });
    for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe) else {
            continue;
        };
        fill(probe, &json!({"timeoutSeconds": 1, "periodSeconds": 10}));
        fill(probe, &json!({"successThreshold": 1, "failureThreshold": 3}));
        if let Some(get) = probe.get_mut("httpGet") {
            fill(get, &json!({"scheme": "HTTP", "path": "/"}));
        }
    }
}

fn volume(volume: &mut Value) {
    for source in ["projected", "configMap", "secret", "downwardAPI"] {
        if let Some(source) = volume.get_mut(source) {
            fill(source, &json!({"defaultMode": 420}));
        }
    }
    each(volume.pointer_mut("/projected/sources"), |source| {
        if let Some(token) = source.get_mut("serviceAccountToken") {
            fill(token, &json!({"expirationSeconds": 3600}));
        }
        each(source.pointer_mut("/downwardAPI/items"), |item| {
            if let Some(field) = item.get_mut("fieldRef") {
                fill(field, &json!({"apiVersion": "v1"}));
            }
        });
    });
}

fn with_defaults(mut pod: Value) -> Value {
    let spec = &mut pod["spec"];
    fill(
        spec,
        &json!({"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {}}),
    );
    fill(
        spec,
        &json!({"schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30}),
    );
    for list in ["containers", "initContainers"] {
        each(spec.get_mut(list), container);
    }
    each(spec.get_mut("volumes"), volume);
    pod
}

#[test]
fn reinjection_changes_nothing_in_pod_with_defaults() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let once = with_defaults(injected(&case.pod, &known, &settings).unwrap());
        let again = with_defaults(injected(&once, &known, &settings).unwrap());
        assert_eq!(again, once, "{}", path.display());
    }
}

#[test]
fn sidecar_is_same_in_pod_with_defaults() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let late = with_defaults(injected(&case.pod, &known, &settings).unwrap());
        let early = with_defaults(injected(&with_defaults(case.pod.clone()), &known, &settings).unwrap());
        assert_eq!(early, late, "{}", path.display());
    }
}
