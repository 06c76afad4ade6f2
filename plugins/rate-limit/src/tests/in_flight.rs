use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Host, Verb};
use serde_json::{Value, json};

use super::{all, ask, bench, granted, rule, update, with};

fn in_flight(max: u32) -> Value {
    json!({"name": "a", "resourceRules": all(), "maxInFlight": max})
}

#[test]
fn ok_64_so_many_requests_are_in_flight_and_no_more() {
    let mut bench = bench(&[in_flight(3)]);
    assert_eq!(granted(&mut bench, &update("x"), 5), 3);
    let refusal = ask(&mut bench, &update("x")).unwrap_err();
    assert_eq!((refusal.code, refusal.cause.as_deref()), (429, Some("a")));
    assert!((1..=2).contains(&refusal.retry_after_seconds.unwrap()));
    assert!(
        refusal.message.contains("allows 3 requests at a time"),
        "{}",
        refusal.message
    );
    assert_eq!(bench.host.held_places(PLACE), 3);
    bench.host.free_place(PLACE);
    assert_eq!(granted(&mut bench, &update("x"), 5), 1);
}

/// Where the rule of these tests counts its requests: part of what must not change, or a reload would forget them.
const PLACE: &str = "places\na\nSidecar\n";

#[test]
fn what_lasts_as_long_as_the_client_likes_holds_no_place() {
    let mut bench = bench(&[in_flight(1)]);
    for _ in 0..3 {
        assert_eq!(ask(&mut bench, &TestRequest::watch("", "pods")), Ok(0));
        for subresource in ["exec", "attach", "portforward", "log", "proxy"] {
            let req = TestRequest::api(Verb::Get, "", "pods")
                .name("p")
                .subresource(subresource);
            assert_eq!(ask(&mut bench, &req), Ok(0), "{subresource}");
        }
    }
    assert_eq!(bench.host.held_places(PLACE), 0);
    assert_eq!(granted(&mut bench, &TestRequest::list("", "pods"), 2), 1);
}

#[test]
fn a_tunnel_holds_no_place_for_as_long_as_it_is_kept_open() {
    let rule = json!({"name": "a", "restRules": [{"url": "*", "method": "*"}], "maxInFlight": 1});
    let mut bench = bench(&[rule]);
    for _ in 0..3 {
        assert_eq!(ask(&mut bench, &TestRequest::external("CONNECT", "b.com", "")), Ok(0));
    }
    assert_eq!(granted(&mut bench, &TestRequest::external("GET", "b.com", "/"), 2), 1);
}

/// The peer's refused requests take tokens all the same, so that the wait grows without bound.
#[test]
fn ok_65_refusals_take_neither_tokens_nor_places() {
    let both = with(rule("b", 1, 2), &json!({"maxInFlight": 1}));
    let mut bench = bench(&[both]);
    assert_eq!(granted(&mut bench, &update("x"), 50), 1);
    bench.host.free_place("places\nb\nSidecar\n");
    // The second token is still there: the 49 refusals for want of a place took none.
    assert_eq!(granted(&mut bench, &update("x"), 50), 1);
    bench.host.free_place("places\nb\nSidecar\n");
    for _ in 0..50 {
        let refusal = ask(&mut bench, &update("x")).unwrap_err();
        assert!(refusal.message.contains("is used up") && refusal.retry_after_seconds.unwrap() <= 2);
    }
    assert_eq!(bench.host.held_places("places\nb\nSidecar\n"), 0);
    bench.host.advance_ms(1000);
    assert_eq!(granted(&mut bench, &update("x"), 50), 1);
}

#[test]
fn each_key_has_its_own_places() {
    let mut bench = bench(&[with(in_flight(1), &json!({"key": "namespace"}))]);
    assert_eq!(granted(&mut bench, &update("x"), 3), 1);
    assert_eq!(granted(&mut bench, &update("y"), 3), 1);
    bench.host.remove("places\na\nNamespace\ny");
    assert_eq!(granted(&mut bench, &update("x"), 3), 0);
    assert_eq!(granted(&mut bench, &update("y"), 3), 1);
}
