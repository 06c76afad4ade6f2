//! Resolves the plugins of a namespace's ShardingConfigs, and turns the results into digests and status.

use std::collections::BTreeSet;

use ctrlmesh_contract::Digest;
use ctrlmesh_manager_api::plugin::PluginStatus;
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_api::{PluginRef, ShardingConfig};
use ctrlmesh_manager_planner::built_in::BuiltIn;
use ctrlmesh_manager_rollout::config_maps::PackedPlugin;
use ctrlmesh_manager_rollout::observation::{NamedPlugin, NamedPlugins};
use kube::ResourceExt as _;

use ctrlmesh_manager_oci::{FailureReason, Resolution, ResolveRequest};

/// Resolves each plugin that is not built in. `running` are the plugins of the last distributed chain: a pinned plugin among them
/// stays while there is no response, so that a new manager needs no registry for it.
pub(super) fn resolve_plugins(
    namespace: &str,
    objects: &[ShardingConfig],
    running: &BTreeSet<Digest>,
    resolve: impl Fn(&ResolveRequest) -> Resolution,
) -> NamedPlugins {
    let with_plugins = objects.iter().filter(|object| !object.spec.plugins.is_empty());
    let named = with_plugins.map(|object| {
        let before = object.status.as_ref().map(|status| status.plugins.as_slice());
        let pulled = object
            .spec
            .plugins
            .iter()
            .filter(|plugin| BuiltIn::named_by(plugin).is_none());
        let plugins = pulled.map(|plugin| {
            let pinned = before.unwrap_or_default().iter().find(|old| old.name == plugin.name);
            named_plugin(
                plugin,
                pinned,
                running,
                &resolve(&request_for(namespace, plugin, pinned)),
            )
        });
        (object.name_any(), plugins.collect())
    });
    NamedPlugins(named.collect())
}

fn request_for(namespace: &str, plugin: &PluginRef, pinned: Option<&PluginStatus>) -> ResolveRequest {
    ResolveRequest {
        namespace: namespace.to_owned(),
        image: plugin.image.clone(),
        pull_policy: plugin.pull_policy,
        pull_secret: plugin.pull_secret.clone(),
        verification_key: plugin.verification_key.clone(),
        pinned: pinned.cloned(),
    }
}

