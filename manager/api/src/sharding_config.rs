//! `ShardingConfig`: the pods of one shard and the objects that they see, or how to make such shards.

use ctrlmesh_contract::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::plugin::{PluginRef, PluginStatus};
use super::status::Progress;

/// What a shard is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ctrlmesh.kusionstack.io",
    version = "v1alpha1",
    kind = "ShardingConfig",
    plural = "shardingconfigs",
    shortname = "shard",
    namespaced,
    derive = "PartialEq",
    status = "ShardingConfigStatus",
    doc = "The pods of one shard of a controller, what part of the API they see, and the plugins that their sidecars run.",
    printcolumn(name = "Lock", type_ = "string", json_path = ".spec.controller.leaderElectionName"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].status"
    ),
    printcolumn(
        name = "Distributed",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Distributed\")].reason"
    ),
    printcolumn(name = "Enforced", type_ = "string", json_path = ".status.enforced"),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader.podName"),
    printcolumn(
        name = "Plugins",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"PluginsResolved\")].status",
        priority = "1"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.root) || (has(self.selector) && ((has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)))",
        "message": "is missing or empty; say which pods are this shard, or write root",
        "fieldPath": ".selector",
    },
    {
        "rule": "has(self.root) || (has(self.limits) && size(self.limits) > 0)",
        "message": "is missing or empty; say what this shard sees, or write root",
        "fieldPath": ".limits",
    },
    {
        "rule": "!has(self.root) || !has(self.limits)",
        "message": "has no effect beside root; write root.resourceSelector",
        "fieldPath": ".limits",
    },
    {
        "rule": "!has(oldSelf.controller) || (has(self.controller) && self.controller.leaderElectionName == oldSelf.controller.leaderElectionName)",
        "message": "can't change: a pod that leads by the old lock would act beside one that gets the new lock; scale the controller to zero, delete all its ShardingConfigs and create them again",
        "fieldPath": ".controller",
    },
]))]
pub struct ShardingConfigSpec {
    /// Pods of this shard, in the namespace of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The controller that is sharded. Without it, its leader election is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// The webhook server that the controller has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// What this shard sees. All that match a resource hold together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub limits: Option<Vec<Limit>>,
    /// How pods of this shard meet a change of what they see: live, or when they are made again.
    #[serde(default, skip_serializing_if = "is_live")]
    #[schemars(extend("default" = "Live"))]
    pub reshard: Reshard,
    /// How long pods of this shard must have been quiet before others get what it gives up: longer than a reconcile of its controller
    /// takes, because one that has begun may go on to write. It is a time, no proof. Absent: as the manager's `--settle-ms` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub settle_seconds: Option<i32>,
    /// Whether others wait for pods of this shard that can't be reached. Absent: Wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_pods: Option<UnreachablePods>,
    /// Plugins of your own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub plugins: Vec<PluginRef>,
    /// Makes this object a generator of others, one for each shard. It is none itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Root>,
}

/// How pods meet a change of what they see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reshard {
    /// While they run.
    #[default]
    Live,
    /// They are evicted one by one, the leader last, and see it when they are made again.
    Restart,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_live(reshard: &Reshard) -> bool {
    *reshard == Reshard::Live
}

/// What becomes of objects that a shard is to give up while pods of it can't be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.afterSeconds) || self.policy == 'Proceed'",
    "message": "has no effect with Wait; write policy: Proceed",
    "fieldPath": ".afterSeconds",
}]))]
pub struct UnreachablePods {
    /// Whether others wait for them.
    pub policy: UnreachablePolicy,
    /// With Proceed: so many seconds after the first question without an answer. Absent: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub after_seconds: Option<i32>,
}

impl UnreachablePods {
    /// How long other shards wait; `None`: until the pods answer, or are gone.
    #[must_use]
    pub fn overtaking_timeout(&self) -> Option<std::time::Duration> {
        let seconds = u64::try_from(self.after_seconds.unwrap_or(60)).unwrap_or_default();
        (self.policy == UnreachablePolicy::Proceed).then(|| std::time::Duration::from_secs(seconds))
    }
}

