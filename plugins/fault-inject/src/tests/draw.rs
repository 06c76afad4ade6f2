//! Random choices depend on seed, rule, object, verb and occurrence alone, so that a run can be repeated.

use ctrlmesh_sdk::Verb;
use ctrlmesh_sdk::testing::TestRequest;
use proptest::prelude::*;

use super::support::{is_hit, new_bench};
use crate::draw::{Draw, Subject};

fn pod_request(name: &str) -> TestRequest {
    TestRequest::api(Verb::Update, "", "pods").namespace("team").name(name)
}

fn draw_settings(seed: u64, name: &str) -> String {
    format!(
        r#"{{"seed": {seed}, "faults": [{{"name": "{name}", "match": {{"resources": [{{}}]}}, "do": "refuse", "percent": 50}}]}}"#
    )
}

/// Whether each object's first, second, … request is hit, for an order of objects.
fn hits_by_object(settings: &str, order: &[usize]) -> Vec<Vec<bool>> {
    let mut bench = new_bench(settings);
    let mut fates = vec![Vec::new(); 5];
    for object in order {
        let hit = is_hit(&mut bench, &pod_request(&format!("p{object}")));
        fates[*object].push(hit);
    }
    fates
}

proptest! {
    #[test]
    fn draws_do_not_depend_on_order_of_threads(order in prop::collection::vec(0_usize..5, 0..60), seed in any::<u64>()) {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let settings = draw_settings(seed, "x");
        prop_assert_eq!(hits_by_object(&settings, &order), hits_by_object(&settings, &sorted));
    }

    #[test]
    fn unit_number_is_never_one(seed in any::<u64>(), occurrence in any::<i64>(), rule in ".*") {
        let unit = Draw::new(seed, &rule, &Subject::from_request(&pod_request("a")), occurrence).unit_number("x");
        prop_assert!((0.0..1.0).contains(&unit));
    }
}

#[test]
fn draw_depends_on_seed_rule_object_verb_and_occurrence() {
    let subject = Subject::from_request(&pod_request("a"));
    let draw = |seed, rule, subject: &Subject, occurrence| Draw::new(seed, rule, subject, occurrence).unit_number("x");
    let first = draw(1, "r", &subject, 1);
    let same = draw(1, "r", &Subject::from_request(&pod_request("a")), 1);
    assert!((first - same).abs() < f64::EPSILON);
    let patch = Subject::from_request(&TestRequest::api(Verb::Patch, "", "pods").namespace("team").name("a"));
    for other in [
        draw(2, "r", &subject, 1),
        draw(1, "s", &subject, 1),
        draw(1, "r", &Subject::from_request(&pod_request("b")), 1),
        draw(1, "r", &patch, 1),
        draw(1, "r", &subject, 2),
        Draw::new(1, "r", &subject, 1).unit_number("y"),
    ] {
        assert!((first - other).abs() > f64::EPSILON);
    }
}

#[test]
fn generated_name_suffixes_are_ignored() {
    let object = |name: &str| Subject::from_request(&pod_request(name)).object;
    assert_eq!(object("web-7d4b9c5f6d-x2b4c"), object("web-559dc8f4-zz9xk"));
    assert_eq!(object("web-x2b4c"), object("web-qqqqq"));
    for name in ["web-store", "web-1", "x2b4c", "web-x2b4", "web-x2b4cc"] {
        assert!(object(name).ends_with(&format!("/{name}")), "{name}");
    }
}

#[test]
fn external_calls_are_distinguished_by_host_path_and_method() {
    let call = |method: &str, path: &str| Subject::from_request(&TestRequest::external(method, "example.com", path));
    assert_eq!(call("GET", "/a"), call("GET", "/a"));
    assert_ne!(call("GET", "/a"), call("GET", "/b"));
    assert_ne!(call("GET", "/a"), call("POST", "/a"));
}

#[test]
fn certain_fault_is_not_drawn() {
    for (percent, is_sure) in [("100", true), ("0", false)] {
        let mut bench = new_bench(&draw_settings(0, "x").replace("50", percent));
        for number in 0..600 {
            assert_eq!(is_hit(&mut bench, &pod_request(&format!("p{number}"))), is_sure);
        }
        assert_eq!(bench.host.counter("fault_untracked", ""), 0);
    }
}
