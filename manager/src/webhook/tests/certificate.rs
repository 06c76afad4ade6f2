//! The leader keeps certificates at an API server, and a replica serves them.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_testkit::{Fault, Rule};
use serde_json::{Value, json};

use super::{Client, TestEnv, configuration};
use crate::certificates::ca::{Credential, Stored, parse_certificates};
use crate::certificates::lifetimes::{Schedule, WEBHOOKS};
use crate::certificates::webhook_ca::maintain;

/// A schedule without waits: everything is due at once.
const HASTY: Schedule = Schedule {
    life: Duration::from_secs(365 * 24 * 3600),
    renew_before: Duration::from_secs(24 * 3600),
    leaf: None,
    settle: Duration::from_millis(1),
    rest: Duration::from_millis(10),
};

const KINDS: [(&str, &str, &str); 2] = [
    (
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        "ctrlmesh-mutating",
    ),
    (
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        "ctrlmesh-validating",
    ),
];

fn bundle_of(object: &Value, webhook: usize) -> String {
    let encoded = object["webhooks"][webhook]["clientConfig"]["caBundle"].as_str();
    String::from_utf8(STANDARD.decode(encoded.unwrap_or_default()).unwrap()).unwrap()
}

fn put_configurations(env: &TestEnv) {
    for (_, kind, name) in KINDS {
        env.server.store().put(configuration(kind, name)).unwrap();
    }
}

/// Waits until every webhook trusts every CA of the Secret. Returns the Secret's content.
async fn wait_for_bundles(env: &TestEnv) -> Stored {
    let mut found = Stored::default();
    let store = env.server.store();
    let waited = store.wait_until(|state| {
        let Some(secret) = state.get("secrets", "ctrlmesh", "ctrlmesh-webhook-certs") else {
            return false;
        };
        found = Stored::from_secret(&serde_json::from_value(secret.clone()).unwrap());
        KINDS.iter().all(|(plural, _, name)| {
            let object = state.get(&format!("{plural}.admissionregistration.k8s.io"), "", name);
            object.is_some_and(|it| {
                (0..2).all(|index| authority_ders(&bundle_of(it, index)) == authority_ders(&found.trust_bundle()))
            })
        })
    });
    waited.await.unwrap();
    found
}

fn authority_ders(pem: &str) -> BTreeSet<Vec<u8>> {
    parse_certificates(pem).iter().map(|der| der.to_vec()).collect()
}

#[tokio::test]
async fn bundles_are_written_and_restored() {
    let env = TestEnv::start(&[]).await;
    put_configurations(&env);
    let leader = tokio::spawn(maintain(env.context.clone(), WEBHOOKS));
    let stored = wait_for_bundles(&env).await;
    for (_, kind, name) in KINDS {
        let mut reset = configuration(kind, name);
        reset["webhooks"][0]["clientConfig"]["caBundle"] = json!("");
        env.server.store().put(reset).unwrap();
        assert_eq!(wait_for_bundles(&env).await, stored);
    }
    // The rest of a webhook is unchanged.
    let resource = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
    let stored = env
        .server
        .store()
        .read(|state| state.get(resource, "", "ctrlmesh-mutating").cloned());
    let mut webhook = stored.unwrap()["webhooks"][1].clone();
    webhook["clientConfig"].as_object_mut().unwrap().remove("caBundle");
    let expected = configuration("MutatingWebhookConfiguration", "ctrlmesh-mutating")["webhooks"][1].clone();
    assert_eq!(webhook, expected);
    env.context.stop.cancel();
    leader.await.unwrap();
}

#[tokio::test]
async fn refused_certificate_write_is_retried() {
    let env = TestEnv::start(&[]).await;
    put_configurations(&env);
    let refusal = || {
        Rule::new(Fault::Status {
            code: 500,
            retry_after: None,
        })
        .times(1)
    };
    let faults = env.server.faults();
    let refused = [
        faults.add(refusal().verb("create").resource("secrets")),
        faults.add(refusal().verb("patch").resource("validatingwebhookconfigurations")),
        faults.add(refusal().verb("watch").resource("secrets")),
    ];
    let leader = tokio::spawn(maintain(env.context.clone(), WEBHOOKS));
    wait_for_bundles(&env).await;
    assert_eq!(refused.map(|rule| faults.times_applied(rule)), [1; 3]);
    env.context.stop.cancel();
    leader.await.unwrap();
}

#[tokio::test]
async fn expiring_certificate_is_replaced_without_refusing_clients() {
    let env = TestEnv::start(&[]).await;
    put_configurations(&env);
    let old = Stored {
        current: Some(
            Credential::issue(
                &env.context.args.webhook_names(),
                SystemTime::now(),
                &Schedule {
                    life: HASTY.renew_before,
                    ..HASTY
                },
            )
            .unwrap(),
        ),
        ..Stored::default()
    };
    env.put_secret(&old);
    let (address, served) = env.start_server().await;
    let client = Client::with_bundle(&old.trust_bundle());
    assert_eq!(client.get(address, "/healthz").await.unwrap(), (200, "ok".to_owned()));

    let leader = tokio::spawn(maintain(env.context.clone(), HASTY));
    let is_rotated = |secret: &Value| {
        let stored = Stored::from_secret(&serde_json::from_value(secret.clone()).unwrap());
        stored.next.is_none() && stored.current != old.current && stored.retired == [old.trust_bundle()]
    };
    let secret = |state: &ctrlmesh_testkit::Snapshot<'_>| {
        state
            .get("secrets", "ctrlmesh", "ctrlmesh-webhook-certs")
            .is_some_and(is_rotated)
    };
    env.server.store().wait_until(secret).await.unwrap();
    let bundle = wait_for_bundles(&env).await.trust_bundle();
    let both = Client::with_bundle(&bundle);
    // Until the replica has seen the new certificate it serves the old one, which the bundle covers. After that, the old CA alone
    // does not suffice.
    let changed = async {
        while client.get(address, "/healthz").await.is_ok() {
            assert_eq!(both.get(address, "/healthz").await.unwrap().0, 200);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), changed).await.unwrap();
    assert_eq!(both.get(address, "/healthz").await.unwrap().0, 200);
    env.context.stop.cancel();
    leader.await.unwrap();
    served.await.unwrap().unwrap();
}
