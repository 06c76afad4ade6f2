//! From a registry to the chain and the statuses of a namespace, by the manager's own passes. No sidecar is needed to see what
//! one would mount.

use clap::Parser as _;
use ctrlmesh_contract::{Chain, Digest};
use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_oci::FailureReason;
use ctrlmesh_manager_planner::samples;
use ctrlmesh_plugins_builtin::{RATE_LIMIT, SHARD_SELECTOR};
use ctrlmesh_testkit::registry::{AffectedRequests, Mishap, Registry};
use ctrlmesh_testkit::{ApiServer, Snapshot};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::puller_settings;
use crate::args::Args;
use crate::cluster::Context;
use crate::test_env::{self, Running, text, until};

const CHAIN: &str = "ctrlmesh-chain";
/// A key that has signed nothing here.
const KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
    MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAENDQdKzgkTQxd4hufxO8iQGhF7sSV\n\
    8fB8WzJ8DAddqTVs3k2dv0Xze2BkG9LArOQnX7J+l7emTIaDy65hw3JzeA==\n\
    -----END PUBLIC KEY-----\n";

struct Cluster {
    server: ApiServer,
    registry: Registry,
}

impl Cluster {
    /// A namespace with a shard that names `you/plugin:1.0`.
    async fn start() -> Self {
        let cluster = Self {
            server: test_env::builder().namespace("demo").start().await.unwrap(),
            registry: Registry::start().await.unwrap(),
        };
        let plugin = json!({ "name": "audit", "image": cluster.image("1.0") });
        cluster.server.store().put(samples::shard("s", &[plugin])).unwrap();
        cluster
    }

    fn image(&self, tag: &str) -> String {
        format!("oci://{}/you/plugin:{tag}", self.registry.host())
    }

    async fn start_manager(&self) -> (Context, Running) {
        let flag = format!("--insecure-registry={}", self.registry.host());
        let context = test_env::context(&self.server, &[&flag]).await;
        let running = Running::start(&context, crate::controllers::distribution::run(context.clone()));
        (context, running)
    }

    /// Changes fields of the plugin.
    async fn change_plugin(&self, context: &Context, fields: &Value) {
        let kind = ApiResource::erase::<ShardingConfig>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), "demo", &kind);
        let mut plugin = json!({ "name": "audit", "image": self.image("1.0") });
        for (field, value) in fields.as_object().unwrap() {
            plugin[field] = value.clone();
        }
        let patch = Patch::Merge(json!({ "spec": { "plugins": [plugin] } }));
        api.patch("s", &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until a condition has a reason, for the newest generation, and returns the object.
    async fn wait_for_reason(&self, kind: &str, reason: &str) -> Value {
        let what = format!("{kind} is {reason}");
        until(&self.server, &what, |state| {
            let generation = &shard(state)["metadata"]["generation"];
            let said = condition(shard(state), kind);
            said["reason"] == reason && said["observedGeneration"] == *generation
        })
        .await;
        self.server.store().read(|state| shard(state).clone())
    }

    fn chain(&self) -> Chain {
        self.server.store().read(|state| {
            let map = state.get("configmaps", "demo", CHAIN).unwrap();
            Chain::parse(text(map, "/data/chain.yaml").as_bytes()).unwrap()
        })
    }

    fn audit_digest(&self) -> Digest {
        let chain = self.chain();
        let mut entries = chain.entries.iter();
        entries.find(|entry| entry.name == "audit/s").unwrap().plugin
    }
}

fn shard<'a>(state: &Snapshot<'a>) -> &'a Value {
    state
        .get("shardingconfigs.ctrlmesh.kusionstack.io", "demo", "s")
        .unwrap()
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

fn message<'a>(object: &'a Value, kind: &str) -> &'a str {
    text(condition(object, kind), "/message")
}

/// A fault of the next version of a plugin: the change, and the reason that is reported.
fn failing_versions(cluster: &Cluster) -> [(FailureReason, Value); 5] {
    [
        (
            FailureReason::DigestMismatch,
            json!({ "image": cluster.image("forged") }),
        ),
        (
            FailureReason::DigestMismatch,
            json!({ "image": cluster.image("endless") }),
        ),
        (FailureReason::NotFound, json!({ "image": cluster.image("none") })),
        (FailureReason::SignatureInvalid, json!({ "verificationKey": KEY })),
        (FailureReason::PullSecret, json!({ "pullSecret": "none" })),
    ]
}

