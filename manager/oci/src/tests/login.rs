//! Registries that require a login.

use ctrlmesh_plugins_builtin::SHARD_SELECTOR;
use ctrlmesh_testkit::registry::{AffectedRequests, Login, Mishap};
use ctrlmesh_testkit::{Fault, Rule};

use super::test_env::{TestEnv, test_env};
use crate::*;

fn with_secret(env: &TestEnv, name: &str) -> ResolveRequest {
    ResolveRequest {
        pull_secret: Some(name.to_owned()),
        ..env.request_for("1.0")
    }
}

fn all_logins() -> [Login; 2] {
    let (user, password) = ("me".to_owned(), "hunter2".to_owned());
    [
        Login::Basic {
            user: user.clone(),
            password: password.clone(),
        },
        Login::Bearer {
            user,
            password,
            realm: String::new(),
        },
    ]
}

#[tokio::test]
async fn pull_secret_grants_access_and_its_lack_is_explained() {
    for login in all_logins() {
        let mut env = test_env().await;
        env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
        env.registry.require(login);
        env.put_secret("right", "me", "hunter2");
        env.put_secret("wrong", "me", "*******");
        let [right, wrong] = ["right", "wrong"].map(|name| with_secret(&env, name));
        env.manager.resolve_ready(&right).await;
        let (reason, message) = env.manager.resolve_failed(&wrong).await;
        assert_eq!(reason, FailureReason::AccessDenied);
        assert!(
            message.contains("user \"me\"") && message.contains("pullSecret"),
            "{message}"
        );
        // A request without the Secret does not get what it grants.
        let (reason, message) = env.manager.resolve_failed(&env.request_for("1.0")).await;
        assert_eq!(reason, FailureReason::AccessDenied);
        assert!(message.contains("name a Secret"), "{message}");
        // A Secret of the same name in another namespace is another Secret.
        let other = ResolveRequest {
            namespace: "other".to_owned(),
            ..right.clone()
        };
        let (reason, message) = env.manager.resolve_failed(&other).await;
        assert_eq!(reason, FailureReason::PullSecret, "{message}");
    }
}

#[tokio::test]
async fn anonymous_token_is_used_when_registry_allows_it() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    env.registry.require(Login::Bearer {
        user: String::new(),
        password: String::new(),
        realm: String::new(),
    });
    env.registry
        .plan_mishap(
            AffectedRequests::Token,
            Mishap::Status {
                code: 503,
                retry_after: None,
            },
        )
        .times(1);
    env.manager.resolve_ready(&env.request_for("1.0")).await;
    // One token for the whole pull; the first request for one failed.
    assert_eq!(env.registry.count("/token"), 2);
}

#[tokio::test]
async fn foreign_token_realm_is_refused() {
    let mut env = test_env().await;
    env.put_secret("right", "me", "hunter2");
    env.registry.require(Login::Bearer {
        user: "me".to_owned(),
        password: "hunter2".to_owned(),
        realm: "https://evil.example.com/token".to_owned(),
    });
    let (reason, message) = env.manager.resolve_failed(&with_secret(&env, "right")).await;
    assert_eq!(reason, FailureReason::UnsafeRedirect);
    assert!(message.contains("--registry-auth-host=evil.example.com"), "{message}");
}

#[tokio::test]
async fn unusable_secret_is_reported() {
    let mut env = test_env().await;
    env.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let (reason, message) = env.manager.resolve_failed(&with_secret(&env, "none")).await;
    assert_eq!(reason, FailureReason::PullSecret);
    assert!(
        message.contains("kubectl -n demo create secret docker-registry none"),
        "{message}"
    );

    env.put_secret("there", "me", "hunter2");
    let request = with_secret(&env, "there");
    env.api.faults().add(
        Rule::new(Fault::Status {
            code: 403,
            retry_after: None,
        })
        .verb("get")
        .times(1),
    );
    let (reason, message) = env.manager.resolve_failed(&request).await;
    assert_eq!(reason, FailureReason::PullSecret);
    assert!(message.contains("allow `get` of secrets"), "{message}");
    // It is retried, and succeeds once the Secret can be read.
    env.manager
        .resolve_until(&request, |resolution| matches!(resolution, Resolution::Ready(_)))
        .await;
    // Nothing was requested without the credentials that the object names.
    assert_eq!(env.registry.count("/v2/you/plugin/manifests/1.0"), 1);
}
