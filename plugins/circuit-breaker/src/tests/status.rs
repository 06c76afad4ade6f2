//! The reports in `/status`, and the content of the host's state.

use ctrlmesh_sdk::Host;
use ctrlmesh_sdk::testing::FakeHost;
use serde_json::json;

use super::{
    answered_with, get_request, new_bench, reload_rules, rule_named, run_request, shown_state, trip_breaker,
    with_fields,
};
use crate::cell::{Cause, Counts, State, Status};
use crate::note::{MAX_RULES, Note};

#[test]
fn cb_10_status_shows_each_breaker() {
    let mut bench = new_bench(&[with_fields(
        rule_named("a"),
        &json!({"trip": {"minimumRequests": 2, "errorPercent": 50}}),
    )]);
    let report = bench.host.report("a").unwrap();
    assert_eq!(
        (&report["state"], &report["lastTransitionTime"]),
        (&json!("Closed"), &json!(null))
    );
    bench.host.advance_ms(61_000);
    trip_breaker(&mut bench, &get_request("x"));
    let opened = json!({
        "name": "a", "key": "", "state": "Opened", "reason": "2 of 2 requests failed",
        "lastTransitionTime": "2026-01-01T00:01:01Z", "recoversAt": "2026-01-01T00:01:11Z",
        "requests": 2, "failures": 2, "slow": 0,
    });
    assert_eq!(bench.host.report("a").unwrap(), opened);
    let mut bench = reload_rules(
        bench,
        &[with_fields(
            rule_named("a"),
            &json!({"trip": {"minimumRequests": 2, "errorPercent": 60}}),
        )],
    );
    assert_eq!(bench.host.report("a").unwrap(), opened);
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    let report = bench.host.report("a").unwrap();
    assert_eq!(
        (&report["state"], &report["lastTransitionTime"]),
        (&json!("Closed"), &json!("2026-01-01T00:01:11Z"))
    );
    assert_eq!(bench.host.dropped_updates(), 0);
}

#[test]
fn cb_10_status_shows_keyed_circuits_until_closed() {
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"key": "namespace"}))]);
    trip_breaker(&mut bench, &get_request("x"));
    assert_eq!(shown_state(&bench, "a/x").unwrap().0, "Opened");
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Closed");
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    assert_eq!(shown_state(&bench, "a/x"), None);
}

/// Simulates another instance on another thread.
fn set_state(host: &FakeHost, state: State) {
    const STATE: &str = "state\na\n";
    let before = host.get(STATE).unwrap().unwrap();
    let after = Status {
        state,
        ..Status::decode(&before.value).unwrap()
    };
    let written = host.compare_and_swap(STATE, before.version, &after.encode());
    assert!(written.unwrap().is_some());
}

/// Two threads change a breaker one after the other, and the first one publishes last.
#[test]
fn report_is_never_older_than_the_state() {
    let rules = [rule_named("a")];
    let mut bench = new_bench(&rules);
    bench
        .host
        .interrupt_next_report(|host| set_state(host, State::HalfOpen));
    assert!(
        run_request(&mut bench, &get_request("x"), &answered_with(500))
            && run_request(&mut bench, &get_request("x"), &answered_with(500))
    );
    assert_eq!(shown_state(&bench, "a").unwrap().0, "HalfOpen");
    bench.host.interrupt_next_report(|host| set_state(host, State::Opened));
    let bench = reload_rules(bench, &rules);
    assert_eq!(shown_state(&bench, "a").unwrap().0, "Opened");
}

/// Namespaces come and go: a breaker that closed long ago needs no room any more.
#[test]
fn keyed_circuit_is_forgotten_an_hour_after_it_closed() {
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"key": "namespace"}))]);
    trip_breaker(&mut bench, &get_request("x"));
    bench.host.advance_ms(10_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    bench.host.advance_ms(3_600_000);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(200)));
    assert!(bench.host.get("state\na\nx").unwrap().is_some());
    bench.host.advance_ms(1);
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(500)));
    assert!(bench.host.get("state\na\nx").unwrap().is_none());
    // The request at which it was forgotten counts.
    assert!(run_request(&mut bench, &get_request("x"), &answered_with(500)));
    assert!(super::admit_request(&mut bench, &get_request("x")).is_err());
}

/// Open circuits beyond the limit of reports keep working, without a report.
#[test]
fn circuits_work_when_there_are_more_than_reports() {
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"key": "namespace"}))]);
    let namespaces: Vec<String> = (0..100).map(|index| format!("{index:0>60}")).collect();
    for namespace in &namespaces {
        trip_breaker(&mut bench, &get_request(namespace));
    }
    bench.host.advance_ms(10_000);
    for namespace in &namespaces {
        let req = get_request(namespace);
        assert!(super::admit_request(&mut bench, &req).is_ok());
        bench.on_complete(&req, &answered_with(200));
        assert!(super::admit_request(&mut bench, &req).is_ok());
    }
}

/// Without room for more keys, a breaker admits requests of unknown keys and still opens for known ones.
#[test]
fn requests_pass_when_the_state_has_no_room() {
    let mut bench = new_bench(&[with_fields(rule_named("a"), &json!({"key": "namespace"}))]);
    for index in 0..1100 {
        assert!(run_request(
            &mut bench,
            &get_request(&format!("n{index}")),
            &answered_with(500)
        ));
    }
    assert!(bench.host.uncounted_outcomes() > 0);
    assert!((0..5).all(|_| run_request(&mut bench, &get_request("n1099"), &answered_with(500))));
    assert!(run_request(&mut bench, &get_request("n1"), &answered_with(500)));
    assert!(super::admit_request(&mut bench, &get_request("n1")).is_err());
    assert!(bench.host.counter("keys_exhausted", "") > 0);
}

/// Without its state a breaker refuses nothing, and has nothing counted.
#[test]
fn request_passes_uncounted_when_the_state_can_not_be_read() {
    let mut bench = new_bench(&[rule_named("a")]);
    bench.host.add("state\na\n", 1, None).unwrap();
    let verdict = bench.on_request(&get_request("x"));
    assert_eq!(verdict.outcomes, []);
    assert!((0..3).all(|_| run_request(&mut bench, &get_request("x"), &answered_with(500))));
    assert_eq!(bench.host.counter("keys_exhausted", ""), 4);
}

#[test]
fn state_decodes_to_what_was_encoded() {
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
fn note_unpacks_to_what_was_packed() {
    let mut note = Note::new(0xdead_beef, 0x5a);
    note.mark_probe(0);
    note.mark_probe(MAX_RULES - 1);
    let read = Note::unpack(note.pack());
    assert_eq!(read, note);
    assert_eq!((read.epoch, read.settings), (0xdead_beef, 0x5a));
    let probes: Vec<usize> = (0..MAX_RULES + 8).filter(|rule| read.is_probe(*rule)).collect();
    assert_eq!(probes, [0, MAX_RULES - 1]);
}
