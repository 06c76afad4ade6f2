//! Which ConfigMap carries which plugin. Pure.
//!
//! Guarantees: a plugin that lies somewhere stays there; what is still needed is never dropped; nothing is split.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::names::PLUGIN_CONFIG_MAPS;

/// Most bytes of plugins in one ConfigMap. Kubernetes allows 1 MiB for keys and values together (`MaxSecretSize`).
pub(super) const MAX_SLOT_BYTES: usize = 1000 * 1024;

/// What lies in each of the slots: packed sizes by digest.
pub(super) type PluginSlots = [BTreeMap<Digest, usize>; PLUGIN_CONFIG_MAPS];

/// A plugin that finds no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "plugin {digest} has {bytes} bytes packed, and there is no room for it: a ConfigMap takes {MAX_SLOT_BYTES}, and there are \
     {PLUGIN_CONFIG_MAPS} of them in a namespace; make it smaller (opt-level = \"s\", lto, strip), or use fewer plugins"
)]
pub struct NoRoom {
    /// Which.
    pub digest: Digest,
    /// Its size.
    pub bytes: usize,
}

/// Puts what is needed into slots, and takes out what nobody needs: neither the chain that is written, nor one that some
/// sidecar may still run.
///
/// # Errors
/// Something finds no room. Then nothing should be written.
pub(super) fn place(
    now: &PluginSlots,
    needed: &BTreeMap<Digest, usize>,
    in_use: &BTreeSet<Digest>,
) -> Result<PluginSlots, NoRoom> {
    let mut slots = now.clone();
    for slot in &mut slots {
        slot.retain(|digest, _| needed.contains_key(digest) || in_use.contains(digest));
    }
    for (digest, bytes) in needed {
        if slots.iter().any(|slot| slot.contains_key(digest)) {
            continue;
        }
        let has_room = |slot: &&mut BTreeMap<Digest, usize>| slot.values().sum::<usize>() + bytes <= MAX_SLOT_BYTES;
        match slots.iter_mut().find(has_room) {
            Some(slot) => slot.insert(*digest, *bytes),
            None => {
                return Err(NoRoom {
                    digest: *digest,
                    bytes: *bytes,
                });
            }
        };
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(id: &str) -> Digest {
        Digest::of(id.as_bytes())
    }

    fn sizes(of: &[(&str, usize)]) -> BTreeMap<Digest, usize> {
        of.iter().map(|(id, bytes)| (digest(id), *bytes)).collect()
    }

    #[test]
    fn plugins_stay_where_they_are_and_go_when_nobody_needs_them() {
        let mut now = PluginSlots::default();
        now[3] = sizes(&[("a", 10), ("old", 10)]);
        now[5] = sizes(&[("gone", 10)]);
        let slots = place(&now, &sizes(&[("a", 10), ("b", 10)]), &[digest("old")].into()).unwrap();
        assert_eq!(slots[3], sizes(&[("a", 10), ("old", 10)]));
        assert_eq!((&slots[0], &slots[5]), (&sizes(&[("b", 10)]), &BTreeMap::new()));
        let slots = place(&slots, &sizes(&[("a", 10), ("b", 10)]), &BTreeSet::new()).unwrap();
        assert_eq!(slots[3], sizes(&[("a", 10)]));
    }

    #[test]
    fn what_does_not_fit_beside_others_gets_a_slot_of_its_own_and_nothing_is_cut() {
        let large = MAX_SLOT_BYTES - 5;
        let slots = place(
            &PluginSlots::default(),
            &sizes(&[("a", large), ("b", large)]),
            &BTreeSet::new(),
        )
        .unwrap();
        assert_eq!(slots.iter().filter(|slot| slot.len() == 1).count(), 2);
        let error = place(&slots, &sizes(&[("c", MAX_SLOT_BYTES + 1)]), &BTreeSet::new()).unwrap_err();
        assert_eq!((error.digest, error.bytes), (digest("c"), MAX_SLOT_BYTES + 1));
        let nine: Vec<String> = (0..9).map(|id| id.to_string()).collect();
        let nine: Vec<(&str, usize)> = nine.iter().map(|id| (id.as_str(), large)).collect();
        assert!(place(&PluginSlots::default(), &sizes(&nine), &BTreeSet::new()).is_err());
    }
}
