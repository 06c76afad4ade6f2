//! The messages of all rejections, as a reviewer reads them.

use serde_json::json;

use super::refused::accepted_pod;
use crate::Refusal;

/// Heading of a message. A new variant does not compile until it is here; add it to [`rejections`], too.
fn heading(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoPod => "no pod",
        Refusal::NoImage => "no image",
        Refusal::NotSelected { .. } => "not selected",
        Refusal::TwoShards { .. } => "two shards",
        Refusal::NoShardOfRoot { .. } => "no shard of root",
        Refusal::HostNetwork => "host network",
        Refusal::NotLinux { .. } => "not Linux",
        Refusal::NameTaken { .. } => "name taken",
        Refusal::PortTaken { .. } => "port taken",
        Refusal::MountTaken { .. } => "mount taken",
        Refusal::SidecarUser { .. } => "user of the sidecar",
        Refusal::StartsBefore { .. } => "starts before the sidecar",
        Refusal::HiddenFlag { .. } => "hidden flag",
        Refusal::HiddenVariable { .. } => "hidden variable",
        Refusal::TwoServers { .. } => "two API servers",
        Refusal::NotCopied { .. } => "variable that can't be copied",
        Refusal::Key { .. } => "label or annotation",
    }
}

fn not_selected(unread: &str) -> Refusal {
    Refusal::NotSelected {
        namespace: "demo".to_owned(),
        unread: unread.to_owned(),
    }
}

fn rejections() -> Vec<Refusal> {
    let manager = || "manager".to_owned();
    vec![
        Refusal::NoPod,
        Refusal::NoImage,
        not_selected(""),
        not_selected(" (these can't be read: ShardingConfig left)"),
        Refusal::TwoShards {
            first: "left".to_owned(),
            second: "right".to_owned(),
        },
        Refusal::NoShardOfRoot {
            root: "root".to_owned(),
        },
        Refusal::HostNetwork,
        Refusal::NotLinux {
            os: "windows".to_owned(),
        },
        Refusal::NameTaken {
            kind: "init container",
            name: "ctrlmesh-init".to_owned(),
        },
        Refusal::PortTaken {
            container: manager(),
            port: 5443,
        },
        Refusal::MountTaken {
            container: manager(),
            volume: "config".to_owned(),
            path: "/etc/kubernetes".to_owned(),
            ours: "fake-kubeconfig",
            at: "/etc/kubernetes/kubeconfig",
        },
        Refusal::SidecarUser { container: manager() },
        Refusal::StartsBefore {
            container: "tail".to_owned(),
        },
        Refusal::HiddenFlag {
            container: manager(),
            argument: "/m --kubeconfig=/x".to_owned(),
        },
        Refusal::HiddenVariable {
            container: manager(),
            argument: "KUBECONFIG=/x".to_owned(),
        },
        Refusal::TwoServers {
            first: manager(),
            second: "helper".to_owned(),
            variable: "KUBERNETES_SERVICE_HOST",
        },
        Refusal::NotCopied {
            container: manager(),
            variable: "ZONE".to_owned(),
            other: "NODE".to_owned(),
        },
    ]
}

/// Rejections of pods with an invalid label or annotation.
fn invalid_metadata() -> Vec<Refusal> {
    let reject = |flags: &str, metadata: &[(&str, &str, &str)]| {
        let pod = metadata
            .iter()
            .fold(accepted_pod(flags), |mut pod, (part, key, value)| {
                pod.pod["spec"]["initContainers"] = json!([{"name": "prepare"}]);
                pod.pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
                pod.with_metadata(part, key, value)
            });
        pod.inject().unwrap_err()
    };
    let annotation = |key: &str, value: &str| reject("", &[("annotations", key, value)]);
    let label = ("labels", "enable-iptables", "true");
    vec![
        annotation("native-sidecar", "yes"),
        annotation("kubeconfig-arg", "other"),
        reject("", &[label, ("annotations", "kubeconfig-arg", "manager")]),
        reject(
            "",
            &[
                ("annotations", "native-sidecar", "false"),
                ("annotations", "kubeconfig-arg", "prepare"),
            ],
        ),
        annotation("proxy-resource", "[]"),
        annotation("proxy-resource", r#"{"limit": {}}"#),
        annotation("env-sync", "=c"),
        annotation("env-sync", "KUBECONFIG"),
        annotation("env-sync", "CTRLMESH_CHAIN_DIR=/mine"),
        annotation("env-inject", r#"[{"name": "other", "env": []}]"#),
        annotation("log-path", "logs"),
        annotation("log-path", "/etc/ctrlmesh/chain"),
        reject("--mesh-ca=false", &[label]),
        reject(
            "--proxy-external-port=0",
            &[("annotations", "external-traffic", "true")],
        ),
        reject("", &[("labels", "kubeconfig-volume", "none")]),
        reject("", &[("labels", "kubeconfig-volume", "scratch")]),
    ]
}

#[test]
fn messages_of_rejections_match_snapshot() {
    let messages = rejections().into_iter().chain(invalid_metadata()).map(|refusal| {
        let (message, public) = (refusal.to_string(), refusal.to_anybody());
        let public = (public != message).then(|| format!("to clients that are not API servers: {public}\n"));
        format!("{}:\n{message}\n{}", heading(&refusal), public.unwrap_or_default())
    });
    insta::assert_snapshot!(messages.collect::<Vec<_>>().join("\n"));
}
