//! What a namespace contributes to the manager's gauges.

use std::collections::BTreeMap;
use std::time::Instant;

/// What a namespace contributes to the gauges.
#[derive(Clone, Debug, Default)]
pub struct NamespaceGauges {
    /// Lagging sidecars, by reason.
    pub lagging: BTreeMap<&'static str, i64>,
    /// Entries that wait for objects, and since when.
    pub waiting: BTreeMap<String, Instant>,
}

impl NamespaceGauges {
    /// Sets which entries wait. An entry that waited before keeps its time.
    pub fn set_waiting<'a>(&mut self, entries: impl Iterator<Item = &'a String>, now: Instant) {
        let before = std::mem::take(&mut self.waiting);
        let since = |entry: &String| before.get(entry).copied().unwrap_or(now);
        self.waiting = entries.map(|entry| (entry.clone(), since(entry))).collect();
    }
}
