//! Two sidecars get the same chain and the same requests; one repeats reusable verdicts, the other calls every time. Nothing may differ:
//! verdicts, touches, edits of responses, state, counters, gauges, reports, log lines, quarantines.
//!
//! Two workers of a sidecar share the state of its entries. Plugins are decision trees that are generated, and the built-in ones.

mod breaker;
mod effects;
mod generated;
mod sidecar;
mod threads;

use std::hash::{BuildHasher as _, RandomState};

use http::Method;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value as Json, json};
use tokio::runtime::Runtime;

use super::*;
use crate::chain::instances::Instances;
use crate::chain::phases::{Plugins, RequestDecision};
use crate::chain::tests::{BREAKER_V0_1_BYTES, guest_bytes, test_engine, test_entry, test_handle};
use crate::chain::{MatchQuery, Metrics, Snapshot};
use crate::plugin::verdict::{Failure, Outcome};
use crate::wasm::reads_hooks;

use generated::{chain, operation};
use sidecar::{Operation, Sidecar};

/// Number of random streams. `CTRLMESH_REUSE_STREAMS` asks for more (`make soak-reuse`). A failure prints the smallest stream that fails,
/// and the seed with which `CTRLMESH_REUSE_SEED` plays the same streams again. The choice of what is audited is drawn anew, and the threads
/// of [`threads`] get the same requests but meet in another order.
const STREAMS: u32 = 200;
const OPERATIONS: std::ops::Range<usize> = 20..120;
/// Name of the circuit breaker that was built against interface 0.1.
const BREAKER_V0_1: &str = "circuit-breaker@0.1";

#[derive(Debug, Clone)]
struct EntrySpec {
    plugin: &'static str,
    settings: Json,
}

#[derive(Debug, Clone)]
struct RequestSpec {
    method: Method,
    target: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    is_leader_lock: bool,
}

impl RequestSpec {
    fn view(&self) -> RequestView {
        let headers = self.headers.iter();
        let request = headers.fold(request(self.method.clone(), self.target), |request, (name, value)| {
            request.header(name, value)
        });
        request
            .with_change(|view| view.is_leader_lock.set(self.is_leader_lock))
            .view()
    }
}

/// The chain of these entries, which are named after their plugins and places.
fn snapshot_of(entries: &[EntrySpec], states: &StateStore) -> Arc<Snapshot> {
    let entries = entries.iter().zip(0..).map(|(entry, order)| {
        let name = format!("{}/{order}", entry.plugin.split('@').next().unwrap());
        let settings = entry.settings.to_string();
        test_entry(&name, order, plugin_bytes(entry.plugin), &settings, states)
    });
    Arc::new(Snapshot::new(1, ctrlmesh_contract::Digest::of(b""), entries.collect()))
}

/// A complete response; without a status there was no connection.
fn outcome(status: u16) -> Outcome {
    Outcome {
        status,
        upstream_status: status,
        failure: (status == 0).then_some(Failure::Unreachable),
        duration: Duration::from_millis(2),
        upstream: Duration::from_millis(1),
        request_bytes: 0,
        response_bytes: 7,
    }
}

fn plugin_bytes(name: &str) -> &'static [u8] {
    if name == BREAKER_V0_1 {
        return BREAKER_V0_1_BYTES;
    }
    let builtin = ctrlmesh_plugins_builtin::builtin();
    let builtin = builtin.iter().find(|builtin| builtin.name == name);
    builtin.map_or_else(|| guest_bytes(name), |builtin| builtin.bytes)
}

const fn reuse(is_on: bool, audited_one_in: u64) -> ReuseSettings {
    ReuseSettings {
        is_on,
        audited_one_in: match NonZeroU64::new(audited_one_in) {
            Some(number) => number,
            None => NonZeroU64::MAX,
        },
    }
}

/// The first difference, and the number of repeated verdicts.
struct Compared {
    difference: Option<String>,
    repeated: u64,
}

