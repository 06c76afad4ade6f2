//! What `/status` shows, and what lies in the host's state.

use ctrlmesh_sdk::Host;
use ctrlmesh_sdk::testing::FakeHost;
use serde_json::json;

use super::{answer, bench, call, get, reload, rule, shown, trip, with};
use crate::cell::{Cause, Counts, State, Status};
use crate::note::{MAX_RULES, Note};

#[test]
fn cb_10_a_snapshot_of_each_breaker_is_in_the_status() {
    let mut bench = bench(&[with(
        rule("a"),
        &json!({"trip": {"minimumRequests": 2, "errorPercent": 50}}),
    )]);
    let report = bench.host.report("a").unwrap();
    assert_eq!(
        (&report["state"], &report["lastTransitionTime"]),
        (&json!("Closed"), &json!(null))
    );
    bench.host.advance_ms(61_000);
    trip(&mut bench, &get("x"));
    let opened = json!({
        "name": "a", "key": "", "state": "Opened", "reason": "2 of 2 requests failed",
        "lastTransitionTime": "2026-01-01T00:01:01Z", "recoversAt": "2026-01-01T00:01:11Z",
        "requests": 2, "failures": 2, "slow": 0,
    });
    assert_eq!(bench.host.report("a").unwrap(), opened);
    let mut bench = reload(
        bench,
        &[with(
            rule("a"),
            &json!({"trip": {"minimumRequests": 2, "errorPercent": 60}}),
        )],
    );
    assert_eq!(bench.host.report("a").unwrap(), opened);
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    let report = bench.host.report("a").unwrap();
    assert_eq!(
        (&report["state"], &report["lastTransitionTime"]),
        (&json!("Closed"), &json!("2026-01-01T00:01:11Z"))
    );
    assert_eq!(bench.host.dropped_updates(), 0);
}

#[test]
fn cb_10_circuits_by_key_are_shown_while_they_are_not_closed() {
    let mut bench = bench(&[with(rule("a"), &json!({"key": "namespace"}))]);
    trip(&mut bench, &get("x"));
    assert_eq!(shown(&bench, "a/x").unwrap().0, "Opened");
    assert_eq!(shown(&bench, "a").unwrap().0, "Closed");
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    assert_eq!(shown(&bench, "a/x"), None);
}

/// Another instance, on another thread.
fn turns(host: &FakeHost, state: State) {
    const STATE: &str = "state\na\n";
    let before = host.get(STATE).unwrap().unwrap();
    let after = Status {
        state,
        ..Status::decode(&before.value).unwrap()
    };
    let written = host.compare_and_swap(STATE, before.version, &after.encode());
    assert!(written.unwrap().is_some());
}

/// Two threads change a breaker one after the other, and the one that was first shows last.
#[test]
fn a_report_is_never_older_than_the_state() {
    let rules = [rule("a")];
    let mut bench = bench(&rules);
    bench.host.interrupt_next_report(|host| turns(host, State::HalfOpen));
    assert!(call(&mut bench, &get("x"), &answer(500)) && call(&mut bench, &get("x"), &answer(500)));
    assert_eq!(shown(&bench, "a").unwrap().0, "HalfOpen");
    bench.host.interrupt_next_report(|host| turns(host, State::Opened));
    let bench = reload(bench, &rules);
    assert_eq!(shown(&bench, "a").unwrap().0, "Opened");
}

/// Namespaces come and go: what closed long ago needs no room any more.
#[test]
fn a_circuit_by_key_is_forgotten_an_hour_after_it_closed() {
    let mut bench = bench(&[with(rule("a"), &json!({"key": "namespace"}))]);
    trip(&mut bench, &get("x"));
    bench.host.advance_ms(10_000);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    bench.host.advance_ms(3_600_000);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    assert!(bench.host.get("state\na\nx").unwrap().is_some());
    bench.host.advance_ms(1);
    assert!(call(&mut bench, &get("x"), &answer(200)));
    assert!(bench.host.get("state\na\nx").unwrap().is_none());
    trip(&mut bench, &get("x"));
}

/// More open circuits than the status has room for go on as ever, unseen.
#[test]
fn more_circuits_than_reports_work_all_the_same() {
    let mut bench = bench(&[with(rule("a"), &json!({"key": "namespace"}))]);
    let namespaces: Vec<String> = (0..100).map(|index| format!("{index:0>60}")).collect();
    for namespace in &namespaces {
        trip(&mut bench, &get(namespace));
    }
    bench.host.advance_ms(10_000);
    for namespace in &namespaces {
        let req = get(namespace);
        assert!(super::enter(&mut bench, &req).is_ok());
        bench.on_complete(&req, &answer(200));
        assert!(super::enter(&mut bench, &req).is_ok());
    }
}

/// Without room for more keys a breaker lets through what it can't know about, and those that it knows open as ever.
#[test]
fn without_room_in_the_state_requests_pass() {
    let mut bench = bench(&[with(rule("a"), &json!({"key": "namespace"}))]);
    for index in 0..1100 {
        assert!(call(&mut bench, &get(&format!("n{index}")), &answer(500)));
    }
    assert!(bench.host.counter("keys_exhausted", "") > 0);
    assert!((0..5).all(|_| call(&mut bench, &get("n1099"), &answer(500))));
    assert!(call(&mut bench, &get("n1"), &answer(500)));
    assert!(super::enter(&mut bench, &get("n1")).is_err());
}

#[test]
fn a_state_reads_as_it_was_written() {
    for state in [State::Closed, State::Opened, State::HalfOpen] {
        for cause in [
            Cause::None,
            Cause::OverLimit,
            Cause::Errors,
            Cause::Slow,
            Cause::Consecutive,
            Cause::Probe,
        ] {
            let counts = Counts {
                requests: 1,
                failures: u32::MAX,
                slow: 3,
            };
            let status = Status {
                state,
                cause,
                epoch: 7,
                since_ms: u64::MAX,
                recovers_ms: 9,
                counts,
                failed_probes: 4,
            };
            let bytes = status.encode();
            assert_eq!(Status::decode(&bytes), Some(status));
            assert_eq!(Status::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(Status::decode(&[&bytes[..], &[0]].concat()), None);
            assert_eq!(Status::decode(&[&[1], &bytes[1..]].concat()), None);
        }
    }
    assert_eq!(Status::decode(&[]), None);
}

#[test]
fn a_note_says_what_was_noted() {
    let mut note = Note::new(0xdead_beef, 0x5a);
    note.mark_probe(0);
    note.mark_probe(MAX_RULES - 1);
    let read = Note::unpack(note.pack());
    assert_eq!(read, note);
    assert_eq!((read.epoch, read.settings), (0xdead_beef, 0x5a));
    let probes: Vec<usize> = (0..MAX_RULES + 8).filter(|rule| read.is_probe(*rule)).collect();
    assert_eq!(probes, [0, MAX_RULES - 1]);
}
