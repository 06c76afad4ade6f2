//! The memory that all plugins share: what is charged to it and given back, what does not fit, and what the compiler gets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_plugins_builtin::{builtin, guests};
use ctrlmesh_proxy::harness::get;
use ctrlmesh_proxy::wasm::{
    CompileMode, Compiler, Engine, EntryConfig, Error, Fault, GuestMemory, Instance, InstanceInfo, Plugin, StateStore,
};

const MIB: usize = 1024 * 1024;

fn child_mode() -> CompileMode {
    CompileMode::Child {
        program: env!("CARGO_BIN_EXE_ctrlmesh-proxy").into(),
    }
}

fn load_plugin(
    mode: CompileMode,
    cache: Option<&Path>,
    memory: &GuestMemory,
    wasm: &[u8],
) -> Result<Arc<Plugin>, Error> {
    let engine = Engine::with_memory(memory.clone()).expect("an engine");
    Compiler::new(mode, cache).expect("a compiler").load(&engine, wasm)
}

/// An instance whose entry may have as much as any.
fn start(engine: &Arc<Engine>, plugin: &Arc<Plugin>, settings: &str) -> Result<Instance, Fault> {
    let entry = Arc::new(EntryConfig {
        name: "e".into(),
        settings_json: settings.into(),
        timeout: Duration::from_secs(20),
        memory_bytes: 256 * MIB,
        info: InstanceInfo::default(),
    });
    Instance::start(engine, plugin, &entry, &StateStore::new().entry("e")).map(|(instance, _)| instance)
}

