//! Two sidecars get the same chain and the same requests; one repeats reusable verdicts, the other calls every time. Nothing may differ:
//! verdicts, touches, state, counters, reports.
//!
//! Two workers of a sidecar share the state of its entries. Plugins are decision trees that are generated, and the built-in ones.

use std::collections::BTreeMap;

use http::Method;
use proptest::prelude::*;
use proptest::strategy::Union;
use serde_json::{Value as Json, json};

use super::*;
use crate::chain::instances::Instances;
use crate::chain::phases::{Plugins, RequestDecision, Stop};
use crate::chain::tests::{guest_bytes, test_engine, test_entry, test_handle};
use crate::chain::{MatchQuery, Metrics, Snapshot};
use crate::plugin::verdict::Outcome;
use crate::wasm::reads_hooks;

/// Number of random streams; more in `make soak-reuse`.
const STREAMS: u32 = 200;
const STREAMS_VARIABLE: &str = "CTRLMESH_REUSE_STREAMS";
const OPERATIONS: std::ops::Range<usize> = 20..120;

/// One sidecar.
struct Sidecar {
    snapshot: Arc<Snapshot>,
    states: StateStore,
    clock: Clock,
    workers: [Rc<Instances>; 2],
    in_flight: Vec<Plugins>,
}

#[derive(Debug, Clone)]
struct EntrySpec {
    plugin: &'static str,
    settings: Json,
}

#[derive(Debug, Clone)]
enum Operation {
    Request {
        worker: usize,
        request: RequestSpec,
    },
    /// Ends the request at this place among those in flight.
    End {
        place: usize,
        status: u16,
    },
    Advance(u64),
    /// Writes a cell of all entries, as another plugin instance does.
    Write(&'static str),
    Remove(&'static str),
    /// Prepares the chain again, as a reload does.
    Reload,
}

#[derive(Debug, Clone)]
struct RequestSpec {
    method: Method,
    target: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    is_leader_lock: bool,
}

impl Sidecar {
    fn new(entries: &[EntrySpec], reuse: ReuseSettings) -> Self {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1_000_000));
        let states = StateStore::with_clock(clock.clone());
        let entries = entries.iter().zip(0..).map(|(entry, order)| {
            let name = format!("{}/{order}", entry.plugin);
            test_entry(
                &name,
                order,
                plugin_bytes(entry.plugin),
                &entry.settings.to_string(),
                &states,
            )
        });
        let snapshot = Arc::new(Snapshot::new(1, ctrlmesh_contract::Digest::of(b""), entries.collect()));
        let worker = || {
            let handle = test_handle(Metrics::default());
            Rc::new(Instances::new(Arc::clone(test_engine()), handle, reuse))
        };
        let sidecar = Self {
            snapshot,
            states,
            clock,
            workers: [worker(), worker()],
            in_flight: Vec::new(),
        };
        sidecar.reload();
        sidecar
    }

    fn reload(&self) {
        for worker in &self.workers {
            worker.prepare(&self.snapshot).unwrap();
        }
    }

    /// Carries an operation out, and returns what can be seen of it.
    async fn apply(&mut self, operation: &Operation) -> String {
        match operation {
            Operation::Request { worker, request } => {
                let view = request.view();
                let matched = self.snapshot.matching_entries(&MatchQuery::from(&view));
                let worker = Rc::clone(&self.workers[*worker]);
                let plugins = Plugins::new(Arc::clone(&self.snapshot), matched, Rc::new(view), worker);
                let begun = Instant::now();
                let decision = self.text(plugins.on_request().await);
                let seen = format!("{decision} after {:?}: {}", begun.elapsed(), plugins.describe());
                self.in_flight.push(plugins);
                seen
            }
            Operation::End { place, status } if !self.in_flight.is_empty() => {
                let plugins = self.in_flight.remove(place % self.in_flight.len());
                plugins.on_complete(&outcome(*status));
                plugins.describe()
            }
            Operation::End { .. } => String::new(),
            Operation::Advance(ms) => {
                self.clock.advance(Duration::from_millis(*ms));
                String::new()
            }
            Operation::Write(key) => {
                for (_, state) in self.states.entries() {
                    let version = state.get(key).ok().flatten().map_or(0, |cell| cell.version);
                    let _ = state.compare_and_swap(key, version, vec![1]);
                }
                String::new()
            }
            Operation::Remove(key) => {
                for (_, state) in self.states.entries() {
                    state.remove(key);
                }
                String::new()
            }
            Operation::Reload => {
                self.reload();
                String::new()
            }
        }
    }

