//! What a person resets: a rule remembers the last values of its `recover`, and from which epoch on its breakers count. A
//! new value raises that epoch once, whichever of several instances sees it first, and whatever breakers there are by key.

use ctrlmesh_sdk::Host;

use crate::breaker::{Breaker, Policy};
use crate::cell::Numbers;
use crate::note::hash;

/// Of the encoding.
const VERSION: u8 = 1;
/// Values that are remembered: while a chain replaces another, instances of both may be configured in any order, and the old
/// value must not count as a new one.
const MAX_VALUES: usize = 8;
/// Others may write at the same time, but only while chains are replaced.
const MAX_TRIES: usize = 16;
/// The counter of changes of state, for the whole entry.
const EPOCHS: &str = "epochs";

#[derive(Clone, Debug, Default)]
struct Marks {
    reset: u32,
    /// Hashes, oldest first.
    values: Vec<u64>,
}

/// How many changes of state there have been.
pub(crate) fn epoch(host: &dyn Host) -> u32 {
    count(host, 0).unwrap_or_default()
}

/// Numbers a change of state. `None`: the host has no room.
pub(crate) fn next_epoch(host: &dyn Host) -> Option<u32> {
    count(host, 1)
}

fn count(host: &dyn Host, by: i64) -> Option<u32> {
    let epoch = host.add(EPOCHS, by, None).ok().flatten()?;
    u32::try_from(epoch).ok()
}

/// From which epoch on the breakers of this rule count; what is older is closed.
pub(crate) fn reset_epoch(host: &dyn Host, rule: &str) -> u32 {
    load(host, rule).1.reset
}

/// Closes all breakers of the rule if it is new, forced, or its `recover` has a value that was not seen lately. Returns
/// whether it did.
pub(crate) fn apply(host: &dyn Host, breaker: &Breaker) -> bool {
    let value = breaker.recover.as_deref().map(hash);
    for _ in 0..MAX_TRIES {
        let (version, mut marks) = load(host, &breaker.name);
        let has_new_value = value.is_some_and(|value| !marks.values.contains(&value));
        if version != 0 && !has_new_value && breaker.policy == Policy::Normal {
            return false;
        }
        let Some(epoch) = next_epoch(host) else {
            return false;
        };
        marks.reset = epoch;
        if has_new_value {
            marks.values.extend(value);
            let excess = marks.values.len().saturating_sub(MAX_VALUES);
            marks.values.drain(..excess);
        }
        let written = host.compare_and_swap(&key(&breaker.name), version, &marks.encode());
        if written.is_ok_and(|version| version.is_some()) {
            return true;
        }
    }
    false
}

/// The rule is gone.
pub(crate) fn forget(host: &dyn Host, rule: &str) {
    host.remove(&key(rule));
}

fn key(rule: &str) -> String {
    format!("rule\n{rule}")
}

fn load(host: &dyn Host, rule: &str) -> (u64, Marks) {
    match host.get(&key(rule)) {
        Ok(Some(cell)) => (cell.version, Marks::decode(&cell.value).unwrap_or_default()),
        Ok(None) | Err(_) => (0, Marks::default()),
    }
}

impl Marks {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.reset.to_le_bytes());
        bytes.extend(self.values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&VERSION, rest) = bytes.split_first()? else {
            return None;
        };
        let mut numbers = Numbers(rest);
        let reset = numbers.u32()?;
        let values = std::iter::from_fn(|| numbers.u64()).collect();
        Some(Self { reset, values })
    }
}
