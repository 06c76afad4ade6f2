//! Finds entries of the last chain that are kept, and the generation of the next chain.

use ctrlmesh_contract::{Chain, Entry, Origin};

/// The entries that an object has in the last chain. An object that was recreated under the same name has none.
pub fn entries_of<'a>(last: Option<&'a Chain>, origin: &'a Origin) -> impl Iterator<Item = &'a Entry> {
    let is_its = move |entry: &&Entry| {
        let made_from = entry.origin.as_ref();
        made_from.is_some_and(|old| (&old.kind, &old.name, &old.uid) == (&origin.kind, &origin.name, &origin.uid))
    };
    last.into_iter().flat_map(|chain| &chain.entries).filter(is_its)
}

/// Whether sidecars would behave the same. The order of entries in the document does not matter.
pub fn is_same(before: &[Entry], after: &[Entry]) -> bool {
    let (mut before, mut after): (Vec<&Entry>, Vec<&Entry>) = (before.iter().collect(), after.iter().collect());
    for entries in [&mut before, &mut after] {
        entries.sort_by(|a, b| (a.order, &a.name).cmp(&(b.order, &b.name)));
    }
    before == after
}

/// The generation of a chain with these entries. It is the last one's if nothing changed and no later generation is known
/// (`highest`), else one above all known generations.
/// `None`: there is no higher number.
pub fn next_generation(last: Option<&Chain>, highest: u64, entries: &[Entry]) -> Option<u64> {
    match last {
        Some(last) if highest <= last.generation && is_same(&last.entries, entries) => Some(last.generation),
        Some(last) => highest.max(last.generation).checked_add(1),
        None => highest.checked_add(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_end_without_panic() {
        let chain = |generation| Chain {
            namespace: "demo".to_owned(),
            generation,
            entries: Vec::new(),
        };
        assert_eq!(next_generation(None, 0, &[]), Some(1));
        assert_eq!(next_generation(None, 41, &[]), Some(42), "above what sidecars speak of");
        assert_eq!(next_generation(Some(&chain(7)), 7, &[]), Some(7), "nothing changed");
        assert_eq!(next_generation(Some(&chain(7)), 9, &[]), Some(10), "it was put back");
        assert_eq!(next_generation(None, u64::MAX, &[]), None);
    }
}