    fn text(&self, decision: RequestDecision) -> String {
        let name = |id| {
            let entry = self.snapshot.entries().iter().find(|entry| entry.id == id);
            entry.map(|entry| entry.name.as_str()).unwrap_or_default()
        };
        match decision {
            RequestDecision::Proceed(edits) => {
                let edits = edits.iter().map(|(entry, edit)| format!("{} {edit:?}", name(*entry)));
                edits.collect::<Vec<_>>().join(", ")
            }
            RequestDecision::Stop(Stop::Reply(reply)) => format!("{reply:?}"),
            RequestDecision::Stop(Stop::Answer(answer)) => format!("{answer:?}"),
            RequestDecision::Stop(Stop::Reset(reset)) => format!("{reset:?}"),
            RequestDecision::Stop(Stop::RefuseConnections(length)) => format!("refused for {length:?}"),
        }
    }

    /// State, counters and reports of all entries.
    fn state(&self) -> BTreeMap<String, String> {
        let entries = self.states.entries().into_iter().map(|(name, state)| {
            let (series, dropped) = state.series().snapshot();
            let reports = state.rendered_reports();
            (name, format!("{:#?} {series:#?} {dropped} {reports:?}", state.dump()))
        });
        entries.collect()
    }

    /// Number of verdicts that were repeated, and whether any plugin is impure.
    fn repeated(&self) -> (u64, bool) {
        let counts = self.workers.iter().map(|worker| worker.repeated_verdicts()).sum();
        let is_impure = self.snapshot.entries().iter().any(|entry| entry.reuse.is_impure());
        (counts, is_impure)
    }
}

impl RequestSpec {
    fn view(&self) -> RequestView {
        let headers = self.headers.iter();
        let request = headers.fold(request(self.method.clone(), self.target), |request, (name, value)| {
            request.header(name, value)
        });
        request.with(|view| view.is_leader_lock.set(self.is_leader_lock)).view()
    }
}

fn outcome(status: u16) -> Outcome {
    Outcome {
        status,
        upstream_status: status,
        failure: None,
        duration: Duration::from_millis(2),
        upstream: Duration::from_millis(1),
        request_bytes: 0,
        response_bytes: 7,
    }
}

fn plugin_bytes(name: &str) -> &'static [u8] {
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

/// What was different, and how many verdicts were repeated.
struct Compared {
    difference: Option<String>,
    repeated: u64,
}

/// Runs the operations in both sidecars.
fn compare(entries: &[EntrySpec], operations: &[Operation], audited_one_in: u64) -> Compared {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut repeating = Sidecar::new(entries, reuse(true, audited_one_in));
        let mut calling = Sidecar::new(entries, reuse(false, 1));
        let mut difference = None;
        for (at, operation) in operations.iter().enumerate() {
            let seen = [repeating.apply(operation).await, calling.apply(operation).await];
            if seen[0] != seen[1] {
                difference = Some(format!("operation {at}, {operation:?}: {seen:#?}"));
                break;
            }
        }
        let (repeated, is_impure) = repeating.repeated();
        let states = [repeating.state(), calling.state()];
        if difference.is_none() && states[0] != states[1] {
            difference = Some(format!("states differ: {states:#?}"));
        }
        if difference.is_none() && is_impure {
            difference = Some("a plugin was found impure".into());
        }
        Compared { difference, repeated }
    })
}

