//! The circuit breaker that was built against interface 0.1 is the model of today's: it is called three times for each request and counts
//! outcomes itself. Both must decide the same and report the same, whatever requests end how.

use proptest::prelude::*;

use super::*;

/// One in this many of the test streams is compared with the model: each operation is two calls of a plugin or more.
const STREAMS_PART: u32 = 2;

fn trip() -> impl Strategy<Value = Json> {
    prop::sample::select(vec![
        json!({"consecutiveFailures": 1}),
        json!({"consecutiveFailures": 3}),
        json!({"errorPercent": 50, "minimumRequests": 3, "window": "1s"}),
        json!({"errorPercent": 34, "minimumRequests": 1, "window": "300ms"}),
        json!({"slowPercent": 50, "slowerThan": "2ms", "minimumRequests": 3, "window": "777ms"}),
        json!({"errorPercent": 60, "slowPercent": 40, "slowerThan": "2ms", "minimumRequests": 4, "window": "1s"}),
        json!({"errorPercent": 90, "minimumRequests": 4, "window": "1s", "consecutiveFailures": 3}),
    ])
}

fn rule(name: &'static str) -> impl Strategy<Value = Json> {
    let key = prop::sample::select(vec!["sidecar", "namespace", "resource", "userAgent"]);
    let resources = prop::sample::select(vec!["*", "pods"]);
    let failures = prop::sample::select(vec![
        json!(null),
        json!({"statusCodes": ["404", "5xx"], "connection": ["unreachable", "timeout"]}),
    ]);
    let bucket = prop_oneof![
        4 => Just(json!(null)),
        1 => Just(json!({"limit": 1, "interval": "100ms", "burst": 4})),
    ];
    (trip(), key, resources, failures, bucket, 1_u32..3).prop_map(
        move |(trip, key, resources, failures, bucket, probes)| {
            json!({
                "name": name, "triggerPolicy": "Normal", "trip": trip, "key": key, "failures": failures,
                "bucket": bucket, "probes": probes,
                "resourceRules": [
                    {"apiGroups": ["*"], "resources": [resources], "verbs": ["*"], "namespaces": ["*"]},
                ],
                "recoverPolicy": {
                    "type": "SleepingWindow", "sleepingWindowSize": "500ms", "maxSleepingWindowSize": "1s",
                },
            })
        },
    )
}

fn requests() -> impl Strategy<Value = RequestSpec> {
    let targets = [
        (Method::GET, "/api/v1/namespaces/a/pods/x"),
        (Method::GET, "/api/v1/namespaces/b/pods/x"),
        (Method::GET, "/api/v1/pods?watch=1"),
        (Method::POST, "/api/v1/namespaces/a/pods/x/exec"),
        (Method::POST, "/apis/apps/v1/namespaces/a/deployments"),
        (Method::DELETE, "/apis/apps/v1/namespaces/b/deployments/x"),
    ];
    let agents = [vec![], vec![("user-agent", "a")], vec![("user-agent", "b")]];
    let parts = (
        prop::sample::select(targets.to_vec()),
        prop::sample::select(agents.to_vec()),
    );
    parts.prop_map(|((method, target), headers)| spec(method, target, &headers))
}

fn ends() -> impl Strategy<Value = Outcome> {
    let failures = prop::sample::select(vec![
        Failure::ClientGone,
        Failure::Refused,
        Failure::Unreachable,
        Failure::UpstreamReset,
        Failure::Timeout,
        Failure::PluginReset,
    ]);
    let status = prop::sample::select(vec![0, 200, 200, 200, 404, 429, 500, 503]);
    let failure = prop_oneof![3 => Just(None), 1 => failures.prop_map(Some)];
    let given_up = (Just(0), Just(Some(Failure::ClientGone)));
    let ends = prop_oneof![5 => (status, failure), 1 => given_up];
    (ends, 0_u64..4, 0_u64..2).prop_map(|((status, failure), upstream_ms, more_ms)| Outcome {
        failure,
        upstream: Duration::from_millis(if status == 0 { 0 } else { upstream_ms }),
        duration: Duration::from_millis(upstream_ms + more_ms),
        ..outcome(status)
    })
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (0_usize..2, requests()).prop_map(|(worker, request)| Operation::Request { worker, request }),
        3 => (0_usize..6, prop::sample::select(vec![200, 500])).prop_map(|(place, status)| Operation::Head { place, status }),
        10 => (0_usize..6, ends()).prop_map(|(place, outcome)| Operation::End { place, outcome }),
        3 => (0_u64..400).prop_map(Operation::Advance),
        1 => Just(Operation::Reload),
    ]
}

impl Sidecar {
    /// The reports and counters of the breakers, as people see them.
    fn shown(&self) -> Vec<String> {
        let entries = self.states.entries().into_iter().map(|(_, state)| {
            let (series, _) = state.series().snapshot();
            format!("{:#?} {series:#?}", state.rendered_reports())
        });
        entries.collect()
    }
}

/// A decision without the random part of its time to retry.
fn decision(seen: &str) -> &str {
    seen.split("try again in").next().unwrap_or(seen)
}

fn difference_from_model(settings: &Json, operations: &[Operation]) -> Option<String> {
    let runtime = paused_runtime();
    let sidecar = |plugin: &'static str| {
        let settings = settings.clone();
        Sidecar::new(&[EntrySpec { plugin, settings }], reuse(true, 7))
    };
    runtime.block_on(async {
        let [mut model, mut today] = [sidecar(BREAKER_V0_1), sidecar("circuit-breaker")];
        for (at, operation) in operations.iter().enumerate() {
            let seen = [model.apply(operation).await, today.apply(operation).await];
            if decision(&seen[0]) != decision(&seen[1]) {
                return Some(format!("operation {at}, {operation:?}: {seen:#?}"));
            }
            let shown = [model.shown(), today.shown()];
            if shown[0] != shown[1] {
                return Some(format!("after operation {at}, {operation:?}: {shown:#?}"));
            }
        }
        today.repeated().1.then(|| "today's is impure".to_owned())
    })
}

proptest! {
    #![proptest_config(streams_config(STREAMS_PART))]

    #[test]
    fn breaker_decides_as_it_did_when_it_counted_itself(
        first in rule("b"),
        second in prop::option::of(rule("c")),
        operations in prop::collection::vec(operations(), OPERATIONS),
    ) {
        let rules: Vec<Json> = std::iter::once(first).chain(second).collect();
        let settings = json!({"rateLimitings": rules});
        prop_assert_eq!(difference_from_model(&settings, &operations), None);
    }
}
