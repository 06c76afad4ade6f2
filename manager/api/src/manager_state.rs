//! `ManagerState`: addresses of the managers. One object, written by the leader.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nothing: all is in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ctrlmesh.kusionstack.io",
    version = "v1alpha1",
    kind = "ManagerState",
    plural = "managerstates",
    derive = "PartialEq",
    status = "ManagerStateStatus",
    doc = "Where the managers are. One object, ctrlmesh-manager, written by the leader.",
    printcolumn(
        name = "Leader",
        type_ = "string",
        json_path = ".status.endpoints[?(@.leader==true)].name"
    ),
    printcolumn(name = "Updated", type_ = "date", json_path = ".status.updateTimestamp")
)]
pub struct ManagerStateSpec {}

/// Where the managers are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagerStateStatus {
    /// Their namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Their pods, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// Ports that older sidecars connect to. This manager has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,
    /// When this was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub update_timestamp: Option<String>,
}

/// One manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Name of its pod.
    pub name: String,
    /// Address of its pod.
    #[serde(rename = "podIP")]
    pub pod_ip: String,
    /// Whether it leads.
    pub leader: bool,
}

/// Ports of a manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// Of the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_leader_election_port: Option<i32>,
    /// Of every manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc_non_leader_election_port: Option<i32>,
}
