//! `ManagerState`: addresses of the managers. One object, written by the leader.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Always empty; all information is in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ctrlmesh.kusionstack.io",
    version = "v1alpha1",
    kind = "ManagerState",
    plural = "managerstates",
    derive = "PartialEq",
    status = "ManagerStateStatus",
    doc = "Pods of the managers. The leader writes the only object, ctrlmesh-manager.",
    printcolumn(
        name = "Leader",
        type_ = "string",
        json_path = ".status.endpoints[?(@.leader==true)].name"
    ),
    printcolumn(name = "Updated", type_ = "date", json_path = ".status.updateTimestamp")
)]
pub struct ManagerStateSpec {}

/// Observed state: pods of the managers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagerStateStatus {
    /// Namespace of the managers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Pods of the managers, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Ports that sidecars of KusionStack connect to. Always absent, because this manager has no such ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,
    /// Time at which the status was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub update_timestamp: Option<String>,
}

/// The pod of a manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Name of the pod.
    pub name: String,
    /// IP address of the pod.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Whether the manager in this pod is the leader.
    pub leader: bool,
}

/// Ports of a manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// Port of the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_leader_election_port: Option<i32>,
    /// Port of every manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_non_leader_election_port: Option<i32>,
}
