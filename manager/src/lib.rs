//! The control plane: custom resources in, chains out.
//!
//! Its decisions are in crates that can't reach a cluster: `ctrlmesh-manager-api` (the custom resources), `ctrlmesh-manager-planner`
//! (decisions), `ctrlmesh-manager-rollout` (a pass over a namespace) and `ctrlmesh-manager-inject` (pods). `ctrlmesh-manager-oci`
//! fetches plugins, and `ctrlmesh-manager-uninstall` deletes every ShardingConfig. The rooms here move data. Top to bottom, each
//! imports only those below it:
//!
//! | room | holds |
//! |---|---|
//! | [`process`] | start and stop, leader election, admin port, roles |
//! | [`webhook`] | responses to API servers: validation, labels, injection |
//! | [`controllers`] | distribution, shards, labels, ManagerState, plugins |
//! | [`certificates`] | CAs of webhooks and sidecars, in Secrets |
//! | [`cluster`] | clients, permissions, rate, debounce, running passes, the one function that patches a status, events, errors |
//! | [`metrics`] | counters and gauges of every part |
//! | [`args`] | flags and environment |

pub mod args;
pub mod certificates;
pub mod cluster;
pub mod controllers;
pub mod metrics;
pub mod process;
#[cfg(test)]
mod test_env;
pub mod webhook;
