//! B4, R3, R5.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Details, Refusal, RequestVerdict, Reset, Verb};

use super::kit::{api, ask, bench, fault, is_hit, refusal, refused_rule};

fn at(verb: Verb, version: &str) -> TestRequest {
    api(verb).query_field("resourceVersion", version)
}

#[test]
fn b4_too_old_only_where_a_version_can_be_gone() {
    let mut bench = fault(r#""tooOld""#);
    let expected = Refusal::new(410, "too old resource version: 70 (1070)").reason("Expired");
    assert_eq!(refusal(&mut bench, &at(Verb::Watch, "70")), expected);
    let exact = at(Verb::List, "70").query_field("resourceVersionMatch", "Exact");
    assert_eq!(
        refusal(&mut bench, &exact).message,
        "The resourceVersion for the provided list is too old."
    );
    for req in [
        api(Verb::Watch),
        at(Verb::Watch, "0"),
        at(Verb::Watch, "00"),
        at(Verb::List, "70"),
        at(Verb::Get, "70"),
    ] {
        assert!(!is_hit(&mut bench, &req), "{req:?}");
    }
}

#[test]
fn b4_too_new_makes_a_reflector_ask_for_the_newest() {
    let mut bench = fault(r#""tooNew""#);
    let cause = Details::new("", "", "").cause("ResourceVersionTooLarge", "Too large resource version", "");
    let expected = Refusal::new(504, "Timeout: Too large resource version: 5000, current: 4000")
        .reason("Timeout")
        .retry_after(1)
        .details(cause);
    assert_eq!(refusal(&mut bench, &at(Verb::List, "5000")), expected);
    for req in [
        at(Verb::List, ""),
        at(Verb::List, "0"),
        api(Verb::List),
        at(Verb::Watch, "5000"),
    ] {
        assert!(!is_hit(&mut bench, &req), "{req:?}");
    }
}

#[test]
fn r3_second_page_fails_and_the_first_does_not() {
    let page = || {
        api(Verb::List)
            .query_field("limit", "500")
            .query_field("continue", "abc")
    };
    let mut expired = fault(r#""failPage""#);
    let told = refusal(&mut expired, &page());
    assert_eq!((told.code, told.reason.as_str()), (410, "Expired"));
    assert_eq!(
        told.message,
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter."
    );
    assert!(!is_hit(&mut expired, &api(Verb::List).query_field("limit", "500")));
    let mut reset = fault(r#"{"failPage": {"how": "reset"}}"#);
    assert_eq!(ask(&mut reset, &page()), RequestVerdict::reset(Reset::InternalError));
}

#[test]
fn r5_watch_list_is_refused_as_an_older_server_does() {
    let settings = r#"{"class": "server", "faults": [{"match": {"resources": [{}]}, "do": "noWatchList"}]}"#;
    let mut bench = bench(settings);
    let message = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden \
                   for watch unless the WatchList feature gate is enabled";
    let cause = "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    let details =
        Details::new("meta.k8s.io", "ListOptions", "").cause("FieldValueForbidden", cause, "sendInitialEvents");
    let expected = Refusal::new(422, message).reason("Invalid").details(details);
    let watch_list = api(Verb::Watch).query_field("sendInitialEvents", "true");
    assert_eq!(refusal(&mut bench, &watch_list), expected);
    assert!(!is_hit(&mut bench, &api(Verb::Watch)));
}

#[test]
fn r5_is_of_the_class_server_and_says_so() {
    let error = refused_rule(r#""do": "noWatchList""#);
    assert_eq!(
        error,
        "faults[0].do: noWatchList so written is of the class server, and these settings want legal; write class: server \
         beside faults if you mean it"
    );
}
