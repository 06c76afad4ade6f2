//! For any results, in any order and through any instance: a breaker is never open without a reason, never admits more probes than
//! allowed, and closes again when the server is healthy.
//!
//! Sequences are drawn from the fake host's seeded numbers.

use ctrlmesh_sdk::Host;
use ctrlmesh_sdk::testing::{FakeHost, TestRequest};
use serde_json::json;

use super::{
    active_probes, answered_with, end_request, get_request, is_admitted_by, new_instance, rule_named, with_fields,
};

#[test]
fn instances_share_one_breaker_in_any_sequence() {
    for seed in 0..100 {
        let host = FakeHost::seeded(seed);
        let rules = [with_fields(
            rule_named("a"),
            &json!({"probes": 2, "trip": {"consecutiveFailures": 3}}),
        )];
        let mut plugins = [new_instance(&host, &rules), new_instance(&host, &rules)];
        let mut open: Vec<TestRequest> = Vec::new();
        for _ in 0..150 {
            let draw = host.random();
            let which = usize::from(draw & 1 == 1);
            match draw >> 1 & 3 {
                0 | 1 => {
                    let req = get_request("x");
                    if is_admitted_by(&mut plugins[which], &req, &host) {
                        open.push(req);
                    }
                }
                2 if !open.is_empty() => {
                    let req = open.swap_remove((draw >> 8) as usize % open.len());
                    let status = if draw >> 3 & 1 == 0 { 200 } else { 500 };
                    end_request(&mut plugins[which], &req, &answered_with(status), &host);
                }
                _ => host.advance_ms(draw >> 8 & 0xfff),
            }
            assert!(active_probes(&host).iter().all(|(_, held)| *held <= 2), "seed {seed}");
        }
        // The server is healthy again: requests in flight end, the window passes, probes succeed.
        for req in open {
            end_request(&mut plugins[0], &req, &answered_with(200), &host);
        }
        for (key, held) in active_probes(&host) {
            (0..held).for_each(|_| host.free_place(&key));
        }
        host.advance_ms(10_000);
        for which in [0, 1, 0, 1] {
            let req = get_request("x");
            assert!(is_admitted_by(&mut plugins[which], &req, &host), "seed {seed}");
            end_request(&mut plugins[which], &req, &answered_with(200), &host);
        }
        assert_eq!(host.report("a").unwrap()["state"], "Closed", "seed {seed}");
    }
}
