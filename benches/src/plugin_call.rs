//! Cost of a warm plugin call: host → guest → host, with the verdict converted and validated; of a fresh instance; and the memory of an
//! instance. In this process, with the production engine of this build.

use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ctrlmesh_proxy::plugin::request_view::{ClientHeaders, Facts, RequestState, RequestView};
use ctrlmesh_proxy::plugin::verdict::{Outcome, RequestAction, Traffic};
use ctrlmesh_proxy::wasm::{CompileMode, Compiler, Engine, EntryConfig, Instance, InstanceInfo, Plugin, StateStore};
use ctrlmesh_wire::Verb;

use crate::bench_env::BenchEnv;
use crate::stats::{Durations, as_micros};
use crate::table;

const CALLS: usize = 200_000;
const STARTS: usize = 2_000;
/// Instances whose memory is measured together.
const INSTANCES: u64 = 100;

const SETTINGS: &str = r#"{
    "limits": [{
        "relateResources": [{"apiGroups": ["*"], "resources": ["pods", "services"]}],
        "selector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b", "c"]}]}
    }],
    "leaderElectionName": "my-operator", "shard": "shard-0"
}"#;

pub(crate) fn measure_plugin_calls(env: &BenchEnv) -> anyhow::Result<()> {
    let engine = Engine::new()?;
    // The sidecar's binary compiles.
    let mode = CompileMode::Child {
        program: env.program.clone(),
    };
    let plugin = Compiler::new(mode, None)?.load(&engine, ctrlmesh_plugins_builtin::SHARD_SELECTOR)?;
    let mut instance = start_instance(&engine, &plugin)?;
    let (list, get) = (request_view(Verb::List, ""), request_view(Verb::Get, "web-0"));
    let edits = |instance: &mut Instance, view: &Rc<RequestView>| match instance.on_request(view, false)?.action {
        RequestAction::Proceed(edits) => Ok(edits.len()),
        other => Err(anyhow::anyhow!("shard-selector says {other:?}")),
    };
    ensure!(edits(&mut instance, &list)? == 1 && edits(&mut instance, &get)? == 0);
    let rows = [
        measure_calls("on-request, list: one edit", CALLS, || {
            drop(black_box(instance.on_request(&list, false)));
        })?,
        measure_calls("on-request, get: no edit", CALLS, || {
            drop(black_box(instance.on_request(&get, false)));
        })?,
        measure_calls("on-complete: does nothing", CALLS, || {
            drop(black_box(instance.on_complete(&get, &OUTCOME)));
        })?,
        measure_calls("fresh instance, configured", STARTS, || {
            drop(black_box(start_instance(&engine, &plugin)));
        })?,
    ];
    let header = ["shard-selector", "median µs", "p99 µs"];
    env.report.print_table("Calls of a plugin", &header, rows);
    env.report.print_note(&format!(
        "An instance that has answered a request takes {} KiB.",
        instance_memory(&engine, &plugin)? >> 10
    ));
    Ok(())
}

/// Times each call by itself, including some tens of nanoseconds for reading the clock.
fn measure_calls(what: &str, calls: usize, mut call: impl FnMut()) -> anyhow::Result<Vec<String>> {
    for _ in 0..calls / 10 {
        call();
    }
    let times = (0..calls).map(|_| {
        let start = Instant::now();
        call();
        start.elapsed()
    });
    let times = Durations::new(times.collect());
    let at = |share| times.per_mille(share).map(as_micros).context("no call");
    Ok(vec![
        what.to_owned(),
        table::format_number(Some(at(500)?), 2),
        table::format_number(Some(at(990)?), 2),
    ])
}

/// Resident bytes of an instance that has answered a request.
fn instance_memory(engine: &Arc<Engine>, plugin: &Arc<Plugin>) -> anyhow::Result<u64> {
    let before = crate::process::own_memory()?;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let mut instance = start_instance(engine, plugin)?;
        instance.on_request(&request_view(Verb::List, ""), false)?;
        instances.push(instance);
    }
    Ok(crate::process::own_memory()?.saturating_sub(before) / INSTANCES)
}

fn start_instance(engine: &Arc<Engine>, plugin: &Arc<Plugin>) -> anyhow::Result<Instance> {
    let entry = Arc::new(EntryConfig {
        name: "bench".into(),
        settings_json: SETTINGS.into(),
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

/// A request for pods with the eight headers that client-go sends.
fn request_view(verb: Verb, name: &str) -> Rc<RequestView> {
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
    let fields = headers.into_iter().map(|(name, value)| {
        (
            http::HeaderName::from_static(name),
            http::HeaderValue::from_static(value),
        )
    });
    let facts = Facts {
        verb,
        version: "v1".into(),
        resource: "pods".into(),
        namespace: "operator-demo".into(),
        name: name.into(),
        ..Facts::without_resource()
    };
    Rc::new(RequestView {
        traffic: Traffic::Api,
        facts: Rc::new(facts),
        method: http::Method::GET,
        uri: http::Uri::from_static("/api/v1/namespaces/operator-demo/pods"),
        host: "kubernetes.default.svc".into(),
        port: 443,
        is_leader_lock: false.into(),
        state: RequestState::default(),
        headers: ClientHeaders::new(fields.collect()),
    })
}

const OUTCOME: Outcome = Outcome {
    status: 200,
    upstream_status: 200,
    failure: None,
    duration: Duration::from_millis(2),
    upstream: Duration::from_millis(1),
    request_bytes: 0,
    response_bytes: 150,
};
