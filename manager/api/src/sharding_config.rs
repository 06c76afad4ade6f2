//! `ShardingConfig`: the pods of one shard and the objects that they see, or how to make such shards.

use ctrlmesh_contract::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::plugin::{PluginRef, PluginStatus};
use super::status::Progress;

/// Desired state: the pods of a shard, the objects that they see and the plugins that they run; or, with root, the
/// shards to create.
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
    doc = "One shard of a controller: its pods, the objects that they see, and the plugins that their sidecars run.",
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
    printcolumn(
        name = "Sharded",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Sharded\")].reason",
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
    {
        "rule": "!has(self.root) || !has(self.root.key) || has(self.controller)",
        "message": "is missing; with root.key each shard needs a lock of its own",
        "fieldPath": ".controller",
    },
    {
        "rule": "!has(self.root) || !has(self.root.key) || (has(oldSelf.root) && has(oldSelf.root.key)) || has(oldSelf.controller)",
        "message": "needs spec.controller before: add it in an edit of its own first",
        "fieldPath": ".root.key",
    },
]))]
pub struct ShardingConfigSpec {
    /// Selects the pods of this shard, in the namespace of this object. Required unless root is set. With root, the
    /// pods of every created shard must match it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The controller that is sharded. If it is absent, the leader election of the controller is left unchanged. It
    /// cannot be changed or removed once it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Controller>,
    /// The webhook server of the controller. Ignored; accepted for compatibility with KusionStack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// Objects that this shard sees. If several limits name a resource, an object must match all of them. Resources
    /// that no limit names are not filtered. Required unless root is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub limits: Option<Vec<Limit>>,
    /// Response to a get by name for an object that hash ranges leave out. Pass: the object. NotFound: 404; a controller that
    /// believes it may create the object again, or forget what belongs to it. Forbidden: 403. Default: Pass.
    #[serde(default, skip_serializing_if = "is_pass")]
    #[schemars(extend("default" = "Pass"))]
    pub named_gets: NamedGets,
    /// How pods of this shard apply a change of the objects that they see. Live: while they run. Restart: the pods are
    /// evicted one at a time, the leader last, and their replacements apply it. Default: Live.
    #[serde(default, skip_serializing_if = "is_live")]
    #[schemars(extend("default" = "Live"))]
    pub reshard: Reshard,
    /// Seconds that the sidecars of this shard must have been quiet before other shards get the objects that it gives
    /// up. Choose it longer than a reconcile of the controller takes, because a reconcile that has begun may still
    /// write. It is a waiting time, not a proof that the reconcile has ended. 0 to 3600. Default: the manager's
    /// `--settle-ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub settle_seconds: Option<i32>,
    /// Whether other shards wait for pods of this shard that do not answer. Default: Wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_pods: Option<UnreachablePods>,
    /// The user's own plugins, which the sidecars of this shard run in addition to the built-in ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub plugins: Vec<PluginRef>,
    /// Creates a set of ShardingConfigs, one for each shard. An object with root is not a shard itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Root>,
}

/// How pods apply a change of the objects that they see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Reshard {
    /// Running pods apply it.
    #[default]
    Live,
    /// Pods are evicted one at a time, the leader last. Their replacements apply it.
    Restart,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_live(reshard: &Reshard) -> bool {
    *reshard == Reshard::Live
}

/// Response to a get by name for an object that hash ranges leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamedGets {
    /// The object.
    #[default]
    Pass,
    /// 404, as if there were no such object.
    NotFound,
    /// 403.
    Forbidden,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_pass(named_gets: &NamedGets) -> bool {
    *named_gets == NamedGets::Pass
}

/// Hand-over of the objects of a shard while some of its pods do not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.afterSeconds) || self.policy == 'Proceed'",
    "message": "has no effect with Wait; write policy: Proceed",
    "fieldPath": ".afterSeconds",
}]))]
pub struct UnreachablePods {
    /// Wait: other shards wait until the pods answer or are gone, so no object has two owners. Proceed: other shards
    /// take over the objects after afterSeconds. A pod that is still running may then own an object together with
    /// another shard.
    pub policy: UnreachablePolicy,
    /// With Proceed: seconds without a response after which other shards take over, but not before three status requests
    /// in a row have failed. 1 to 86400. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub after_seconds: Option<i32>,
}

