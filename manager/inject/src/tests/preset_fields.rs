//! Pods that are created with annotation `injected` and with containers of our names, and look like pods for which the webhook is
//! called again.

use serde_json::{Value, json};

use super::golden::cases;
use crate::inject_sidecar;

const OURS: [&str; 2] = ["ctrlmesh-proxy", "ctrlmesh-init"];

/// A container that would run another image, with more rights.
fn foreign_container(name: &str) -> Value {
    json!({
        "name": name,
        "image": "evil.example/ctrlmesh-proxy:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sh"],
        "args": ["-c", "evil"],
        "workingDir": "/evil",
        "env": [{"name": "SSL_CERT_FILE", "value": "/evil/ca.crt"}, {"name": "CTRLMESH_PUBLIC_KEY", "value": "evil"}],
        "envFrom": [{"configMapRef": {"name": "evil"}}],
        "volumeMounts": [{"name": "evil", "mountPath": "/ctrlmesh-proxy", "subPath": "evil"}],
        "volumeDevices": [{"name": "evil", "devicePath": "/dev/evil"}],
        "securityContext": {"privileged": true, "capabilities": {"add": ["SYS_ADMIN"]}},
        "lifecycle": {"preStop": {"exec": {"command": ["/evil"]}}},
        "livenessProbe": {"exec": {"command": ["/evil"]}},
        "startupProbe": {"exec": {"command": ["/evil"]}},
        "ports": [{"containerPort": 1, "hostPort": 1}],
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "stdin": true,
        "terminationMessagePath": "/ctrlmesh-proxy",
        "restartPolicy": "Always",
    })
}

fn containers_mut<'p>(pod: &'p mut Value, list: &str) -> &'p mut Vec<Value> {
    let list = pod["spec"].as_object_mut().unwrap().entry(list).or_insert(json!([]));
    list.as_array_mut().unwrap()
}

#[test]
fn containers_in_pod_are_rebuilt_from_settings() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let once = inject_sidecar(&case.pod, &known, &settings).unwrap();
        let mut reinjected = once.clone();
        let mut preset = once.clone();
        for list in ["initContainers", "containers"] {
            for container in containers_mut(&mut reinjected, list) {
                let name = container["name"].as_str().unwrap().to_owned();
                if OURS.contains(&name.as_str()) {
                    *container = foreign_container(&name);
                }
            }
            // Also at the place of the other shape.
            containers_mut(&mut preset, list).extend(OURS.map(foreign_container));
        }
        for pod in [reinjected, preset] {
            let mut again = inject_sidecar(&pod, &known, &settings).unwrap();
            let mut once = once.clone();
            for pod in [&mut again, &mut once] {
                // Resources that other webhooks set are kept.
                for list in ["initContainers", "containers"] {
                    containers_mut(pod, list)
                        .iter_mut()
                        .for_each(|it| drop(it.as_object_mut().unwrap().remove("resources")));
                }
            }
            assert_eq!(again, once, "{}", path.display());
        }
    }
}

#[test]
fn volumes_in_pod_under_our_names_are_replaced() {
    for (path, case) in cases() {
        let (known, settings) = (case.known(), case.settings());
        let once = inject_sidecar(&case.pod, &known, &settings).unwrap();
        let mut preset = once.clone();
        for volume in preset["spec"]["volumes"].as_array_mut().unwrap() {
            if volume["name"].as_str().unwrap().starts_with("ctrlmesh-") {
                *volume = json!({"name": volume["name"], "hostPath": {"path": "/"}});
            }
        }
        assert_eq!(
            inject_sidecar(&preset, &known, &settings).unwrap(),
            once,
            "{}",
            path.display()
        );
    }
}

#[test]
fn resources_set_by_another_webhook_are_kept() {
    let (_, case) = cases().swap_remove(0);
    let (known, settings) = (case.known(), case.settings());
    let mut pod = inject_sidecar(&case.pod, &known, &settings).unwrap();
    let theirs = json!({"requests": {"cpu": "1m"}});
    pod["spec"]["initContainers"][0]["resources"] = json!({"requests": {"cpu": "1m"}, "claims": [{"name": "gpu"}]});
    let again = inject_sidecar(&pod, &known, &settings).unwrap();
    assert_eq!(again["spec"]["initContainers"][0]["resources"], theirs);
    assert_eq!(inject_sidecar(&again, &known, &settings).unwrap(), again);
}
