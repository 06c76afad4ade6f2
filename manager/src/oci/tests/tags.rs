//! Tags that move.

use ctrlmesh_contract::Digest;
use ctrlmesh_plugins_builtin::{RATE_LIMIT, SHARD_SELECTOR};
use ctrlmesh_testkit::registry::{Mishap, On};

use super::stand::{Manager, settings, stand};
use crate::api::plugin::{PluginStatus, PullPolicy};
use crate::oci::*;

fn pinned(ask: &Ask, artifact: &Artifact) -> Ask {
    Ask {
        pinned: Some(PluginStatus {
            name: "mine".to_owned(),
            image: ask.image.clone(),
            manifest: artifact.manifest.clone(),
            digest: artifact.digest.to_string(),
            ..PluginStatus::default()
        }),
        ..ask.clone()
    }
}

#[tokio::test]
async fn a_tag_that_moves_changes_nothing_not_even_for_a_new_manager() {
    let mut stand = stand().await;
    stand.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let ask = stand.ask("1.0");
    let artifact = stand.manager.ready(&ask).await;
    stand.registry.put_component("you/plugin", "1.0", RATE_LIMIT);
    let pinned = pinned(&ask, &artifact);
    // The pinned manifest is what was just fetched: nothing is asked for it.
    let before = stand.registry.requests().len();
    assert_eq!(
        stand.manager.plugins.resolve(&pinned),
        Resolution::Ready(artifact.clone())
    );
    assert_eq!(stand.registry.requests().len(), before);

    let mut standby = Manager::start(&stand.api, settings(&stand.registry)).await;
    assert_eq!(standby.ready(&pinned).await, artifact);
    assert_eq!(stand.registry.count("/v2/you/plugin/manifests/1.0"), 1);
    assert_eq!(
        stand
            .registry
            .count(&format!("/v2/you/plugin/manifests/{}", artifact.manifest)),
        1
    );
    // Another image in the object is another matter.
    let changed = Ask {
        image: stand.ask("2.0").image,
        ..pinned
    };
    assert_eq!(standby.failed(&changed).await.0, Reason::NotFound);
}

#[tokio::test]
async fn a_watched_tag_is_followed_and_a_bad_successor_leaves_the_good_one() {
    let mut stand = stand().await;
    stand.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let ask = Ask {
        pull_policy: PullPolicy::Always,
        ..stand.ask("dev")
    };
    let first = stand.manager.ready(&ask).await;
    let ask = pinned(&ask, &first);
    stand.registry.put_component("you/plugin", "dev", RATE_LIMIT);
    let is_second = |resolution: &Resolution| matches!(resolution, Resolution::Ready(artifact) if artifact.digest == Digest::of(RATE_LIMIT));
    let Resolution::Ready(second) = stand.manager.until(&ask, is_second).await else {
        panic!("not ready");
    };
    // Looking is not pulling.
    let heads = stand
        .registry
        .requests()
        .iter()
        .filter(|request| request.method == "HEAD")
        .count();
    assert!(heads > 0);
    assert_eq!(stand.registry.count("/v2/you/plugin/blobs/"), 4);

    stand.registry.put_component("you/plugin", "dev", b"#!/bin/sh");
    let is_failed = |resolution: &Resolution| matches!(resolution, Resolution::Failed { .. });
    match stand.manager.until(&ask, is_failed).await {
        Resolution::Failed { reason, last, .. } => {
            assert_eq!((reason, last), (Reason::Incompatible, Some(second.clone())))
        }
        other => panic!("{other:?}"),
    }
    stand.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let is_first =
        |resolution: &Resolution| matches!(resolution, Resolution::Ready(artifact) if artifact.digest == first.digest);
    stand.manager.until(&ask, is_first).await;
}

#[tokio::test]
async fn a_registry_that_does_not_name_digests_is_followed_too() {
    let mut stand = stand().await;
    stand.registry.misbehave(On::Manifest, Mishap::NoDigest);
    stand.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let ask = Ask {
        pull_policy: PullPolicy::Always,
        ..stand.ask("dev")
    };
    stand.manager.ready(&ask).await;
    stand.registry.put_component("you/plugin", "dev", RATE_LIMIT);
    let is_second = |resolution: &Resolution| matches!(resolution, Resolution::Ready(artifact) if artifact.digest == Digest::of(RATE_LIMIT));
    stand.manager.until(&ask, is_second).await;
}

#[tokio::test]
async fn a_registry_that_goes_down_while_a_tag_is_watched_leaves_what_there_is() {
    let mut stand = stand().await;
    stand.registry.put_component("you/plugin", "dev", SHARD_SELECTOR);
    let ask = Ask {
        pull_policy: PullPolicy::Always,
        ..stand.ask("dev")
    };
    let artifact = stand.manager.ready(&ask).await;
    stand.registry.stop().await;
    let is_failed = |resolution: &Resolution| matches!(resolution, Resolution::Failed { .. });
    match stand.manager.until(&ask, is_failed).await {
        Resolution::Failed { reason, last, .. } => {
            assert_eq!((reason, last), (Reason::RegistryUnavailable, Some(artifact)));
        }
        other => panic!("{other:?}"),
    }
    stand.registry.restart().await.unwrap();
    stand
        .manager
        .until(&ask, |resolution| matches!(resolution, Resolution::Ready(_)))
        .await;
}
