//! Settle times: how long pods must be quiet before other shards get what they showed.
//!
//! The time that counts is that of the losing shard when it showed the objects. So it is stored beside the chain until its pods have
//! given them up, whatever becomes of its ShardingConfig meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ctrlmesh_contract::Entry;

use super::{entry_of_shard, is_of_shard, shard_of};

static NONE: BTreeMap<String, Duration> = BTreeMap::new();

/// The settle times that the objects ask for.
#[derive(Clone, Copy, Debug)]
pub struct SettleTimes<'a> {
    pub default: Duration,
    /// Times of the shards whose objects can be read, by entry.
    pub by_entry: &'a BTreeMap<String, Duration>,
}

impl Default for SettleTimes<'_> {
    fn default() -> Self {
        Self {
            default: Duration::ZERO,
            by_entry: &NONE,
        }
    }
}

/// Settle times in milliseconds, by the shard's entry. Those of shards with the default are left out.
pub(super) type StoredTimes = BTreeMap<String, u64>;

/// The time of the shard to which an entry of this name belongs. `None`: the default.
pub(super) fn stored_time(times: &StoredTimes, name: &str) -> Option<Duration> {
    let time = times.get(&entry_of_shard(shard_of(name)));
    time.map(|millis| Duration::from_millis(*millis))
}

/// The times to store with the next entries. `claimed`: names of entries whose earlier views pods may still show; the longest time
/// counts for these.
pub(super) fn next_times<'a>(
    before: &StoredTimes,
    times: SettleTimes<'_>,
    entries: &[Entry],
    claimed: impl Iterator<Item = &'a String>,
) -> StoredTimes {
    let shard = |name: &str| entry_of_shard(shard_of(name));
    let claimed: BTreeSet<String> = claimed.map(|name| shard(name)).collect();
    let own = entries.iter().filter(|entry| is_of_shard(&entry.name));
    let all: BTreeSet<String> = own.map(|entry| shard(&entry.name)).chain(claimed.clone()).collect();
    let next = all.into_iter().filter_map(|name| {
        let before = stored_time(before, &name).unwrap_or(times.default);
        let next = match times.by_entry.get(&name) {
            Some(time) if claimed.contains(&name) => before.max(*time),
            Some(time) => *time,
            // The object is gone or can't be read.
            None => before,
        };
        let millis = u64::try_from(next.as_millis()).unwrap_or(u64::MAX);
        (next != times.default).then_some((name, millis))
    });
    next.collect()
}
