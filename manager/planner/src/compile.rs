//! Compiles the custom resources of a namespace into the chain that its sidecars run.
//!
//! | file | holds |
//! |---|---|
//! | `entries` | the entries of one object |
//! | `in_place` | entries whose built-in plugin a user's plugin replaces, for the pods of one shard |
//! | `resolved` | plugins, resolved to the digests of their components |
//! | `kept` | entries of the last chain that are kept, and the generation of the next one |
//!
//! Order: fault-inject, rate-limit, circuit-breaker, the user's plugins, shard-selector. Entries are named after their objects. The
//! names are stable, because a sidecar keeps state by them.
//!
//! Guarantees:
//! - Pure and deterministic: equal objects in any order make equal bytes.
//! - An invalid object is refused with reasons. It keeps its entries of the last chain, and does not block other objects.
//! - An object whose plugins are not resolved yet keeps its entries too. If one of these plugins replaced a built-in plugin before,
//!   it goes on doing so.
//! - The generation is the last one if nothing changed, else one more.
//!
//! Caveats: a plugin no longer replaces a built-in one while its ShardingConfig is invalid.

mod entries;
mod in_place;
pub mod kept;
mod resolved;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ctrlmesh_contract::chain::MAX_DOCUMENT_BYTES;
use ctrlmesh_contract::{Chain, Entry, Error, Mistakes, Origin};
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};
use kube_core::Resource;

use crate::LabelKeys;
use crate::hand_over::lock_of;
use crate::origin::origin_of;
use crate::validate::{
    Findings, check_circuit_breaker, check_fault_injection, check_sharding_config, unlocked_beside, unlocked_warning,
};
use entries::Context;
pub use resolved::Resolved;

/// The inputs of a namespace's chain.
#[derive(Clone, Copy, Debug)]
pub struct Objects<'a> {
    pub namespace: &'a str,
    /// ShardingConfigs. Roots have no entries; the shards that are made from them do.
    pub sharding_configs: &'a [ShardingConfig],
    pub circuit_breakers: &'a [CircuitBreaker],
    pub fault_injections: &'a [FaultInjection],
    pub resolved: &'a Resolved,
    /// ShardingConfigs (by UID) that belong to an incomplete set. They keep their entries.
    pub held: &'a BTreeSet<String>,
    /// The chain that was distributed last.
    pub last: Option<&'a Chain>,
    /// Keys of the labels that the manager sets.
    pub keys: &'a LabelKeys,
}

/// A compiled chain, and the objects that are not in it as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// Valid, and small enough for a ConfigMap.
    pub chain: Chain,
    pub refused: Vec<RefusedObject>,
    /// Valid objects that probably do not do what their author wants.
    pub warned: Vec<WarnedObject>,
}

/// An accepted object with warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarnedObject {
    pub origin: Origin,
    pub warnings: Mistakes,
}

/// An object that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedObject {
    pub origin: Origin,
    pub reasons: Mistakes,
    /// The object is valid, but its plugins are not resolved yet.
    pub is_unresolved: bool,
    /// Whether the object's entries of the last chain are kept.
    pub is_kept: bool,
}

/// Compiles a namespace.
///
/// # Errors
/// The chain as a whole is too large for one document. No single object is the cause, so the last chain should be kept.
pub fn compile(objects: &Objects<'_>) -> Result<Compiled, Error> {
    let mut draft = Draft {
        namespace: objects.namespace,
        last: objects.last,
        entries: Vec::new(),
        refused: Vec::new(),
        warned: Vec::new(),
    };
    let check_config = |config: &ShardingConfig| check_sharding_config(config, objects.keys);
    let valid = draft.accepted_objects(objects.sharding_configs, check_config);
    draft.warn_of_missing_locks(&valid);
    let (configs, unresolved) = draft.split_resolved(valid, objects.resolved);
    let breakers = draft.accepted_objects(objects.circuit_breakers, check_circuit_breaker);
    let faults = draft.accepted_objects(objects.fault_injections, check_fault_injection);
    let context = Context {
        configs: &configs,
        unresolved: &unresolved,
        last: objects.last,
        breakers: &breakers,
        resolved: objects.resolved,
    };
    for faults in &faults {
        draft.take(*faults, context.fault_injection(faults));
    }
    for breaker in &breakers {
        draft.take(*breaker, context.circuit_breaker(breaker));
    }
    for config in &configs {
        if config
            .metadata
            .uid
            .as_ref()
            .is_some_and(|uid| objects.held.contains(uid))
        {
            let origin = origin_of(*config);
            draft.entries.extend(kept::entries_of(draft.last, &origin).cloned());
        } else {
            draft.take(
                *config,
                context
                    .sharding_config(config)
                    .and_then(|entries| with_same_lock(draft.last, entries)),
            );
        }
    }
    draft.finish()
}

/// Refuses a shard whose lock differs from the one that its pods use now. Otherwise the pod that leads by the old lock acts until
/// it fails to renew it, while another pod of the shard gets the new lock at once.
fn with_same_lock(last: Option<&Chain>, entries: Vec<Entry>) -> Result<Vec<Entry>, Mistakes> {
    let lock_before = |entry: &Entry| {
        let mut before = last.into_iter().flat_map(|chain| &chain.entries);
        before.find(|before| before.name == entry.name).and_then(lock_of)
    };
    for entry in &entries {
        let Some(before) = lock_before(entry).filter(|before| lock_of(entry) != Some(*before)) else {
            continue;
        };
        let now = lock_of(entry).map_or_else(|| "is missing".to_owned(), |lock| format!("is {lock:?}"));
        let mut mistakes = Mistakes::default();
        mistakes.add(
            "spec.controller.leaderElectionName",
            format!(
                "{now}, but pods of this shard elect their leader by {before:?}; a pod that leads by the old lock would act beside one \
                 that gets the new lock. Write {before:?}, or scale the controller to zero, delete all its ShardingConfigs and create them again"
            ),
        );
        return Err(mistakes);
    }
    Ok(entries)
}

