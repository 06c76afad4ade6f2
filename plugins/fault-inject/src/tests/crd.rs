//! FI-*: the features of a FaultInjection, including those where the CRD's own engine differs.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Part, Phases, RequestAction, RequestVerdict, Verb};

use super::support::{
    api_request, bench_with_rule, create_request, expect_refusal, is_hit, new_bench, request_verdict, settings_error,
};

#[test]
fn fi_01_delay_and_abort_happen_both_delay_first() {
    let mut bench = bench_with_rule(
        r#""delay": {"fixedDelay": "2s", "percent": "100"}, "abort": {"httpStatus": 503, "percent": "100"}"#,
    );
    let verdict = request_verdict(&mut bench, &api_request(Verb::Get));
    assert_eq!(verdict.delay_ms, 2_000);
    assert!(matches!(verdict.action, RequestAction::Refuse(refusal) if refusal.code == 503));
    assert_eq!(bench.subscription.phases, Phases::ON_REQUEST);
}

#[test]
fn fi_01_zero_percent_is_never_and_hundred_always() {
    for (percent, expected) in [
        ("0", 0),
        ("\"0\"", 0),
        ("\"0.0\"", 0),
        ("100", 200),
        ("\"100\"", 200),
        ("\"100%\"", 200),
    ] {
        let mut bench = bench_with_rule(&format!(r#""abort": {{"httpStatus": 500, "percent": {percent}}}"#));
        let hits = (0..200).filter(|_| is_hit(&mut bench, &api_request(Verb::Get))).count();
        assert_eq!(hits, expected, "{percent}");
    }
}

#[test]
fn fi_01_percent_is_a_share_of_its_own_for_each_part() {
    let mut bench = bench_with_rule(
        r#""delay": {"fixedDelay": "1s", "percent": "25"}, "abort": {"httpStatus": 500, "percent": 50}"#,
    );
    let verdicts: Vec<RequestVerdict> = (0..4_000)
        .map(|_| request_verdict(&mut bench, &api_request(Verb::Get)))
        .collect();
    let count = |is: &dyn Fn(&RequestVerdict) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count();
    let is_aborted = |verdict: &RequestVerdict| matches!(verdict.action, RequestAction::Refuse(_));
    assert!((850..1_150).contains(&count(&|verdict| verdict.delay_ms > 0)));
    assert!((1_850..2_150).contains(&count(&is_aborted)));
    // The draws are independent: an eighth of the requests has both.
    assert!((400..600).contains(&count(&|verdict| verdict.delay_ms > 0 && is_aborted(verdict))));
}

#[test]
fn fi_01_delays_of_several_rules_add_up_and_the_first_abort_wins() {
    let mut bench = new_bench(
        r#"{"httpFault": [
            {"name": "a", "match": {"resources": [{}]}, "delay": {"fixedDelay": "1s", "percent": "100"}},
            {"name": "b", "match": {"resources": [{}]}, "abort": {"httpStatus": 429, "percent": "100"}},
            {"name": "c", "match": {"resources": [{}]}, "abort": {"httpStatus": 500, "percent": "100"}},
            {"name": "d", "match": {"resources": [{}]}, "delay": {"fixedDelay": "20ms", "percent": "100"}}
        ]}"#,
    );
    let verdict = request_verdict(&mut bench, &api_request(Verb::Get));
    assert_eq!(verdict.delay_ms, 1_020);
    assert!(matches!(verdict.action, RequestAction::Refuse(refusal) if refusal.code == 429));
    let counts = |name: &str| bench.host.report(name);
    assert_eq!(
        counts("c"),
        Some(serde_json::json!({"matched": 0, "fired": 0})),
        "b has answered it"
    );
    assert_eq!(counts("d"), Some(serde_json::json!({"matched": 1, "fired": 1})));
    let named = [("a", Part::Delay), ("b", Part::Action), ("d", Part::Delay)];
    assert_eq!(
        bench.host.take_named_rules(),
        named.map(|(name, part)| (name.to_owned(), part))
    );
}

