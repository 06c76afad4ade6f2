//! The time for which a verdict may be reused, and the later phases that it wants.

use ctrlmesh_sdk::testing::{Bench, TestRequest, TestResponse, test_instance_info};
use ctrlmesh_sdk::{Host, Phases, RequestAction, RequestVerdict, ResponseAction, Reuse, Verb};

use super::support::{api_request, bench_with_fault, bench_with_rule, is_hit, new_bench};
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
    assert_eq!(bench.on_request(&api_request(Verb::Get).recheck()).reuse, Reuse::Never);
}

#[test]
fn verdict_before_and_in_an_active_time_holds_until_it_begins_or_ends() {
    // The clock of the bench stands at midnight.
    let mut bench =
        bench_with_rule(r#""do": "refuse", "effectiveTime": {"startTime": "02:00:00", "endTime": "03:00:00"}"#);
    let begins_at = bench.host.unix_ms() + 2 * 3_600_000;
    let verdict = bench.on_request(&api_request(Verb::Get));
    assert_eq!(verdict.reuse, Reuse::UntilUnixMs(begins_at));
    bench.host.advance_ms(2 * 3_600_000);
    let verdict = bench.on_request(&api_request(Verb::Get));
    assert!(matches!(verdict.action, RequestAction::Refuse(_)), "{verdict:?}");
    // Both ends belong to the active time, so it is over a second later.
    let is_over_at = begins_at + 3_601_000;
    assert_eq!(verdict.reuse, Reuse::UntilUnixMs(is_over_at));
}

#[test]
fn response_is_wanted_only_for_a_fault_on_it() {
    let mut bench = bench_with_rule(r#""do": {"lose": {"how": "reset"}}, "nth": 2"#);
    let update = || -> TestRequest { api_request(Verb::Update) };
    assert_eq!(bench.on_request(&update()).later, Phases::empty());
    assert_eq!(bench.on_request(&update()).later, Phases::ON_RESPONSE);
}

/// The bench asks a second time, and fails if that call does or counts something else.
#[test]
fn verdict_of_a_rule_that_needs_no_count_is_reusable() {
    for (fields, fires) in [
        (r#""do": "refuse""#, true),
        (r#""do": {"delay": {"for": "0s"}}"#, true),
        (r#""do": {"delay": {"for": "1ms"}}"#, true),
        (r#""do": "refuse", "maxActive": 3"#, true),
        (r#""do": "refuse", "percent": 0"#, false),
        (
            r#""delay": {"fixedDelay": "1ms"}, "abort": {"httpStatus": 503, "percent": 0}"#,
            true,
        ),
    ] {
        let mut bench = bench_with_rule(fields);
        for number in 1..=3_u64 {
            let verdict = bench.on_request(&api_request(Verb::Get));
            assert_eq!(verdict.reuse, Reuse::WhileUnchanged, "{fields}");
            let fired = if fires { number } else { 0 };
            let expected = serde_json::json!({"matched": number, "fired": fired});
            assert_eq!(bench.host.report("x"), Some(expected), "{fields}");
            assert_eq!(bench.host.counter("fault_matched", "x"), number, "{fields}");
            assert_eq!(bench.host.counter("fault_fired", "x"), fired, "{fields}");
        }
    }
}

#[test]
fn refusal_that_names_no_object_is_reusable_for_all_objects() {
    for (fault, names_object) in [
        (r#""refuse""#, false),
        (r#""throttle""#, false),
        (r#"{"refuse": {"code": 500}}"#, false),
        (r#"{"answer": {"code": 502}}"#, false),
        (r#"{"deny": {"webhook": "w"}}"#, false),
        (r#"{"quota": {"how": "conflict"}}"#, false),
        (r#"{"refuse": {"code": 405}}"#, false),
        (r#""conflict""#, true),
        (r#"{"deny": {"policy": "p"}}"#, true),
        (r#"{"quota": {"how": "exceeded"}}"#, true),
        (r#"{"refuse": {"code": 404}}"#, true),
    ] {
        let mut bench = bench_with_fault(fault);
        // A quota is asked about creates only.
        let verb = if fault.contains("quota") {
            Verb::Create
        } else {
            Verb::Update
        };
        let write = api_request(verb);
        let verdict = bench.on_request(&write);
        assert!(
            matches!(verdict.action, RequestAction::Refuse(_) | RequestAction::Answer(_)),
            "{fault}"
        );
        assert_eq!(verdict.reuse, Reuse::WhileUnchanged, "{fault}");
        assert_eq!(reads_name(&write), names_object, "{fault}");
    }
}

#[test]
fn refusal_instead_of_a_response_reads_the_name_only_if_it_shows_it() {
    let mut bench = bench_with_fault(r#"{"lose": {"how": "retry"}}"#);
    let update = api_request(Verb::Update);
    bench.on_request(&update);
    let verdict = bench.on_response(&update, &TestResponse::new(200));
    assert!(matches!(verdict.action, ResponseAction::Replace(_)), "{verdict:?}");
    assert!(!reads_name(&update));
}

/// Whether the plugin has read the object's name since this was last asked.
fn reads_name(req: &TestRequest) -> bool {
    let reads = req.take_reads();
    reads.contains(&"name") || reads.contains(&"facts")
}

#[test]
fn fault_on_the_response_counts_as_fired_when_it_comes() {
    let mut bench = bench_with_rule(r#""do": {"lose": {"how": "reset"}}"#);
    for number in 1..=2 {
        let update = api_request(Verb::Update);
        let verdict = bench.on_request(&update);
        assert_eq!(
            (verdict.reuse, verdict.later),
            (Reuse::WhileUnchanged, Phases::ON_RESPONSE)
        );
        let counts = |fired: u64| Some(serde_json::json!({"matched": number, "fired": fired}));
        assert_eq!(bench.host.report("x"), counts(number - 1));
        bench.on_response(&update, &TestResponse::new(200));
        assert_eq!(bench.host.report("x"), counts(number));
    }
}

#[test]
fn verdict_is_used_once_if_one_of_the_rules_needs_a_count() {
    let mut bench = new_bench(
        r#"{"faults": [
            {"name": "all", "match": {"resources": [{}]}, "do": {"delay": {"for": "1ms"}}},
            {"name": "some", "match": {"resources": [{"verbs": ["update"]}]}, "do": "refuse", "nth": 9}
        ]}"#,
    );
    for (verb, reuse) in [(Verb::Get, Reuse::WhileUnchanged), (Verb::Update, Reuse::Never)] {
        assert_eq!(bench.on_request(&api_request(verb)).reuse, reuse, "{verb:?}");
    }
}

/// A host does not repeat a call of a function that returns a count, a random number or the time.
#[test]
fn verdict_is_used_once_while_a_rule_needs_a_count_a_draw_or_the_time() {
    for fields in [
        r#""do": "refuse", "nth": 9"#,
        r#""do": "refuse", "every": 2"#,
        r#""do": "refuse", "first": 1"#,
        r#""do": "refuse", "percent": 50"#,
        r#""do": {"delay": {"min": "1ms", "max": "5ms"}}"#,
        r#""do": "refuse", "maxCount": 3"#,
        r#""do": "refuse", "maxDuration": "1m""#,
        r#""do": {"overload": {"again": "1m"}}"#,
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
        let mut bench = Bench::<FaultInject>::on(host, &settings(raised), &test_instance_info()).unwrap();
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

/// One limit ends the rule, then the other; a note of the second does not undo that of the first.
#[test]
fn note_of_an_end_keeps_what_was_noted_before() {
    let settings = |limits: &str| {
        format!(r#"{{"faults": [{{"name": "x", "match": {{"resources": [{{}}]}}, "do": "refuse", {limits}}}]}}"#)
    };
    let mut bench = new_bench(&settings(r#""maxCount": 1, "maxDuration": "30s""#));
    assert!(is_hit(&mut bench, &api_request(Verb::Get)));
    assert!(!is_hit(&mut bench, &api_request(Verb::Get)), "the count is noted");
    let mut reuse_after = |limits: &str, ms: u64| {
        let host = std::mem::take(&mut bench.host);
        bench = Bench::<FaultInject>::on(host, &settings(limits), &test_instance_info()).unwrap();
        bench.host.advance_ms(ms);
        bench.on_request(&api_request(Verb::Get)).reuse
    };
    let time_is_noted = reuse_after(r#""maxCount": 2, "maxDuration": "30s""#, 60_000);
    assert_eq!(time_is_noted, Reuse::Never);
    for limits in [
        r#""maxCount": 1, "maxDuration": "2m""#,
        r#""maxCount": 2, "maxDuration": "30s""#,
    ] {
        assert_eq!(reuse_after(limits, 0), Reuse::WhileUnchanged, "{limits}");
    }
}
