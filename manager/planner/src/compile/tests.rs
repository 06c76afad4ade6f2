//! Chains of a namespace: order and names of entries, precedence, refused objects, and entries that are kept.

mod migrated;
mod properties;
mod rules;

use ctrlmesh_contract::Digest;
use serde_json::{Value, json};

use super::*;
use crate::built_in::BuiltIn;
pub(super) use crate::samples::{breaker, faults, limit, list, object, plugin, shard};
use crate::validate::{Object, read};

/// Objects of a namespace, parsed as the manager parses them.
#[derive(Clone, Debug, Default)]
pub(super) struct Fixture {
    pub(super) configs: Vec<ShardingConfig>,
    pub(super) breakers: Vec<CircuitBreaker>,
    pub(super) faults: Vec<FaultInjection>,
    pub(super) resolved: Resolved,
    pub(super) held: BTreeSet<String>,
    pub(super) last: Option<Chain>,
}

impl Fixture {
    pub(super) fn new(documents: &[Value]) -> Self {
        let mut fixture = Self::default();
        for built_in in BuiltIn::ALL {
            fixture
                .resolved
                .built_in
                .insert(built_in, Digest::of(built_in.name().as_bytes()));
        }
        for document in documents {
            match read(document).unwrap() {
                Object::ShardingConfig(config) => {
                    for plugin in &config.spec.plugins {
                        let key = (config.metadata.name.clone().unwrap(), plugin.name.clone());
                        fixture.resolved.own.insert(key, Ok(Digest::of(b"own")));
                    }
                    fixture.configs.push(*config);
                }
                Object::CircuitBreaker(breaker) => fixture.breakers.push(*breaker),
                Object::FaultInjection(faults) => fixture.faults.push(*faults),
                Object::ManagerState(_) => panic!("has no entries"),
            }
        }
        fixture
    }

    pub(super) fn compile(&self) -> Compiled {
        compile(&Objects {
            namespace: "demo",
            sharding_configs: &self.configs,
            circuit_breakers: &self.breakers,
            fault_injections: &self.faults,
            resolved: &self.resolved,
            held: &self.held,
            last: self.last.as_ref(),
            keys: &LabelKeys::default(),
        })
        .unwrap()
    }
}

pub(super) fn names(compiled: &Compiled) -> Vec<&str> {
    compiled.chain.entries.iter().map(|entry| entry.name.as_str()).collect()
}

pub(super) fn find_entry<'c>(compiled: &'c Compiled, name: &str) -> &'c Entry {
    compiled.chain.entries.iter().find(|entry| entry.name == name).unwrap()
}

pub(super) fn reasons(compiled: &Compiled) -> Vec<String> {
    let reasons = compiled.refused.iter().flat_map(|refused| {
        let of = &refused.origin.name;
        refused
            .reasons
            .list()
            .iter()
            .map(move |it| format!("{of}: {}: {}", it.path, it.problem))
    });
    reasons.collect()
}
