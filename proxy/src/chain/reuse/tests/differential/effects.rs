//! Each kind of action and effect by itself: which verdicts are repeated with their effects, and which calls are made again.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::generated::{LAST_ACTIVE_SECOND, actions, faults};
use super::*;

/// A plugin whose only leaf has these fields and is marked as reusable.
fn leaf(fields: &Json) -> EntrySpec {
    let mut leaf = json!({"edit": "a=1", "reuse": "whileUnchanged"});
    let fields = fields.as_object().unwrap().clone();
    leaf.as_object_mut().unwrap().extend(fields);
    EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"leaf": leaf}}),
    }
}

/// Four whole requests, one after another. Returns how many verdicts were repeated.
fn repeated_of_four(fields: &Json) -> u64 {
    let operations: Vec<Operation> = (0..4).flat_map(|_| whole_request(POD, 200)).collect();
    let compared = compare(&[leaf(fields)], &operations, 0);
    assert_eq!(compared.difference, None, "{fields}");
    compared.repeated
}

#[test]
fn each_action_is_repeated_unless_it_is_invalid() {
    let actions = actions();
    let (invalid, valid) = actions.split_last().unwrap();
    for action in valid {
        assert_eq!(repeated_of_four(&json!({"then": action})), 3, "{action}");
    }
    assert_eq!(repeated_of_four(&json!({"then": invalid})), 0);
}

#[test]
fn delays_later_phases_and_effects_that_are_data_are_repeated() {
    for fields in [
        json!({"delayMs": 5}),
        json!({"later": "none"}),
        json!({"later": "response"}),
        json!({"later": "complete"}),
        json!({"note": 7}),
        json!({"rule": "r", "delayMs": 5}),
        json!({"counts": [["seen", "l", 2], ["seen", "m", 1]], "countsAtOnce": true}),
        json!({"increments": [["n", 2], ["m", 1], ["n", 0]]}),
        json!({"increments": [["n", 2]], "place": {"key": "p", "burst": 1}}),
        json!({"tokens": {"key": "t", "burst": 9}}),
        json!({"place": {"key": "p", "burst": 1}}),
        json!({"outcome": {"tally": "o", "cells": ["k"], "atHead": true, "failures": 2}}),
    ] {
        assert_eq!(repeated_of_four(&fields), 3, "{fields}");
    }
}

/// A cell that was read as absent is a counter after the first request, so the plugin decides anew and reads an error.
#[test]
fn verdict_by_an_absent_cell_is_not_repeated_when_the_key_holds_a_counter() {
    let leaf = |edit: &str| json!({"leaf": {"edit": edit, "increments": [["k", 1]], "reuse": "whileUnchanged"}});
    let entry = EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"question": {
            "ask": {"cell": "k"}, "answers": [["None", leaf("a=1")]], "otherwise": leaf("a=2"),
        }}}),
    };
    let mut operations: Vec<Operation> = (0..3).flat_map(|_| whole_request(POD, 200)).collect();
    // The key is absent again, as it was for the first verdict.
    operations.push(Operation::Remove("k"));
    operations.extend(whole_request(POD, 200));
    let compared = compare(&[entry], &operations, 0);
    assert_eq!((compared.difference, compared.repeated), (None, 1));
}

/// Six whole requests; in the middle the second ends in which a fault is active.
#[test]
fn fault_that_fires_is_repeated_unless_it_draws_or_needs_a_count() {
    for (fields, repeated) in [
        (json!({"do": "refuse"}), 5),
        (json!({"do": {"delay": {"for": "5ms"}}, "maxActive": 1}), 5),
        (json!({"do": {"lose": {"how": "retry"}}}), 5),
        (json!({"do": {"delay": {"for": "5ms"}}, "percent": 50}), 0),
        // Two faults, a request that notes the end, and one whose verdict depends on the note.
        (json!({"do": "refuse", "maxCount": 2}), 2),
        (
            json!({"do": "refuse", "effectiveTime": {"endTime": LAST_ACTIVE_SECOND}}),
            4,
        ),
    ] {
        let mut operations: Vec<Operation> = (0..3).flat_map(|_| whole_request(POD, 200)).collect();
        operations.push(Operation::Advance(1_000));
        operations.extend((0..3).flat_map(|_| whole_request(POD, 200)));
        let compared = compare(&[faults(std::slice::from_ref(&fields))], &operations, 0);
        assert_eq!((compared.difference, compared.repeated), (None, repeated), "{fields}");
    }
}

