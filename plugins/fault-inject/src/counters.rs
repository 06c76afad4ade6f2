//! The counters of a rule in the host's state, so that all instances share them and a reload keeps them: how often it matched and fired,
//! since when, and how often an object has met it.
//!
//! Guarantees:
//! - Counters belong to the rule's name: other edits of the settings keep them, a new name starts at zero.
//! - The number of keys is below the host's 1 024: five for each rule, [`MAX_OBJECTS`] for objects, and one for each rule and verb beyond
//!   that.
//! - A rule that neither draws, nor selects or stops by a count, nor depends on the time since its first match, only increments its
//!   counters, which a host repeats with the verdict. A rule that can't fire any more writes nothing. [`RuleCounters::is_repeatable`] says
//!   whether all that was done for a request may be repeated.
//! - If the host has no room for a counter, a rule without `maxCount` fires all the same and is not counted. A rule that selects or stops
//!   by a count that it does not get does not fire.

use std::cell::Cell;

use ctrlmesh_sdk::{Counted, Host, Part, Place};

use crate::draw::{Draw, Subject};
use crate::rule::{Rule, Select};

/// Objects (by rule and verb) with a counter of their own. Beyond this, the objects of one rule and verb share a counter, and which of
/// them is hit depends on the order in which they come.
const MAX_OBJECTS: i64 = 512;
/// Key of the number of counted objects.
const OBJECTS: &str = "objects";
/// Key of the names of all rules with a report, to find removed ones.
const REPORTED: &str = "reported";

/// Lower bounds of the counts of a rule. Both only grow, in the cell too: a note keeps what was noted before. A verdict may depend on a
/// cell, unlike on counters and clocks.
#[derive(Clone, Copy, Default)]
struct Progress {
    fired: u64,
    /// Since the first match.
    elapsed_ms: u64,
}

impl Progress {
    fn encode(self) -> Vec<u8> {
        [self.fired.to_le_bytes(), self.elapsed_ms.to_le_bytes()].concat()
    }

    fn merged_with(self, other: Self) -> Self {
        Self {
            fired: self.fired.max(other.fired),
            elapsed_ms: self.elapsed_ms.max(other.elapsed_ms),
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (fired, elapsed_ms) = bytes.split_first_chunk()?;
        Some(Self {
            fired: u64::from_le_bytes(*fired),
            elapsed_ms: u64::from_le_bytes(elapsed_ms.try_into().ok()?),
        })
    }
}

pub(crate) struct RuleCounters<'a> {
    rule: &'a Rule,
    host: &'a dyn Host,
    /// Whether the request in hand matched the rule, and whether the rule fired on it.
    has_matched: Cell<bool>,
    has_fired: Cell<bool>,
    is_repeatable: Cell<bool>,
}

impl<'a> RuleCounters<'a> {
    pub(crate) fn new(rule: &'a Rule, host: &'a dyn Host) -> Self {
        Self {
            rule,
            host,
            has_matched: Cell::new(false),
            has_fired: Cell::new(false),
            is_repeatable: Cell::new(true),
        }
    }