impl UnreachablePods {
    /// Time that other shards wait; `None`: until the pods answer or are gone.
    #[must_use]
    pub fn overtaking_timeout(&self) -> Option<std::time::Duration> {
        let seconds = u64::try_from(self.after_seconds.unwrap_or(60)).unwrap_or_default();
        (self.policy == UnreachablePolicy::Proceed).then(|| std::time::Duration::from_secs(seconds))
    }
}

/// Whether other shards wait for pods that do not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnreachablePolicy {
    /// Other shards wait until the pods answer or are gone: no object has two owners.
    Wait,
    /// Other shards take over after `afterSeconds`. A pod that is still running may own an object together with another shard.
    Proceed,
}

/// The controller that is sharded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    /// Name of the controller's lock. Each shard gets a lock of its own: `<lock>---<name of this object>`.
    #[schemars(length(min = 1, max = 253))]
    pub leader_election_name: String,
}

/// The webhook server of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// Directory where the certificate of the webhook server is mounted.
    #[schemars(length(min = 1, max = 4096))]
    pub cert_dir: String,
    /// Port of the webhook server, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

/// Resources, and the selector that filters their objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// Resources that the selector applies to. Absent or empty: all resources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 200), extend("x-kubernetes-list-type" = "atomic"))]
    pub relate_resources: Vec<ResourceGroup>,
    /// Resources of relateResources that the limit leaves out, with their objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 200), extend("x-kubernetes-list-type" = "atomic"))]
    pub except_resources: Vec<ResourceGroup>,
    /// Selects the objects that the shard sees. Absent or empty: all objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Selects, of these objects, those with a hash in some ranges. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_ranges: Option<HashRanges>,
}

/// Objects with a hash in some of the 1,024 virtual ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HashRanges {
    /// Value that is hashed. uid: the UID of the object. namespace: its namespace. owner: the UID of its controller, or its own
    /// without one. `label(<key>)`: the value of this label. An object without namespace or label has the hash of the empty
    /// text.
    #[schemars(length(max = 324), extend("pattern" = "^(uid|namespace|owner|label\\(.+\\))$"))]
    pub key: String,
    /// Numbers of the ranges, 0 to 1023: one number, or the first and the last one of several, such as 0-340. Empty: no
    /// object.
    #[schemars(
        length(max = 1024),
        inner(regex(pattern = "^[0-9]+(-[0-9]+)?$")),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub ranges: Vec<String>,
}

/// Every listed resource in every listed API group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceGroup {
    /// Names of API groups. "" is the core group; "*" alone is every group. Absent or empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// Plural names of resources. "*" alone is every resource. Absent or empty: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
}

/// A set of shards to create.
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
    {
        "rule": "!has(self.canary) || !has(self.key)",
        "message": "has no effect beside key; give a shard less in auto.weights",
        "fieldPath": ".canary",
    },
    {
        "rule": "!has(self.auto) || has(self.auto.shardingSize) || has(self.key)",
        "message": "is missing; without key write the number of shards, 1 to 32",
        "fieldPath": ".auto.shardingSize",
    },
    {
        "rule": "!has(self.auto) || !has(self.auto.weights) || size(self.auto.weights) == 0 || has(self.key)",
        "message": "has no effect without key; remove it, or write key",
        "fieldPath": ".auto.weights",
    },
    {
        "rule": "!has(self.whole) || size(self.whole) == 0 || has(self.key)",
        "message": "has no effect without key; remove it, or write key",
        "fieldPath": ".whole",
    },
    {
        "rule": "!has(self.singletons) || size(self.singletons) == 0 || has(self.key)",
        "message": "has no effect without key; remove it, or write key",
        "fieldPath": ".singletons",
    },
]))]
pub struct Root {
    /// Deletes all shards that were created from this object. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable: Option<bool>,
    /// Prefix of the names of the shards: `<prefix>-0-canary`, `<prefix>-1-normal`.
    #[schemars(length(min = 1, max = 230))]
    pub prefix: String,
    /// Name of the StatefulSet of the controller. Its pods are assigned to shards by their names,
    /// `<StatefulSet>-<ordinal>`.
    #[schemars(length(min = 1, max = 253))]
    pub target_stateful_set: String,
    /// Divides the objects by a hash instead of labels of the manager. uid: by the UID of the object. namespace: by its
    /// namespace. owner: by the UID of its controller, or its own without one. `label(<key>)`: by the value of this label.
    /// Absent: by the hash bucket of the namespace, which needs labels on all objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 324), extend("pattern" = "^(uid|namespace|owner|label\\(.+\\))$"))]
    pub key: Option<String>,
    /// With key: resources of which every shard sees all objects, although resourceSelector has them, such as reference
    /// data. Resources that no list names are not divided either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub whole: Vec<ResourceGroup>,
    /// With key: resources of which the first shard sees all objects, and the others none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub singletons: Vec<ResourceGroup>,
    /// Canary shard: the first pods of the StatefulSet, with a part of the objects. Absent: no canary shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Shards of equal size, for all objects that are not in the canary shard. Required unless disable is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<Auto>,
    /// Resources that are divided among the shards. Their selectors apply in every shard, too. Required unless disable
    /// is true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_selector: Vec<Limit>,
}

