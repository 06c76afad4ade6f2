//! Each way in which a widget can be handled twice must be counted, and nothing else.

use super::*;
use crate::demo::widget::{WidgetSpec, WidgetStatus, api_resource};

const OLD: Replica = Replica::Zero;
const NEW: Replica = Replica::One;

fn widget_key() -> WidgetKey {
    WidgetKey {
        namespace: "fraud".into(),
        name: "widget-00".into(),
    }
}

fn test_widget(generation: i64, status: Option<(Replica, i64)>) -> Widget {
    let mut widget = Widget::new("widget-00", &api_resource(), WidgetSpec { size: 1 }).within("fraud");
    widget.metadata.generation = Some(generation);
    widget.status = status.map(|(replica, observed_generation)| WidgetStatus {
        handled_by: replica.name().to_owned(),
        observed_generation,
    });
    widget
}

/// An audit of one widget of generation 1, started at 100.
fn audit_with(right: AllowedOwner) -> OwnershipAudit {
    let mut audit = OwnershipAudit::default();
    audit.record_write(&test_widget(1, None));
    audit.start_period(100, BTreeMap::from([("fraud".to_owned(), right)]));
    audit
}

fn has_violation(audit: &OwnershipAudit) -> bool {
    audit.period_counts().violated == 1
}

#[test]
fn owner_may_write_repeatedly() {
    let mut audit = audit_with(AllowedOwner::Only(OLD));
    for generation in 1..5 {
        audit.record_write(&test_widget(generation, Some((OLD, generation))));
    }
    assert_eq!(
        audit.period_counts(),
        PeriodCounts {
            widgets: 1,
            handled: 1,
            handled_by_both: 0,
            violated: 0
        }
    );
}

#[test]
fn write_by_other_replica_is_violation() {
    let mut audit = audit_with(AllowedOwner::Only(OLD));
    audit.record_write(&test_widget(1, Some((NEW, 1))));
    assert!(has_violation(&audit));
}

#[test]
fn reconcile_by_other_replica_is_violation_when_it_writes_nothing() {
    let mut audit = audit_with(AllowedOwner::Only(OLD));
    audit.record_reconcile(NEW, widget_key(), 101, 102);
    assert!(has_violation(&audit));
}

#[test]
fn violations_of_earlier_periods_are_kept() {
    let mut audit = audit_with(AllowedOwner::Only(OLD));
    audit.record_reconcile(NEW, widget_key(), 101, 102);
    audit.start_period(200, BTreeMap::from([("fraud".to_owned(), AllowedOwner::Only(NEW))]));
    assert!(!has_violation(&audit));
    assert_eq!(audit.violations_in_all_periods(), 1);
}

#[test]
fn reports_from_earlier_period_do_not_count() {
    let mut audit = audit_with(AllowedOwner::Only(OLD));
    audit.record_reconcile(NEW, widget_key(), 99, 101);
    assert!(!has_violation(&audit));
}

#[test]
fn spec_change_does_not_count_as_handling() {
    let mut audit = audit_with(AllowedOwner::Only(NEW));
    audit.record_write(&test_widget(1, Some((NEW, 1))));
    audit.start_period(200, BTreeMap::from([("fraud".to_owned(), AllowedOwner::Only(OLD))]));
    audit.record_write(&test_widget(2, Some((NEW, 1))));
    assert_eq!(audit.period_counts().handled, 0);
    assert_eq!(audit.pending_changes(), 1);
}

#[test]
fn clean_move_is_no_violation() {
    let mut audit = audit_with(AllowedOwner::MovingFrom(OLD));
    audit.record_write(&test_widget(1, Some((OLD, 1))));
    audit.record_reconcile(OLD, widget_key(), 101, 110);
    audit.record_write(&test_widget(1, Some((NEW, 1))));
    audit.record_reconcile(NEW, widget_key(), 110, 120);
    assert_eq!(
        audit.period_counts(),
        PeriodCounts {
            widgets: 1,
            handled: 1,
            handled_by_both: 1,
            violated: 0
        }
    );
    assert_eq!(audit.handled_by(NEW, &["fraud"]), 1);
}

#[test]
fn write_by_old_owner_after_move_is_violation() {
    let mut audit = audit_with(AllowedOwner::MovingFrom(OLD));
    audit.record_write(&test_widget(1, Some((NEW, 1))));
    assert!(!has_violation(&audit));
    audit.record_write(&test_widget(1, Some((OLD, 1))));
    assert!(has_violation(&audit));
}

#[test]
fn overlapping_reconciles_are_violation_in_any_report_order() {
    for reports in [[(NEW, 105, 115), (OLD, 101, 110)], [(OLD, 101, 110), (NEW, 105, 115)]] {
        let mut audit = audit_with(AllowedOwner::MovingFrom(OLD));
        for (replica, began, ended) in reports {
            audit.record_reconcile(replica, widget_key(), began, ended);
        }
        assert!(has_violation(&audit), "{reports:?}");
    }
}

#[test]
fn overwrites_are_counted() {
    let mut audit = audit_with(AllowedOwner::Anyone);
    for replica in [OLD, NEW, OLD, NEW] {
        audit.record_write(&test_widget(1, Some((replica, 1))));
    }
    assert_eq!(audit.overwrite_count(), 3);
    assert_eq!(
        audit.period_counts(),
        PeriodCounts {
            widgets: 1,
            handled: 1,
            handled_by_both: 1,
            violated: 0
        }
    );
}

#[test]
fn audit_is_settled_when_owners_are_up_to_date() {
    let mut audit = audit_with(AllowedOwner::Only(OLD));
    assert!(!audit.is_settled(|_| Some(OLD)));
    audit.record_write(&test_widget(2, Some((OLD, 1))));
    assert!(!audit.is_settled(|_| Some(OLD)));
    audit.record_write(&test_widget(2, Some((OLD, 2))));
    assert!(audit.is_settled(|_| Some(OLD)));
    assert!(!audit.is_settled(|_| Some(NEW)));
}
