//! What of the last chain goes on.

use ctrlmesh_contract::{Chain, Entry, Origin};

/// The entries that an object had. Another object of the same name is another object.
pub(super) fn entries(last: Option<&Chain>, origin: &Origin) -> Vec<Entry> {
    let is_its = |entry: &&Entry| {
        let made_from = entry.origin.as_ref();
        made_from.is_some_and(|old| (&old.kind, &old.name, &old.uid) == (&origin.kind, &origin.name, &origin.uid))
    };
    last.iter()
        .flat_map(|chain| &chain.entries)
        .filter(is_its)
        .cloned()
        .collect()
}

/// Whether sidecars would do the same. The order in the document says nothing.
pub(super) fn is_same(last: &Chain, entries: &[Entry]) -> bool {
    let mut old: Vec<&Entry> = last.entries.iter().collect();
    old.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    old.len() == entries.len() && old.into_iter().zip(entries).all(|(old, new)| old == new)
}
