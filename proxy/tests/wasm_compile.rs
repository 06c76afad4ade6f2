//! Loading a plugin: what is refused and why, the compiler in a process of its own, and the cache.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ctrlmesh_plugins_builtin::guests;
use ctrlmesh_proxy::harness::Harness;
use ctrlmesh_proxy::wasm::{CompileMode, Compiler, Engine, Error, Plugin};

fn guest_bytes() -> &'static [u8] {
    guests::get("std_plain").expect("the guest exists")
}

fn sidecar_program() -> PathBuf {
    env!("CARGO_BIN_EXE_ctrlmesh-proxy").into()
}

fn child_mode() -> CompileMode {
    CompileMode::Child {
        program: sidecar_program(),
    }
}

/// A program in place of the compiler.
fn script_mode(directory: &Path, text: &str) -> CompileMode {
    let program = directory.join("compiler");
    // Renamed into place: a file that is still open for writing can't be executed.
    let temporary = directory.join("temporary");
    fs::write(&temporary, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs::set_permissions(&temporary, Permissions::from_mode(0o755)).expect("set");
    fs::rename(&temporary, &program).expect("renamed");
    CompileMode::Child { program }
}

fn compile_error(mode: CompileMode, wasm: &[u8]) -> String {
    let compiler = Compiler::new(mode, None).expect("a compiler");
    compiler
        .load(&Engine::new().expect("an engine"), wasm)
        .map(|_| ())
        .expect_err("refused")
        .to_string()
}

fn assert_plugin_works(engine: &Arc<Engine>, plugin: &Arc<Plugin>) {
    Harness::of_plugin(Arc::clone(engine), Arc::clone(plugin), "{}").expect("an instance");
}

#[test]
fn plugin_compiled_in_child_runs_here() {
    let engine = Engine::new().expect("an engine");
    let plugin = Compiler::new(child_mode(), None)
        .expect("a compiler")
        .load(&engine, guest_bytes())
        .expect("a plugin");
    assert!(
        plugin.digest.starts_with("sha256:") && plugin.digest.len() == 71,
        "{}",
        plugin.digest
    );
    assert_plugin_works(&engine, &plugin);
}

#[test]
fn same_bytes_are_one_plugin() {
    let engine = Engine::new().expect("an engine");
    let compiler = Compiler::new(child_mode(), None).expect("a compiler");
    let first = compiler.load(&engine, guest_bytes()).expect("a plugin");
    let second = compiler.load(&engine, guest_bytes()).expect("a plugin");
    assert!(Arc::ptr_eq(&first, &second));
}

#[test]
fn bytes_that_are_no_plugin_are_refused_with_advice() {
    let wasm = guest_bytes();
    let core_module = b"\0asm\x01\0\0\0";
    for mode in [child_mode(), CompileMode::InProcess] {
        assert!(compile_error(mode.clone(), b"").contains("empty"));
        assert!(compile_error(mode.clone(), b"#!/bin/sh").contains("not WebAssembly"));
        assert!(compile_error(mode.clone(), b"\0asm").contains("truncated"));
        assert!(compile_error(mode.clone(), core_module).contains("wasm32-wasip2"));
        assert!(compile_error(mode.clone(), &wasm[..wasm.len() / 2]).contains("could not be compiled"));
        assert!(compile_error(mode.clone(), &vec![0; 50 << 20]).contains("52428800 bytes"));
    }
}

#[test]
fn truncated_plugin_is_never_working_one() {
    let engine = Engine::new().expect("an engine");
    let compiler = Compiler::new(CompileMode::InProcess, None).expect("a compiler");
    let wasm = guest_bytes();
    for length in (0..wasm.len()).step_by(wasm.len() / 20) {
        assert!(compiler.load(&engine, &wasm[..length]).is_err(), "{length}");
    }
}

#[test]
fn second_start_takes_artifact_from_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = directory.path().join("cache");
    let engine = Engine::new().expect("an engine");
    Compiler::new(child_mode(), Some(&cache))
        .expect("a compiler")
        .load(&engine, guest_bytes())
        .expect("a plugin");
    // A compiler that can't compile: only the cache can help.
    let compiler = Compiler::new(script_mode(directory.path(), "exit 7"), Some(&cache)).expect("a compiler");
    let engine = Engine::new().expect("an engine");
    let plugin = compiler.load(&engine, guest_bytes()).expect("from the cache");
    assert_plugin_works(&engine, &plugin);
}

