//! What a warm call of a plugin costs: host → guest → host, verdict converted and validated; and what an instance and a
//! fresh start cost. A plain loop, processor time of the thread, medians of several runs.
//!
//! `cargo bench -p ctrlmesh-proxy --bench plugin_call`

#![expect(clippy::print_stdout, reason = "it prints a table")]

use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cpu_time::{ProcessTime, ThreadTime};
use ctrlmesh_plugins_builtin::{SHARD_SELECTOR, guests};
use ctrlmesh_proxy::exchange::RequestView;
use ctrlmesh_proxy::verdict::{Outcome, RequestAction, Traffic};
use ctrlmesh_proxy::wasm::{CompileMode, Compiler, Engine, EntryConfig, Instance, InstanceInfo, Plugin, StateStore};

const RUNS: usize = 9;
const CALLS: u32 = 20_000;
const STARTS: u32 = 500;

const SETTINGS: &str = r#"{
    "limits": [{
        "relateResources": [{"apiGroups": ["*"], "resources": ["pods", "services"]}],
        "selector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b", "c"]}]}
    }],
    "leaderElectionName": "my-operator", "shard": "shard-0"
}"#;

fn main() -> anyhow::Result<()> {
    let bare = resident_kib()?;
    let engine = Engine::new()?;
    let plugin = compile(&engine, SHARD_SELECTOR)?;
    memory(bare, &engine, &plugin)?;
    let mut instance = start(&engine, &plugin, SETTINGS)?;
    let (list, get) = (view("list", ""), view("get", "web-0"));

    let verdict = instance.on_request(&list, false)?;
    anyhow::ensure!(
        matches!(&verdict.action, RequestAction::Proceed(edits) if !edits.is_empty()),
        "{verdict:?}"
    );

    report("shard-selector on-request, list (one edit)", CALLS, || {
        drop(black_box(instance.on_request(&list, false)));
    });
    report("shard-selector on-request, get (no edit)", CALLS, || {
        drop(black_box(instance.on_request(&get, false)));
    });

    let idle = guests::get("spin").ok_or_else(|| anyhow::anyhow!("no guest"))?;
    let idle = compile(&engine, idle)?;
    let mut other = start(&engine, &idle, r#"{"in": "on-request"}"#)?;
    report("on-complete of a guest that does nothing", CALLS, || {
        drop(black_box(other.on_complete(&get, &outcome())))
    });

    report("fresh instance, configured", STARTS, || {
        drop(black_box(start(&engine, &plugin, SETTINGS)))
    });
    ticker();
    Ok(())
}

/// What the epoch ticker takes while nothing runs.
fn ticker() {
    let idle = Duration::from_secs(2);
    let start = ProcessTime::now();
    std::thread::sleep(idle);
    let share = start.elapsed().as_secs_f64() / idle.as_secs_f64();
    println!("{:<48} {:>9.2} % of a core", "epoch ticker, idle", share * 100.0);
}

/// Resident memory: of an engine with one plugin, compiled in a child as a sidecar does it, and of each instance that has
/// answered a request.
fn memory(bare: i64, engine: &Arc<Engine>, plugin: &Arc<Plugin>) -> anyhow::Result<()> {
    const INSTANCES: i64 = 100;
    let loaded = resident_kib()?;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let mut instance = start(engine, plugin, SETTINGS)?;
        instance.on_request(&view("list", ""), false)?;
        instances.push(instance);
    }
    let each = (resident_kib()? - loaded) / INSTANCES;
    println!("{:<48} {bare:>9} KiB", "resident memory before the engine");
    println!("{:<48} {:>9} KiB", "of the engine with one plugin", loaded - bare);
    println!("{:<48} {each:>9} KiB", "of an instance");
    Ok(())
}

fn resident_kib() -> anyhow::Result<i64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or_else(|| anyhow::anyhow!("no VmRSS"))?.parse()?)
}

fn compile(engine: &Arc<Engine>, wasm: &[u8]) -> anyhow::Result<Arc<Plugin>> {
    let program = env!("CARGO_BIN_EXE_ctrlmesh-proxy").into();
    Ok(Compiler::new(CompileMode::Child { program }, None)?.load(engine, wasm)?)
}

fn start(engine: &Arc<Engine>, plugin: &Arc<Plugin>, settings: &str) -> anyhow::Result<Instance> {
    let entry = Arc::new(EntryConfig {
        name: "bench".into(),
        settings_json: settings.into(),
        timeout: Duration::from_millis(100),
        memory_bytes: 16 << 20,
        info: InstanceInfo {
            pod_namespace: "operator-demo".into(),
            ..InstanceInfo::default()
        },
    });
    let state = StateStore::new().entry("bench");
    Ok(Instance::start(engine, plugin, &entry, &state)?.0)
}

/// A request for pods, with the eight headers that client-go sends.
fn view(verb: &str, name: &str) -> Rc<RequestView> {
    let headers = [
        ("accept", "application/vnd.kubernetes.protobuf,application/json"),
        ("accept-encoding", "gzip"),
        (
            "authorization",
            "Bearer xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ),
        ("content-type", "application/json"),
        ("host", "127.0.0.1:5443"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("user-agent", "my-operator/v1.0.0 (linux/amd64) kubernetes/abcdef"),
        ("x-request-id", "1"),
    ];
    Rc::new(RequestView {
        traffic: Traffic::Api,
        verb: if verb == "list" {
            ctrlmesh_wire::Verb::List
        } else {
            ctrlmesh_wire::Verb::Get
        },
        group: String::new(),
        version: "v1".into(),
        resource: "pods".into(),
        subresource: String::new(),
        namespace: "operator-demo".into(),
        name: name.into(),
        method: http::Method::GET,
        uri: http::Uri::from_static("/api/v1/namespaces/operator-demo/pods"),
        host: "kubernetes.default.svc".into(),
        headers: headers
            .into_iter()
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    http::HeaderValue::from_static(value),
                )
            })
            .collect(),
    })
}

const fn outcome() -> Outcome {
    Outcome {
        status: 200,
        upstream_status: 200,
        failure: None,
        duration: Duration::from_millis(2),
        upstream: Duration::from_millis(1),
        request_bytes: 0,
        response_bytes: 150,
    }
}

/// Runs a loop several times and prints the median and the spread of processor time per call.
fn report(what: &str, calls: u32, mut call: impl FnMut()) {
    for _ in 0..calls / 10 {
        call();
    }
    let mut nanoseconds: Vec<u128> = (0..RUNS)
        .map(|_| {
            let start = ThreadTime::now();
            for _ in 0..calls {
                call();
            }
            start.elapsed().as_nanos() / u128::from(calls)
        })
        .collect();
    nanoseconds.sort_unstable();
    let at = |index: usize| nanoseconds.get(index).copied().unwrap_or_default();
    println!(
        "{what:<48} {:>9} ns (min {}, max {})",
        at(RUNS / 2),
        at(0),
        at(RUNS - 1)
    );
}