#[test]
fn fi_02_resources_are_matched_with_stars_and_absent_lists() {
    let settings = |resources: &str| {
        format!(r#"{{"httpFault": [{{"match": {{"resources": [{resources}]}}, "abort": {{"httpStatus": 500}}}}]}}"#)
    };
    for (resources, is_matched) in [
        ("{}", true),
        (
            r#"{"apiGroups": ["apps"], "resources": ["deployments"], "namespaces": ["team"], "verbs": ["get"]}"#,
            true,
        ),
        (
            r#"{"apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "verbs": ["*"]}"#,
            true,
        ),
        (r#"{"apiGroups": [], "resources": ["deployments"]}"#, true),
        (r#"{"apiGroups": [""]}"#, false),
        (r#"{"resources": ["pods"]}"#, false),
        (r#"{"namespaces": ["other"]}"#, false),
        (r#"{"verbs": ["list"]}"#, false),
        (r#"{"resources": ["pods"]}, {"verbs": ["get"]}"#, true),
    ] {
        let mut bench = new_bench(&settings(resources));
        assert_eq!(is_hit(&mut bench, &api_request(Verb::Get)), is_matched, "{resources}");
    }
}

#[test]
fn fi_03_calls_to_other_services_are_matched_by_host_path_and_method() {
    let req = TestRequest::external("POST", "api.example.com", "/v1/orders/7");
    for (rule, is_matched) in [
        (r#"{"host": {"exact": "api.example.com"}, "method": "POST"}"#, true),
        (r#"{"host": {"exact": "api.example.com"}}"#, true),
        (r#"{"host": {"exact": "api.example.com"}, "method": "*"}"#, true),
        (r#"{"host": {"exact": "example.com"}}"#, false),
        (
            r#"{"host": {"regex": "example"}, "path": {"exact": "/v1/orders/7"}}"#,
            true,
        ),
        (
            r#"{"host": {"exact": "api.example.com"}, "path": {"exact": "/v1/orders"}}"#,
            false,
        ),
        (r#"{"path": {"regex": "^/v1/orders/[0-9]+$"}}"#, true),
        (r#"{"path": {"regex": "^/v2/"}}"#, false),
        (r#"{"method": "GET"}"#, false),
    ] {
        let settings =
            format!(r#"{{"httpFault": [{{"match": {{"httpMatch": [{rule}]}}, "abort": {{"httpStatus": 403}}}}]}}"#);
        let mut bench = new_bench(&settings);
        assert_eq!(is_hit(&mut bench, &req), is_matched, "{rule}");
    }
    let wrong =
        r#"{"httpFault": [{"match": {"httpMatch": [{"path": {"regex": "("}}]}, "abort": {"httpStatus": 403}}]}"#;
    assert!(
        settings_error(wrong).starts_with("httpFault[0].match.httpMatch[0].path.regex: "),
        "{}",
        settings_error(wrong)
    );
}

#[test]
fn fi_03_second_shape_has_lists_of_urls_and_methods() {
    let mut bench = new_bench(
        r#"{"httpFault": [{
            "match": {"httpMatch": [{"url": ["https://api.example.com/v1/*"], "method": ["PUT", "POST"]}]},
            "abort": {"httpStatus": 403}
        }]}"#,
    );
    assert!(is_hit(
        &mut bench,
        &TestRequest::external("POST", "api.example.com", "/v1/orders")
    ));
    assert!(!is_hit(
        &mut bench,
        &TestRequest::external("GET", "api.example.com", "/v1/orders")
    ));
    assert!(!is_hit(
        &mut bench,
        &TestRequest::external("POST", "api.example.com", "/v2/orders")
    ));
}

#[test]
fn fi_04_headers_are_matched_by_their_value() {
    let mut bench = new_bench(
        r#"{"httpFault": [{
            "match": {"httpMatch": [{"headers": [{"name": "X-Tenant", "value": "a"}]}]},
            "abort": {"httpStatus": 403}
        }]}"#,
    );
    let call = || TestRequest::external("GET", "api.example.com", "/");
    assert!(is_hit(&mut bench, &call().header_field("x-tenant", "a")));
    assert!(!is_hit(&mut bench, &call().header_field("x-tenant", "b")));
    assert!(!is_hit(&mut bench, &call()));
}

#[test]
fn fi_05_rule_is_in_force_only_in_its_times() {
    // The host's clock begins on 2026-01-01 at 00:00:00 UTC, a Thursday.
    for (time, is_active) in [
        (r#"{"startTime": "00:00:00", "endTime": "01:00:00"}"#, true),
        (r#"{"startTime": "00:00:01", "endTime": "01:00:00"}"#, false),
        (r#"{"startTime": "22:00:00", "endTime": "02:00:00"}"#, true),
        (r#"{"daysOfWeek": [4]}"#, true),
        (r#"{"daysOfWeek": [5]}"#, false),
        (r#"{"daysOfMonth": [1], "months": [1]}"#, true),
        (r#"{"months": [12]}"#, false),
        (r#"{"months": [12], "timeZone": "-01:00"}"#, true),
        (
            r#"{"startTime": "2025-12-31T23:59:00Z", "endTime": "2026-01-01T01:00:00+01:00"}"#,
            true,
        ),
        (r#"{"startTime": "2026-01-01T00:00:00-00:30"}"#, false),
    ] {
        let mut bench = bench_with_rule(&format!(r#""abort": {{"httpStatus": 500}}, "effectiveTime": {time}"#));
        assert_eq!(is_hit(&mut bench, &api_request(Verb::Get)), is_active, "{time}");
    }
}

#[test]
fn fi_06_abort_is_the_status_that_an_api_server_writes() {
    let abort_refusal = |status: u16, req: &TestRequest| {
        let refusal = expect_refusal(
            &mut bench_with_rule(&format!(r#""abort": {{"httpStatus": {status}}}"#)),
            req,
        );
        assert_eq!((refusal.code, refusal.cause), (status, None));
        (
            refusal.reason,
            refusal.message,
            refusal
                .details
                .map(|details| (details.name, details.group, details.kind)),
        )
    };
    let web = Some(("web".to_owned(), "apps".to_owned(), "deployments".to_owned()));
    let text = str::to_owned;
    let (reason, message, details) = abort_refusal(404, &api_request(Verb::Get));
    assert_eq!(
        (reason, message, details),
        (
            text("NotFound"),
            text("deployments.apps \"web\" not found"),
            web.clone()
        )
    );
    let (reason, message, _) = abort_refusal(409, &create_request());
    assert_eq!(
        (reason, message),
        (text("AlreadyExists"), text("pods \"{name}\" already exists"))
    );
    let (reason, _, details) = abort_refusal(409, &api_request(Verb::Update));
    assert_eq!((reason, details), (text("Conflict"), web));
    let (reason, message, _) = abort_refusal(500, &api_request(Verb::Get));
    assert_eq!(reason, "InternalError");
    assert!(message.starts_with("Internal error occurred: "), "{message}");
    assert_eq!(
        abort_refusal(405, &api_request(Verb::Patch)).1,
        "patch is not supported on resources of kind \"deployments.apps\""
    );
    for (status, reason) in [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (410, "Expired"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
    ] {
        assert_eq!(abort_refusal(status, &api_request(Verb::Get)).0, reason);
    }
    // For the others the host fills in the reason (`Refusal.reason` empty), like upstream's `reason` by code.
    assert_eq!(abort_refusal(422, &api_request(Verb::Update)).0, "");
    assert_eq!(
        abort_refusal(418, &TestRequest::external("GET", "example.com", "/")).0,
        ""
    );
}

#[test]
fn fi_06_reason_message_and_retry_after_can_be_chosen() {
    let mut bench = bench_with_rule(
        r#""abort": {"httpStatus": 429, "reason": "TooManyRequests", "message": "slow down", "retryAfter": 3}"#,
    );
    let refusal = expect_refusal(&mut bench, &api_request(Verb::Get));
    assert_eq!(
        (refusal.reason.as_str(), refusal.message.as_str()),
        ("TooManyRequests", "slow down")
    );
    assert_eq!(refusal.retry_after_seconds, Some(3));
}

#[test]
fn fi_07_exponential_and_evenly_spread_delays() {
    let delays = |fields: &str| -> Vec<u32> {
        let mut bench = bench_with_rule(&format!(r#""delay": {{{fields}}}"#));
        (0..2_000)
            .map(|_| request_verdict(&mut bench, &api_request(Verb::Get)).delay_ms)
            .collect()
    };
    let even = delays(r#""min": "100ms", "max": "200ms""#);
    assert!(even.iter().all(|ms| (100..=200).contains(ms)));
    assert!(even.contains(&100) && even.contains(&200));
    let exponential = delays(r#""mean": "100ms", "max": "1s""#);
    let mean = exponential.iter().sum::<u32>() / 2_000;
    assert!((85..115).contains(&mean), "{mean}");
    let cut = delays(r#""mean": "100ms", "max": "150ms""#);
    assert!(cut.iter().all(|ms| *ms <= 150) && cut.contains(&150));
    // In an exponential distribution, 63 percent lie below the mean.
    let below = exponential.iter().filter(|ms| **ms < 100).count();
    assert!((1_180..1_340).contains(&below), "{below}");
}

#[test]
fn fi_07_streams_are_broken_off_as_http2_and_grpc_see_it() {
    for (how, expected) in [
        ("internalError", ctrlmesh_sdk::Reset::InternalError),
        ("cancel", ctrlmesh_sdk::Reset::Cancel),
        ("close", ctrlmesh_sdk::Reset::Close),
    ] {
        let mut bench = bench_with_rule(&format!(r#""do": {{"reset": {{"how": "{how}"}}}}"#));
        assert_eq!(
            request_verdict(&mut bench, &api_request(Verb::Get)),
            RequestVerdict::reset(expected)
        );
    }
}

#[test]
fn fi_08_refused_rule_is_never_reported_as_loaded() {
    for (settings, path) in [
        (
            r#"{"httpFault": [{"abort": {"httpStatus": 500}}]}"#,
            "httpFault[0].match: missing",
        ),
        (
            r#"{"httpFault": [{"match": {}, "abort": {"httpStatus": 500}}]}"#,
            "httpFault[0].match: nothing matches",
        ),
        (
            r#"{"httpFault": [{"match": {"resources": [{}]}, "abort": {"httpStatus": 500, "percent": "half"}}]}"#,
            "httpFault[0].abort.percent: \"half\" is no percentage",
        ),
        (
            r#"{"httpFault": [{"match": {"resources": [{}]}, "delay": {"fixedDelay": "5", "percent": "10"}}]}"#,
            "httpFault[0].delay.fixedDelay: ",
        ),
    ] {
        assert!(
            settings_error(settings).starts_with(path),
            "{}",
            settings_error(settings)
        );
    }
}

#[test]
fn ok_68_disabled_rules_and_settings_do_nothing() {
    let abort = r#""match": {"resources": [{}]}, "abort": {"httpStatus": 500}"#;
    for settings in [
        format!(r#"{{"disabled": true, "httpFault": [{{{abort}}}]}}"#),
        format!(r#"{{"httpFault": [{{"disabled": true, {abort}}}]}}"#),
        "{}".to_owned(),
    ] {
        let bench = new_bench(&settings);
        assert!(
            bench.subscription.rules.is_empty() && !bench.wakes(&api_request(Verb::Get)),
            "{settings}"
        );
    }
    assert!(is_hit(
        &mut new_bench(&format!(r#"{{"disabled": false, "httpFault": [{{{abort}}}]}}"#)),
        &api_request(Verb::Get)
    ));
}
