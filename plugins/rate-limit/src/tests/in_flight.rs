use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Host, Verb};
use serde_json::{Value, json};

use super::{all_resources, count_granted, new_bench, request_outcome, rule_with_rate, update_request, with_fields};

fn in_flight_rule(max: u32) -> Value {
    json!({"name": "a", "resourceRules": all_resources(), "maxInFlight": max})
}

#[test]
fn ok_64_in_flight_requests_are_bounded() {
    let mut bench = new_bench(&[in_flight_rule(3)]);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 5), 3);
    let refusal = request_outcome(&mut bench, &update_request("x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
    assert!((1..=2).contains(&refusal.retry_after_seconds.unwrap()));
    assert!(
        refusal.message.contains("allows 3 requests at a time"),
        "{}",
        refusal.message
    );
    assert_eq!(bench.host.held_places(PLACE), 3);
    bench.host.free_place(PLACE);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 5), 1);
}

/// State key of the places of these tests' rule. It must not change, or a reload would forget the requests in flight.
const PLACE: &str = "places\na\nSidecar\n";

#[test]
fn long_running_requests_hold_no_place() {
    let mut bench = new_bench(&[in_flight_rule(1)]);
    for _ in 0..3 {
        assert_eq!(request_outcome(&mut bench, &TestRequest::watch("", "pods")), Ok(0));
        for subresource in ["exec", "attach", "portforward", "log", "proxy"] {
            let req = TestRequest::api(Verb::Get, "", "pods")
                .name("p")
                .subresource(subresource);
            assert_eq!(request_outcome(&mut bench, &req), Ok(0), "{subresource}");
        }
    }
    assert_eq!(bench.host.held_places(PLACE), 0);
    assert_eq!(count_granted(&mut bench, &TestRequest::list("", "pods"), 2), 1);
}

#[test]
fn tunnel_holds_no_place_while_open() {
    let rule = json!({"name": "a", "restRules": [{"url": "*", "method": "*"}], "maxInFlight": 1});
    let mut bench = new_bench(&[rule]);
    for _ in 0..3 {
        assert_eq!(
            request_outcome(&mut bench, &TestRequest::external("CONNECT", "b.com", "")),
            Ok(0)
        );
    }
    assert_eq!(
        count_granted(&mut bench, &TestRequest::external("GET", "b.com", "/"), 2),
        1
    );
}

/// In the peer, refused requests take tokens as well, so that the wait grows without bound.
#[test]
fn ok_65_refusals_take_neither_tokens_nor_places() {
    let both = with_fields(rule_with_rate("b", 1, 2), &json!({"maxInFlight": 1}));
    let mut bench = new_bench(&[both]);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 50), 1);
    bench.host.free_place("places\nb\nSidecar\n");
    // The second token is still there: the 49 requests refused for lack of a place took none.
    assert_eq!(count_granted(&mut bench, &update_request("x"), 50), 1);
    bench.host.free_place("places\nb\nSidecar\n");
    for _ in 0..50 {
        let refusal = request_outcome(&mut bench, &update_request("x")).unwrap_err();
        assert!(refusal.message.contains("is used up") && refusal.retry_after_seconds.unwrap() <= 2);
    }
    assert_eq!(bench.host.held_places("places\nb\nSidecar\n"), 0);
    bench.host.advance_ms(1000);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 50), 1);
}

#[test]
fn each_key_has_its_own_places() {
    let mut bench = new_bench(&[with_fields(in_flight_rule(1), &json!({"key": "namespace"}))]);
    assert_eq!(count_granted(&mut bench, &update_request("x"), 3), 1);
    assert_eq!(count_granted(&mut bench, &update_request("y"), 3), 1);
    bench.host.remove("places\na\nNamespace\ny");
    assert_eq!(count_granted(&mut bench, &update_request("x"), 3), 0);
    assert_eq!(count_granted(&mut bench, &update_request("y"), 3), 1);
}
