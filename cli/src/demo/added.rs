//! A plugin that one act adds to both sidecars, with settings as a person writes them, and takes out again.

use ctrlmesh_contract::chain::{DEFAULT_MEMORY_MIB, Entry, FailurePolicy, Settings};
use ctrlmesh_contract::{Digest, LabelSelector};
use ctrlmesh_plugins_builtin::{CIRCUIT_BREAKER, FAULT_INJECT, RATE_LIMIT};
use serde_json::{Value, json};

use crate::error::Error;

/// Behind the shards, where requests are what the API server would get.
const ORDER: i32 = 200;

/// The names of the entries.
pub(crate) const RATE_LIMIT_ENTRY: &str = "rate-limit/widgets";
pub(crate) const CIRCUIT_BREAKER_ENTRY: &str = "circuit-breaker/widgets";
pub(crate) const FAULT_INJECT_ENTRY: &str = "fault-inject/widgets";

/// An entry to add.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) name: &'static str,
    pub(crate) plugin: &'static [u8],
    settings: Value,
}

impl Added {
    pub(crate) fn rate_limit() -> Result<Self, Error> {
        Self::new(RATE_LIMIT_ENTRY, RATE_LIMIT, include_str!("acts/rate-limit.yaml"))
    }

    pub(crate) fn circuit_breaker() -> Result<Self, Error> {
        Self::new(
            CIRCUIT_BREAKER_ENTRY,
            CIRCUIT_BREAKER,
            include_str!("acts/circuit-breaker.yaml"),
        )
    }

    pub(crate) fn fault_inject() -> Result<Self, Error> {
        Self::new(FAULT_INJECT_ENTRY, FAULT_INJECT, include_str!("acts/fault-inject.yaml"))
    }

    fn new(name: &'static str, plugin: &'static [u8], yaml: &str) -> Result<Self, Error> {
        let settings = serde_saphyr::from_str(yaml).map_err(|source| Error::Settings {
            entry: name,
            source: Box::new(source),
        })?;
        Ok(Self { name, plugin, settings })
    }

    /// The same without rules: a sidecar compiles the plugin, and leaves every request alone.
    pub(crate) fn resting(&self) -> Self {
        Self {
            settings: json!({}),
            ..self.clone()
        }
    }

    /// The entry, for every pod.
    pub(crate) fn entry(&self, timeout_ms: u32) -> Entry {
        Entry {
            name: self.name.to_owned(),
            plugin: Digest::of(self.plugin),
            pod_selector: LabelSelector::default(),
            order: ORDER,
            on_failure: FailurePolicy::Open,
            timeout_ms,
            memory_mib: DEFAULT_MEMORY_MIB,
            settings: Settings::new(self.settings.clone()),
            origin: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_on_file_are_yaml_with_rules() {
        for (added, rules) in [
            (Added::rate_limit(), "rateLimitings"),
            (Added::circuit_breaker(), "rateLimitings"),
            (Added::fault_inject(), "faults"),
        ] {
            let added = added.unwrap();
            let rules = added.settings[rules].as_array().map(Vec::len);
            assert!(rules.is_some_and(|rules| rules > 0), "{added:?}");
        }
    }
}