/// Fails if sidecars would refuse the chain, or if it does not fit into a ConfigMap together with `beside` more bytes.
pub fn check_chain(chain: &Chain, beside: usize) -> Result<(), Error> {
    chain.validate()?;
    let (bytes, limit) = (chain.to_json().len(), MAX_DOCUMENT_BYTES.saturating_sub(beside));
    if bytes > limit {
        return Err(Error::TooLarge { bytes, limit });
    }
    Ok(())
}

/// A chain that is being compiled.
struct Draft<'a> {
    namespace: &'a str,
    last: Option<&'a Chain>,
    entries: Vec<Entry>,
    refused: Vec<RefusedObject>,
    warned: Vec<WarnedObject>,
}

impl Draft<'_> {
    /// The valid objects, by name. Objects that are being deleted have no effect any more.
    fn accepted_objects<'o, K>(&mut self, objects: &'o [K], check: impl Fn(&K) -> Findings) -> Vec<&'o K>
    where
        K: Resource<DynamicType = ()>,
    {
        let mut objects: Vec<&K> = objects
            .iter()
            .filter(|object| object.meta().deletion_timestamp.is_none())
            .collect();
        objects.sort_by(|a, b| a.meta().name.cmp(&b.meta().name));
        let mut accepted = Vec::new();
        for object in objects {
            let Findings { mut mistakes, warnings } = check(object);
            let namespace = object.meta().namespace.as_deref().unwrap_or_default();
            if namespace != self.namespace {
                let problem = format!("is {namespace:?}, and this is the chain of {:?}", self.namespace);
                mistakes.add("metadata.namespace", problem);
            }
            if mistakes.list().is_empty() {
                accepted.push(object);
                if !warnings.list().is_empty() {
                    let origin = origin_of(object);
                    self.warned.push(WarnedObject { origin, warnings });
                }
            } else {
                self.refuse(object, mistakes, false);
            }
        }
        accepted
    }

    /// Warns of shards without a lock beside others, so that people who delete or edit one know the danger.
    fn warn_of_missing_locks(&mut self, configs: &[&ShardingConfig]) {
        for config in configs {
            let beside = unlocked_beside(config, configs.iter().copied());
            if beside.is_empty() {
                continue;
            }
            let (origin, warning) = (origin_of(*config), unlocked_warning(Some(&beside)));
            match self.warned.iter_mut().find(|warned| warned.origin == origin) {
                Some(warned) => warned.warnings.add(warning.path, warning.problem),
                None => {
                    let mut warnings = Mistakes::default();
                    warnings.add(warning.path, warning.problem);
                    self.warned.push(WarnedObject { origin, warnings });
                }
            }
        }
    }

    /// Splits ShardingConfigs into those whose plugins are resolved, and the others.
    fn split_resolved<'o>(
        &mut self,
        configs: Vec<&'o ShardingConfig>,
        resolved: &Resolved,
    ) -> (Vec<&'o ShardingConfig>, Vec<&'o ShardingConfig>) {
        configs.into_iter().partition(|config| {
            let mut missing = Mistakes::default();
            resolved.check(config, &mut missing);
            let is_resolved = missing.list().is_empty();
            if !is_resolved {
                self.refuse(*config, missing, true);
            }
            is_resolved
        })
    }

    /// Adds an object's entries if a sidecar would accept them.
    fn take<K: Resource<DynamicType = ()>>(&mut self, object: &K, entries: Result<Vec<Entry>, Mistakes>) {
        let entries = entries.and_then(|entries| {
            let chain = Chain {
                namespace: self.namespace.to_owned(),
                generation: 1,
                entries,
            };
            match chain.validate() {
                Ok(()) => Ok(chain.entries),
                Err(Error::Mistakes { mistakes }) => Err(mistakes),
                Err(other) => {
                    let mut mistakes = Mistakes::default();
                    mistakes.add("spec", other.to_string());
                    Err(mistakes)
                }
            }
        });
        match entries {
            Ok(entries) => self.entries.extend(entries),
            Err(mistakes) => self.refuse(object, mistakes, false),
        }
    }

    fn refuse<K: Resource<DynamicType = ()>>(&mut self, object: &K, reasons: Mistakes, is_unresolved: bool) {
        let origin = origin_of(object);
        let kept: Vec<Entry> = kept::entries_of(self.last, &origin).cloned().collect();
        self.refused.push(RefusedObject {
            origin,
            reasons,
            is_unresolved,
            is_kept: !kept.is_empty(),
        });
        self.entries.extend(kept);
    }

    fn finish(mut self) -> Result<Compiled, Error> {
        self.entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
        // No cluster gets to the last number by counting.
        let generation = kept::next_generation(self.last, 0, &self.entries).unwrap_or(u64::MAX);
        let chain = Chain {
            namespace: self.namespace.to_owned(),
            generation,
            entries: self.entries,
        };
        check_chain(&chain, 0)?;
        Ok(Compiled {
            chain,
            refused: self.refused,
            warned: self.warned,
        })
    }
}
