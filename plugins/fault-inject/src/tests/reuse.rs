//! The time for which a verdict may be reused, and the later phases that it wants.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Host, Phases, Reuse, Verb};

use super::support::{api_request, bench_with_rule, new_bench};

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
