//! Registries that are down, slow or busy.

use std::time::{Duration, Instant};

use ctrlmesh_plugins_builtin::SHARD_SELECTOR;
use ctrlmesh_testkit::registry::{AffectedRequests, Mishap};

use super::test_env::{test_env, test_env_with};
use crate::*;

#[tokio::test]
async fn unreachable_registry_is_reported_and_retried() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    env.registry.stop().await;
    let request = env.request_for("1.0");
    let (reason, message) = env.manager.resolve_failed(&request).await;
    assert_eq!(reason, FailureReason::RegistryUnavailable);
    assert!(
        message.contains("can't be reached") && message.contains("refused"),
        "{message}"
    );
    env.registry.restart().await.unwrap();
    env.manager
        .resolve_until(&request, |resolution| matches!(resolution, Resolution::Ready(_)))
        .await;
}

#[tokio::test]
async fn short_outage_of_registry_is_not_reported() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let status = |code| Mishap::Status {
        code,
        retry_after: None,
    };
    for (on, mishap) in [
        (AffectedRequests::Manifest, status(503)),
        (AffectedRequests::Manifest, status(500)),
        (AffectedRequests::Manifest, status(429)),
        (AffectedRequests::Blob, Mishap::Cut),
        (AffectedRequests::Blob, Mishap::Stall),
        (AffectedRequests::Blob, Mishap::Silence),
    ] {
        env.registry.plan_mishap(on, mishap).times(1);
    }
    env.manager.resolve_ready(&env.request_for("1.0")).await;
    assert_eq!(env.registry.count("/v2/you/plugin/manifests/1.0"), 4);
}

#[tokio::test]
async fn lasting_outage_of_registry_is_reported_after_four_attempts() {
    let mut env = test_env_with(|settings, _| settings.times.again = Duration::from_secs(3600)).await;
    env.registry.plan_mishap(
        AffectedRequests::Manifest,
        Mishap::Status {
            code: 503,
            retry_after: None,
        },
    );
    let (reason, message) = env.manager.resolve_failed(&env.request_for("1.0")).await;
    assert_eq!(reason, FailureReason::RegistryUnavailable);
    assert!(message.contains("503"), "{message}");
    assert_eq!(env.registry.requests().len(), 4);
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let busy = Mishap::Status {
        code: 429,
        retry_after: Some("1".to_owned()),
    };
    env.registry.plan_mishap(AffectedRequests::Manifest, busy).times(1);
    let begin = Instant::now();
    env.manager.resolve_ready(&env.request_for("1.0")).await;
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn long_retry_after_is_reported_instead_of_waited_for() {
    let mut env = test_env().await;
    let busy = Mishap::Status {
        code: 429,
        retry_after: Some("600".to_owned()),
    };
    env.registry.plan_mishap(AffectedRequests::Manifest, busy);
    let (reason, message) = env.manager.resolve_failed(&env.request_for("1.0")).await;
    assert_eq!(reason, FailureReason::RegistryUnavailable);
    assert!(message.contains("429"), "{message}");
    assert_eq!(env.registry.requests().len(), 1);
}

#[tokio::test]
async fn silent_or_stalled_registry_times_out() {
    for mishap in [Mishap::Silence, Mishap::Stall, Mishap::Cut] {
        let mut env = test_env().await;
        env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
        env.registry.plan_mishap(AffectedRequests::Blob, mishap.clone());
        let (reason, message) = env.manager.resolve_failed(&env.request_for("1.0")).await;
        assert_eq!(reason, FailureReason::RegistryUnavailable, "{mishap:?}");
        assert!(message.contains("too slow"), "{mishap:?}: {message}");
    }
}

#[tokio::test]
async fn endless_pull_times_out() {
    let mut env = test_env_with(|settings, _| {
        settings.times.pull = Duration::from_millis(200);
        settings.times.read = Duration::from_secs(60);
    })
    .await;
    env.registry.plan_mishap(AffectedRequests::Manifest, Mishap::Silence);
    let (reason, message) = env.manager.resolve_failed(&env.request_for("1.0")).await;
    assert_eq!(reason, FailureReason::RegistryUnavailable);
    assert!(message.contains("within 200ms"), "{message}");
}

#[tokio::test]
async fn worker_stops_during_pull() {
    let env = test_env().await;
    env.registry.plan_mishap(AffectedRequests::Any, Mishap::Silence);
    assert_eq!(
        env.manager.plugins.resolve(&env.request_for("1.0")),
        Resolution::Pending
    );
    env.manager.stop().await;
}
