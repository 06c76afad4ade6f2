//! Samples for tests: small valid objects as JSON that affect everything in namespace `demo`, chain entries, and the status of
//! sidecars that run them.

use std::collections::BTreeMap;

use ctrlmesh_contract::status::{EntryState, EntryStatus, Status};
use ctrlmesh_contract::support::Support;
use ctrlmesh_contract::{Digest, Entry, FailurePolicy, LabelSelector, Settings};
use serde_json::{Value, json};

pub fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}"), "generation": 3},
        "spec": spec,
    })
}

pub fn limit(policy: &str, name: &str) -> Value {
    json!({
        "name": name,
        "triggerPolicy": policy,
        "bucket": {"limit": 1, "interval": "1s", "burst": 1},
        "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}],
    })
}

pub fn breaker(name: &str, pods: &Value, rules: &[Value], lists: &[Value]) -> Value {
    object(
        "CircuitBreaker",
        name,
        &json!({"selector": pods, "rateLimitings": rules, "trafficInterceptRules": lists}),
    )
}

pub fn list(name: &str, kind: &str, host: &str) -> Value {
    json!({"name": name, "interceptType": kind, "contentType": "Normal", "contents": [host], "methods": ["*"]})
}

pub fn faults(name: &str) -> Value {
    let fault = json!({"match": {"resources": [{"resources": ["pods"]}]}, "abort": {"httpStatus": 500}});
    object("FaultInjection", name, &json!({"selector": {}, "httpFault": [fault]}))
}

pub fn shard(name: &str, plugins: &[Value]) -> Value {
    let limits = json!([{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}], "selector": {"matchLabels": {"a": "b"}}}]);
    let spec = json!({
        "selector": {"matchLabels": {"shard": name}},
        "controller": {"leaderElectionName": "lock"},
        "limits": limits,
        "plugins": plugins,
    });
    object("ShardingConfig", name, &spec)
}

pub fn plugin(name: &str, order: i32) -> Value {
    json!({"name": name, "image": "oci://ghcr.io/you/plugin:1", "order": order, "settings": {"mine": true}})
}

/// An entry of a chain, for all pods.
pub fn entry(name: &str) -> Entry {
    Entry {
        name: name.to_owned(),
        plugin: Digest::of(b"plugin"),
        pod_selector: LabelSelector::default(),
        order: 0,
        on_failure: FailurePolicy::Closed,
        timeout_ms: 10,
        memory_mib: 16,
        settings: Settings::default(),
        origin: None,
    }
}

/// The status of a sidecar of this release that runs these entries.
pub fn running<'a>(generation: u64, entries: impl IntoIterator<Item = &'a Entry>) -> Status {
    let active = |entry: &Entry| EntryStatus {
        name: entry.name.clone(),
        plugin: entry.plugin,
        settings_hash: entry.settings.hash().to_owned(),
        state: EntryState::Active,
        faults: 0,
        error: None,
        until: None,
        reports: BTreeMap::new(),
        reuse: None,
    };
    let mut status = Status {
        supports: Some(Support::current()),
        ..Status::default()
    };
    status.chain.generation = generation;
    status.chain.entries = entries.into_iter().map(active).collect();
    status
}
