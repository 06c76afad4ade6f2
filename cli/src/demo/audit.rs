//! Audit of which replica handled which widget when, and whether it was allowed to. Pure: it records events and returns counts.
//!
//! Two independent sources show that a widget was handled: the API server's record (a write of its status, in the order of resource
//! versions) and the controllers' own reports (also of reconciles that wrote nothing). Either is enough for a violation.

use std::collections::BTreeMap;

use super::replica::{PerReplica, Replica};
use super::widget::{Widget, WidgetKey};

/// The replica that may handle the widgets of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllowedOwner {
    /// Any: there are no shards.
    Anyone,
    Only(Replica),
    /// This replica until the other one has begun; then only the other one.
    MovingFrom(Replica),
}

#[derive(Debug, Default)]
struct WidgetRecord {
    generation: i64,
    observed_generation: i64,
    handled_by: Option<Replica>,
    window: PeriodRecord,
}

/// The history of a widget in the current period.
#[derive(Debug, Default)]
struct PeriodRecord {
    /// Status writes, from the API server's record.
    writes: PerReplica<u64>,
    /// Reconciles, from the controllers' reports.
    reconciles: PerReplica<u64>,
    /// Start of the first reconcile.
    first_began: PerReplica<Option<u64>>,
    /// End of the last reconcile.
    last_ended: PerReplica<Option<u64>>,
    /// Writes by a replica after the other one had written.
    relapses: PerReplica<u64>,
}

impl PeriodRecord {
    fn is_handled_by(&self, replica: Replica) -> bool {
        *self.writes.get(replica) > 0 || *self.reconciles.get(replica) > 0
    }

    fn is_violated(&self, right: AllowedOwner) -> bool {
        match right {
            AllowedOwner::Anyone => false,
            AllowedOwner::Only(owner) => self.is_handled_by(owner.other()),
            AllowedOwner::MovingFrom(old) => {
                let overlap = match (self.last_ended.get(old), self.first_began.get(old.other())) {
                    (Some(ended), Some(began)) => ended > began,
                    _ => false,
                };
                overlap || *self.relapses.get(old) > 0
            }
        }
    }
}

/// The record of all widgets, counted in periods.
#[derive(Debug, Default)]
pub(crate) struct OwnershipAudit {
    widgets: BTreeMap<WidgetKey, WidgetRecord>,
    rights: BTreeMap<String, AllowedOwner>,
    opened: u64,
    overwrites: u64,
    /// Violations in earlier periods.
    violated_before: u64,
}

/// The counts of the current period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PeriodCounts {
    pub(crate) widgets: u64,
    pub(crate) handled_by_both: u64,
    pub(crate) handled: u64,
    /// Widgets handled by two replicas at a time, or by one that was not allowed to.
    pub(crate) violated: u64,
}

/// The current state of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NamespaceState {
    /// The replica that handled each widget last, by widget name.
    pub(crate) handled_by: Vec<Option<Replica>>,
    /// Widgets whose last change is not handled yet.
    pub(crate) behind: u64,
}

impl OwnershipAudit {
    /// Starts a period: from now on, everything is counted anew, with these owners. `now` uses the clock of the reports.
    pub(crate) fn start_period(&mut self, now: u64, rights: BTreeMap<String, AllowedOwner>) {
        self.violated_before = self.violations_in_all_periods();
        self.opened = now;
        self.rights = rights;
        self.overwrites = 0;
        for record in self.widgets.values_mut() {
            record.window = PeriodRecord::default();
        }
    }

    /// Records that the API server has stored a widget. Must be called in the order of resource versions.
    pub(crate) fn record_write(&mut self, widget: &Widget) {
        let record = self.widgets.entry(WidgetKey::of_widget(widget)).or_default();
        record.generation = widget.metadata.generation.unwrap_or_default();
        let Some(status) = &widget.status else { return };
        let handled_by = Replica::named(&status.handled_by);
        let is_handling = handled_by != record.handled_by || status.observed_generation != record.observed_generation;
        if let Some(replica) = handled_by.filter(|_| is_handling) {
            let window = &mut record.window;
            *window.writes.get_mut(replica) += 1;
            if *window.writes.get(replica.other()) > 0 {
                *window.relapses.get_mut(replica) += 1;
            }
            if record.handled_by == Some(replica.other()) {
                self.overwrites += 1;
            }
        }
        record.handled_by = handled_by;
        record.observed_generation = status.observed_generation;
    }

    pub(crate) fn record_reconcile(&mut self, replica: Replica, key: WidgetKey, began: u64, ended: u64) {
        // Reports come through a pipe, so one from before may arrive after the period has started.
        if began < self.opened {
            return;
        }
        let window = &mut self.widgets.entry(key).or_default().window;
        *window.reconciles.get_mut(replica) += 1;
        let first = window.first_began.get_mut(replica);
        *first = Some(first.map_or(began, |first| first.min(began)));
        let last = window.last_ended.get_mut(replica);
        *last = Some(last.map_or(ended, |last| last.max(ended)));
    }

    pub(crate) fn allowed_owner(&self, namespace: &str) -> AllowedOwner {
        self.rights.get(namespace).copied().unwrap_or(AllowedOwner::Anyone)
    }

    pub(crate) fn period_counts(&self) -> PeriodCounts {
        let mut counts = PeriodCounts::default();
        for (key, record) in &self.widgets {
            let by = Replica::BOTH.map(|replica| record.window.is_handled_by(replica));
            counts.widgets += 1;
            counts.handled += u64::from(by.contains(&true));
            counts.handled_by_both += u64::from(by == [true, true]);
            counts.violated += u64::from(record.window.is_violated(self.allowed_owner(&key.namespace)));
        }
        counts
    }

    /// Violations in this period and all earlier ones, so that no moment goes uncounted.
    pub(crate) fn violations_in_all_periods(&self) -> u64 {
        self.violated_before + self.period_counts().violated
    }

    /// Widgets in `namespaces` that `replica` has handled in this period.
    pub(crate) fn handled_by(&self, replica: Replica, namespaces: &[&str]) -> u64 {
        let handled = self.widgets.iter().filter(|(key, record)| {
            namespaces.contains(&key.namespace.as_str()) && *record.window.writes.get(replica) > 0
        });
        handled.count() as u64
    }

    /// How often a replica has overwritten the other one's write in this period.
    pub(crate) const fn overwrite_count(&self) -> u64 {
        self.overwrites
    }

    /// Whether every widget was last handled by its owner and is up to date.
    pub(crate) fn is_settled(&self, owner: impl Fn(&str) -> Option<Replica>) -> bool {
        !self.widgets.is_empty()
            && self.widgets.iter().all(|(key, record)| {
                record.handled_by == owner(&key.namespace) && record.observed_generation >= record.generation
            })
    }

    /// Widgets whose last change is not handled yet.
    pub(crate) fn pending_changes(&self) -> u64 {
        self.widgets.values().filter(|record| record.is_behind()).count() as u64
    }

    pub(crate) fn namespace_state(&self, namespace: &str) -> NamespaceState {
        let mut state = NamespaceState::default();
        for (_, record) in self.widgets.iter().filter(|(key, _)| key.namespace == namespace) {
            state.handled_by.push(record.handled_by);
            state.behind += u64::from(record.is_behind());
        }
        state
    }
}

impl WidgetRecord {
    const fn is_behind(&self) -> bool {
        self.observed_generation < self.generation
    }
}

#[cfg(test)]
mod tests;