/// Whether others wait for pods that can't be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnreachablePolicy {
    /// They do: nothing has two owners.
    Wait,
    /// Not for long: a pod that works on and only can't be reached may be owner besides another for a while.
    Proceed,
}

/// The controller that is sharded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    /// Name of the lock that it uses. Each shard gets one of its own: `<lock>---<name of this object>`.
    #[schemars(length(min = 1, max = 253))]
    pub leader_election_name: String,
}

/// The webhook server that a controller has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Where its certificate is mounted.
    #[schemars(length(min = 1, max = 4096))]
    pub cert_dir: String,
    /// Its port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// One selector and the resources that it limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// Absent or empty: every resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 200), extend("x-kubernetes-list-type" = "atomic"))]
    pub relate_resources: Vec<ResourceGroup>,
    /// Objects that the shard sees. Absent or empty: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Groups times resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceGroup {
    /// "" is the core group; "*" alone is every group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// Plural names; "*" alone is every resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
}

/// How shards are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.auto) || (has(self.disable) && self.disable)",
        "message": "is missing; without it no shard is made (to remove the shards that there are, write disable: true)",
        "fieldPath": ".auto",
    },
    {
        "rule": "(has(self.disable) && self.disable) || (has(self.resourceSelector) && size(self.resourceSelector) > 0)",
        "message": "is missing or empty; say which resources are divided among the shards",
        "fieldPath": ".resourceSelector",
    },
]))]
pub struct Root {
    /// Removes all shards that were made from this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable: Option<bool>,
    /// Start of the names: `<prefix>-0-canary`, `<prefix>-1-normal`.
    #[schemars(length(min = 1, max = 230))]
    pub prefix: String,
    /// The StatefulSet of the controller. Only its name is used, for those of the pods.
    #[schemars(length(min = 1, max = 253))]
    pub target_stateful_set: String,
    /// A shard for a part of the objects that is served by the first pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The other shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<Auto>,
    /// What is divided among the shards. Its selectors are those of each shard, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_selector: Vec<Limit>,
}

/// The canary shard. It has the objects that are in one of its namespaces, or in one of its buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.inNamespaces) && size(self.inNamespaces) > 0) || (has(self.inShardHash) && size(self.inShardHash) > 0)",
    "message": "has no part of the objects; write inNamespaces, inShardHash, or both",
}]))]
pub struct Canary {
    /// So many pods, from the first on. 0: no canary shard.
    #[schemars(range(min = 0, max = 256))]
    pub replicas: i32,
    /// Namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub in_namespaces: Vec<String>,
    /// Buckets of namespaces, "0" to "31".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(regex(pattern = "^([0-9]|[12][0-9]|3[01])$")),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub in_shard_hash: Vec<String>,
}

/// Shards of the same size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Auto {
    /// So many shards. There are 32 buckets to divide.
    #[schemars(range(min = 1, max = 32))]
    pub sharding_size: i32,
    /// So many pods for each.
    #[schemars(range(min = 1, max = 256))]
    pub every_shard_replicas: i32,
}

/// What became of a shard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardingConfigStatus {
    /// How far it has come.
    #[serde(flatten)]
    pub progress: Progress,
    /// Who leads in the shard, as far as its sidecars know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderStatus>,
    /// What the references in spec.plugins led to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub plugins: Vec<PluginStatus>,
    /// Of an object with a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootStatus>,
}

/// Who leads in a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderStatus {
    /// Its pod.
    pub pod_name: String,
    /// What it calls itself in the lock.
    pub holder_identity: String,
    /// Since when, by the clock of its sidecar.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
}

/// What was made from a root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RootStatus {
    /// Names of the shards, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub child_sharding_configs: Vec<String>,
}