/// The limits that the README of `fault-inject` states, and one fault more than each.
#[test]
fn faults_that_hit_one_request_are_repeated_within_the_bounds_of_a_verdict() {
    let delays = |number: usize, length: &str| vec![json!({"do": {"delay": {"for": length}}}); number];
    let refuse = || vec![json!({"do": "refuse"})];
    let limited = |number: usize| vec![json!({"do": {"delay": {"for": "1ms"}}, "maxActive": 1}); number];
    for (rules, repeated) in [
        (delays(8, "1ms"), 3),
        (delays(9, "1ms"), 0),
        ([delays(7, "1ms"), refuse()].concat(), 3),
        ([delays(8, "1ms"), refuse()].concat(), 0),
        (delays(12, "0s"), 3),
        (delays(13, "0s"), 0),
        (limited(1), 3),
        (limited(2), 0),
    ] {
        let operations: Vec<Operation> = (0..4).flat_map(|_| whole_request(POD, 200)).collect();
        let compared = compare(&[faults(&rules)], &operations, 0);
        assert_eq!((compared.difference, compared.repeated), (None, repeated), "{rules:?}");
    }
}

/// A plugin must write, log, print and draw once for each request, so it is called again.
#[test]
fn calls_that_write_print_draw_or_trap_are_made_again() {
    for fields in [
        json!({"write": "k"}),
        json!({"remove": "k"}),
        json!({"adds": "n"}),
        json!({"gauge": 1}),
        json!({"report": 1}),
        json!({"logs": true}),
        json!({"prints": true}),
        json!({"draws": true}),
        json!({"readsClock": true}),
        json!({"traps": true}),
    ] {
        assert_eq!(repeated_of_four(&fields), 0, "{fields}");
    }
}

/// The comparison sees log lines, or a lost one would not be a difference.
#[test]
fn state_of_sidecar_has_lines_that_plugins_log_and_print() {
    let runtime = paused_runtime();
    for fields in [json!({"logs": true}), json!({"prints": true})] {
        let state = runtime.block_on(async {
            let mut sidecar = Sidecar::new(&[leaf(&fields)], reuse(true, 0));
            for operation in whole_request(POD, 200) {
                sidecar.apply(&operation).await;
            }
            sidecar.state()
        });
        assert!(state["decision_tree/0"].contains("decided"), "{fields}: {state:?}");
    }
}

fn request_with(value: &'static str) -> Operation {
    Operation::Request {
        worker: 0,
        request: spec(Method::GET, POD, &[("x-a", value)]),
    }
}

#[test]
fn verdicts_are_neither_repeated_in_quarantine_nor_by_its_probe() {
    let entry = EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"question": {
            "ask": {"header": "x-a"},
            "answers": [["trap", {"leaf": {"traps": true, "reuse": "whileUnchanged"}}]],
            "otherwise": {"leaf": {"edit": "a=1", "reuse": "whileUnchanged"}},
        }}}),
    };
    let good = || request_with("good");
    let traps = (0..5).map(|_| request_with("trap"));
    let mut operations = vec![good(), good()];
    operations.extend(traps);
    operations.extend([good(), Operation::AdvanceQuarantines(1_500), good(), good(), good()]);
    let compared = compare(&[entry], &operations, 0);
    // Before the faults one; after the probe, whose call is not remembered, the second of two.
    assert_eq!((compared.difference, compared.repeated), (None, 2));
}

#[test]
fn calls_that_a_quarantine_prevents_are_counted() {
    let mut registry = Registry::default();
    let handle = test_handle(Metrics::new(&mut registry));
    let instances = Instances::new(Arc::clone(test_engine()), handle, reuse(true, 0));
    let view = Rc::new(get(POD).view());
    paused_runtime().block_on(async {
        let snapshot = snapshot_of(&[leaf(&json!({"traps": true}))], &StateStore::new());
        instances.prepare(&snapshot).unwrap();
        // The fifth fault leads to quarantine.
        for _ in 0..7 {
            assert!(
                instances
                    .on_request(&snapshot.entries()[0], &view, &Cell::default())
                    .is_err()
            );
        }
    });
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(
        text.contains("plugin_skips_total{entry=\"decision_tree/0\"} 2\n"),
        "{text}"
    );
}

#[test]
fn recheck_is_a_call_that_is_not_remembered() {
    let entry = EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"question": {
            "ask": "isRecheck",
            "answers": [["true", {"leaf": {"edit": "a=2", "reuse": "whileUnchanged"}}]],
            "otherwise": {"leaf": {"edit": "a=1", "reuse": "whileUnchanged"}},
        }}}),
    };
    let watch = || Operation::Request {
        worker: 0,
        request: get("/api/v1/pods?watch=1"),
    };
    let recheck = || Operation::Recheck { place: 0 };
    let runtime = paused_runtime();
    let seen = runtime.block_on(async {
        let mut sidecar = Sidecar::new(&[entry], reuse(true, 0));
        let mut seen = Vec::new();
        for operation in [watch(), recheck(), watch(), recheck()] {
            let text = sidecar.apply(&operation).await;
            seen.push((text.contains("a=1"), text.contains("a=2"), sidecar.repeated().0));
        }
        seen
    });
    let (decided, asked_again) = ((true, false), (false, true));
    let expected = [(decided, 0), (asked_again, 0), (decided, 1), (asked_again, 1)];
    assert_eq!(
        seen,
        expected.map(|((first, second), repeated)| (first, second, repeated))
    );
}
