//! The number of ShardingConfigs that would be deleted.

use std::collections::BTreeSet;
use std::fmt;

use kube::api::DynamicObject;
use serde_json::Value;

/// The number of ShardingConfigs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    roots: usize,
    shards: usize,
    namespaces: usize,
}

impl Plan {
    pub(crate) fn from_configs(configs: &[DynamicObject]) -> Self {
        let shards = configs.iter().filter(|config| is_shard(config)).count();
        let namespaces: BTreeSet<_> = configs.iter().map(|config| &config.metadata.namespace).collect();
        Self {
            roots: configs.len() - shards,
            shards,
            namespaces: namespaces.len(),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, {}) in {}",
            count_of(self.roots + self.shards, "ShardingConfig"),
            count_of(self.roots, "root"),
            count_of(self.shards, "shard"),
            count_of(self.namespaces, "namespace")
        )
    }
}

pub(crate) fn count_of(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Whether a ShardingConfig is a shard and no root.
pub(crate) fn is_shard(config: &DynamicObject) -> bool {
    config.data.pointer("/spec/root").is_none_or(Value::is_null)
}
