//! What is wrong with a custom resource: one set of rules for the webhook, for `ctrlmesh lint` and for [`crate::compile()`].
//!
//! Flow: [`read`] takes a document as an API server would (schema first, every mistake), then [`check`] applies the rules of its
//! kind. The built-in plugins are asked themselves about the settings that they will get, so that nothing is admitted that a
//! sidecar refuses.
//!
//! Caveats: does not know other objects ([`crate::overlap()`]) or the cluster.

mod circuit_breaker;
mod created;
mod fault_injection;
mod findings;
mod image;
mod mend;
mod plugins;
mod read;
mod resource_names;
mod sharding_config;
#[cfg(test)]
mod tests;

pub use findings::Findings;
pub use mend::{Change, Mend, Path, Step, mend};
pub use read::{Object, is_kind, read};

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::names::labels;
use serde_json::Value;

use crate::{LabelKeys, switches};

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
        Err(mistakes) => in_part(document, mistakes, keys),
        Ok(object) if object.has_label(labels::IGNORE_VALIDATE) => Findings::default(),
        Ok(object) => check(&object, keys),
    }
}

/// What the schema does not allow, and what the rules say of the rest: a person wants to know all of it at once.
fn in_part(document: &Value, mut mistakes: Mistakes, keys: &LabelKeys) -> Findings {
    let Some(object) = read::rest(document).filter(|object| !object.has_label(labels::IGNORE_VALIDATE)) else {
        return Findings {
            mistakes,
            ..Findings::default()
        };
    };
    let mut warnings = Mistakes::default();
    let found = check(&object, keys);
    let regions: Vec<String> = mistakes.list().iter().map(|it| region(&it.path).to_owned()).collect();
    let follows = |path: &str| {
        let mut regions = regions.iter();
        regions.any(|region| is_within(path, region) || is_within(region, path))
    };
    for (from, to) in [(found.mistakes, &mut mistakes), (found.warnings, &mut warnings)] {
        for it in from.list().iter().filter(|it| !follows(&it.path)) {
            to.add(it.path.clone(), it.problem.clone());
        }
    }
    Findings { mistakes, warnings }
}

/// The part of a document that can't be judged while a field in it is wrong: the mapping or the element around it.
fn region(path: &str) -> &str {
    match path.rsplit_once('.') {
        Some((around, _)) if around != "spec" => around,
        _ => path,
    }
}

/// Whether a path leads to a part of what another leads to, or to the same.
fn is_within(path: &str, around: &str) -> bool {
    let rest = path.strip_prefix(around);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// What is wrong with an object that was read.
#[must_use]
pub fn check(object: &Object, keys: &LabelKeys) -> Findings {
    match object {
        Object::ShardingConfig(config) => sharding_config::check(config, keys),
        Object::CircuitBreaker(breaker) => {
            let mut findings = circuit_breaker::check(breaker);
            if switches::holds_lists(breaker, None) {
                findings.warn("spec.trafficInterceptRules", switches::LISTS);
            }
            findings
        }
        Object::FaultInjection(faults) => {
            let mut findings = fault_injection::check(faults);
            if switches::holds_faults(faults, None) {
                findings.warn("spec.httpFault", switches::FAULTS);
            }
            findings
        }
        Object::ManagerState(_) => Findings::default(),
    }
}

// For chains: whether a switch of KusionStack holds an object follows from the chain, and stands in another condition.
pub(crate) use circuit_breaker::check as check_circuit_breaker;
pub(crate) use fault_injection::check as check_fault_injection;
pub(crate) use sharding_config::check as check_sharding_config;