/// A runtime whose clock stands still until something waits for it.
fn paused_runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Runs the operations in both sidecars. Each has a runtime of its own, because the delays of one would make time pass for the quarantines
/// of the other.
fn compare(entries: &[EntrySpec], operations: &[Operation], audited_one_in: u64) -> Compared {
    let (first, second) = (paused_runtime(), paused_runtime());
    let start = |runtime: &Runtime, settings| runtime.block_on(async { Sidecar::new(entries, settings) });
    let mut repeating = start(&first, reuse(true, audited_one_in));
    let mut calling = start(&second, reuse(false, 1));
    let mut difference = None;
    for (at, operation) in operations.iter().enumerate() {
        let seen = [
            first.block_on(repeating.apply(operation)),
            second.block_on(calling.apply(operation)),
        ];
        if seen[0] != seen[1] {
            difference = Some(format!("operation {at}, {operation:?}: {seen:#?}"));
            break;
        }
    }
    let (repeated, is_impure) = repeating.repeated();
    let states = [
        first.block_on(async { repeating.state() }),
        second.block_on(async { calling.state() }),
    ];
    if difference.is_none() && states[0] != states[1] {
        difference = Some(format!("states differ: {states:#?}"));
    }
    if difference.is_none() && is_impure {
        difference = Some("a plugin was found impure".into());
    }
    Compared { difference, repeated }
}

fn variable(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().unwrap())
}

/// The number of random streams.
fn streams() -> u32 {
    variable("CTRLMESH_REUSE_STREAMS").map_or(STREAMS, |streams| streams.try_into().unwrap())
}

/// The seed of all streams. It is printed, which is shown if the test fails.
fn seed() -> u64 {
    let seed = variable("CTRLMESH_REUSE_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("the streams have CTRLMESH_REUSE_SEED={seed}");
    seed
}

/// A property that is checked with one in `one_in` of the streams.
fn streams_config(one_in: u32) -> ProptestConfig {
    ProptestConfig {
        cases: streams().div_ceil(one_in),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(streams_config(1))]

    #[test]
    fn repeated_verdicts_have_the_same_results_as_calls(
        entries in chain(),
        operations in prop::collection::vec(operation(), OPERATIONS),
        audited_one_in in prop::sample::select(vec![1, 7, 0]),
    ) {
        let compared = compare(&entries, &operations, audited_one_in);
        prop_assert_eq!(compared.difference, None);
    }
}

/// A tree that asks one question and gives each of two answers a verdict of its own.
fn asking(ask: &Json, answers: [&str; 2]) -> EntrySpec {
    let leaf = |edit: &str| json!({"leaf": {"edit": edit, "reuse": "whileUnchanged"}});
    EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"question": {
            "ask": ask,
            "answers": [[answers[0], leaf("a=1")], [answers[1], leaf("a=2")]],
            "otherwise": leaf("a=3"),
        }}}),
    }
}

fn spec(method: Method, target: &'static str, headers: &[(&'static str, &'static str)]) -> RequestSpec {
    RequestSpec {
        method,
        target,
        headers: headers.to_vec(),
        is_leader_lock: false,
    }
}

