//! A bucket never grants more than its burst and its refill, whenever requests come and whichever instance (worker thread) they meet.

use ctrlmesh_sdk::Plugin;
use ctrlmesh_sdk::testing::FakeHost;
use proptest::prelude::*;
use serde_json::json;

use super::{delay_or_refusal, new_instance, rule_with_rate, update_request, with_fields};

proptest! {
    #[test]
    fn grants_never_exceed_burst_and_rate(
        limit in 1_u32..20,
        interval_ms in 1_u32..3000,
        burst in 1_u32..10,
        queue_ms in prop::sample::select(vec![0_u64, 1, 250, 5000]),
        calls in prop::collection::vec((0_u64..700, 0_usize..2), 1..120),
    ) {
        let fields = json!({
            "bucket": {"limit": limit, "interval": format!("{interval_ms}ms"), "burst": burst},
            "queue": format!("{queue_ms}ms"),
        });
        let rules = [with_fields(rule_with_rate("a", 1, 1), &fields), rule_with_rate("never", 1_000_000, 1_000_000)];
        let host = FakeHost::default();
        let mut instances = [new_instance(&host, &rules), new_instance(&host, &rules)];
        let mut now_ms = 0;
        let mut started: Vec<u64> = Vec::new();
        for (pause_ms, which) in calls {
            now_ms += pause_ms;
            host.advance_ms(pause_ms);
            match delay_or_refusal(instances[which].on_request(&update_request("x"), &host)) {
                Ok(wait_ms) => {
                    prop_assert!(u64::from(wait_ms) <= queue_ms);
                    started.push(now_ms + u64::from(wait_ms));
                }
                Err(refusal) => {
                    // Refused only if the next token is further away than the queue is long.
                    let next = started.iter().filter(|at| **at + u64::from(interval_ms) * u64::from(burst) > now_ms).count();
                    prop_assert!(next > 0, "refused a full bucket: {:?}", refusal);
                }
            }
        }
        started.sort_unstable();
        // A wait is rounded up to a millisecond, so two waiting requests may come closer by less than one, but never from the start.
        let rounding_ms = u64::from(queue_ms > 0);
        let interval = u64::from(interval_ms);
        // count <= burst + limit * time / interval, without a division.
        let most = |time_ms: u64| u64::from(burst) * interval + u64::from(limit) * time_ms;
        for (first, from) in started.iter().enumerate() {
            prop_assert!((first as u64 + 1) * interval <= most(*from), "{} grants until {} ms", first + 1, from);
            for (last, to) in started.iter().enumerate().skip(first) {
                let count = (last - first + 1) as u64;
                prop_assert!(count * interval <= most(to - from + rounding_ms), "{} grants from {} to {} ms", count, from, to);
            }
        }
    }

    /// Each rule keeps its own bound, even if another refuses in between.
    #[test]
    fn rules_do_not_spend_each_others_tokens(
        bursts in (1_usize..6, 1_usize..6),
        calls in prop::collection::vec(prop::bool::ANY, 1..40),
    ) {
        let of_x = json!({"resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["x"]}]});
        let rules = [rule_with_rate("wide", 1, bursts.0 as u32), with_fields(rule_with_rate("x", 1, bursts.1 as u32), &of_x)];
        let host = FakeHost::default();
        let mut plugin = new_instance(&host, &rules);
        let (mut wide, mut narrow) = (bursts.0, bursts.1);
        for is_x in calls {
            let req = update_request(if is_x { "x" } else { "y" });
            let expected = wide > 0 && (!is_x || narrow > 0);
            prop_assert_eq!(delay_or_refusal(plugin.on_request(&req, &host)).is_ok(), expected);
            if expected {
                wide -= 1;
                narrow -= usize::from(is_x);
            }
        }
    }
}
