//! Limits of a rule: which requests, how many, how long, how many at a time; and its reports.

use ctrlmesh_sdk::testing::{Bench, FakeHost, test_instance_info};
use ctrlmesh_sdk::{Host, Level, Verb};

use super::support::{api_request, bench_with_rule, create_request, is_hit, new_bench, rule_error};
use crate::plugin::FaultInject;

fn hit_numbers(bench: &mut Bench<FaultInject>, requests: usize) -> Vec<usize> {
    (1..=requests)
        .filter(|_| is_hit(bench, &api_request(Verb::Get)))
        .collect()
}

#[test]
fn nth_every_and_first_count_matching_requests() {
    for (select, expected) in [
        (r#""nth": 3"#, vec![3]),
        (r#""every": 3"#, vec![3, 6, 9]),
        (r#""first": 2"#, vec![1, 2]),
    ] {
        let mut bench = bench_with_rule(&format!(r#""do": "refuse", {select}"#));
        assert_eq!(hit_numbers(&mut bench, 10), expected, "{select}");
    }
    // The third update, whatever other requests come in between.
    let mut bench = bench_with_rule(r#""do": "conflict", "nth": 3"#);
    let verbs = [
        Verb::Update,
        Verb::Get,
        Verb::Update,
        Verb::List,
        Verb::Update,
        Verb::Update,
    ];
    let hit: Vec<bool> = verbs
        .iter()
        .map(|verb| is_hit(&mut bench, &api_request(*verb)))
        .collect();
    assert_eq!(hit, [false, false, false, false, true, false]);
}

#[test]
fn max_count_is_exact_across_instances_and_reloads() {
    let settings = r#"{"faults": [{"name": "x", "match": {"resources": [{}]}, "do": "refuse", "maxCount": 3}]}"#;
    let mut first = new_bench(settings);
    assert_eq!(hit_numbers(&mut first, 2), [1, 2]);
    // Another instance on the same host sees the counts.
    let host = std::mem::take(&mut first.host);
    let edited = settings.replace(r#""maxCount""#, r#""effectiveTime": {}, "maxCount""#);
    let mut second = Bench::<FaultInject>::on(host, &edited, &test_instance_info()).unwrap();
    assert_eq!(hit_numbers(&mut second, 5), [1]);
    // The four requests after the third cannot be hit, so they do not match.
    assert_eq!(
        second.host.report("x"),
        Some(serde_json::json!({"matched": 3, "fired": 3}))
    );
    // One more may be hit, and the count continues.
    let host = std::mem::take(&mut second.host);
    let more = settings.replace(r#""maxCount": 3"#, r#""maxCount": 4"#);
    let mut third = Bench::<FaultInject>::on(host, &more, &test_instance_info()).unwrap();
    assert_eq!(hit_numbers(&mut third, 5), [1]);
    assert_eq!(
        third.host.report("x"),
        Some(serde_json::json!({"matched": 4, "fired": 4}))
    );
}

fn matched_and_fired(bench: &Bench<FaultInject>) -> (u64, u64) {
    let report = bench.host.report("x").unwrap();
    let count = |field: &str| report[field].as_u64().unwrap();
    let counts = (count("matched"), count("fired"));
    let counter = |name| bench.host.counter(name, "x");
    assert_eq!((counter("fault_matched"), counter("fault_fired")), counts);
    counts
}

#[test]
fn requests_after_the_last_hit_are_not_matched() {
    // These faults are over after 30 s.
    for fault in [
        r#""do": "refuse", "maxDuration": "30s""#,
        r#""do": {"overload": {"rise": "10s", "peak": "10s", "fall": "10s"}}"#,
    ] {
        let mut bench = bench_with_rule(fault);
        hit_numbers(&mut bench, 2);
        let (matched, fired) = matched_and_fired(&bench);
        assert_eq!(matched, 2, "{fault}");
        bench.host.advance_ms(30_000);
        assert_eq!(hit_numbers(&mut bench, 5), [] as [usize; 0], "{fault}");
        assert_eq!(matched_and_fired(&bench), (2, fired), "{fault}");
    }
    // A sequence that repeats is never over.
    let mut bench =
        bench_with_rule(r#""do": {"overload": {"rise": "10s", "peak": "10s", "fall": "10s", "again": "1m"}}"#);
    hit_numbers(&mut bench, 2);
    bench.host.advance_ms(30_000);
    hit_numbers(&mut bench, 5);
    assert_eq!(matched_and_fired(&bench).0, 7);
    // The same holds for a fault on the response.
    let mut bench = bench_with_rule(r#""do": {"hold": {"for": "10s"}}, "maxCount": 1"#);
    for _ in 0..3 {
        let req = api_request(Verb::Get);
        assert!(!is_hit(&mut bench, &req));
        bench.on_response(&req, &ctrlmesh_sdk::testing::TestResponse::new(200));
    }
    assert_eq!(matched_and_fired(&bench), (1, 1));
}

#[test]
fn selection_counts_the_requests_that_match_until_the_last_hit() {
    for (select, expected, matched) in [
        (r#""every": 2, "maxCount": 2"#, vec![2, 4], 4),
        (r#""nth": 3, "maxCount": 1"#, vec![3], 3),
        (r#""first": 4, "maxCount": 2"#, vec![1, 2], 2),
        // Another match is needed for the second hit, so all of them count.
        (r#""nth": 3, "maxCount": 2"#, vec![3], 10),
    ] {
        let mut bench = bench_with_rule(&format!(r#""do": "refuse", {select}"#));
        assert_eq!(hit_numbers(&mut bench, 10), expected, "{select}");
        assert_eq!(matched_and_fired(&bench), (matched, expected.len() as u64), "{select}");
    }
}

#[test]
fn report_shows_the_counts_of_all_instances() {
    let mut bench = bench_with_rule(r#""do": "refuse""#);
    bench.host.add("f/x", 41, None).unwrap();
    assert!(is_hit(&mut bench, &api_request(Verb::Get)));
    bench.host.add("m/x", 1, None).unwrap();
    assert_eq!(
        bench.host.report("x"),
        Some(serde_json::json!({"matched": 2, "fired": 42}))
    );
}

#[test]
fn max_duration_runs_from_the_first_match() {
    let mut bench = bench_with_rule(r#""do": "refuse", "maxDuration": "30s""#);
    bench.host.advance_ms(500_000);
    assert!(is_hit(&mut bench, &api_request(Verb::Get)));
    bench.host.advance_ms(29_999);
    assert!(is_hit(&mut bench, &api_request(Verb::Get)));
    bench.host.advance_ms(1);
    assert!(!is_hit(&mut bench, &api_request(Verb::Get)));
}

#[test]
fn max_active_bounds_concurrent_faults_without_using_max_count() {
    let mut bench = bench_with_rule(r#""do": {"delay": {"for": "10s"}}, "maxActive": 2, "maxCount": 3"#);
    assert_eq!(hit_numbers(&mut bench, 5), [1, 2]);
    assert_eq!(bench.host.held_places("a/x"), 2);
    bench.host.free_place("a/x");
    assert_eq!(hit_numbers(&mut bench, 5), [1]);
    bench.host.free_place("a/x");
    assert_eq!(hit_numbers(&mut bench, 5), [] as [usize; 0]);
}

#[test]
fn max_active_counts_faults_on_the_response_too() {
    let mut bench = bench_with_rule(r#""do": {"hold": {"for": "10s"}}, "maxActive": 1"#);
    let (first, second) = (api_request(Verb::Get), api_request(Verb::Get));
    assert!(!is_hit(&mut bench, &first) && !is_hit(&mut bench, &second));
    let done = ctrlmesh_sdk::testing::TestResponse::new(200);
    assert_eq!(bench.on_response(&first, &done).delay_ms, 10_000);
    assert_eq!(bench.on_response(&second, &done).delay_ms, 0);
}

#[test]
fn invalid_limits_are_refused() {
    for (fields, error) in [
        (r#""nth": 0"#, "faults[0].nth: it counts from 1"),
        (
            r#""nth": 1, "first": 1"#,
            "faults[0].first: one of nth, every and first",
        ),
        (r#""maxCount": 0"#, "faults[0].maxCount: at least 1"),
        (r#""maxActive": 0"#, "faults[0].maxActive: at least 1"),
        (
            r#""maxDuration": "0s""#,
            "faults[0].maxDuration: it must take some time",
        ),
    ] {
        let text = rule_error(&format!(r#""do": "refuse", {fields}"#));
        assert!(text.starts_with(error), "{text}");
    }
}

#[test]
fn rule_is_reported_before_it_first_fires() {
    let bench = bench_with_rule(r#""do": "exists""#);
    assert_eq!(
        bench.host.report("x"),
        Some(serde_json::json!({"matched": 0, "fired": 0}))
    );
}

#[test]
fn matches_and_faults_are_counted_by_rule() {
    let mut bench = bench_with_rule(r#""do": "refuse", "every": 2"#);
    hit_numbers(&mut bench, 10);
    let count = |name| bench.host.counter(name, "x");
    assert_eq!((count("fault_matched"), count("fault_fired")), (10, 5));
    assert_eq!(
        bench.host.report("x"),
        Some(serde_json::json!({"matched": 10, "fired": 5}))
    );
    assert_eq!(bench.host.dropped_updates(), 0);
}

#[test]
fn removed_rule_takes_its_report_and_counts_along() {
    let settings = |name: &str| {
        format!(
            r#"{{"faults": [{{"name": "{name}", "match": {{"resources": [{{}}]}}, "do": "refuse", "maxCount": 1}}]}}"#
        )
    };
    let mut bench = new_bench(&settings("a"));
    assert_eq!(hit_numbers(&mut bench, 2), [1]);
    let host = std::mem::take(&mut bench.host);
    let mut bench = Bench::<FaultInject>::on(host, &settings("b"), &test_instance_info()).unwrap();
    assert_eq!((bench.host.report("a"), bench.host.report("b").is_some()), (None, true));
    assert_eq!(hit_numbers(&mut bench, 2), [1]);
    let host = std::mem::take(&mut bench.host);
    let mut bench = Bench::<FaultInject>::on(host, &settings("a"), &test_instance_info()).unwrap();
    assert_eq!(hit_numbers(&mut bench, 2), [1]);
}

#[test]
fn decision_is_not_carried_over_to_another_rule() {
    let settings =
        |name: &str| format!(r#"{{"faults": [{{"name": "{name}", "match": {{"resources": [{{}}]}}, "do": "lose"}}]}}"#);
    let req = create_request();
    assert!(!is_hit(&mut new_bench(&settings("a")), &req));
    let done = ctrlmesh_sdk::testing::TestResponse::new(201);
    let proceed = ctrlmesh_sdk::ResponseVerdict::proceed();
    assert_eq!(new_bench(&settings("b")).on_response(&req, &done), proceed);
    assert_ne!(new_bench(&settings("a")).on_response(&req, &done), proceed);
}

#[test]
fn waits_cut_by_the_host_are_warned_about() {
    let bench = bench_with_rule(r#""do": {"hold": {"for": "90s"}}"#);
    let logs = bench.host.logs();
    assert!(
        matches!(&logs[..], [(Level::Warn, text)] if text.contains("rule x waits up to 90000ms")),
        "{logs:?}"
    );
    assert!(
        bench_with_rule(r#""do": {"hold": {"for": "60s"}}"#)
            .host
            .logs()
            .is_empty()
    );
}

#[test]
fn objects_beyond_the_bound_share_draws_and_leave_state_room() {
    let mut bench = bench_with_rule(r#""do": "refuse", "percent": 50"#);
    let pod = |number: usize| ctrlmesh_sdk::testing::TestRequest::get("", "pods", &format!("p{number}"));
    let hit = (0..2_000).filter(|number| is_hit(&mut bench, &pod(*number))).count();
    assert!((900..1_100).contains(&hit), "{hit}");
    assert_eq!(bench.host.counter("fault_untracked", ""), 2_000 - 512);
    // Other counters still have room.
    assert!(bench.host.add("one more", 1, None).is_ok());
    assert_eq!(
        bench.host.report("x").map(|report| report["matched"].clone()),
        Some(2_000.into())
    );
}

#[test]
fn host_serves_any_number_of_instances() {
    let settings = r#"{"faults": [{"name": "x", "match": {"resources": [{}]}, "do": "refuse", "nth": 2}]}"#;
    let mut first = Bench::<FaultInject>::on(FakeHost::default(), settings, &test_instance_info()).unwrap();
    assert!(!is_hit(&mut first, &api_request(Verb::Get)));
    let host = std::mem::take(&mut first.host);
    let mut second = Bench::<FaultInject>::on(host, settings, &test_instance_info()).unwrap();
    assert!(is_hit(&mut second, &api_request(Verb::Get)));
}

/// The warnings about one rule.
fn rule_warnings(fields: &str) -> Vec<String> {
    let bench = new_bench(&format!(r#"{{"httpFault": [{{"name": "x", {fields}}}]}}"#));
    bench.host.logs().into_iter().map(|(_, text)| text).collect()
}

#[test]
fn rule_that_never_fires_is_warned_about_with_its_place() {
    let resources = |verbs: &str| format!(r#""match": {{"resources": [{{"verbs": [{verbs}]}}]}}"#);
    for (rule, reason) in [
        (
            format!(r#"{}, "do": "conflict""#, resources(r#""list", "get""#)),
            "verb update, patch, delete, deletecollection, and match",
        ),
        (
            format!(r#"{}, "do": "expire""#, resources(r#""list""#)),
            "verb watch, and",
        ),
        (
            r#""match": {"httpMatch": [{}], "nonResources": [{}]}, "do": "exists""#.to_owned(),
            "verb create, and",
        ),
        (
            r#""match": {"resources": [{"verbs": ["create"], "names": ["web"]}]}, "do": "quota""#.to_owned(),
            "a create has no name",
        ),
        (
            format!(
                r#"{}, "abort": {{"httpStatus": 500, "percent": 0}}"#,
                resources(r#""get""#)
            ),
            "0 percent",
        ),
    ] {
        let warnings = rule_warnings(&rule);
        assert!(
            matches!(&warnings[..], [text] if text.starts_with("httpFault[0]: never fires: ") && text.contains(reason)),
            "{rule}: {warnings:?}"
        );
    }
    for rule in [
        format!(r#"{}, "do": "conflict""#, resources(r#""list", "update""#)),
        format!(r#"{}, "do": "conflict""#, resources(r#""*""#)),
        format!(r#"{}, "do": "refuse""#, resources(r#""list""#)),
        format!(r#"{}, "do": "failPage""#, resources(r#""list""#)),
        r#""do": "overload", "match": {"nonResources": [{}]}"#.to_owned(),
        r#""match": {"resources": [{"verbs": ["create", "patch"], "names": ["web"]}]}, "do": "deny""#.to_owned(),
    ] {
        assert_eq!(rule_warnings(&rule), Vec::<String>::new(), "{rule}");
    }
}
