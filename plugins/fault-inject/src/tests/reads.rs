//! Faults B4, R3, R5: lists and resource versions.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Details, Refusal, RequestVerdict, Reset, Verb};

use super::support::{api_request, bench_with_fault, expect_refusal, is_hit, new_bench, request_verdict, rule_error};

fn request_at_version(verb: Verb, version: &str) -> TestRequest {
    api_request(verb).query_field("resourceVersion", version)
}

#[test]
fn b4_too_old_applies_only_when_a_version_can_be_compacted() {
    let mut bench = bench_with_fault(r#""tooOld""#);
    let expected = Refusal::new(410, "too old resource version: 70 (1070)").reason("Expired");
    assert_eq!(
        expect_refusal(&mut bench, &request_at_version(Verb::Watch, "70")),
        expected
    );
    let exact = request_at_version(Verb::List, "70").query_field("resourceVersionMatch", "Exact");
    assert_eq!(
        expect_refusal(&mut bench, &exact).message,
        "The resourceVersion for the provided list is too old."
    );
    for req in [
        api_request(Verb::Watch),
        request_at_version(Verb::Watch, "0"),
        request_at_version(Verb::Watch, "00"),
        request_at_version(Verb::List, "70"),
        request_at_version(Verb::Get, "70"),
    ] {
        assert!(!is_hit(&mut bench, &req), "{req:?}");
    }
}

#[test]
fn b4_too_new_makes_a_reflector_ask_for_the_latest() {
    let mut bench = bench_with_fault(r#""tooNew""#);
    let cause = Details::new("", "", "").cause("ResourceVersionTooLarge", "Too large resource version", "");
    let expected = Refusal::new(504, "Timeout: Too large resource version: 5000, current: 4000")
        .reason("Timeout")
        .retry_after(1)
        .details(cause);
    assert_eq!(
        expect_refusal(&mut bench, &request_at_version(Verb::List, "5000")),
        expected
    );
    for req in [
        request_at_version(Verb::List, ""),
        request_at_version(Verb::List, "0"),
        api_request(Verb::List),
        request_at_version(Verb::Watch, "5000"),
    ] {
        assert!(!is_hit(&mut bench, &req), "{req:?}");
    }
}

#[test]
fn r3_second_page_fails_and_the_first_does_not() {
    let page = || {
        api_request(Verb::List)
            .query_field("limit", "500")
            .query_field("continue", "abc")
    };
    let mut expired = bench_with_fault(r#""failPage""#);
    let refusal = expect_refusal(&mut expired, &page());
    assert_eq!((refusal.code, refusal.reason.as_str()), (410, "Expired"));
    assert_eq!(
        refusal.message,
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter."
    );
    assert!(!is_hit(
        &mut expired,
        &api_request(Verb::List).query_field("limit", "500")
    ));
    let mut reset = bench_with_fault(r#"{"failPage": {"how": "reset"}}"#);
    assert_eq!(
        request_verdict(&mut reset, &page()),
        RequestVerdict::reset(Reset::InternalError)
    );
}

#[test]
fn r5_watch_list_is_refused_like_an_older_server_does() {
    let settings = r#"{"class": "server", "faults": [{"match": {"resources": [{}]}, "do": "noWatchList"}]}"#;
    let mut bench = new_bench(settings);
    let message = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden \
                   for watch unless the WatchList feature gate is enabled";
    let cause = "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    let details =
        Details::new("meta.k8s.io", "ListOptions", "").cause("FieldValueForbidden", cause, "sendInitialEvents");
    let expected = Refusal::new(422, message).reason("Invalid").details(details);
    let watch_list = api_request(Verb::Watch).query_field("sendInitialEvents", "true");
    assert_eq!(expect_refusal(&mut bench, &watch_list), expected);
    assert!(!is_hit(&mut bench, &api_request(Verb::Watch)));
}

#[test]
fn r5_requires_class_server() {
    let error = rule_error(r#""do": "noWatchList""#);
    assert_eq!(
        error,
        "faults[0].do: noWatchList so written is of the class server, and these settings want legal; write class: server \
         beside faults if you mean it"
    );
}