/// The canary shard. It has the objects of the listed namespaces and of the namespaces in the listed hash buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(has(self.inNamespaces) && size(self.inNamespaces) > 0) || (has(self.inShardHash) && size(self.inShardHash) > 0)",
    "message": "has no part of the objects; write inNamespaces, inShardHash, or both",
}]))]
pub struct Canary {
    /// Number of pods of the canary shard, counted from ordinal 0: at most 256. 0: no canary shard.
    #[schemars(range(min = 0, max = 256))]
    pub replicas: i32,
    /// Namespaces whose objects the canary shard sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub in_namespaces: Vec<String>,
    /// Hash buckets whose namespaces the canary shard sees, "0" to "31". A namespace's name determines its hash bucket.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(regex(pattern = "^([0-9]|[12][0-9]|3[01])$")),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub in_shard_hash: Vec<String>,
}

/// Shards of equal size, or with key of the given weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.weights) || size(self.weights) == 0 || !has(self.shardingSize) || size(self.weights) == self.shardingSize",
        "message": "must have one number for each shard",
        "fieldPath": ".weights",
    },
    {
        "rule": "!has(self.weights) || size(self.weights) == 0 || has(self.shardingSize)",
        "message": "needs shardingSize: without it the number of shards follows the replicas of the StatefulSet; write it, or remove weights",
        "fieldPath": ".weights",
    },
]))]
pub struct Auto {
    /// Number of shards, 1 to 32. They divide the 32 hash buckets of namespaces among them; with key, the 1,024 virtual
    /// ranges of hashes. Absent, with key: as many as the replicas of the StatefulSet need, so that scaling it changes the
    /// number of shards. Required without key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub sharding_size: Option<i32>,
    /// Number of pods of each shard, 1 to 256. Default: 1.
    #[serde(default = "default_shard_replicas")]
    #[schemars(range(min = 1, max = 256), extend("default" = 1))]
    pub every_shard_replicas: i32,
    /// With key: how much each shard gets of the objects, 1 to 100. Needs shardingSize. Absent: equal parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(range(min = 1, max = 100)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub weights: Vec<i32>,
}

const fn default_shard_replicas() -> i32 {
    1
}

/// Observed state of the ShardingConfig.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShardingConfigStatus {
    /// Conditions, and the count of sidecars.
    #[serde(flatten)]
    pub progress: Progress,
    /// Current leader of the shard, as its sidecar has seen it. Absent if no pod leads or the leader's pod does not
    /// answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<LeaderStatus>,
    /// Results of resolving the references in spec.plugins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub plugins: Vec<PluginStatus>,
    /// Shards that were created from spec.root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RootStatus>,
}

/// The leader of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderStatus {
    /// Name of the leader's pod.
    pub pod_name: String,
    /// Identity of the leader in the lock.
    pub holder_identity: String,
    /// Time at which it became leader, by the clock of its sidecar.
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
}

/// Shards that were created from a root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RootStatus {
    /// Names of the created ShardingConfigs, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub child_sharding_configs: Vec<String>,
}
