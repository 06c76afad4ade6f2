//! The time for which a verdict may be reused, and the later phases that it wants.

use ctrlmesh_sdk::testing::{Bench, TestRequest, about};
use ctrlmesh_sdk::{Host, Phases, RequestVerdict, Reuse, Verb};

use super::support::{api_request, bench_with_rule, is_hit, new_bench};
use crate::plugin::FaultInject;

#[test]
fn verdict_is_reusable_when_no_rule_is_met() {
    let mut bench = new_bench(
        r#"{"faults": [{"name": "x", "match": {"resources": [{"apiGroups": ["apps"], "verbs": ["update"]}]}, "do": "refuse"}]}"#,
    );
    let get = api_request(Verb::Get);
    let verdict = bench.on_request(&get);
    assert_eq!((verdict.reuse, verdict.later), (Reuse::WhileUnchanged, Phases::empty()));
    assert_eq!(get.take_reads(), ["is_recheck", "verb"]);
    assert_eq!(bench.on_request(&api_request(Verb::Update)).reuse, Reuse::Never);
    assert_eq!(bench.on_request(&api_request(Verb::Get).recheck()).reuse, Reuse::Never);
}

#[test]
fn verdict_before_an_active_time_holds_until_it_begins() {
    // The clock of the bench stands at midnight.
    let mut bench =
        bench_with_rule(r#""do": "refuse", "effectiveTime": {"startTime": "02:00:00", "endTime": "03:00:00"}"#);
    let begins_at = bench.host.unix_ms() + 2 * 3_600_000;
    let verdict = bench.on_request(&api_request(Verb::Get));
    assert_eq!(verdict.reuse, Reuse::UntilUnixMs(begins_at));
    bench.host.advance_ms(2 * 3_600_000);
    assert_eq!(bench.on_request(&api_request(Verb::Get)).reuse, Reuse::Never);
}

#[test]
fn response_is_wanted_only_for_a_fault_on_it() {
    let mut bench = bench_with_rule(r#""do": {"lose": {"how": "reset"}}, "nth": 2"#);
    let update = || -> TestRequest { api_request(Verb::Update) };
    assert_eq!(bench.on_request(&update()).later, Phases::empty());
    assert_eq!(bench.on_request(&update()).later, Phases::ON_RESPONSE);
}

/// Counts are in the state, where limits and `/status` find them, and a host does not repeat a call that writes state.
#[test]
fn verdict_is_used_once_while_a_rule_counts() {
    for fields in [
        r#""do": "refuse""#,
        r#""do": {"delay": {"for": "1ms"}}"#,
        r#""do": "refuse", "nth": 9"#,
        r#""do": "refuse", "percent": 50"#,
        r#""do": "refuse", "maxCount": 3"#,
        r#""do": "refuse", "maxDuration": "1m""#,
    ] {
        let mut bench = bench_with_rule(fields);
        for number in 1..=3 {
            assert_eq!(
                bench.on_request(&api_request(Verb::Get)).reuse,
                Reuse::Never,
                "{fields}"
            );
            assert_eq!(bench.host.report("x").unwrap()["matched"], number, "{fields}");
        }
    }
}

#[test]
fn verdict_is_reusable_after_the_request_that_finds_a_rule_ended() {
    // These faults are over after 30 s, or after one hit.
    for fields in [
        r#""do": "refuse", "maxCount": 1"#,
        r#""do": "refuse", "maxDuration": "30s""#,
        r#""do": {"overload": {"rise": "10s", "peak": "10s", "fall": "10s"}}"#,
    ] {
        let mut bench = bench_with_rule(fields);
        is_hit(&mut bench, &api_request(Verb::Get));
        let before = bench.host.report("x");
        bench.host.advance_ms(30_000);
        assert_eq!(
            bench.on_request(&api_request(Verb::Get)).reuse,
            Reuse::Never,
            "{fields}"
        );
        let noted = bench.host.get("e/x").unwrap();
        assert!(noted.is_some(), "{fields}");
        for verb in [Verb::Get, Verb::Get, Verb::Update] {
            let verdict = bench.on_request(&api_request(verb));
            assert_eq!(
                verdict,
                RequestVerdict::proceed().later(Phases::empty()).reusable(),
                "{fields}"
            );
        }
        // Nothing is counted or written any more.
        assert_eq!(bench.host.get("e/x").unwrap(), noted, "{fields}");
        assert_eq!(bench.host.report("x"), before, "{fields}");
    }
}

#[test]
fn rule_with_limited_places_is_never_noted_as_ended() {
    let mut bench = bench_with_rule(r#""do": "refuse", "maxCount": 1, "maxActive": 1"#);
    assert!(is_hit(&mut bench, &api_request(Verb::Get)));
    for _ in 0..3 {
        assert_eq!(bench.on_request(&api_request(Verb::Get)).reuse, Reuse::Never);
    }
    assert_eq!(bench.host.get("e/x"), Ok(None));
}

#[test]
fn rule_goes_on_when_its_limit_is_raised() {
    for (limit, raised) in [
        (r#""maxCount": 1"#, r#""maxCount": 2"#),
        (r#""maxDuration": "30s""#, r#""maxDuration": "2m""#),
    ] {
        let settings = |limit: &str| {
            format!(r#"{{"faults": [{{"name": "x", "match": {{"resources": [{{}}]}}, "do": "refuse", {limit}}}]}}"#)
        };
        let mut bench = new_bench(&settings(limit));
        assert!(is_hit(&mut bench, &api_request(Verb::Get)));
        bench.host.advance_ms(60_000);
        assert!(!is_hit(&mut bench, &api_request(Verb::Get)));
        assert!(!is_hit(&mut bench, &api_request(Verb::Get)));
        let host = std::mem::take(&mut bench.host);
        let mut bench = Bench::<FaultInject>::on(host, &settings(raised), &about()).unwrap();
        assert!(is_hit(&mut bench, &api_request(Verb::Get)), "{raised}");
        // And it ends again.
        bench.host.advance_ms(60_000);
        let reuse: Vec<Reuse> = (0..3)
            .map(|_| bench.on_request(&api_request(Verb::Get)).reuse)
            .collect();
        assert_eq!(
            reuse,
            [Reuse::Never, Reuse::WhileUnchanged, Reuse::WhileUnchanged],
            "{raised}"
        );
    }
}
