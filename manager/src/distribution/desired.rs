//! The entries that a namespace's objects ask for. Pure.

use ctrlmesh_contract::{Chain, Entry, Error, Origin};
use serde_json::Value;

use super::deletion;
use super::objects::CustomResources;
use crate::compile::{Refused, Warned, kept};
use crate::hand_over::Claims;
use crate::{LabelKeys, Objects, Resolved, compile};

/// What should be in the chain in the end.
#[derive(Debug)]
pub(super) struct Desired {
    pub(super) entries: Vec<Entry>,
    /// Objects that make no sense.
    pub(super) refused: Vec<Refused>,
    /// Objects that a person should know something of.
    pub(super) warned: Vec<Warned>,
}

/// Compiles a namespace. What can't be read keeps the entries that it had, as what is refused does.
pub(super) fn desired(
    namespace: &str,
    objects: &CustomResources,
    last: Option<&Chain>,
    resolved: &Resolved,
    keys: &LabelKeys,
) -> Result<Desired, Error> {
    let compiled = compile(&of(namespace, objects, last, resolved, keys))?;
    let mut entries = compiled.chain.entries;
    let unreadable = objects.unreadable.iter().map(|(document, _)| document);
    let unreadable: Vec<Origin> = unreadable
        .filter(|document| !deletion::is_deleted(document))
        .map(origin)
        .collect();
    let unseen = last.into_iter().flat_map(|chain| &chain.entries).filter(|entry| {
        let origin = entry.origin.as_ref();
        origin.is_some_and(|origin| objects.unseen.contains(&origin.kind.as_str()))
    });
    let kept = unreadable.iter().flat_map(|origin| kept::entries(last, origin));
    for kept in kept.chain(unseen) {
        if !entries.iter().any(|entry| entry.name == kept.name) {
            entries.push(kept.clone());
        }
    }
    entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    Ok(Desired {
        entries,
        refused: compiled.refused,
        warned: compiled.warned,
    })
}

fn of<'a>(
    namespace: &'a str,
    objects: &'a CustomResources,
    last: Option<&'a Chain>,
    resolved: &'a Resolved,
    keys: &'a LabelKeys,
) -> Objects<'a> {
    Objects {
        namespace,
        sharding_configs: &objects.sharding_configs,
        circuit_breakers: &objects.circuit_breakers,
        fault_injections: &objects.fault_injections,
        resolved,
        held: &objects.held,
        last,
        keys,
    }
}

/// Whether sidecars would take it, and a ConfigMap with what is remembered beside it.
pub(super) fn check(chain: &Chain, claims: &Claims) -> Result<(), Error> {
    /// For signatures and names.
    const REST: usize = 4 * 1024;
    let claims = serde_json::to_vec(claims).map_or(usize::MAX, |claims| claims.len());
    compile::check(chain, claims.saturating_add(REST))
}

/// What a stored document is, whether or not the rest of it can be read.
pub(super) fn origin(document: &Value) -> Origin {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    Origin {
        kind: text("/kind").to_owned(),
        name: text("/metadata/name").to_owned(),
        uid: text("/metadata/uid").to_owned(),
        generation: document
            .pointer("/metadata/generation")
            .and_then(Value::as_u64)
            .unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn entries_of_a_kind_that_was_not_seen_go_on() {
        let resolved = Resolved {
            built_in: crate::built_in::BuiltIn::ALL
                .into_iter()
                .map(|plugin| (plugin, ctrlmesh_contract::Digest::of(plugin.name().as_bytes())))
                .collect(),
            ..Resolved::default()
        };
        let keys = LabelKeys::default();
        let (shard, faults) = (samples::shard("a", &[]), samples::faults("b"));
        let all = CustomResources::of(vec![shard.clone(), faults], Vec::new());
        let last = Chain {
            namespace: "demo".to_owned(),
            generation: 1,
            entries: desired("demo", &all, None, &resolved, &keys).unwrap().entries,
        };
        assert_eq!(last.entries.len(), 2);
        let names = |unseen| {
            let documents = CustomResources::of(vec![shard.clone()], unseen);
            let wanted = desired("demo", &documents, Some(&last), &resolved, &keys).unwrap();
            let names = wanted.entries.into_iter().map(|entry| entry.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(Vec::new()), ["shard-selector/a"], "it is gone");
        assert_eq!(names(vec!["FaultInjection"]).len(), 2, "nobody knows");
    }
}
