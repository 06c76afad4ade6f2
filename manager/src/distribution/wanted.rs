//! The entries that a namespace's objects ask for. Pure.

use ctrlmesh_contract::chain::MAX_DOCUMENT_BYTES;
use ctrlmesh_contract::{Chain, Entry, Error};
use serde_json::Value;

use super::read::Documents;
use crate::compile::Refused;
use crate::hand_over::Claims;
use crate::{Objects, Resolved, compile};

/// What should be in the chain in the end.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) entries: Vec<Entry>,
    /// Objects that make no sense.
    pub(super) refused: Vec<Refused>,
}

/// Compiles a namespace. What can't be read keeps the entries that it had, as what is refused does.
pub(super) fn wanted(
    namespace: &str,
    objects: &Documents,
    last: Option<&Chain>,
    resolved: &Resolved,
) -> Result<Wanted, Error> {
    let compiled = compile(&of(namespace, objects, last, resolved))?;
    let mut entries = compiled.chain.entries;
    let unreadable = objects.unreadable.iter().map(|(document, _)| document);
    for kept in unreadable.flat_map(|document| kept(last, document)) {
        if !entries.iter().any(|entry| entry.name == kept.name) {
            entries.push(kept.clone());
        }
    }
    entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    Ok(Wanted {
        entries,
        refused: compiled.refused,
    })
}

fn of<'a>(namespace: &'a str, objects: &'a Documents, last: Option<&'a Chain>, resolved: &'a Resolved) -> Objects<'a> {
    Objects {
        namespace,
        sharding_configs: &objects.sharding_configs,
        circuit_breakers: &objects.circuit_breakers,
        fault_injections: &objects.fault_injections,
        resolved,
        held: &objects.held,
        last,
    }
}

/// The entries of the last chain that were made from this document.
pub(super) fn kept<'a>(last: Option<&'a Chain>, document: &'a Value) -> impl Iterator<Item = &'a Entry> {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, name, uid) = (text("/kind"), text("/metadata/name"), text("/metadata/uid"));
    last.into_iter().flat_map(|chain| &chain.entries).filter(move |entry| {
        let origin = entry.origin.as_ref();
        origin.is_some_and(|origin| {
            (origin.kind.as_str(), origin.name.as_str(), origin.uid.as_str()) == (kind, name, uid)
        })
    })
}

/// Whether sidecars would do the same. The order in the document says nothing.
pub(super) fn is_same(before: &[Entry], after: &[Entry]) -> bool {
    let sorted = |entries: &[Entry]| {
        let mut entries = entries.to_vec();
        entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
        entries
    };
    sorted(before) == sorted(after)
}

/// Whether sidecars would take it, and a ConfigMap.
pub(super) fn check(chain: &Chain, claims: &Claims) -> Result<(), Error> {
    /// For signatures and names.
    const REST: usize = 4 * 1024;
    chain.validate()?;
    let claims = serde_json::to_vec(claims).map_or(MAX_DOCUMENT_BYTES, |claims| claims.len());
    let (bytes, limit) = (chain.to_json().len() + claims, MAX_DOCUMENT_BYTES - REST);
    if bytes > limit {
        return Err(Error::TooLarge { bytes, limit });
    }
    Ok(())
}