#[test]
fn code_and_instances_are_charged_as_long_as_they_exist() {
    let memory = GuestMemory::within(256 * MIB);
    let engine = Engine::with_memory(memory.clone()).expect("an engine");
    let compiler = Compiler::new(child_mode(), None).expect("a compiler");
    let plugin = compiler
        .load(&engine, guests::get("hoard").expect("the guest exists"))
        .expect("a plugin");
    let code = memory.used_bytes();
    assert!((MIB / 20..5 * MIB).contains(&code), "{code}");
    let mut instance = start(&engine, &plugin, r#"{"in": "on-request", "mib": 30}"#).expect("an instance");
    let before = memory.used_bytes() - code;
    assert!((MIB..3 * MIB).contains(&before), "{before}");
    instance
        .on_request(&Rc::new(get("/api/v1/pods").view()), false)
        .expect("a verdict");
    let grown = memory.used_bytes() - code;
    assert!((31 * MIB..35 * MIB).contains(&grown), "{grown}");
    drop(instance);
    assert_eq!(memory.used_bytes(), code);
    drop(plugin);
    assert_eq!(memory.used_bytes(), 0);
}

#[test]
fn guest_faults_and_releases_its_memory_when_none_is_left() {
    let memory = GuestMemory::within(128 * MIB);
    let engine = Engine::with_memory(memory.clone()).expect("an engine");
    let compiler = Compiler::new(child_mode(), None).expect("a compiler");
    let plugin = compiler
        .load(&engine, guests::get("greedy").expect("the guest exists"))
        .expect("a plugin");
    let code = memory.used_bytes();
    let mut instance = start(&engine, &plugin, r#"{"in": "on-request"}"#).expect("an instance");
    let request = Rc::new(get("/api/v1/pods").view());
    let fault = instance
        .on_request(&request, false)
        .expect_err("there is less than its cap");
    assert!(matches!(fault, Fault::ProcessMemory { .. }), "{fault}");
    assert_eq!(fault.kind(), "memory");
    let held = memory.used_bytes();
    assert!(
        (30 * MIB..=41 * MIB).contains(&held),
        "half of the plugins' limit: {held}"
    );
    drop(instance);
    assert_eq!(memory.used_bytes(), code);
    let fault = start(&engine, &plugin, r#"{"in": "configure"}"#)
        .map(|_| ())
        .expect_err("too much");
    assert!(matches!(fault, Fault::ProcessMemory { .. }), "{fault}");
    assert_eq!(memory.used_bytes(), code);
}

#[test]
fn compiler_that_takes_more_than_its_share_is_error_of_plugin() {
    let bomb = guests::compile_bomb();
    assert!(bomb.len() < MIB);
    for limit in [128, 256, 512] {
        let memory = GuestMemory::within(limit * MIB);
        let error = load_plugin(child_mode(), None, &memory, &bomb)
            .map(|_| ())
            .expect_err("too much");
        let Error::CompileMemory {
            limit_bytes,
            is_contended: false,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert!(limit_bytes < limit * MIB / 2, "{limit_bytes}");
        assert!(
            error.to_string().contains("sha256:") && error.to_string().contains("--memory-limit"),
            "{error}"
        );
        assert_eq!(memory.used_bytes(), 0);
        assert!(
            load_plugin(
                child_mode(),
                None,
                &memory,
                guests::get("std_plain").expect("it exists")
            )
            .is_ok()
        );
    }
}

#[test]
fn builtin_plugins_compile_within_half_of_default_limit() {
    for plugin in builtin() {
        let memory = GuestMemory::within(128 * MIB);
        let loaded = load_plugin(child_mode(), None, &memory, plugin.bytes);
        loaded
            .map(drop)
            .unwrap_or_else(|error| panic!("{}: {error}", plugin.name));
    }
}

#[test]
fn compilers_memory_is_left_to_plugins_again_when_it_has_ended() {
    let memory = GuestMemory::within(256 * MIB);
    let engine = Engine::with_memory(memory.clone()).expect("an engine");
    let compiler = Compiler::new(child_mode(), None).expect("a compiler");
    assert!(compiler.load(&engine, &guests::compile_bomb()).is_err());
    let plugin = compiler
        .load(&engine, guests::get("hoard").expect("the guest exists"))
        .expect("a plugin");
    start(&engine, &plugin, r#"{"in": "configure", "mib": 140, "must": true}"#).expect("all of it is free");
}

#[test]
fn artifact_beyond_compilers_share_is_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = write_script(directory.path(), "cat >/dev/null; head -c 20000000 /dev/zero");
    let error = load_plugin(
        CompileMode::Child { program },
        None,
        &GuestMemory::within(256 * MIB),
        guests::get("spin").unwrap(),
    );
    assert!(
        matches!(error, Err(Error::CompileMemory { .. })),
        "{:?}",
        error.map(|_| ())
    );
}

#[test]
fn cached_code_that_does_not_fit_is_refused_before_it_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = directory.path().join("cache");
    let wasm = guests::get("spin").expect("the guest exists");
    load_plugin(child_mode(), Some(&cache), &GuestMemory::within(256 * MIB), wasm).expect("it is cached");
    let memory = GuestMemory::within(16 * MIB);
    let artifact = fs::read_dir(&cache)
        .expect("it is there")
        .map(|file| file.expect("a file").path())
        .find(|path| path.extension().is_some_and(|suffix| suffix == "cwasm"))
        .expect("an artifact");
    let grown = fs::File::options().write(true).open(&artifact).expect("it is there");
    grown.set_len(6 * MIB as u64).expect("a sparse file");
    let error = load_plugin(child_mode(), Some(&cache), &memory, wasm)
        .map(|_| ())
        .expect_err("it is too large");
    assert!(matches!(error, Error::CodeMemory { .. }), "{error}");
    assert_eq!(memory.used_bytes(), 0);
}

/// A program in place of the compiler.
fn write_script(directory: &Path, text: &str) -> PathBuf {
    let (program, temporary) = (directory.join("compiler"), directory.join("temporary"));
    // Renamed into place: a file that is still open for writing can't be executed.
    fs::write(&temporary, format!("#!/bin/sh\n{text}\n")).expect("written");
    fs::set_permissions(&temporary, Permissions::from_mode(0o755)).expect("set");
    fs::rename(&temporary, &program).expect("renamed");
    program
}