/// A question, two answers, and two requests that get them.
type Question = (Json, [&'static str; 2], [RequestSpec; 2]);

const POD: &str = "/api/v1/namespaces/a/pods/x";

fn get(target: &'static str) -> RequestSpec {
    spec(Method::GET, target, &[])
}

fn questions() -> Vec<Question> {
    let mut questions = questions_about_the_target();
    let with = |pair: [(&'static str, &'static str); 2]| pair.map(|header| spec(Method::GET, POD, &[header]));
    let delete = || [get(POD), spec(Method::DELETE, POD, &[])];
    let mut leader = get(POD);
    leader.is_leader_lock = true;
    let agents = with([("user-agent", "a"), ("user-agent", "b")]);
    let sizes = with([("content-length", "1"), ("content-length", "2")]);
    questions.extend([
        (json!("method"), ["GET", "DELETE"], delete()),
        (json!("verb"), ["Verb::Get", "Verb::Delete"], delete()),
        (json!("isLeaderLock"), ["false", "true"], [get(POD), leader]),
        (json!("userAgent"), ["a", "b"], agents),
        (json!("size"), ["Some(1)", "Some(2)"], sizes),
        (json!({"header": "X-A"}), ["1", "2"], with([("x-a", "1"), ("x-a", "2")])),
    ]);
    questions
}

fn questions_about_the_target() -> Vec<Question> {
    let questions = [
        (json!("group"), ["", "apps"], [POD, "/apis/apps/v1/namespaces/a/pods/x"]),
        (json!("version"), ["v1", "v2"], [POD, "/api/v2/namespaces/a/pods/x"]),
        (
            json!("resource"),
            ["pods", "secrets"],
            [POD, "/api/v1/namespaces/a/secrets/x"],
        ),
        (
            json!("subresource"),
            ["", "status"],
            [POD, "/api/v1/namespaces/a/pods/x/status"],
        ),
        (json!("namespace"), ["a", "b"], [POD, "/api/v1/namespaces/b/pods/x"]),
        (json!("name"), ["x", "y"], [POD, "/api/v1/namespaces/a/pods/y"]),
        (json!("path"), [POD, "/healthz"], [POD, "/healthz"]),
        (
            json!({"query": "q"}),
            ["1", "2"],
            ["/api/v1/pods?q=1", "/api/v1/pods?q=2"],
        ),
        (
            json!("labelSelector"),
            ["a", "b"],
            ["/api/v1/pods?labelSelector=a", "/api/v1/pods?labelSelector=b"],
        ),
        (
            json!("fieldSelector"),
            ["a", "b"],
            ["/api/v1/pods?fieldSelector=a", "/api/v1/pods?fieldSelector=b"],
        ),
    ];
    let with_requests = questions.map(|(ask, answers, targets)| (ask, answers, targets.map(get)));
    with_requests.into()
}

fn alternately(requests: &[RequestSpec; 2]) -> Vec<Operation> {
    let worker = 0;
    let both = requests.iter().map(|request| Operation::Request {
        worker,
        request: request.clone(),
    });
    both.cycle().take(8).collect()
}

#[test]
fn each_question_is_asked_again_when_its_answer_changes() {
    for (ask, answers, requests) in questions() {
        let compared = compare(&[asking(&ask, answers)], &alternately(&requests), 0);
        assert_eq!(compared.difference, None, "{ask}");
        assert_eq!(compared.repeated, 6, "{ask}");
    }
}

/// The comparison itself: it must notice every kind of read that is left out.
#[test]
fn comparison_notices_each_read_that_is_forgotten() {
    for (ask, answers, requests) in questions() {
        let _forgetting = reads_hooks::forget_reads();
        let compared = compare(&[asking(&ask, answers)], &alternately(&requests), 0);
        assert!(compared.difference.is_some(), "{ask}");
    }
}

#[test]
fn write_of_a_cell_makes_plugin_decide_again() {
    let entry = asking(&json!({"cell": "k"}), ["None", "Some(([1], 1))"]);
    let request = || Operation::Request {
        worker: 0,
        request: spec(Method::GET, "/api/v1/pods", &[]),
    };
    let operations = [
        request(),
        request(),
        Operation::Write("k"),
        request(),
        request(),
        Operation::Remove("k"),
        request(),
        Operation::Write("k"),
        request(),
    ];
    let compared = compare(&[entry], &operations, 0);
    assert_eq!((compared.difference, compared.repeated), (None, 2));
}

#[test]
fn entry_with_other_settings_decides_anew() {
    let entry = |edit: &str| EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"leaf": {"edit": edit, "reuse": "whileUnchanged"}}}),
    };
    let request = || Operation::Request {
        worker: 0,
        request: get("/api/v1/pods"),
    };
    let operations = [
        request(),
        request(),
        Operation::NewChain(vec![entry("a=2")]),
        request(),
        request(),
    ];
    let compared = compare(&[entry("a=1")], &operations, 0);
    assert_eq!((compared.difference, compared.repeated), (None, 2));
}