const FACTS: [&str; 20] = [
    "traffic",
    "verb",
    "group",
    "version",
    "resource",
    "subresource",
    "namespace",
    "name",
    "facts",
    "method",
    "path",
    "host",
    "port",
    "size",
    "userAgent",
    "labelSelector",
    "fieldSelector",
    "isLeaderLock",
    "isRecheck",
    "note",
];

/// Answers that questions may get in the streams.
const ANSWERS: [&str; 14] = [
    "",
    "a",
    "b",
    "1",
    "2",
    "none",
    "pods",
    "true",
    "Verb::Get",
    "Verb::List",
    "GET",
    "x/1",
    "a=b",
    "None",
];

fn fact() -> impl Strategy<Value = Json> {
    prop_oneof![
        8 => prop::sample::select(&FACTS[..]).prop_map(Json::from),
        4 => prop::sample::select(vec!["x-a", "X-A", "x-b", "authorization"]).prop_map(|name| json!({"header": name})),
        4 => prop::sample::select(vec!["q", "Q", "watch"]).prop_map(|name| json!({"query": name})),
        3 => prop::sample::select(vec!["k", "l"]).prop_map(|key| json!({"cell": key})),
        1 => Just(json!({"cells": ["k", "l"]})),
        1 => (0_u64..400).prop_map(|ms| json!({"isAfter": 1_000_000_000 + ms})),
    ]
}

fn leaf() -> impl Strategy<Value = Json> {
    let reuse = prop_oneof![
        6 => Just(json!("whileUnchanged")),
        1 => Just(json!("never")),
        1 => (0_u64..400).prop_map(|ms| json!({"until": 1_000_000_000 + ms})),
    ];
    let edit = prop::sample::select(vec!["", "a=1", "a=2", "a=3"]);
    let effect = prop_oneof![
        6 => Just(json!({})),
        2 => (0_u64..3, any::<bool>()).prop_map(|(by, at_once)| {
            json!({"counts": [["seen", "l", by], ["more", "", 1]], "countsAtOnce": at_once})
        }),
        1 => (0_u64..3).prop_map(|note| json!({"note": note})),
        1 => Just(json!({"rule": "r"})),
        3 => (1_u32..4, prop::sample::select(vec![0, 50]))
            .prop_map(|(burst, wait)| json!({"tokens": {"key": "t", "burst": burst, "maxWaitMs": wait}})),
        2 => (1_u32..3).prop_map(|max| json!({"place": {"key": "p", "burst": max}})),
        1 => Just(json!({"write": "k"})),
        1 => Just(json!({"remove": "l"})),
        1 => Just(json!({"adds": "n"})),
        1 => Just(json!({"logs": true})),
        1 => Just(json!({"readsClock": true})),
    ];
    (edit, reuse, prop::collection::vec(effect, 1..3)).prop_map(|(edit, reuse, effects)| {
        let mut leaf = json!({"edit": edit, "reuse": reuse});
        for effect in effects {
            leaf.as_object_mut()
                .unwrap()
                .extend(effect.as_object().unwrap().clone());
        }
        json!({"leaf": leaf})
    })
}

fn tree() -> impl Strategy<Value = EntrySpec> {
    let node = leaf().prop_recursive(4, 16, 3, |node| {
        let answers = prop::collection::vec((prop::sample::select(&ANSWERS[..]), node.clone()), 1..3);
        (fact(), answers, node)
            .prop_map(|(ask, answers, otherwise)| {
                json!({"question": {"ask": ask, "answers": answers, "otherwise": otherwise}})
            })
            .boxed()
    });
    node.prop_map(|root| EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": root}),
    })
}

