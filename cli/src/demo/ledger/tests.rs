//! Each way in which a widget can be handled twice must be counted, and nothing else.

use super::*;
use crate::demo::widget::{WidgetSpec, WidgetStatus, api_resource};

const OLD: Replica = Replica::Zero;
const NEW: Replica = Replica::One;

fn key() -> WidgetKey {
    WidgetKey {
        namespace: "fraud".into(),
        name: "widget-00".into(),
    }
}

fn widget(generation: i64, status: Option<(Replica, i64)>) -> Widget {
    let mut widget = Widget::new("widget-00", &api_resource(), WidgetSpec { size: 1 }).within("fraud");
    widget.metadata.generation = Some(generation);
    widget.status = status.map(|(replica, observed_generation)| WidgetStatus {
        handled_by: replica.name().to_owned(),
        observed_generation,
    });
    widget
}

/// Books with one widget of generation 1, opened at 100.
fn opened(right: Right) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.stored(&widget(1, None));
    ledger.open(100, BTreeMap::from([("fraud".to_owned(), right)]));
    ledger
}

fn violated(ledger: &Ledger) -> bool {
    ledger.counts().violated == 1
}

#[test]
fn owner_may_write_as_often_as_it_likes() {
    let mut ledger = opened(Right::Only(OLD));
    for generation in 1..5 {
        ledger.stored(&widget(generation, Some((OLD, generation))));
    }
    assert_eq!(
        ledger.counts(),
        Counts {
            widgets: 1,
            handled: 1,
            handled_by_both: 0,
            violated: 0
        }
    );
}

#[test]
fn a_write_without_right_is_a_violation() {
    let mut ledger = opened(Right::Only(OLD));
    ledger.stored(&widget(1, Some((NEW, 1))));
    assert!(violated(&ledger));
}

#[test]
fn a_reconcile_without_right_is_a_violation_though_it_writes_nothing() {
    let mut ledger = opened(Right::Only(OLD));
    ledger.reconciled(NEW, key(), 101, 102);
    assert!(violated(&ledger));
}

#[test]
fn violations_of_closed_books_are_remembered() {
    let mut ledger = opened(Right::Only(OLD));
    ledger.reconciled(NEW, key(), 101, 102);
    ledger.open(200, BTreeMap::from([("fraud".to_owned(), Right::Only(NEW))]));
    assert!(!violated(&ledger));
    assert_eq!(ledger.violated_in_all(), 1);
}

#[test]
fn reports_of_before_do_not_count() {
    let mut ledger = opened(Right::Only(OLD));
    ledger.reconciled(NEW, key(), 99, 101);
    assert!(!violated(&ledger));
}

#[test]
fn a_change_of_the_spec_is_no_handling() {
    let mut ledger = opened(Right::Only(NEW));
    ledger.stored(&widget(1, Some((NEW, 1))));
    ledger.open(200, BTreeMap::from([("fraud".to_owned(), Right::Only(OLD))]));
    ledger.stored(&widget(2, Some((NEW, 1))));
    assert_eq!(ledger.counts().handled, 0);
    assert_eq!(ledger.behind(), 1);
}

#[test]
fn a_clean_move_is_none() {
    let mut ledger = opened(Right::MovingFrom(OLD));
    ledger.stored(&widget(1, Some((OLD, 1))));
    ledger.reconciled(OLD, key(), 101, 110);
    ledger.stored(&widget(1, Some((NEW, 1))));
    ledger.reconciled(NEW, key(), 110, 120);
    assert_eq!(
        ledger.counts(),
        Counts {
            widgets: 1,
            handled: 1,
            handled_by_both: 1,
            violated: 0
        }
    );
    assert_eq!(ledger.handled_by(NEW, &["fraud"]), 1);
}

#[test]
fn an_old_owner_that_writes_again_is_a_violation() {
    let mut ledger = opened(Right::MovingFrom(OLD));
    ledger.stored(&widget(1, Some((NEW, 1))));
    assert!(!violated(&ledger));
    ledger.stored(&widget(1, Some((OLD, 1))));
    assert!(violated(&ledger));
}

#[test]
fn two_reconciles_at_a_time_are_a_violation_in_whatever_order_they_are_reported() {
    for reports in [[(NEW, 105, 115), (OLD, 101, 110)], [(OLD, 101, 110), (NEW, 105, 115)]] {
        let mut ledger = opened(Right::MovingFrom(OLD));
        for (replica, began, ended) in reports {
            ledger.reconciled(replica, key(), began, ended);
        }
        assert!(violated(&ledger), "{reports:?}");
    }
}

#[test]
fn replicas_that_fight_are_counted() {
    let mut ledger = opened(Right::Anyone);
    for replica in [OLD, NEW, OLD, NEW] {
        ledger.stored(&widget(1, Some((replica, 1))));
    }
    assert_eq!(ledger.overwrites(), 3);
    assert_eq!(
        ledger.counts(),
        Counts {
            widgets: 1,
            handled: 1,
            handled_by_both: 1,
            violated: 0
        }
    );
}

#[test]
fn settled_means_up_to_date_and_in_the_right_hands() {
    let mut ledger = opened(Right::Only(OLD));
    assert!(!ledger.is_settled(|_| Some(OLD)));
    ledger.stored(&widget(2, Some((OLD, 1))));
    assert!(!ledger.is_settled(|_| Some(OLD)));
    ledger.stored(&widget(2, Some((OLD, 2))));
    assert!(ledger.is_settled(|_| Some(OLD)));
    assert!(!ledger.is_settled(|_| Some(NEW)));
}