#[test]
fn tampered_artifact_is_refused_and_made_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = directory.path().join("cache");
    let load = |mode: CompileMode| {
        let compiler = Compiler::new(mode, Some(&cache)).expect("a compiler");
        compiler.load(&Engine::new().expect("an engine"), guest_bytes())
    };
    load(child_mode()).expect("a plugin");
    let artifact = fs::read_dir(&cache)
        .expect("it is there")
        .map(|file| file.expect("a file").path())
        .find(|path| path.extension().is_some_and(|suffix| suffix == "cwasm"))
        .expect("an artifact");
    let whole = fs::read(&artifact).expect("it is there");
    for damaged in [whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[damaged] ^= 0xff;
        fs::write(&artifact, bytes).expect("written");
        // It is not used, so the compiler is asked, and this one can't.
        assert!(load(script_mode(directory.path(), "exit 7")).is_err());
        assert!(!artifact.exists(), "it is removed");
        load(child_mode()).expect("compiled again");
        load(script_mode(directory.path(), "exit 7")).expect("and cached again");
    }
}

#[test]
fn compiler_that_hangs_is_stopped_at_deadline() {
    let directory = tempfile::tempdir().expect("a directory");
    let mode = script_mode(directory.path(), "exec sleep 600");
    let compiler = Compiler::new(mode, None)
        .expect("a compiler")
        .with_deadline(Duration::from_millis(100));
    let started = Instant::now();
    let error = compiler
        .load(&Engine::new().expect("an engine"), guest_bytes())
        .map(|_| ())
        .expect_err("too late");
    assert!(matches!(error, Error::CompileDeadline { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn compiler_that_closes_its_output_and_hangs_is_stopped_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let mode = script_mode(directory.path(), "exec sleep 600 <&- >&- 2>&-");
    let compiler = Compiler::new(mode, None)
        .expect("a compiler")
        .with_deadline(Duration::from_millis(100));
    let error = compiler
        .load(&Engine::new().expect("an engine"), guest_bytes())
        .map(|_| ())
        .expect_err("too late");
    assert!(matches!(error, Error::CompileDeadline { .. }), "{error}");
}

#[test]
fn compiler_that_fails_is_quoted() {
    let directory = tempfile::tempdir().expect("a directory");
    let with = |text: &str| compile_error(script_mode(directory.path(), text), guest_bytes());
    assert!(with("cat >/dev/null; echo no such luck >&2; exit 1").contains("no such luck"));
    assert!(with("kill -9 $$").contains("killed by signal 9"));
    assert!(with("cat >/dev/null").contains("without an artifact"));
    assert!(with("cat >/dev/null; yes | head -c 100000 >&2; exit 1").len() < 3000);
}

#[test]
fn output_of_broken_compiler_is_not_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let with = |text: &str| compile_error(script_mode(directory.path(), text), guest_bytes());
    assert!(with("cat >/dev/null; echo garbage").contains("does not load"));
    // The source itself is no artifact.
    assert!(with("cat").contains("does not load"));
    assert!(with("cat /dev/zero").contains("larger than"));
}

#[test]
fn missing_compiler_is_named() {
    let mode = CompileMode::Child {
        program: "/nonexistent/ctrlmesh-proxy".into(),
    };
    assert!(compile_error(mode, guest_bytes()).contains("/nonexistent/ctrlmesh-proxy can't be started"));
}

#[test]
fn child_limits_itself() {
    let child = std::process::Command::new(sidecar_program())
        .args(["compile", "--memory-bytes=100663296"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    // It waits for its stdin after it has set its limits; /proc shows them.
    let limits = PathBuf::from(format!("/proc/{}/limits", child.id()));
    let deadline = Instant::now() + Duration::from_secs(30);
    let limited = loop {
        let text = fs::read_to_string(&limits).expect("the child runs");
        if text
            .lines()
            .any(|line| line.starts_with("Max file size") && line.contains(" 0 "))
        {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::yield_now();
    };
    let value = |name: &str| {
        let line = limited
            .lines()
            .find(|line| line.starts_with(name))
            .expect("the limit is there");
        line.trim_start_matches(name)
            .split_whitespace()
            .next()
            .map(str::to_owned)
    };
    assert_eq!(value("Max address space"), Some("2147483648".into()));
    assert_eq!(value("Max data size"), Some("100663296".into()));
    assert_eq!(value("Max cpu time"), Some("60".into()));
    assert_eq!(value("Max file size"), Some("0".into()));
    let first_to_go = fs::read_to_string(format!("/proc/{}/oom_score_adj", child.id())).expect("the child runs");
    assert_eq!(first_to_go.trim(), "1000");
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success(), "an empty stdin is no plugin");
}

#[test]
fn world_writable_cache_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).expect("set");
    let error = Compiler::new(child_mode(), Some(directory.path()))
        .map(|_| ())
        .expect_err("refused");
    assert!(matches!(error, Error::CacheDirectory { .. }), "{error}");
}