#[tokio::test]
async fn registry_failure_keeps_chain_and_is_reported_in_status() {
    let cluster = Cluster::start().await;
    let manifest = cluster.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let (context, running) = cluster.start_manager().await;
    let object = cluster.wait_for_reason("PluginsResolved", "Resolved").await;
    let pinned = &object["status"]["plugins"][0];
    assert_eq!((&pinned["manifest"], pinned.get("message")), (&json!(manifest), None));
    cluster.wait_for_reason("Distributed", "Distributed").await;
    assert_eq!(cluster.audit_digest(), Digest::of(SHARD_SELECTOR));
    let before = cluster.chain();
    for (reason, change) in failing_versions(&cluster) {
        let tag = change["image"].as_str().and_then(|image| image.rsplit(':').next());
        if let Some(tag @ ("forged" | "endless")) = tag {
            cluster.registry.put_component("you/plugin", tag, RATE_LIMIT);
            let mishap = match tag {
                "forged" => Mishap::Body(SHARD_SELECTOR.into()),
                _ => Mishap::Endless,
            };
            cluster.registry.plan_mishap(AffectedRequests::Blob, mishap);
        }
        cluster.change_plugin(&context, &change).await;
        let object = cluster.wait_for_reason("PluginsResolved", reason.as_str()).await;
        let resolved = message(&object, "PluginsResolved");
        assert!(
            resolved.starts_with(&format!("audit: {reason}: ")),
            "{change}: {resolved}"
        );
        assert_eq!(condition(&object, "Accepted")["status"], "True", "{change}");
        let distributed = message(&object, "Distributed");
        assert!(
            distributed.contains("keep its last valid rules"),
            "{change}: {distributed}"
        );
        assert_eq!(cluster.chain(), before, "{change}");
        cluster.registry.clear_mishaps();
    }
    cluster.change_plugin(&context, &json!({})).await;
    cluster.wait_for_reason("PluginsResolved", "Resolved").await;
    cluster.wait_for_reason("Distributed", "Distributed").await;
    running.stop().await;
}

#[tokio::test]
async fn new_manager_keeps_pinned_plugins_without_a_registry() {
    let cluster = Cluster::start().await;
    cluster.registry.put_component("you/plugin", "1.0", SHARD_SELECTOR);
    let (_, running) = cluster.start_manager().await;
    let object = cluster.wait_for_reason("PluginsResolved", "Resolved").await;
    let pinned = object["status"]["plugins"][0]["manifest"].clone();
    cluster.wait_for_reason("Distributed", "Distributed").await;
    let before = cluster.chain();
    running.stop().await;

    cluster.registry.put_component("you/plugin", "1.0", RATE_LIMIT);
    cluster.registry.stop().await;
    let (context, running) = cluster.start_manager().await;
    let object = cluster.wait_for_reason("PluginsResolved", "RegistryUnavailable").await;
    assert_eq!(object["status"]["plugins"][0]["manifest"], pinned);
    assert_eq!(condition(&object, "Distributed")["status"], "True");
    assert_eq!(cluster.chain(), before);
    // An edit meanwhile is distributed.
    cluster
        .change_plugin(&context, &json!({ "settings": { "new": true } }))
        .await;
    until(&cluster.server, "other settings are distributed", |state| {
        let map = state.get("configmaps", "demo", CHAIN).unwrap();
        text(map, "/data/chain.yaml").contains("\"new\"")
    })
    .await;
    assert_eq!(cluster.audit_digest(), Digest::of(SHARD_SELECTOR));
    running.stop().await;

    // The tag has moved, and it is not looked up.
    cluster.registry.restart().await.unwrap();
    let (_, running) = cluster.start_manager().await;
    let object = cluster.wait_for_reason("PluginsResolved", "Resolved").await;
    assert_eq!(object["status"]["plugins"][0]["manifest"], pinned);
    assert_eq!(cluster.audit_digest(), Digest::of(SHARD_SELECTOR));
    running.stop().await;
}

#[test]
fn flags_are_taken() {
    let args = Args::parse_from([
        "ctrlmesh-manager",
        "--registry-ca-file=/ca.pem",
        "--insecure-registry=registry.dev:5000",
        "--insecure-registry=127.0.0.1:5001",
        "--registry-auth-host=login.example.com",
        "--plugin-cache-mib=7",
    ]);
    let settings = puller_settings(&args, |_| None);
    assert_eq!(settings.ca_file.as_deref(), Some(std::path::Path::new("/ca.pem")));
    assert!(settings.insecure.contains("registry.dev:5000") && settings.insecure.contains("127.0.0.1:5001"));
    assert!(settings.auth_hosts.contains("login.example.com"));
    assert_eq!(settings.cache_bytes, 7 * 1024 * 1024);
}