fn named_plugin(
    plugin: &PluginRef,
    pinned: Option<&PluginStatus>,
    running: &BTreeSet<Digest>,
    resolution: &Resolution,
) -> NamedPlugin {
    // A pin stays until there is a response; otherwise the tag would be resolved again.
    let kept = pinned.filter(|pinned| pinned.image == plugin.image);
    let kept_digest = kept.and_then(|kept| kept.digest.parse().ok());
    let running = kept_digest.filter(|digest| running.contains(digest));
    let (artifact, running, problem, message) = match resolution {
        Resolution::Ready(artifact) => (Some(artifact), None, None, String::new()),
        // A new manager trusts the pin until it has looked it up.
        Resolution::Pending if running.is_some() && kept.is_some_and(|kept| kept.message.is_empty()) => {
            (None, running, None, String::new())
        }
        Resolution::Pending => (None, running, Some(Reason::FETCHING), "is being fetched".to_owned()),
        Resolution::Failed { reason, message, last } => {
            // The key may have been changed because the running plugin is not trusted any more.
            let running = running.filter(|_| *reason != FailureReason::SignatureInvalid);
            let goes_on = if last.is_some() || running.is_some() {
                "; what was fetched before goes on"
            } else {
                ""
            };
            (
                last.as_ref(),
                running,
                Some(reason.as_str()),
                format!("{reason}: {message}{goes_on}"),
            )
        }
    };
    let (manifest, digest) = match (artifact, kept) {
        (Some(artifact), _) => (artifact.manifest.clone(), artifact.digest.to_string()),
        (None, Some(kept)) => (kept.manifest.clone(), kept.digest.clone()),
        (None, None) => (String::new(), String::new()),
    };
    let status = PluginStatus {
        name: plugin.name.clone(),
        image: plugin.image.clone(),
        manifest,
        digest,
        message,
    };
    NamedPlugin {
        packed: artifact.map(|artifact| PackedPlugin {
            digest: artifact.digest,
            bytes: artifact.packed.clone(),
            interface: Some(artifact.interface),
        }),
        running,
        problem,
        status,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use ctrlmesh_contract::world::Interface;
    use ctrlmesh_manager_oci::Artifact;
    use serde_json::json;

    use super::*;
    use ctrlmesh_manager_planner::samples;

    const IMAGE: &str = "oci://ghcr.io/you/plugin:1";

    fn config_with_status(status: &serde_json::Value) -> ShardingConfig {
        let mut object = samples::shard("a", &[samples::plugin("mine", 0)]);
        object["status"] = json!({ "plugins": status });
        serde_json::from_value(object).unwrap()
    }

    fn artifact() -> Arc<Artifact> {
        Arc::new(Artifact {
            reference: String::new(),
            manifest: Digest::of(b"manifest").to_string(),
            digest: Digest::of(b"component"),
            packed: Bytes::new(),
            size: 9,
            interface: Interface(0, 1, 0),
        })
    }

    fn resolve_one(
        status: &serde_json::Value,
        resolution: Resolution,
    ) -> (Option<Result<Digest, String>>, PluginStatus) {
        let running = [artifact().digest].into();
        let found = resolve_plugins("demo", &[config_with_status(status)], &running, |_| resolution.clone());
        let digest = found.digests().remove(&("a".to_owned(), "mine".to_owned()));
        (digest, found.status("a").unwrap().remove(0))
    }

    #[test]
    fn resolved_plugin_is_pinned() {
        let (digest, status) = resolve_one(&json!([]), Resolution::Ready(artifact()));
        assert_eq!(digest, Some(Ok(Digest::of(b"component"))));
        assert_eq!((status.name.as_str(), status.image.as_str()), ("mine", IMAGE));
        assert_eq!(status.manifest, artifact().manifest);
        assert_eq!(status.digest, artifact().digest.to_string());
        assert_eq!(status.message, "");
    }

    #[test]
    fn pin_is_kept_until_image_or_response_changes() {
        let pinned =
            |image: &str| json!([{ "name": "mine", "image": image, "manifest": "sha256:m", "digest": "sha256:d" }]);
        let found_of = |status: &serde_json::Value| {
            resolve_plugins("demo", &[config_with_status(status)], &BTreeSet::new(), |ask| {
                assert_eq!(
                    ask.pinned.as_ref().map(|pinned| pinned.manifest.as_str()),
                    Some("sha256:m")
                );
                Resolution::Pending
            })
        };
        let status = found_of(&pinned(IMAGE)).status("a").unwrap().remove(0);
        assert_eq!(
            (status.manifest.as_str(), status.digest.as_str()),
            ("sha256:m", "sha256:d")
        );
        assert_eq!(status.message, "is being fetched");
        let status = found_of(&pinned("oci://ghcr.io/you/plugin:0"))
            .status("a")
            .unwrap()
            .remove(0);
        assert_eq!((status.manifest.as_str(), status.image.as_str()), ("", IMAGE));
    }

    #[test]
    fn built_in_plugin_is_not_resolved() {
        let object = samples::shard("a", &[json!({ "name": "trim-objects" })]);
        let object = serde_json::from_value(object).unwrap();
        let found = resolve_plugins("demo", &[object], &BTreeSet::new(), |_| Resolution::Pending);
        assert!(found.status("a").unwrap().is_empty());
        assert_eq!(found.problem("a"), None);
    }

    #[test]
    fn failed_pull_is_reported_and_previous_plugin_kept() {
        let failed = |last| Resolution::Failed {
            reason: FailureReason::NotFound,
            message: "no such tag".to_owned(),
            last,
        };
        let (digest, status) = resolve_one(&json!([]), failed(None));
        assert_eq!(digest, Some(Err("NotFound: no such tag".to_owned())));
        assert_eq!(status.message, "NotFound: no such tag");
        let (digest, status) = resolve_one(&json!([]), failed(Some(artifact())));
        assert_eq!(digest, Some(Ok(Digest::of(b"component"))));
        assert_eq!(status.message, "NotFound: no such tag; what was fetched before goes on");
        assert_eq!(status.manifest, artifact().manifest);
    }

    #[test]
    fn pinned_running_plugin_needs_no_registry() {
        let pinned = |digest: Digest, message: &str| {
            let manifest = artifact().manifest.clone();
            json!([{
                "name": "mine", "image": IMAGE, "manifest": manifest, "digest": digest.to_string(), "message": message,
            }])
        };
        let ours = || artifact().digest;
        let failed = |reason| Resolution::Failed {
            reason,
            message: "why".to_owned(),
            last: None,
        };
        let (digest, status) = resolve_one(&pinned(ours(), ""), Resolution::Pending);
        assert_eq!((digest, status.message.as_str()), (Some(Ok(ours())), ""));
        let (digest, status) = resolve_one(&pinned(ours(), "RegistryUnavailable: why"), Resolution::Pending);
        assert_eq!(
            (digest, status.message.as_str()),
            (Some(Ok(ours())), "is being fetched")
        );
        let (digest, status) = resolve_one(&pinned(ours(), ""), failed(FailureReason::RegistryUnavailable));
        assert_eq!(digest, Some(Ok(ours())));
        assert_eq!(
            status.message,
            "RegistryUnavailable: why; what was fetched before goes on"
        );
        // A plugin whose signature fails is not kept, nor is a pinned one that no sidecar runs.
        let (digest, _) = resolve_one(&pinned(ours(), ""), failed(FailureReason::SignatureInvalid));
        assert_eq!(digest, Some(Err("SignatureInvalid: why".to_owned())));
        let (digest, _) = resolve_one(&pinned(Digest::of(b"other"), ""), Resolution::Pending);
        assert_eq!(digest, Some(Err("is being fetched".to_owned())));
    }

    #[test]
    fn first_problem_becomes_reason() {
        let of = |resolution: Resolution| {
            let found = resolve_plugins("demo", &[config_with_status(&json!([]))], &BTreeSet::new(), |_| {
                resolution.clone()
            });
            found.problem("a")
        };
        let (message, last) = (String::new(), None);
        let reason = FailureReason::AccessDenied;
        assert_eq!(of(Resolution::Failed { reason, message, last }), Some("AccessDenied"));
        assert_eq!(of(Resolution::Pending), Some("Fetching"));
        assert_eq!(of(Resolution::Ready(artifact())), None);
    }

    #[test]
    fn object_without_plugins_has_no_status() {
        let object = samples::shard("a", &[]);
        let objects = [serde_json::from_value(object).unwrap()];
        let found = resolve_plugins("demo", &objects, &BTreeSet::new(), |_| Resolution::Pending);
        assert_eq!(
            (found.status("a"), found.digests().len(), found.packed().count()),
            (None, 0, 0)
        );
    }
}
