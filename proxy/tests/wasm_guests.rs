//! Every way in which a guest can misbehave: the right fault, in time, and the next request meets a fresh instance.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ctrlmesh_plugins_builtin::guests;
use ctrlmesh_proxy::harness::{Harness, HarnessError, get, response};
use ctrlmesh_proxy::plugin::object_metadata::{PluginObjectController, PluginObjectMetadata};
use ctrlmesh_proxy::plugin::verdict::{Outcome, RequestAction, RequestEdit};
use ctrlmesh_proxy::wasm::{
    CompileMode, Compiler, Engine, EntryConfig, Fault, Instance, InstanceInfo, Level, Phase, StateStore,
};
use http::StatusCode;

/// Deadline where it is the question, and where it is not.
const TIMEOUT: Duration = Duration::from_millis(30);
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const MEMORY_BYTES: usize = 16 * 1024 * 1024;
const PHASES: [&str; 6] = [
    "configure",
    "on-request",
    "on-response",
    "on-objects",
    "on-complete",
    "on-crossed",
];

fn start(guest: &str, settings: &str) -> Result<Harness, HarnessError> {
    start_within(TEST_TIMEOUT, guest, settings)
}

fn start_within(timeout: Duration, guest: &str, settings: &str) -> Result<Harness, HarnessError> {
    let wasm = guests::get(guest).expect("the guest exists");
    Harness::with_limits(wasm, settings, timeout, MEMORY_BYTES)
}

fn request_outcome() -> Outcome {
    Outcome {
        status: 200,
        upstream_status: 200,
        failure: None,
        duration: Duration::from_micros(7),
        upstream: Duration::from_micros(5),
        request_bytes: 0,
        response_bytes: 3,
    }
}

/// Runs one phase of a guest and returns its fault.
fn fault_in(guest: &str, phase: &str, more: &str) -> Fault {
    fault_within(TEST_TIMEOUT, guest, phase, more)
}

