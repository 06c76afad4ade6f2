//! What a rule has done, in the host's state, so that all instances count together and a reload forgets nothing: how often
//! it matched and fired, since when, and how often an object has met it.
//!
//! Guarantees:
//! - A counter goes by the rule's name: other edits of the settings leave it alone, another name begins anew.
//! - The keys are bounded below the host's 1 024: four for each rule, [`MAX_OBJECTS`] for objects, and one for each rule and
//!   verb beyond.

use ctrlmesh_sdk::{Host, Part, Place};

use crate::draw::{Draw, Subject};
use crate::rule::Rule;

/// Objects (by rule and verb) whose occurrences are counted one by one. Beyond, those of one rule and verb count together,
/// and which of them is hit depends on the order in which they come.
const MAX_OBJECTS: i64 = 512;
/// How many of them there are.
const OBJECTS: &str = "objects";
/// The names of all rules with a report, for the one that goes.
const REPORTED: &str = "reported";
/// Others may count at the same time, but each of them needs a request for it.
const MAX_TRIES: usize = 16;

/// The books of one rule.
pub(crate) struct Ledger<'a> {
    rule: &'a Rule,
    host: &'a dyn Host,
}

impl<'a> Ledger<'a> {
    pub(crate) fn new(rule: &'a Rule, host: &'a dyn Host) -> Self {
        Self { rule, host }
    }

    fn key(&self, kind: &str) -> String {
        format!("{kind}/{}", self.rule.name)
    }

    /// One more request has come that the rule could do something to. Returns its number, 1 at first; 0 if the host does not count.
    pub(crate) fn matched(&self) -> u64 {
        self.host.count("fault_matched", &self.rule.name, 1);
        let number = self.add("m", 1, None).unwrap_or_default();
        self.report();
        number
    }

    /// Whether the rule has fired as often as it may.
    pub(crate) fn is_exhausted(&self) -> bool {
        let max = self.rule.limits.max_count.map(u64::from);
        max.is_some_and(|max| self.add("f", 0, None).is_some_and(|fired| fired >= max))
    }

    /// Milliseconds since the first match, which may be this one.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        let key = self.key("t");
        let now = self.host.monotonic_ns() / 1_000_000;
        let read = || -> Option<u64> {
            let cell = self.host.get(&key).ok()??;
            Some(u64::from_le_bytes(cell.value.try_into().ok()?))
        };
        let started = read().or_else(|| {
            let _ = self.host.compare_and_swap(&key, 0, &now.to_le_bytes());
            // Perhaps another instance was faster.
            read()
        });
        now.saturating_sub(started.unwrap_or(now))
    }

    /// Takes what is needed to fire on the request in hand, a place included; `false`: nothing is taken, the rule has done
    /// enough.
    pub(crate) fn fire_on_request(&self) -> bool {
        if !self.take_count() {
            return false;
        }
        if !self.take_place() {
            let _ = self.add("f", -1, None);
            return false;
        }
        self.fired();
        true
    }

    /// Takes a place for a fault that will act on the response.
    pub(crate) fn take_place(&self) -> bool {
        let Some(max) = self.rule.limits.max_active else {
            return true;
        };
        let place = Place {
            key: self.key("a"),
            max,
        };
        matches!(self.host.admit(&[], &[place]), Ok(ctrlmesh_sdk::Admission::Granted(_)))
    }

    /// As [`Ledger::fire_on_request`], once the response is there; the place is taken.
    pub(crate) fn fire_on_response(&self) -> bool {
        let is_granted = self.take_count();
        if is_granted {
            self.fired();
        }
        is_granted
    }

    fn take_count(&self) -> bool {
        let max = self.rule.limits.max_count.map(i64::from);
        self.add("f", 1, max).is_some()
    }

    fn fired(&self) {
        self.host.count("fault_fired", &self.rule.name, 1);
        self.report();
    }

    /// Says that this rule decides a part of the verdict on the request in hand.
    pub(crate) fn decides(&self, part: Part) {
        self.host.name_rule(&self.rule.name, part);
    }

    /// `None`: it would exceed `max`, or the host does not count.
    fn add(&self, kind: &str, delta: i64, max: Option<i64>) -> Option<u64> {
        let sum = self.host.add(&self.key(kind), delta, max).ok().flatten()?;
        u64::try_from(sum).ok()
    }

    /// Shows the counts. A rule that never fired is seen as one.
    pub(crate) fn report(&self) {
        let counts = || ["m", "f"].map(|kind| self.add(kind, 0, None).unwrap_or_default());
        let mut shown = counts();
        // Another instance may count and show in between, and would be overwritten: who shows looks again.
        for _ in 0..MAX_TRIES {
            let [matched, fired] = shown;
            let json = format!(r#"{{"matched":{matched},"fired":{fired}}}"#);
            self.host.put_report(&self.rule.name, &json);
            let now = counts();
            if now == shown {
                return;
            }
            shown = now;
        }
    }

    /// The draw for this request.
    pub(crate) fn draw(&self, seed: u64, subject: &Subject) -> Draw {
        let name = &self.rule.name;
        let key = subject.key(name);
        if let Some(occurrence) = self.occurrence(&key) {
            return Draw::new(seed, name, subject, occurrence);
        }
        self.host.count("fault_untracked", "", 1);
        let together = Subject {
            object: String::new(),
            verb: subject.verb.clone(),
        };
        let occurrence = self.host.add(&together.key(name), 1, None);
        Draw::new(seed, name, &together, occurrence.ok().flatten().unwrap_or_default())
    }

    /// How often this key was met, with this time; `None` if there are too many keys.
    fn occurrence(&self, key: &str) -> Option<i64> {
        let occurrence = self.host.add(key, 1, None).ok().flatten()?;
        if occurrence > 1 || matches!(self.host.add(OBJECTS, 1, Some(MAX_OBJECTS)), Ok(Some(_))) {
            return Some(occurrence);
        }
        self.host.remove(key);
        None
    }
}

/// Shows a report for each rule, and takes away those of rules that are gone, with their counts.
pub(crate) fn settle(rules: &[Rule], host: &dyn Host) {
    for rule in rules {
        Ledger::new(rule, host).report();
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
        for kind in ["m", "f", "t"] {
            host.remove(&format!("{kind}/{gone}"));
        }
    }
    // If another instance was faster, it has done the same.
    let _ = host.compare_and_swap(REPORTED, version, names.join("\n").as_bytes());
}
