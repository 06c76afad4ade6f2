//! Shards that have not begun yet: others do all the work of their controller, and they show nothing until those are gone.
//!
//! A shard shows nothing for a moment, too, while its objects are handed over. The two are told apart by the key of which its
//! selectors speak, so that a manager that takes over knows which it is.

use ctrlmesh_contract::Entry;

use super::moves::{is_nothing_yet, nothing_yet_of};
use super::shard::{Shard, with};

/// The entry of a shard as it is until the shard begins.
#[must_use]
pub fn waiting(entry: &Entry) -> Entry {
    Shard::of(entry).map_or_else(
        || entry.clone(),
        |(_, shard)| with(entry, &nothing_yet_of(&shard.limits), false),
    )
}

/// Whether it is the entry of a shard that has not begun.
#[must_use]
pub fn is_waiting(entry: &Entry) -> bool {
    Shard::of(entry).is_some_and(|(_, shard)| is_nothing_yet(&shard.limits))
}
