//! UIDs that look random, and are the same in each run.

use ctrlmesh_wire::objects::fnv1a_64;

/// The UID of an object of this kind.
pub(crate) fn uid_of(kind: &str, number: u32) -> String {
    let high = fnv1a_64(&format!("{kind} {number}"));
    let low = fnv1a_64(&format!("{number} {kind}"));
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn objects_have_uids_of_their_own() {
        let kinds = ["pod", "replica set"];
        let uids = kinds
            .iter()
            .flat_map(|kind| (0..100).map(move |number| uid_of(kind, number)));
        let uids: BTreeSet<String> = uids.collect();
        assert_eq!(uids.len(), 200);
        assert!(uids.iter().all(|uid| uid.len() == 36), "{uids:?}");
        assert_eq!(uid_of("pod", 7), uid_of("pod", 7));
    }
}
