use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use ctrlmesh_plugins_builtin::guests;

use super::*;
use crate::wasm::engine::{Processor, compiling_engine};
use crate::wasm::harness::Harness;
use crate::wasm::sealed_file::MemoryFile;
use crate::wasm::{Engine, Plugin};

fn compiled_guest(mut file: MemoryFile) -> Artifact {
    let wasm = guests::get("std_plain").expect("the guest exists");
    let compiler = compiling_engine(Processor::Native).expect("an engine");
    let code = compiler.precompile_component(wasm).expect("compiled");
    file.write_all(&code).expect("written");
    Artifact::just_compiled(file.seal().expect("sealed"))
}

fn assert_plugin_works(engine: &Arc<Engine>, component: &Component) {
    let charge = engine.memory().account();
    let plugin = Plugin::new(engine.wasmtime(), component, charge, "sha256:a".into()).expect("a plugin");
    Harness::of_plugin(Arc::clone(engine), Arc::new(plugin), "{}").expect("an instance");
}

/// The inode of the file that holds the artifact.
fn inode(artifact: &Artifact) -> u64 {
    let path = artifact.code().path().expect("it is on the heap");
    fs::metadata(path).expect("it is open").ino()
}

/// How often this process has the file open.
fn open_files(inode: u64) -> usize {
    let files = fs::read_dir("/proc/self/fd").expect("readable").flatten();
    let memory_files = files.filter(|file| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        target.to_string_lossy().starts_with("/memfd:artifact")
    });
    memory_files
        .filter(|file| fs::metadata(file.path()).is_ok_and(|found| found.ino() == inode))
        .count()
}

/// Whether code of the file is mapped.
fn is_mapped_to_run(inode: u64) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").expect("readable");
    maps.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1] == "r-xp" && fields[4] == inode.to_string() && fields[5].starts_with("/memfd:artifact")
    })
}

#[test]
fn mapped_code_runs_after_artifact_is_dropped_and_its_file_closed() {
    let artifact = compiled_guest(MemoryFile::create());
    let inode = inode(&artifact);
    assert_eq!(open_files(inode), 1);
    let engine = Engine::new().expect("an engine");
    let component = artifact.load(engine.wasmtime()).expect("a component");
    let by_wasmtime = open_files(inode) - 1;
    drop(artifact);
    assert_eq!(open_files(inode), by_wasmtime);
    assert!(is_mapped_to_run(inode));
    assert_plugin_works(&engine, &component);
}

#[test]
fn artifact_that_is_not_loaded_leaves_no_file_open() {
    let artifact = compiled_guest(MemoryFile::create());
    let inode = inode(&artifact);
    drop(artifact);
    assert_eq!(open_files(inode), 0);
    assert!(!is_mapped_to_run(inode));
}

#[test]
fn plugin_works_with_artifact_on_heap() {
    let artifact = compiled_guest(MemoryFile::on_heap());
    assert_eq!(artifact.code().path(), None);
    let engine = Engine::new().expect("an engine");
    let component = artifact.load(engine.wasmtime()).expect("a component");
    drop(artifact);
    assert_plugin_works(&engine, &component);
}

#[test]
fn artifact_that_can_not_be_opened_is_copied() {
    let artifact = compiled_guest(MemoryFile::create());
    let inode = inode(&artifact);
    let engine = Engine::new().expect("an engine");
    let component = artifact
        .load_from(engine.wasmtime(), Some(Path::new("/nonexistent/artifact")))
        .expect("a component");
    drop(artifact);
    assert!(open_files(inode) == 0 && !is_mapped_to_run(inode));
    assert_plugin_works(&engine, &component);
}

#[test]
fn only_denied_mappings_lead_to_copies() {
    let opening = |errno: Errno| wasmtime::Error::from(io::Error::from(errno)).context("failed to open file");
    let mapping = |errno: Errno| wasmtime::Error::from(errno).context("mmap failed");
    for errno in [Errno::ACCESS, Errno::PERM, Errno::NOENT] {
        assert!(is_denied(&opening(errno)) && is_denied(&mapping(errno)), "{errno}");
    }
    assert!(!is_denied(&opening(Errno::MFILE)));
    assert!(!is_denied(&mapping(Errno::NOMEM)));
    assert!(!is_denied(&wasmtime::Error::msg("incompatible object file format")));
}

#[test]
fn code_that_does_not_load_is_refused_with_the_same_reason_from_both() {
    let engine = Engine::new().expect("an engine");
    let reason = |mut file: MemoryFile| {
        file.write_all(b"garbage").expect("written");
        let artifact = Artifact::just_compiled(file.seal().expect("sealed"));
        let refused = artifact.load(engine.wasmtime()).map(|_| ()).expect_err("refused");
        format!("{refused:#}")
    };
    let (mapped, copied) = (reason(MemoryFile::create()), reason(MemoryFile::on_heap()));
    // It is not tried again with a copy, whose error would not name the file.
    assert!(
        mapped.starts_with("failed to load code for: /proc/self/fd/"),
        "{mapped}"
    );
    assert!(mapped.ends_with(&format!(": {copied}")), "{mapped}; {copied}");
}