    /// Whether a host may repeat what was done for the request in hand.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.is_repeatable.get()
    }

    /// The host, for a call of a function that it does not repeat with a verdict.
    fn use_once(&self) -> &'a dyn Host {
        self.is_repeatable.set(false);
        self.host
    }

    fn state_key(&self, kind: &str) -> String {
        format!("{kind}/{}", self.rule.name)
    }

    /// Counts a request that the rule applies to. Returns its number from 1; 0 if the rule does not select by it, or the host does not
    /// count.
    pub(crate) fn count_match(&self) -> u64 {
        self.has_matched.set(true);
        if self.rule.select == Select::All {
            self.host.increment(&self.state_key("m"), 1);
            return 0;
        }
        self.add_to_counter("m", 1, None).unwrap_or_default()
    }

    /// Whether it was noted that the rule can't fire any more. Reads a cell at most, so that the verdict may be repeated.
    pub(crate) fn has_noted_end(&self) -> bool {
        if !self.rule.can_end() {
            return false;
        }
        let (progress, _) = self.noted_progress();
        self.rule.is_exhausted(progress.fired) || self.rule.is_over(progress.elapsed_ms)
    }

    /// Whether the rule has fired as often as it may. Notes it if that is final.
    pub(crate) fn is_exhausted(&self) -> bool {
        if self.rule.limits.max_count.is_none() {
            return false;
        }
        let fired = self.add_to_counter("f", 0, None).unwrap_or_default();
        let is_exhausted = self.rule.is_exhausted(fired);
        // A request that gets no place gives back what it has counted.
        if is_exhausted && self.rule.limits.max_active.is_none() {
            self.note_progress(Progress { fired, elapsed_ms: 0 });
        }
        is_exhausted
    }

    /// Whether the rule can have no effect any more at this time after its first match. Notes it if so.
    pub(crate) fn is_over(&self, elapsed_ms: u64) -> bool {
        let is_over = self.rule.is_over(elapsed_ms);
        if is_over {
            self.note_progress(Progress { fired: 0, elapsed_ms });
        }
        is_over
    }

    fn note_progress(&self, progress: Progress) {
        let (noted, version) = self.noted_progress();
        let value = noted.merged_with(progress).encode();
        // If another instance was faster, the next request that finds the rule ended notes what is missing.
        let _ = self.use_once().compare_and_swap(&self.state_key("e"), version, &value);
    }

    /// The counts that were noted last, and the version of the cell.
    fn noted_progress(&self) -> (Progress, u64) {
        let cell = self.host.get(&self.state_key("e")).ok().flatten();
        let version = cell.as_ref().map_or(0, |cell| cell.version);
        let progress = cell.and_then(|cell| Progress::decode(&cell.value));
        (progress.unwrap_or_default(), version)
    }

    /// Milliseconds since the first match, which may be this one.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        let key = self.state_key("t");
        let now = self.use_once().monotonic_ns() / 1_000_000;
        let read = || -> Option<u64> {
            let cell = self.host.get(&key).ok()??;
            Some(u64::from_le_bytes(cell.value.try_into().ok()?))
        };
        let started = read().or_else(|| {
            let _ = self.use_once().compare_and_swap(&key, 0, &now.to_le_bytes());
            // Another instance may have been faster.
            read()
        });
        now.saturating_sub(started.unwrap_or(now))
    }

    /// Takes what the rule needs to fire on this request, including a place. `false`: the rule has reached a limit, and nothing is
    /// taken.
    pub(crate) fn fire_on_request(&self) -> bool {
        let is_granted = if self.rule.limits.max_count.is_none() {
            // The count is not refused, so nothing is ever given back.
            self.take_place() && self.take_count()
        } else {
            self.take_count_and_place()
        };
        self.has_fired.set(is_granted);
        is_granted
    }

    /// Takes both or none. The count is first: a place that is taken stays with the request.
    fn take_count_and_place(&self) -> bool {
        let is_counted = self.take_count();
        let has_place = is_counted && self.take_place();
        if is_counted && !has_place {
            let _ = self.add_to_counter("f", -1, None);
        }
        has_place
    }

    /// Takes a place for a fault on the response.
    pub(crate) fn take_place(&self) -> bool {
        let Some(max) = self.rule.limits.max_active else {
            return true;
        };
        let place = Place {
            key: self.state_key("a"),
            max,
        };
        matches!(self.host.admit(&[], &[place]), Ok(ctrlmesh_sdk::Admission::Granted(_)))
    }

    /// Like [`RuleCounters::fire_on_request`] when the response has arrived; the place was taken before.
    pub(crate) fn fire_on_response(&self) -> bool {
        let is_granted = self.take_count();
        self.has_fired.set(is_granted);
        is_granted
    }

    fn take_count(&self) -> bool {
        let Some(max) = self.rule.limits.max_count else {
            self.host.increment(&self.state_key("f"), 1);
            return true;
        };
        self.add_to_counter("f", 1, Some(max.into())).is_some()
    }

    /// Counts in the metrics what the rule has done with the request in hand.
    pub(crate) fn count_in_metrics(&self) {
        let (matched, fired) = ("fault_matched", "fault_fired");
        let name = &self.rule.name;
        match (self.has_matched.get(), self.has_fired.get()) {
            (true, true) => self
                .host
                .count_all(&[matched, fired].map(|metric| Counted::new(metric, name, 1))),
            (true, false) => self.host.count(matched, name, 1),
            (false, true) => self.host.count(fired, name, 1),
            (false, false) => {}
        }
    }

    /// Records that this rule decides a part of the verdict on this request.
    pub(crate) fn record_decision(&self, part: Part) {
        self.host.name_rule(&self.rule.name, part);
    }

    /// Returns `None` if the counter would exceed `max`, or the host does not count.
    fn add_to_counter(&self, kind: &str, delta: i64, max: Option<i64>) -> Option<u64> {
        let sum = self.use_once().add(&self.state_key(kind), delta, max).ok().flatten()?;
        u64::try_from(sum).ok()
    }

    /// Lets the host show the counts, even those of a rule that never fired.
    fn show_counts(&self) {
        let fields = [("matched", "m"), ("fired", "f")];
        let fields = fields.map(|(field, kind)| (field.to_owned(), self.state_key(kind)));
        self.host.show_counters(&self.rule.name, &fields);
    }

    pub(crate) fn draw_for(&self, seed: u64, subject: &Subject) -> Draw {
        let name = &self.rule.name;
        let key = subject.counter_key(name);
        if let Some(occurrence) = self.count_occurrence(&key) {
            return Draw::new(seed, name, subject, occurrence);
        }
        self.host.count("fault_untracked", "", 1);
        let together = Subject {
            object: String::new(),
            verb: subject.verb.clone(),
        };
        let occurrence = self.use_once().add(&together.counter_key(name), 1, None);
        Draw::new(seed, name, &together, occurrence.ok().flatten().unwrap_or_default())
    }

    /// Counts an occurrence of this key; returns `None` if there are too many keys.
    fn count_occurrence(&self, key: &str) -> Option<i64> {
        let host = self.use_once();
        let occurrence = host.add(key, 1, None).ok().flatten()?;
        if occurrence > 1 || matches!(host.add(OBJECTS, 1, Some(MAX_OBJECTS)), Ok(Some(_))) {
            return Some(occurrence);
        }
        host.remove(key);
        None
    }
}

/// Sets up a report for each rule, and removes those of removed rules with their counters.
pub(crate) fn sync_reports(rules: &[Rule], host: &dyn Host) {
    for rule in rules {
        RuleCounters::new(rule, host).show_counts();
    }
    // A name has no line break.
    let names: Vec<&str> = rules.iter().map(|rule| rule.name.as_str()).collect();
    let cell = host.get(REPORTED).ok().flatten();
    let version = cell.as_ref().map_or(0, |cell| cell.version);
    let before = cell.map(|cell| String::from_utf8_lossy(&cell.value).into_owned());
    let before: Vec<&str> = before.as_deref().unwrap_or_default().lines().collect();
    if before == names {
        return;
    }
    for gone in before.iter().filter(|name| !names.contains(name)) {
        host.remove_report(gone);
        for kind in ["m", "f", "t", "e"] {
            host.remove(&format!("{kind}/{gone}"));
        }
    }
    // If another instance was faster, it has done the same.
    let _ = host.compare_and_swap(REPORTED, version, names.join("\n").as_bytes());
}
