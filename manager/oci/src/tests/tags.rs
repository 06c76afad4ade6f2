//! A moved tag changes a plugin only if the tag is watched, and then only to a valid successor.

use ctrlmesh_contract::Digest;
use ctrlmesh_manager_api::plugin::{PluginStatus, PullPolicy};
use ctrlmesh_plugins_builtin::{RATE_LIMIT, SHARD_SELECTOR};
use ctrlmesh_testkit::registry::{AffectedRequests, Mishap};

use super::test_env::{Manager, settings, test_env};
use crate::*;

fn pinned_request(request: &ResolveRequest, artifact: &Artifact) -> ResolveRequest {
    ResolveRequest {
        pinned: Some(PluginStatus {
            name: "mine".to_owned(),
            image: request.image.clone(),
            manifest: artifact.manifest.clone(),
            digest: artifact.digest.to_string(),
            ..PluginStatus::default()
        }),
        ..request.clone()
    }
}

#[tokio::test]
async fn moved_tag_changes_nothing_even_for_new_manager() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let request = env.request_for("1.0");
    let artifact = env.manager.resolve_ready(&request).await;
    env.registry.put_component("you/plugin", "1.0", RATE_LIMIT);
    let pinned = pinned_request(&request, &artifact);
    // The pinned manifest was just fetched, so there is no request.
    let before = env.registry.requests().len();
    assert_eq!(
        env.manager.plugins.resolve(&pinned),
        Resolution::Ready(artifact.clone())
    );
    assert_eq!(env.registry.requests().len(), before);

    let mut standby = Manager::start(&env.api, settings(&env.registry)).await;
    assert_eq!(standby.resolve_ready(&pinned).await, artifact);
    assert_eq!(env.registry.count("/v2/you/plugin/manifests/1.0"), 1);
    assert_eq!(
        env.registry
            .count(&format!("/v2/you/plugin/manifests/{}", artifact.manifest)),
        1
    );
    // A changed image is resolved anew.
    let changed = ResolveRequest {
        image: env.request_for("2.0").image,
        ..pinned
    };
    assert_eq!(standby.resolve_failed(&changed).await.0, FailureReason::NotFound);
}

#[tokio::test]
async fn watched_tag_is_followed_and_invalid_successor_keeps_last_good_one() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let request = ResolveRequest {
        pull_policy: PullPolicy::Always,
        ..env.request_for("dev")
    };
    let first = env.manager.resolve_ready(&request).await;
    let request = pinned_request(&request, &first);
    env.registry.put_component("you/plugin", "dev", RATE_LIMIT);
    let is_second = |resolution: &Resolution| matches!(resolution, Resolution::Ready(artifact) if artifact.digest == Digest::of(RATE_LIMIT));
    let Resolution::Ready(second) = env.manager.resolve_until(&request, is_second).await else {
        panic!("not ready");
    };
    // Rechecks use `HEAD`, which does not count as a pull.
    let heads = env
        .registry
        .requests()
        .iter()
        .filter(|request| request.method == "HEAD")
        .count();
    assert!(heads > 0);
    assert_eq!(env.registry.count("/v2/you/plugin/blobs/"), 4);

    env.registry.put_component("you/plugin", "dev", b"#!/bin/sh");
    let is_failed = |resolution: &Resolution| matches!(resolution, Resolution::Failed { .. });
    match env.manager.resolve_until(&request, is_failed).await {
        Resolution::Failed { reason, last, .. } => {
            assert_eq!((reason, last), (FailureReason::Incompatible, Some(second.clone())))
        }
        other => panic!("{other:?}"),
    }
    env.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let is_first =
        |resolution: &Resolution| matches!(resolution, Resolution::Ready(artifact) if artifact.digest == first.digest);
    env.manager.resolve_until(&request, is_first).await;
}

#[tokio::test]
async fn watched_tag_is_followed_without_digest_header() {
    let mut env = test_env().await;
    env.registry.plan_mishap(AffectedRequests::Manifest, Mishap::NoDigest);
    env.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let request = ResolveRequest {
        pull_policy: PullPolicy::Always,
        ..env.request_for("dev")
    };
    env.manager.resolve_ready(&request).await;
    env.registry.put_component("you/plugin", "dev", RATE_LIMIT);
    let is_second = |resolution: &Resolution| matches!(resolution, Resolution::Ready(artifact) if artifact.digest == Digest::of(RATE_LIMIT));
    env.manager.resolve_until(&request, is_second).await;
}

#[tokio::test]
async fn watched_tag_keeps_artifact_when_registry_goes_down() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let request = ResolveRequest {
        pull_policy: PullPolicy::Always,
        ..env.request_for("dev")
    };
    let artifact = env.manager.resolve_ready(&request).await;
    env.registry.stop().await;
    let is_failed = |resolution: &Resolution| matches!(resolution, Resolution::Failed { .. });
    match env.manager.resolve_until(&request, is_failed).await {
        Resolution::Failed { reason, last, .. } => {
            assert_eq!((reason, last), (FailureReason::RegistryUnavailable, Some(artifact)));
        }
        other => panic!("{other:?}"),
    }
    env.registry.restart().await.unwrap();
    env.manager
        .resolve_until(&request, |resolution| matches!(resolution, Resolution::Ready(_)))
        .await;
}