/// A request from beginning to end.
fn whole_request(target: &'static str, status: u16) -> [Operation; 3] {
    let request = Operation::Request {
        worker: 0,
        request: get(target),
    };
    let (place, outcome) = (0, outcome(status));
    [
        request,
        Operation::Head { place, status },
        Operation::End { place, outcome },
    ]
}

#[test]
fn closed_breaker_is_not_called_and_opens_all_the_same() {
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}]);
    let entry = EntrySpec {
        plugin: "circuit-breaker",
        settings: json!({"rateLimitings": [{
            "name": "b", "resourceRules": rules, "triggerPolicy": "Normal", "trip": {"consecutiveFailures": 3},
            "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "1s"},
        }]}),
    };
    let statuses = [200, 500, 500, 200, 500, 500, 500];
    let mut operations: Vec<Operation> = statuses.iter().flat_map(|status| whole_request(POD, *status)).collect();
    let opened = Operation::Request {
        worker: 1,
        request: get("/api/v1/pods"),
    };
    operations.push(opened);
    let compared = compare(std::slice::from_ref(&entry), &operations, 0);
    assert_eq!((compared.difference, compared.repeated), (None, 6));
    let watch = "/api/v1/pods?watch=1";
    let watches: Vec<Operation> = (0..4).flat_map(|_| whole_request(watch, 500)).collect();
    let compared = compare(&[entry], &watches, 0);
    assert_eq!(
        (compared.difference, compared.repeated),
        (None, 2),
        "the fourth is refused"
    );
}

/// Each of as many rules as an entry may have reads two cells and counts.
#[test]
fn breaker_with_all_its_rules_closed_is_not_called() {
    let matches = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}]);
    let rule = |number: usize| {
        json!({
            "name": format!("rule-{number}"), "resourceRules": matches, "triggerPolicy": "Normal",
            "trip": {"consecutiveFailures": 3}, "key": "namespace",
            "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "1s"},
        })
    };
    let rules: Vec<Json> = (0..24).map(rule).collect();
    let entry = EntrySpec {
        plugin: "circuit-breaker",
        settings: json!({"rateLimitings": rules}),
    };
    let operations: Vec<Operation> = (0..4).flat_map(|_| whole_request(POD, 200)).collect();
    let compared = compare(&[entry], &operations, 0);
    assert_eq!((compared.difference, compared.repeated), (None, 3));
}

#[test]
fn verdicts_end_with_the_instance_that_made_them() {
    let entry = EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"leaf": {"edit": "a=1", "reuse": "whileUnchanged"}}}),
    };
    let request = || Operation::Request {
        worker: 0,
        request: get("/api/v1/pods"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let repeated = runtime.block_on(async {
        let mut sidecar = Sidecar::new(&[entry], reuse(true, 0));
        let mut repeated = Vec::new();
        for _ in 0..2 {
            sidecar.apply(&request()).await;
            sidecar.apply(&request()).await;
            repeated.push(sidecar.repeated().0);
            assert!(sidecar.workers[0].make_room(|_| false));
        }
        repeated
    });
    assert_eq!(repeated, [1, 2], "the second instance is called first");
}

#[test]
fn audit_finds_plugin_whose_verdicts_alternate() {
    let entry = EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": {"leaf": {"edit": "a=1", "reuse": "whileUnchanged"}}, "alternates": true}),
    };
    let requests = [
        spec(Method::GET, "/api/v1/pods", &[]),
        spec(Method::GET, "/api/v1/pods", &[]),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let (repeated, is_impure) = runtime.block_on(async {
        let mut sidecar = Sidecar::new(&[entry], reuse(true, 1));
        for operation in alternately(&requests) {
            sidecar.apply(&operation).await;
        }
        sidecar.repeated()
    });
    assert_eq!((repeated, is_impure), (0, true));
}
