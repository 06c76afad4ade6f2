//! Validates custom resources: one set of rules for the webhook, for `ctrlmesh lint` and for [`crate::compile()`].
//!
//! Flow: [`mod@read`] parses a document as an API server would (schema first, with every mistake), then [`check_object`] applies the rules of
//! its kind. The built-in plugins check the settings that they will get, so that no object is admitted which a sidecar refuses.
//!
//! | file | holds |
//! |---|---|
//! | `valid_rest` | the rules, applied to the rest of a document in which the schema found mistakes |
//! | `fix` | mistakes that can be corrected mechanically |
//! | `warn_new_objects` | warnings of new objects that may have done nothing under KusionStack |
//! | `sharding_config`, `circuit_breaker`, `fault_injection` | the rules of each kind |
//! | `keyed_root` | the rules of a root that divides objects by a hash |
//! | `warn_hash_keys` | warnings of keys that divide objects otherwise than people expect |
//! | `warn_unlocked_shards` | warnings of shards without a lock |
//! | `warn_hidden_children` | warnings of limits that hide objects from the controller that creates them |
//! | `plugins`, `image` | `spec.plugins[]`, and references to components in OCI registries |
//! | `rule_check` | lets a plugin check one rule of an object |
//! | `limit_resources` | resources that two limits have in common |
//! | `buckets` | selectors of limits that use the manager's labels |
//! | `resource_names` | warnings of names of resources that no API server has |
//! | `read` | from a document to an object |
//! | `findings` | mistakes and warnings |
//!
//! Other objects and the cluster are not considered; see [`crate::find_overlaps()`].

mod buckets;
mod circuit_breaker;
mod fault_injection;
mod findings;
mod fix;
mod image;
mod keyed_root;
mod limit_resources;
mod plugins;
mod read;
mod resource_names;
mod rule_check;
mod sharding_config;
#[cfg(test)]
mod tests;
mod valid_rest;
mod warn_hash_keys;
mod warn_hidden_children;
mod warn_new_objects;
mod warn_unlocked_shards;

pub use findings::Findings;
pub use fix::{Change, Fix, Path, Step, next_fix, next_fix_with};
pub use read::{Object, is_kind, read};
pub use warn_new_objects::warn_of_new;
pub use warn_unlocked_shards::{unlocked_beside, unlocked_warning};

use ctrlmesh_contract::names::labels;
use ctrlmesh_manager_api::schema;
use serde_json::Value;

use crate::{LabelKeys, switches};

/// Validates a document that someone wants to apply, with the default keys of labels.
#[must_use]
pub fn validate(document: &Value) -> Findings {
    validate_with(document, &LabelKeys::default())
}

/// Validates a document that someone wants to apply to a cluster whose manager has these keys.
///
/// A ShardingConfig with the label `ctrlmesh.kusionstack.io/ignore-validate` is accepted if it can be parsed at all.
#[must_use]
pub fn validate_with(document: &Value, keys: &LabelKeys) -> Findings {
    match read(document) {
        Err(mistakes) => valid_rest::check_valid_rest(document, mistakes, keys),
        Ok(object) if object.has_label(labels::IGNORE_VALIDATE) => Findings::default(),
        Ok(object) => check_object(&object, keys),
    }
}

/// Adds mistakes for unknown fields of `metadata`. Only for files: an API server does not let such fields through, and fields that
/// a later one adds and stores must stay readable.
pub fn check_metadata_fields(document: &Value, findings: &mut Findings) {
    schema::check_metadata_fields(document, &mut findings.mistakes);
}

/// Applies the rules to a parsed object.
#[must_use]
pub fn check_object(object: &Object, keys: &LabelKeys) -> Findings {
    match object {
        Object::ShardingConfig(config) => check_sharding_config(config, keys),
        Object::CircuitBreaker(breaker) => {
            let mut findings = check_circuit_breaker(breaker);
            if switches::holds_back_lists(breaker, None) {
                findings.warn("spec.trafficInterceptRules", switches::LISTS);
            }
            findings
        }
        Object::FaultInjection(faults) => {
            let mut findings = check_fault_injection(faults);
            if switches::holds_back_faults(faults, None) {
                findings.warn("spec.httpFault", switches::FAULTS);
            }
            findings
        }
        Object::ManagerState(_) => Findings::default(),
    }
}

// For chains. These do not warn of switches of KusionStack: whether one applies follows from the chain, and is reported in another
// condition.
pub(crate) use circuit_breaker::check_circuit_breaker;
pub(crate) use fault_injection::check_fault_injection;
pub use sharding_config::check_sharding_config;
