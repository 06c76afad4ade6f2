//! Against an API server in memory and sidecars at loopback addresses, over real connections.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use ctrlmesh_contract::Chain;
use ctrlmesh_contract::names::{annotations, labels};
use ctrlmesh_contract::status::Status;
use ctrlmesh_manager_planner::samples;
use ctrlmesh_testkit::{ApiServer, Fault, Gate, Resource, Rule, Snapshot};
use futures_util::future::pending;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::*;
use crate::test_env::{self, Running, put, text, until};

mod bypassed;
mod claims;
mod deletion;
mod leaders;
mod lost_pods;
mod nudges;
mod overlaps;
mod restored_chains;
mod scale;
mod sidecar_support;
mod two_managers;
mod two_shards;
mod uninjected;

const DEMO: &str = "demo";
const CHAIN: &str = "ctrlmesh-chain";
const SLOT: &str = "ctrlmesh-plugins-0";

/// The status that a sidecar reports; `None`: it never answers.
type SharedStatus = Arc<Mutex<Option<Status>>>;

/// A sidecar, as far as a manager sees it.
struct Sidecar {
    ip: String,
    port: u16,
    says: SharedStatus,
    asked: Arc<AtomicU64>,
    task: AbortHandle,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sidecar {
    /// At the `last` address of 127.0.0.0/24.
    async fn start(last: u8, port: u16) -> (Self, u16) {
        let ip = format!("127.0.0.{last}");
        let listener = TcpListener::bind((ip.as_str(), port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (says, asked) = (SharedStatus::default(), Arc::new(AtomicU64::new(0)));
        let state = (Arc::clone(&says), Arc::clone(&asked));
        let router = Router::new().route("/status", get(serve_status)).with_state(state);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let task = task.abort_handle();
        let sidecar = Self {
            ip,
            port,
            says,
            asked,
            task,
        };
        (sidecar, port)
    }

    fn set_status(&self, status: Status) {
        *self.says.lock().unwrap() = Some(status);
    }

    fn poll_count(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

async fn serve_status(State((says, asked)): State<(SharedStatus, Arc<AtomicU64>)>) -> String {
    asked.fetch_add(1, Ordering::Relaxed);
    let said = says.lock().unwrap().clone();
    match said {
        Some(status) => serde_json::to_string(&status).unwrap(),
        None => pending().await,
    }
}

/// The status of a pod that runs this chain.
fn status_running(pod: &str, generation: u64, chain: Option<&Chain>) -> Status {
    let mut status = samples::running(generation, chain.into_iter().flat_map(|chain| &chain.entries));
    (status.pod.namespace, status.pod.name) = (DEMO.to_owned(), pod.to_owned());
    status
}

fn pod(name: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": DEMO, "name": name, "labels": { labels::WATCHING: "true" },
            "annotations": { annotations::INJECTED: "kubeconfig" } },
        "spec": { "containers": [{ "name": "a", "image": "a" }] },
        "status": { "phase": "Running", "podIP": ip },
    })
}

async fn server() -> ApiServer {
    test_env::builder().namespace(DEMO).start().await.unwrap()
}

/// A pod with a sidecar that answers at the `last` address of 127.0.0.0/24, and the port of sidecars.
async fn start_with_sidecar(last: u8, pod: impl FnOnce(&str) -> Value) -> (Sidecar, u16, ApiServer) {
    let (sidecar, port) = Sidecar::start(last, 0).await;
    let pod = pod(&sidecar.ip);
    sidecar.set_status(status_running(text(&pod, "/metadata/name"), 0, None));
    let server = server().await;
    put(&server, pod);
    (sidecar, port, server)
}

async fn start(server: &ApiServer, port: u16, flags: &[&str]) -> (Context, Running) {
    let port = format!("--sidecar-port={port}");
    let fast = ["--rest-config-qps=10000", "--rest-config-burst=10000", port.as_str()];
    let flags: Vec<&str> = fast.into_iter().chain(flags.iter().copied()).collect();
    let context = test_env::context(server, &flags).await;
    let running = Running::start(&context, run_with(context.clone(), Duration::from_millis(300)));
    (context, running)
}

fn chain(state: &Snapshot<'_>) -> Option<Chain> {
    let map = state.get("configmaps", DEMO, CHAIN)?;
    Chain::parse(map["data"]["chain.yaml"].as_str()?.as_bytes()).ok()
}

async fn until_entries(server: &ApiServer, count: usize) -> Chain {
    let has = |state: &Snapshot<'_>| chain(state).is_some_and(|chain| chain.entries.len() == count);
    until(server, "the chain is written", has).await;
    server.store().read(chain).unwrap()
}

/// Waits for a counter, which is increased after the write that it counts.
async fn until_counted(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < test_env::PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Status, reason and message of a FaultInjection's condition.
fn condition(state: &Snapshot<'_>, name: &str, kind: &str) -> [String; 3] {
    condition_of(state, "faultinjections", name, kind)
}

fn condition_of(state: &Snapshot<'_>, plural: &str, name: &str, kind: &str) -> [String; 3] {
    let object = state.get(&format!("{plural}.ctrlmesh.kusionstack.io"), DEMO, name);
    let list = object.and_then(|object| object["status"]["conditions"].as_array());
    let mut list = list.into_iter().flatten();
    let condition = list.find(|condition| condition["type"] == kind);
    ["status", "reason", "message"].map(|field| condition.map_or("", |it| text(it, &format!("/{field}"))).to_owned())
}

#[tokio::test]
async fn silent_pod_holds_up_nothing_and_is_polled_less_and_less() {
    let (silent, port) = Sidecar::start(31, 0).await;
    let server = server().await;
    put(&server, pod("silent", &silent.ip));
    put(&server, pod("nobody", "127.0.0.32"));
    put(&server, samples::faults("a"));
    let (context, running) = start(&server, port, &[]).await;
    until_entries(&server, 1).await;
    for number in 0..3 {
        let changed = Instant::now();
        put(&server, samples::faults(&format!("b{number}")));
        until_entries(&server, 2 + number).await;
        let took = changed.elapsed();
        assert!(took < Duration::from_millis(1500), "it waited for a pod: {took:?}");
    }
    let counts = &context.metrics.distribution;
    let (from, polls, passes) = (Instant::now(), counts.polls_failed.get(), counts.passes.get());
    while counts.polls_failed.get() < polls + 6 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(from.elapsed() > Duration::from_secs(1), "{:?}", from.elapsed());
    let passed = counts.passes.get() - passes;
    assert!(passed < 12, "{passed} passes, and nothing has changed");
    assert!(silent.poll_count() > 0);
    running.stop().await;
}

#[tokio::test]
async fn chain_is_enforced_when_its_sidecars_report_it_and_polling_stops_when_nothing_is_left() {
    let (sidecar, port, server) = start_with_sidecar(33, |ip| pod("operator-0", ip)).await;
    put(&server, samples::faults("a"));
    let (context, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let chain = until_entries(&server, 1).await;
    let is_nudged_to = |generation: u64| {
        let generation = json!(generation.to_string());
        move |state: &Snapshot<'_>| {
            let pod = state.get("pods", DEMO, "operator-0").unwrap();
            pod["metadata"]["annotations"][annotations::CHAIN_GENERATION] == generation
        }
    };
    until(&server, "the pod is nudged", is_nudged_to(chain.generation)).await;
    let loaded = Instant::now();
    sidecar.set_status(status_running("operator-0", chain.generation, Some(&chain)));
    until(&server, "it is enforced", |state| {
        condition(state, "a", "Enforced")[0] == "True"
    })
    .await;
    let took = loaded.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    server
        .store()
        .delete("faultinjections.ctrlmesh.kusionstack.io", DEMO, "a")
        .unwrap();
    let chain = until_entries(&server, 0).await;
    until(&server, "the pod is nudged", is_nudged_to(chain.generation)).await;
    sidecar.set_status(status_running("operator-0", chain.generation, Some(&chain)));
    // A pass a second while there is something to do, and none when there is not.
    let counts = &context.metrics.distribution;
    let (mut polls, mut since) = (counts.polls.get(), Instant::now());
    let begun = Instant::now();
    while since.elapsed() < Duration::from_secs(3) {
        if counts.polls.get() != polls {
            (polls, since) = (counts.polls.get(), Instant::now());
        }
        assert!(begun.elapsed() < test_env::PATIENCE, "it is asked for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    task.stop().await;
}

#[tokio::test]
async fn objects_report_write_failed_when_chain_cannot_be_written() {
    let server = server().await;
    let refuse = Rule::new(Fault::Status {
        code: 403,
        retry_after: None,
    });
    server.faults().add(refuse.verb("create").resource("configmaps"));
    put(&server, samples::faults("a"));
    let (context, running) = start(&server, 1, &[]).await;
    until(&server, "the condition has the failed write", |state| {
        condition(state, "a", "Distributed")[1] == "WriteFailed"
    })
    .await;
    server.store().read(|state| {
        assert_eq!(condition(state, "a", "Enforced")[..2], ["False", "Progressing"]);
    });
    until_counted(|| context.metrics.distribution.passes_failed.get() > 0).await;
    server.faults().clear();
    until(&server, "it is written in the end", |state| {
        condition(state, "a", "Distributed")[0] == "True"
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn every_pod_is_nudged_when_some_nudges_fail() {
    let server = server().await;
    for name in ["a", "b", "c"] {
        put(&server, pod(name, "127.0.0.34"));
    }
    let refuse = Rule::new(Fault::Status {
        code: 403,
        retry_after: None,
    });
    let refused = server.faults().add(refuse.verb("patch").resource("pods").times(2));
    put(&server, samples::faults("a"));
    let (_, running) = start(&server, 1, &[]).await;
    until(&server, "all pods are nudged", |state| {
        let pods: Vec<_> = state.list("pods").collect();
        let is_nudged = |pod: &&Value| pod["metadata"]["annotations"][annotations::CHAIN_GENERATION] == "1";
        pods.len() == 3 && pods.iter().all(is_nudged)
    })
    .await;
    assert_eq!(server.faults().times_applied(refused), 2);
    running.stop().await;
}

#[tokio::test]
async fn foreign_keys_are_removed_from_plugin_config_maps() {
    let server = server().await;
    put(&server, samples::faults("a"));
    let (context, running) = start(&server, 1, &[]).await;
    until(&server, "there are plugins", |state| {
        state.get("configmaps", DEMO, SLOT).is_some()
    })
    .await;
    let (mut map, ours) = server.store().read(|state| {
        let map = state.get("configmaps", DEMO, SLOT).unwrap().clone();
        let ours = map["binaryData"].clone();
        (map, ours)
    });
    let stale = format!("{}.wasm.zst", "0".repeat(64));
    for key in ["theirs", stale.as_str()] {
        map["binaryData"][key] = json!("AAAA");
    }
    put(&server, map);
    until(&server, "they are gone", |state| {
        state
            .get("configmaps", DEMO, SLOT)
            .is_some_and(|map| map["binaryData"] == ours)
    })
    .await;
    let patches = || {
        let seen = server.requests().recent().into_iter();
        seen.filter(|seen| seen.verb == "patch" && seen.target.contains(SLOT))
            .count()
    };
    // A refused or repeated write would show in the next passes.
    let (before, passes) = (patches(), context.metrics.distribution.passes.get());
    put(&server, samples::faults("b"));
    until_entries(&server, 2).await;
    assert!(context.metrics.distribution.passes.get() > passes);
    assert_eq!(patches(), before);
    running.stop().await;
}

#[tokio::test]
async fn reports_of_other_pods_and_unwritten_generations_are_not_believed() {
    let (liar, port) = Sidecar::start(35, 0).await;
    liar.set_status(status_running("liar", u64::MAX, None));
    let (other, _) = Sidecar::start(36, port).await;
    other.set_status(status_running("somebody", 1, None));
    let server = server().await;
    put(&server, pod("liar", &liar.ip));
    put(&server, pod("other", &other.ip));
    put(&server, samples::faults("a"));
    let (_, running) = start(&server, port, &[]).await;
    assert_eq!(until_entries(&server, 1).await.generation, 1);
    until(&server, "both are named", |state| {
        let [_, _, message] = condition(state, "a", "Enforced");
        message.contains("which no manager has written") && message.contains("answers as pod \"somebody\"")
    })
    .await;
    put(&server, samples::faults("b"));
    assert_eq!(until_entries(&server, 2).await.generation, 2);
    running.stop().await;
}

#[tokio::test]
async fn missing_kind_holds_up_no_other_kind() {
    let ours = |plural: &str, kind: &str| {
        Resource::namespaced("ctrlmesh.kusionstack.io", "v1alpha1", plural, kind).with_status()
    };
    let server = ApiServer::builder()
        .namespace(test_env::NAMESPACE)
        .namespace(DEMO)
        .resource(ours("shardingconfigs", "ShardingConfig"))
        .resource(ours("faultinjections", "FaultInjection"))
        .start()
        .await
        .unwrap();
    put(&server, samples::faults("a"));
    let (context, running) = start(&server, 1, &[]).await;
    until_entries(&server, 1).await;
    let lines = [
        "kind_unseen{kind=\"CircuitBreaker\"} 1",
        "kind_unseen{kind=\"FaultInjection\"} 0",
    ];
    until_counted(|| {
        let shown = context.metrics.render().unwrap();
        lines.iter().all(|line| shown.contains(line))
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn foreign_targets_are_removed_from_status() {
    let server = server().await;
    let mut object = samples::faults("a");
    object["status"] = json!({ "targetStatus": [{ "podName": "gone" }] });
    put(&server, object);
    let (_, running) = start(&server, 1, &[]).await;
    until(&server, "they are gone", |state| {
        let object = state.get("faultinjections.ctrlmesh.kusionstack.io", DEMO, "a").unwrap();
        object["status"]["observedGeneration"].is_number() && object["status"]["targetStatus"] == json!([])
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn manager_stops_before_its_namespaces_are_listed() {
    let server = server().await;
    let hold = server
        .faults()
        .add(Rule::new(Fault::Hold(Gate::new())).resource("namespaces"));
    let (_, running) = start(&server, 1, &[]).await;
    until_counted(|| server.faults().times_applied(hold) > 0).await;
    running.stop().await;
}

#[tokio::test]
async fn chain_is_written_while_pods_change_all_the_time() {
    let server = server().await;
    let (_, running) = start(&server, 1, &["--debounce-ms=1000"]).await;
    put(&server, samples::faults("a"));
    let changing = async {
        let mut often = tokio::time::interval(Duration::from_millis(50));
        for number in 0_u64.. {
            often.tick().await;
            let mut pod = pod("operator-0", "127.0.0.44");
            pod["metadata"]["annotations"] = json!({ "changed": number.to_string() });
            put(&server, pod);
        }
    };
    tokio::select! {
        () = changing => {}
        chain = until_entries(&server, 1) => assert_eq!(chain.generation, 1),
    }
    running.stop().await;
}
