//! What is wrong with a custom resource: one set of rules for the webhook, for `ctrlmesh lint` and for [`crate::compile()`].
//!
//! Flow: [`read`] takes a document as an API server would (schema first, every mistake), then [`check`] applies the rules of its
//! kind. The built-in plugins are asked themselves about the settings that they will get, so that nothing is admitted that a
//! sidecar refuses.
//!
//! Caveats: does not know other objects ([`crate::overlap()`]) or the cluster.

mod circuit_breaker;
mod fault_injection;
mod findings;
mod image;
mod plugins;
mod read;
mod sharding_config;
#[cfg(test)]
mod tests;

pub use findings::Findings;
pub use read::{Object, is_kind, read};

use ctrlmesh_contract::names::labels;
use serde_json::Value;

use crate::LabelKeys;

/// What is wrong with a document that someone wants to apply, where labels have their usual keys.
#[must_use]
pub fn validate(document: &Value) -> Findings {
    validate_with(document, &LabelKeys::default())
}

/// What is wrong with a document that someone wants to apply to a cluster whose manager has these keys.
///
/// A ShardingConfig with the label `ctrlmesh.kusionstack.io/ignore-validate` is let through if it can be read at all.
#[must_use]
pub fn validate_with(document: &Value, keys: &LabelKeys) -> Findings {
    match read(document) {
        Err(mistakes) => Findings {
            mistakes,
            ..Findings::default()
        },
        Ok(object) if object.has_label(labels::IGNORE_VALIDATE) => Findings::default(),
        Ok(object) => check(&object, keys),
    }
}

/// What is wrong with an object that was read.
#[must_use]
pub fn check(object: &Object, keys: &LabelKeys) -> Findings {
    match object {
        Object::ShardingConfig(config) => sharding_config::check(config, keys),
        Object::CircuitBreaker(breaker) => circuit_breaker::check(breaker),
        Object::FaultInjection(faults) => fault_injection::check(faults),
        Object::ManagerState(_) => Findings::default(),
    }
}

pub(crate) use circuit_breaker::check as check_circuit_breaker;
pub(crate) use fault_injection::check as check_fault_injection;

/// The keys only show in mistakes that the webhook told before.
pub(crate) fn check_sharding_config(config: &crate::api::ShardingConfig) -> Findings {
    sharding_config::check(config, &LabelKeys::default())
}
