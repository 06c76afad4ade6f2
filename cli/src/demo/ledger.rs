//! Who handled which widget when, and whether that was right. Pure accounting: it is told facts, and asked for counts.
//!
//! Two independent sources say that a widget was handled: the API server's record (a write of its status, in the order of resource
//! versions) and the controllers' own reports (also of reconciles that had nothing to write). Either is enough for a violation.

use std::collections::BTreeMap;

use super::replica::{PerReplica, Replica};
use super::widget::{Widget, WidgetKey};

/// Who may handle the widgets of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nobody decides: there are no shards.
    Anyone,
    /// This replica alone.
    Only(Replica),
    /// This replica, until the other one has begun; then the other one alone.
    MovingFrom(Replica),
}

/// One widget.
#[derive(Debug, Default)]
struct Record {
    generation: i64,
    observed_generation: i64,
    handled_by: Option<Replica>,
    window: Window,
}

/// What happened to one widget since the books were last opened.
#[derive(Debug, Default)]
struct Window {
    /// Writes of its status, by the API server's record.
    writes: PerReplica<u64>,
    /// Reconciles, by the controllers' reports.
    reconciles: PerReplica<u64>,
    /// Begin of the first reconcile.
    first_began: PerReplica<Option<u64>>,
    /// End of the last one.
    last_ended: PerReplica<Option<u64>>,
    /// Writes by a replica after the other one had written.
    relapses: PerReplica<u64>,
}

impl Window {
    fn is_handled_by(&self, replica: Replica) -> bool {
        *self.writes.of(replica) > 0 || *self.reconciles.of(replica) > 0
    }

    fn is_violated(&self, right: Right) -> bool {
        match right {
            Right::Anyone => false,
            Right::Only(owner) => self.is_handled_by(owner.other()),
            Right::MovingFrom(old) => {
                let overlap = match (self.last_ended.of(old), self.first_began.of(old.other())) {
                    (Some(ended), Some(began)) => ended > began,
                    _ => false,
                };
                overlap || *self.relapses.of(old) > 0
            }
        }
    }
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    widgets: BTreeMap<WidgetKey, Record>,
    rights: BTreeMap<String, Right>,
    opened: u64,
    overwrites: u64,
    /// Widgets handled against the rights, in the books that are closed.
    violated_before: u64,
}

/// What the books say since they were opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Widgets that exist.
    pub(crate) widgets: u64,
    /// Widgets that both replicas handled.
    pub(crate) handled_by_both: u64,
    /// Widgets that someone handled.
    pub(crate) handled: u64,
    /// Widgets that were handled against the rights: by two at a time, or by one that had no right.
    pub(crate) violated: u64,
}

/// Where a namespace stands now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NamespaceState {
    /// Who handled each widget last, by name of the widget.
    pub(crate) handled_by: Vec<Option<Replica>>,
    /// Widgets whose last change is not handled yet.
    pub(crate) behind: u64,
}

impl Ledger {
    /// Opens the books: from here on, everything is counted anew and against these rights. `now` as in a report.
    pub(crate) fn open(&mut self, now: u64, rights: BTreeMap<String, Right>) {
        self.violated_before = self.violated_in_all();
        self.opened = now;
        self.rights = rights;
        self.overwrites = 0;
        for record in self.widgets.values_mut() {
            record.window = Window::default();
        }
    }

    /// The API server has stored a widget. Told in the order of resource versions.
    pub(crate) fn stored(&mut self, widget: &Widget) {
        let record = self.widgets.entry(WidgetKey::of(widget)).or_default();
        record.generation = widget.metadata.generation.unwrap_or_default();
        let Some(status) = &widget.status else { return };
        let handled_by = Replica::named(&status.handled_by);
        let is_handling = handled_by != record.handled_by || status.observed_generation != record.observed_generation;
        if let Some(replica) = handled_by.filter(|_| is_handling) {
            let window = &mut record.window;
            *window.writes.of_mut(replica) += 1;
            if *window.writes.of(replica.other()) > 0 {
                *window.relapses.of_mut(replica) += 1;
            }
            if record.handled_by == Some(replica.other()) {
                self.overwrites += 1;
            }
        }
        record.handled_by = handled_by;
        record.observed_generation = status.observed_generation;
    }

    /// A controller says that it handled a widget.
    pub(crate) fn reconciled(&mut self, replica: Replica, key: WidgetKey, began: u64, ended: u64) {
        // Reports come through a pipe: one of before may arrive after the books were opened.
        if began < self.opened {
            return;
        }
        let window = &mut self.widgets.entry(key).or_default().window;
        *window.reconciles.of_mut(replica) += 1;
        let first = window.first_began.of_mut(replica);
        *first = Some(first.map_or(began, |first| first.min(began)));
        let last = window.last_ended.of_mut(replica);
        *last = Some(last.map_or(ended, |last| last.max(ended)));
    }

    /// Who may handle a namespace's widgets.
    pub(crate) fn right(&self, namespace: &str) -> Right {
        self.rights.get(namespace).copied().unwrap_or(Right::Anyone)
    }

    /// The counts since the books were opened.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (key, record) in &self.widgets {
            let by = Replica::BOTH.map(|replica| record.window.is_handled_by(replica));
            counts.widgets += 1;
            counts.handled += u64::from(by.contains(&true));
            counts.handled_by_both += u64::from(by == [true, true]);
            counts.violated += u64::from(record.window.is_violated(self.right(&key.namespace)));
        }
        counts
    }

    /// Widgets handled against the rights, in these books and all before: no moment goes uncounted.
    pub(crate) fn violated_in_all(&self) -> u64 {
        self.violated_before + self.counts().violated
    }

    /// How many widgets `replica` has handled since the books were opened, of those in `namespaces`.
    pub(crate) fn handled_by(&self, replica: Replica, namespaces: &[&str]) -> u64 {
        let handled = self.widgets.iter().filter(|(key, record)| {
            namespaces.contains(&key.namespace.as_str()) && *record.window.writes.of(replica) > 0
        });
        handled.count() as u64
    }

    /// How often a replica has overwritten what the other one had written, since the books were opened.
    pub(crate) const fn overwrites(&self) -> u64 {
        self.overwrites
    }

    /// Whether every widget was last handled by the replica whose right it is, and is up to date.
    pub(crate) fn is_settled(&self, owner: impl Fn(&str) -> Option<Replica>) -> bool {
        !self.widgets.is_empty()
            && self.widgets.iter().all(|(key, record)| {
                record.handled_by == owner(&key.namespace) && record.observed_generation >= record.generation
            })
    }

    /// Widgets whose last change is not handled yet.
    pub(crate) fn behind(&self) -> u64 {
        self.widgets.values().filter(|record| record.is_behind()).count() as u64
    }

    /// Where a namespace stands now.
    pub(crate) fn namespace(&self, namespace: &str) -> NamespaceState {
        let mut state = NamespaceState::default();
        for (_, record) in self.widgets.iter().filter(|(key, _)| key.namespace == namespace) {
            state.handled_by.push(record.handled_by);
            state.behind += u64::from(record.is_behind());
        }
        state
    }
}

impl Record {
    const fn is_behind(&self) -> bool {
        self.observed_generation < self.generation
    }
}

#[cfg(test)]
mod tests;
