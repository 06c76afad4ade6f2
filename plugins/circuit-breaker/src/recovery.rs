//! Resets by a person: a rule remembers the last values of its `recover`, and the epoch from which its breakers count. A new value raises
//! that epoch once, whichever instance sees it first, for the breakers of all keys.

use ctrlmesh_sdk::{Cell, Host};

use crate::cell::Numbers;
use crate::keys::marks_key;
use crate::note::fnv1a;
use crate::rule::{BreakerRule, Policy};

const VERSION: u8 = 1;
/// Values that are remembered: while one chain replaces another, instances of both are configured in any order, and the old value must
/// not count as new.
const MAX_VALUES: usize = 8;
/// Other instances may write at the same time, but only while chains are replaced.
const MAX_TRIES: usize = 16;
/// Key of the counter of state changes, for the whole entry.
const EPOCHS: &str = "epochs";

#[derive(Clone, Debug, Default)]
struct ResetMarks {
    reset: u32,
    /// Hashes of `recover` values, oldest first.
    values: Vec<u64>,
}

/// Numbers a change of state. Returns `None` if the host has no room.
pub(crate) fn next_epoch(host: &dyn Host) -> Option<u32> {
    let epoch = host.add(EPOCHS, 1, None).ok().flatten()?;
    u32::try_from(epoch).ok()
}

/// The epoch from which the breakers of a rule count, from the cell of its marks; an older state counts as closed.
pub(crate) fn reset_epoch(marks: Option<&Cell>) -> u32 {
    let marks = marks.and_then(|cell| ResetMarks::decode(&cell.value));
    marks.unwrap_or_default().reset
}

/// Closes all breakers of the rule if it is new, forced, or its `recover` has a value that was not seen lately. Returns whether it
/// did.
pub(crate) fn apply_reset(host: &dyn Host, rule: &BreakerRule) -> bool {
    let value = rule.recover.as_deref().map(fnv1a);
    for _ in 0..MAX_TRIES {
        let (version, mut marks) = load_marks(host, rule);
        let has_new_value = value.is_some_and(|value| !marks.values.contains(&value));
        if version != 0 && !has_new_value && rule.policy == Policy::Normal {
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
        let written = host.compare_and_swap(&rule.keys.marks, version, &marks.encode());
        if written.is_ok_and(|version| version.is_some()) {
            return true;
        }
    }
    false
}

/// Deletes the marks of a removed rule.
pub(crate) fn forget_reset(host: &dyn Host, rule: &str) {
    host.remove(&marks_key(rule));
}

fn load_marks(host: &dyn Host, rule: &BreakerRule) -> (u64, ResetMarks) {
    match host.get(&rule.keys.marks) {
        Ok(Some(cell)) => (cell.version, ResetMarks::decode(&cell.value).unwrap_or_default()),
        Ok(None) | Err(_) => (0, ResetMarks::default()),
    }
}

impl ResetMarks {
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
        let reset = numbers.read_u32()?;
        let values = std::iter::from_fn(|| numbers.read_u64()).collect();
        Some(Self { reset, values })
    }
}