/// The built-in plugins with settings that wake them for the requests of the streams.
fn builtin() -> impl Strategy<Value = EntrySpec> {
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"]}]);
    let specs = [
        (
            "shard-selector",
            json!({
                "shard": "s",
                "limits": [{
                    "relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}],
                    "selector": {"matchLabels": {"shard": "s"}},
                }],
            }),
        ),
        (
            "rate-limit",
            json!({"rateLimitings": [
                {"name": "r", "resourceRules": rules, "bucket": {"limit": 5, "interval": "1s", "burst": 3}},
            ]}),
        ),
        (
            "circuit-breaker",
            json!({"rateLimitings": [{
                "name": "b", "resourceRules": rules, "triggerPolicy": "Normal",
                "trip": {"errorPercent": 50, "minimumRequests": 3, "window": "1s"},
                "recoverPolicy": {"type": "SleepingWindow", "sleepingWindowSize": "1s"}, "key": "resource",
            }]}),
        ),
        (
            "fault-inject",
            json!({"faults": [{
                "name": "f", "match": {"resources": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]},
                "do": {"delay": {"for": "5ms"}}, "percent": 50,
            }]}),
        ),
    ];
    let specs = specs.map(|(plugin, settings)| Just(EntrySpec { plugin, settings }));
    Union::new(specs)
}

fn request_spec() -> impl Strategy<Value = RequestSpec> {
    let targets = [
        (Method::GET, "/api/v1/namespaces/a/pods/x"),
        (Method::GET, "/api/v1/namespaces/b/pods/x"),
        (Method::GET, "/api/v1/namespaces/a/pods/y"),
        (Method::GET, "/api/v1/pods"),
        (Method::GET, "/api/v1/pods?q=1"),
        (Method::GET, "/api/v1/pods?q=%31&q=2"),
        (Method::GET, "/api/v1/pods?Q=1"),
        (Method::GET, "/api/v1/pods?labelSelector=a%3Db"),
        (Method::GET, "/api/v1/pods?fieldSelector=a%3Db"),
        (Method::GET, "/api/v1/pods?watch=1"),
        (Method::GET, "/api/v1/p%6Fds"),
        (Method::PUT, "/apis/apps/v1/namespaces/a/deployments/x/status"),
        (Method::POST, "/apis/apps/v1/namespaces/a/deployments"),
        (Method::DELETE, "/api/v1/namespaces/a/pods/x"),
        (Method::GET, "/apis/coordination.k8s.io/v1/namespaces/a/leases/x"),
        (Method::GET, "/healthz"),
    ];
    let headers = [
        vec![],
        vec![("x-a", "1")],
        vec![("x-a", "2")],
        vec![("x-a", "1"), ("x-a", "2")],
        vec![("x-b", "1"), ("authorization", "1")],
        vec![("authorization", "2")],
        vec![("user-agent", "a"), ("content-length", "1")],
        vec![("user-agent", "b")],
    ];
    let target = prop::sample::select(targets.to_vec());
    (target, prop::sample::select(headers.to_vec()), any::<bool>()).prop_map(
        |((method, target), headers, is_leader_lock)| RequestSpec {
            method,
            target,
            headers,
            is_leader_lock,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (0_usize..2, request_spec()).prop_map(|(worker, request)| Operation::Request { worker, request }),
        4 => (0_usize..8, prop::sample::select(vec![200, 404, 500])).prop_map(|(place, status)| Operation::End { place, status }),
        2 => (0_u64..300).prop_map(Operation::Advance),
        1 => prop::sample::select(vec!["k", "l"]).prop_map(Operation::Write),
        1 => prop::sample::select(vec!["k", "l"]).prop_map(Operation::Remove),
        1 => Just(Operation::Reload),
    ]
}

fn streams() -> u32 {
    let number = std::env::var(STREAMS_VARIABLE).ok();
    number.and_then(|number| number.parse().ok()).unwrap_or(STREAMS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(streams()))]

    #[test]
    fn nothing_differs_between_repeated_verdicts_and_calls(
        entries in prop::collection::vec(prop_oneof![3 => tree(), 1 => builtin()], 1..4),
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