fn fault_within(timeout: Duration, guest: &str, phase: &str, more: &str) -> Fault {
    let settings = format!(r#"{{"in": "{phase}"{more}}}"#);
    let fault = match (start_within(timeout, guest, &settings), phase) {
        (Err(HarnessError::Start(fault)), "configure") => fault,
        (Ok(mut plugin), "on-request") => plugin.request(&get("/api/v1/pods")).expect_err("a fault"),
        (Ok(mut plugin), "on-response") => plugin
            .response(&get("/api/v1/pods"), &response(StatusCode::OK))
            .expect_err("a fault"),
        (Ok(mut plugin), "on-objects") => plugin
            .objects(&get("/api/v1/pods"), vec![PluginObjectMetadata::default()])
            .expect_err("a fault"),
        (Ok(mut plugin), "on-complete") => plugin
            .complete(&get("/api/v1/pods"), &request_outcome())
            .expect_err("a fault"),
        (Ok(mut plugin), "on-crossed") => {
            let verdict = plugin.request(&get("/api/v1/pods")).expect("a verdict");
            let failed = Outcome {
                upstream_status: 500,
                ..request_outcome()
            };
            plugin.count(&verdict, &failed).expect_err("a fault")
        }
        (Ok(_), _) => panic!("{guest} in {phase} was not noticed"),
        (Err(error), _) => panic!("{guest} in {phase}: {error}"),
    };
    assert_eq!(fault.origin().phase.as_str(), phase);
    assert_eq!(fault.origin().entry, "harness");
    assert!(fault.to_string().contains("sha256:"), "{fault}");
    fault
}

#[test]
fn guest_that_never_returns_meets_its_deadline_in_every_phase() {
    for guest in ["spin", "host_calls"] {
        for phase in PHASES {
            assert!(
                matches!(fault_within(TIMEOUT, guest, phase, ""), Fault::Deadline { .. }),
                "{guest} {phase}"
            );
        }
    }
}

#[test]
fn deadline_is_kept_and_next_request_is_answered() {
    let mut plugin = start_within(TIMEOUT, "spin", r#"{"in": "on-request"}"#).expect("it starts");
    let started = Instant::now();
    let fault = plugin.request(&get("/api/v1/pods")).expect_err("a deadline");
    let elapsed = started.elapsed();
    assert!(
        matches!(fault, Fault::Deadline { limit, .. } if limit == TIMEOUT),
        "{fault}"
    );
    // On a busy machine a call gets more time by the clock, ten times its deadline at most.
    assert!(
        elapsed >= TIMEOUT && elapsed < 10 * TIMEOUT + TEST_TIMEOUT,
        "{elapsed:?}"
    );
    // A fresh instance of the same plugin serves the next phase.
    plugin
        .response(&get("/api/v1/pods"), &response(StatusCode::OK))
        .expect("a verdict");
}

#[test]
fn guest_that_is_slow_is_stopped_only_after_its_deadline() {
    // On the system's clock: the guest waits for it to move on.
    let engine = Engine::new().expect("an engine");
    let compiler = Compiler::new(CompileMode::InProcess, None).expect("a compiler");
    let plugin = compiler
        .load(&engine, guests::get("slow").expect("the guest exists"))
        .expect("a plugin");
    let answer = |timeout: Duration, ms: u32| {
        let entry = Arc::new(EntryConfig {
            name: "slow".into(),
            settings_json: format!(r#"{{"in": "on-complete", "ms": {ms}}}"#),
            timeout,
            memory_bytes: MEMORY_BYTES,
            info: InstanceInfo::default(),
        });
        let state = StateStore::new().entry("slow");
        let (mut instance, _) = Instance::start(&engine, &plugin, &entry, &state).expect("an instance");
        instance.on_complete(&Rc::new(get("/api/v1/pods").view()), &request_outcome())
    };
    assert_eq!(answer(TEST_TIMEOUT, 5), Ok(()));
    // Longer than the epoch ticker goes on without a new call.
    assert!(matches!(
        answer(Duration::from_millis(400), 60_000),
        Err(Fault::Deadline { .. })
    ));
    assert!(matches!(answer(TIMEOUT, 60_000), Err(Fault::Deadline { .. })));
}

#[test]
fn guest_that_takes_all_memory_is_stopped_at_its_cap_in_every_phase() {
    for phase in PHASES {
        let fault = fault_in("greedy", phase, "");
        assert!(
            matches!(
                fault,
                Fault::Memory {
                    limit_bytes: MEMORY_BYTES,
                    ..
                }
            ),
            "{fault}"
        );
    }
}

#[test]
fn endless_recursion_traps_and_host_keeps_its_stack() {
    for phase in PHASES {
        let fault = fault_in("recurse", phase, "");
        assert!(matches!(&fault, Fault::Trap { .. }), "{fault}");
    }
}

#[test]
fn panic_is_trap_with_its_message() {
    for phase in PHASES {
        let fault = fault_in("trap", phase, r#", "how": "panic""#);
        let Fault::Trap { detail, .. } = &fault else {
            panic!("{fault}")
        };
        assert!(detail.contains("panicked at"), "{detail}");
    }
}

#[test]
fn abort_and_exit_are_traps() {
    assert!(matches!(
        fault_in("trap", "on-request", r#", "how": "abort""#),
        Fault::Trap { .. }
    ));
    let fault = fault_in("trap", "on-request", r#", "how": "exit""#);
    assert!(fault.to_string().contains("it called exit"), "{fault}");
}

#[test]
fn fresh_instance_serves_next_request_after_trap() {
    let mut plugin = start("trap", r#"{"in": "on-request", "how": "panic"}"#).expect("it starts");
    for _ in 0..3 {
        assert!(plugin.request(&get("/api/v1/pods")).is_err());
        plugin
            .response(&get("/api/v1/pods"), &response(StatusCode::OK))
            .expect("a verdict");
    }
}

#[test]
fn text_of_panic_reaches_plugins_log() {
    let mut plugin = start("trap", r#"{"in": "on-request", "how": "panic"}"#).expect("it starts");
    plugin.request(&get("/api/v1/pods")).expect_err("a trap");
    let lines = plugin.log();
    assert!(
        lines
            .iter()
            .any(|line| line.level == Level::Warn && line.message.contains("panicked at")),
        "{lines:?}"
    );
}

#[test]
fn settings_that_are_refused_come_back_as_plugins_own_bounded_text() {
    let Err(HarnessError::Start(fault)) = start("refuse_settings", r#"{"because": "no shard", "times": 100000}"#)
    else {
        panic!("the settings were accepted");
    };
    let Fault::Settings { message, origin } = fault else {
        panic!("{fault}")
    };
    assert!(message.starts_with("no shard"), "{message}");
    assert!(message.len() <= 2048);
    assert_eq!(origin.phase, Phase::Configure);
}

#[test]
fn flood_of_log_lines_is_bounded_on_both_ways() {
    for to in ["log", "stderr"] {
        let wasm = guests::get("log_flood").expect("the guest exists");
        let settings = format!(r#"{{"in": "on-request", "to": "{to}", "bytes": 1000000, "line": 100}}"#);
        let mut plugin =
            Harness::with_limits(wasm, &settings, Duration::from_secs(20), MEMORY_BYTES).expect("it starts");
        plugin.request(&get("/api/v1/pods")).expect("a verdict");
        assert!(plugin.log().len() <= 32);
        let suppressed = plugin.state().log().suppressed();
        assert!(to == "stderr" || suppressed > 9000, "{to}: {suppressed}");
    }
}

#[test]
fn series_above_bound_and_bad_names_are_dropped_and_counted() {
    let settings = r#"{"in": "on-request", "series": 300, "names": ["Bad Name"]}"#;
    let mut plugin = start("metrics_hog", settings).expect("it starts");
    plugin.request(&get("/api/v1/pods")).expect("a verdict");
    let (series, dropped) = plugin.state().series().snapshot();
    assert_eq!(series.len(), 256);
    // 44 labels too many, and a bad name as counter and as gauge.
    assert_eq!(dropped, 46);
}

#[test]
fn state_above_bound_is_refused() {
    let mut plugin = start("state_hog", r#"{"in": "on-request", "keys": 1100, "bytes": 8}"#).expect("it starts");
    plugin.request(&get("/api/v1/pods")).expect("a verdict");
    let metrics = plugin.metrics();
    assert!(
        metrics
            .iter()
            .any(|series| series.name == "state" && series.label.contains("too-many-keys")),
        "{metrics:?}"
    );
}

#[test]
fn standard_library_works_and_reveals_nothing() {
    let mut plugin = start("std_plain", "{}").expect("it starts");
    plugin.request(&get("/api/v1/pods")).expect("a verdict");
    let verdict = plugin.request(&get("/api/v1/pods")).expect("a verdict");
    let RequestAction::Proceed(edits) = verdict.action else {
        panic!("{verdict:?}")
    };
    let [RequestEdit::SetHeader(name, value)] = &edits[..] else {
        panic!("{edits:?}")
    };
    assert_eq!(
        (name.as_str(), value.to_str().expect("text")),
        ("x-std", "count=2 args=0 env=0")
    );
    let lines: Vec<_> = plugin
        .log()
        .into_iter()
        .map(|line| (line.level, line.message))
        .collect();
    assert!(lines.contains(&(Level::Info, "a line on stdout".into())), "{lines:?}");
    assert!(lines.contains(&(Level::Warn, "a line on stderr".into())), "{lines:?}");
}

#[test]
fn standard_library_reads_clocks_of_host() {
    let mut plugin = start("std_clock", "{}").expect("it starts");
    plugin.advance(Duration::from_secs(3600));
    plugin.request(&get("/api/v1/pods")).expect("a verdict");
}

#[test]
fn plugin_that_imports_files_sockets_or_another_world_is_refused_with_reason() {
    let message = |guest: &str| match start(guest, r#"{"in": "on-request"}"#) {
        Err(HarnessError::Load(error)) => error.to_string(),
        Err(error) => panic!("{guest}: {error}"),
        Ok(_) => panic!("{guest} was loaded"),
    };
    assert!(
        message("file_reader").contains("imports wasi:filesystem/"),
        "{}",
        message("file_reader")
    );
    assert!(
        message("dialer").contains("imports wasi:sockets/"),
        "{}",
        message("dialer")
    );
    assert!(
        message("wrong_world").contains("does not export `"),
        "{}",
        message("wrong_world")
    );
    assert!(
        message("wrong_types").contains("is not a ctrlmesh plugin"),
        "{}",
        message("wrong_types")
    );
    assert!(
        message("newer_world").contains("supports 0.1.x"),
        "{}",
        message("newer_world")
    );
}

#[test]
fn each_object_gets_one_flag() {
    let named = |name: &str| PluginObjectMetadata {
        name: name.to_owned(),
        ..PluginObjectMetadata::default()
    };
    let objects = || vec![named("x"), named("y"), named("z")];
    let mut plugin = start("scripted", r#"{"onObjects": {"names": ["x", "z"]}}"#).expect("it starts");
    let flags = plugin.objects(&get("/api/v1/pods"), objects()).expect("flags");
    assert_eq!(flags, [true, false, true]);
    for (settings, number) in [
        (r#"{"onObjects": {"moreFlags": 1}}"#, 4),
        (r#"{"onObjects": {"leavesLastOut": true}}"#, 2),
    ] {
        let mut plugin = start("scripted", settings).expect("it starts");
        let fault = plugin.objects(&get("/api/v1/pods"), objects()).expect_err("a fault");
        let Fault::Invalid { what, .. } = &fault else {
            panic!("{fault}")
        };
        assert_eq!(what, &format!("{number} flags for 3 objects: each object needs one"));
    }
}

#[test]
fn note_on_a_request_is_there_when_guest_is_asked_about_its_objects() {
    let settings = r#"{"onRequest": [{"note": 7, "then": {"proceed": []}}], "onObjects": {"note": 7}}"#;
    let mut plugin = start("scripted", settings).expect("it starts");
    let request = get("/api/v1/pods");
    let view = Rc::new(request.view());
    plugin.request_with(&view).expect("a verdict");
    let objects = || vec![PluginObjectMetadata::default()];
    assert_eq!(plugin.objects_with(&view, objects()).expect("flags"), [true]);
    let of_another = plugin.objects(&request, objects()).expect("flags");
    assert_eq!(of_another, [false], "notes belong to one request");
}

#[test]
fn guest_that_returns_very_many_flags_is_stopped_before_they_are_kept() {
    let mut plugin = start("scripted", r#"{"onObjects": {"moreFlags": 2000000}}"#).expect("it starts");
    let fault = plugin
        .objects(&get("/api/v1/pods"), vec![PluginObjectMetadata::default()])
        .expect_err("a fault");
    let Fault::Invalid { what, .. } = &fault else {
        panic!("{fault}")
    };
    assert!(!what.contains("flags for"), "the host has read all of them: {what}");
}

#[test]
fn plugin_sees_what_it_is_told_about_objects() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let object = PluginObjectMetadata {
        namespace: "a".to_owned(),
        name: "x".to_owned(),
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        labels: vec![pair("shard", "a"), pair("team", "t")],
        annotations: vec![pair("example.com/owner", "o")],
        controller: Some(PluginObjectController {
            api_version: "apps/v1".to_owned(),
            kind: "ReplicaSet".to_owned(),
            name: "web".to_owned(),
            uid: "v".to_owned(),
        }),
    };
    for (condition, is_kept) in [
        (r#""labels": {"shard": "a", "team": "t"}"#, true),
        (r#""labels": {"shard": "b"}"#, false),
        (
            r#""annotations": {"example.com/owner": "o"}, "annotationCount": 1"#,
            true,
        ),
        (r#""annotations": {"example.com/owner": "p"}"#, false),
        (r#""controller": "ReplicaSet/web""#, true),
        (r#""controller": "ReplicaSet/other""#, false),
    ] {
        let mut plugin = start("scripted", &format!(r#"{{"onObjects": {{{condition}}}}}"#)).expect("it starts");
        let flags = plugin
            .objects(&get("/api/v1/pods"), vec![object.clone()])
            .expect("flags");
        assert_eq!(flags, [is_kept], "{condition}");
    }
}
