//! From stored documents to objects, one by one: what was stored under an older schema keeps nothing else from being seen.

use std::collections::BTreeSet;

use ctrlmesh_contract::Mistakes;
use serde_json::Value;

use crate::api::{CircuitBreaker, FaultInjection, ShardingConfig};
use crate::shards;
use crate::validate::{self, Object};

/// Custom resources of a namespace.
#[derive(Debug, Default)]
pub(super) struct CustomResources {
    pub(super) sharding_configs: Vec<ShardingConfig>,
    pub(super) circuit_breakers: Vec<CircuitBreaker>,
    pub(super) fault_injections: Vec<FaultInjection>,
    /// What can't be read, and why.
    pub(super) unreadable: Vec<(Value, Mistakes)>,
    /// Shards (by uid) whose set is not whole.
    pub(super) held: BTreeSet<String>,
    /// All, as they were stored.
    pub(super) stored: Vec<Value>,
    /// Kinds that could not be seen: whether there are objects of them nobody knows.
    pub(super) unseen: Vec<&'static str>,
}

impl CustomResources {
    pub(super) fn of(documents: Vec<Value>, unseen: Vec<&'static str>) -> Self {
        let mut all = Self {
            held: shards::held(&documents),
            stored: documents.clone(),
            unseen,
            ..Self::default()
        };
        for document in documents {
            match validate::read(&document) {
                Ok(Object::ShardingConfig(object)) => all.sharding_configs.push(*object),
                Ok(Object::CircuitBreaker(object)) => all.circuit_breakers.push(*object),
                Ok(Object::FaultInjection(object)) => all.fault_injections.push(*object),
                Ok(Object::ManagerState(_)) => {}
                Err(mistakes) => all.unreadable.push((document, mistakes)),
            }
        }
        all
    }
}
