use std::cell::Cell;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use ctrlmesh_contract::Digest;
use ctrlmesh_plugins_builtin::guests;

use super::*;
use crate::wasm::{CompileMode, Compiler};

type Damage = fn(&mut Vec<u8>);

fn guest_bytes() -> &'static [u8] {
    guests::get("std_plain").expect("the guest exists")
}

fn engine() -> Arc<Engine> {
    Engine::new().expect("an engine")
}

/// The artifact of the guest in a fresh directory.
fn precompiled_guest() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = precompile(guest_bytes(), &directory.path().join("artifacts")).expect("an artifact");
    (directory, path)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().expect("a directory")
}

fn guest_hex() -> String {
    let digest = component_bytes::check_component(guest_bytes()).expect("a component");
    digest.trim_start_matches("sha256:").to_owned()
}

fn refusal(precompiled: &Precompiled) -> String {
    let (engine, plugin) = (engine(), guest_hex());
    let first = precompiled.artifacts(engine.wasmtime(), &plugin).next();
    match first {
        Some(Ok(_)) => "accepted".into(),
        Some(Err(refused)) => refused.reason,
        None => "nothing".into(),
    }
}

fn guest_digest() -> Digest {
    format!("sha256:{}", guest_hex()).parse().expect("a digest")
}

/// A compiler that can't compile.
fn broken_compiler() -> Compiler {
    let mode = CompileMode::Child {
        program: "/nonexistent".into(),
    };
    Compiler::new(mode, None).expect("a compiler")
}

/// Changes the file at `path`, which is read-only.
fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("readable");
    change(&mut bytes);
    fs::remove_file(path).expect("removed");
    fs::write(path, bytes).expect("written");
}

#[test]
fn precompiled_plugin_is_loaded_without_compiler() {
    let (_files, path) = precompiled_guest();
    let engine = engine();
    let mut compiler = broken_compiler();
    assert!(
        compiler.load(&engine, guest_bytes()).is_err(),
        "this compiler can't compile"
    );
    let digest = guest_digest();
    assert!(!compiler.is_compiled(&engine, &digest));
    compiler.replace_precompiled(Precompiled::with_changeable_files(&[directory_of(&path)]));
    assert!(compiler.is_compiled(&engine, &digest));
    let plugin = compiler.load(&engine, guest_bytes()).expect("a plugin");
    assert_eq!(plugin.code_bytes() as u64, fs::metadata(&path).expect("a file").len());
}

thread_local! {
    static CHECKS: Cell<usize> = const { Cell::new(0) };
}

fn counted_check(_: &Path) -> Result<(), String> {
    CHECKS.set(CHECKS.get() + 1);
    Ok(())
}

/// Counts checks of an artifact. Here nobody can change it, so a load after a check does not check it again.
#[test]
fn artifact_is_checked_once_for_each_load() {
    let (_files, path) = precompiled_guest();
    let mut compiler = broken_compiler();
    compiler.replace_precompiled(Precompiled {
        check: counted_check,
        ..Precompiled::with_changeable_files(&[directory_of(&path)])
    });
    for loads in 1..=2 {
        let engine = engine();
        assert!(compiler.is_compiled(&engine, &guest_digest()));
        assert!(compiler.is_compiled(&engine, &guest_digest()));
        compiler.load(&engine, guest_bytes()).expect("a plugin");
        assert_eq!(CHECKS.get(), loads);
    }
}

/// A link to the artifact under the name of another plugin.
#[test]
fn artifact_that_was_checked_is_not_used_under_another_name() {
    let (_files, path) = precompiled_guest();
    let precompiled = Precompiled::with_changeable_files(&[directory_of(&path)]);
    assert!(precompiled.has_artifact(engine().wasmtime(), &guest_hex()));
    let other = "0".repeat(64);
    let link = path.with_file_name(file_name(engine().wasmtime(), &other));
    std::os::unix::fs::symlink(&path, link).expect("linked");
    assert!(!precompiled.has_artifact(engine().wasmtime(), &other));
    assert!(precompiled.has_artifact(engine().wasmtime(), &guest_hex()));
}

#[test]
fn refused_artifact_is_compiled_instead() {
    let (_files, path) = precompiled_guest();
    change(&path, |bytes| bytes.truncate(1000));
    let mut compiler = Compiler::new(CompileMode::InProcess, None).expect("a compiler");
    compiler.replace_precompiled(Precompiled::with_changeable_files(&[directory_of(&path)]));
    let engine = engine();
    assert!(!compiler.is_compiled(&engine, &guest_digest()));
    let plugin = compiler.load(&engine, guest_bytes()).expect("a plugin");
    assert!(compiler.is_compiled(&engine, &guest_digest()));
    drop(plugin);
}

/// The first directory has a file that is damaged, or one with a right checksum that wasmtime can't load.
#[test]
fn bad_artifact_does_not_hide_good_one_in_next_directory() {
    let (_files, path) = precompiled_guest();
    let bad = tempfile::tempdir().expect("a directory");
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
    let damaged = |file: &Path| fs::write(file, b"damaged").expect("written");
    let no_code = |file: &Path| write_artifact(file, name, &[7; 1000]).expect("written");
    let ways: [&dyn Fn(&Path); 2] = [&damaged, &no_code];
    for write in ways {
        write(&bad.path().join(name));
        let engine = engine();
        let mut compiler = broken_compiler();
        compiler.replace_precompiled(Precompiled::with_changeable_files(&[bad.path()]));
        assert!(
            compiler.load(&engine, guest_bytes()).is_err(),
            "the first directory has nothing to load"
        );
        compiler.replace_precompiled(Precompiled::with_changeable_files(&[bad.path(), directory_of(&path)]));
        assert!(compiler.is_compiled(&engine, &guest_digest()));
        let plugin = compiler.load(&engine, guest_bytes()).expect("a plugin");
        assert_eq!(plugin.code_bytes() as u64, fs::metadata(&path).expect("a file").len());
        let precompiled = Precompiled::with_changeable_files(&[directory_of(&path), bad.path()]);
        assert_eq!(refusal(&precompiled), "accepted", "the order of the directories counts");
    }
}

#[test]
fn damaged_truncated_and_renamed_artifacts_are_refused() {
    let (_files, path) = precompiled_guest();
    let precompiled = Precompiled::with_changeable_files(&[directory_of(&path)]);
    assert_eq!(refusal(&precompiled), "accepted");
    let whole = fs::read(&path).expect("readable");
    let damage: [(&str, Damage); 5] = [
        ("checksum", |bytes| bytes[5000] ^= 1),
        ("checksum", |bytes| *bytes.last_mut().expect("a byte") ^= 1),
        ("checksum", |bytes| bytes.truncate(bytes.len() - 1)),
        ("truncated", |bytes| bytes.truncate(CHECKSUM_BYTES)),
        ("truncated", Vec::clear),
    ];
    for (reason, damage) in damage {
        change(&path, |bytes| {
            bytes.clone_from(&whole);
            damage(bytes);
        });
        let refused = refusal(&precompiled);
        assert!(refused.contains(reason), "{refused}");
    }
    let other = precompile(
        guests::get("hello").or(guests::get("slow")).expect("a guest"),
        directory_of(&path),
    );
    change(&path, |bytes| {
        *bytes = fs::read(other.expect("an artifact")).expect("readable")
    });
    let refused = refusal(&precompiled);
    assert!(refused.contains("renamed"), "{refused}");
}

#[test]
fn artifact_of_another_engine_is_refused_with_its_reason() {
    let (_files, path) = precompiled_guest();
    let precompiled = Precompiled::with_changeable_files(&[directory_of(&path)]);
    fs::rename(
        &path,
        path.with_file_name(format!("{}-0123456789abcdef.cwasm", guest_hex())),
    )
    .expect("renamed");
    let refused = refusal(&precompiled);
    assert!(refused.contains("another version"), "{refused}");
    assert_eq!(refusal(&Precompiled::new(&["/nonexistent".into()])), "nothing");
}

/// An engine with other settings than those of the artifact, under the artifact's name.
#[test]
fn engine_with_other_settings_does_not_load_artifact() {
    let (_files, path) = precompiled_guest();
    let mut config = wasmtime::Config::new();
    config.enable_compiler(false);
    let other = wasmtime::Engine::new(&config).expect("an engine");
    let artifact = MappedArtifact::unchangeable_file(path, 0);
    let error = artifact.load(&other).map(|_| ()).expect_err("refused");
    assert!(format!("{error:#}").contains("epoch"), "{error:#}");
}

#[test]
fn file_that_this_user_or_others_can_change_is_refused() {
    let (_files, path) = precompiled_guest();
    let refused = refusal(&Precompiled::new(&[directory_of(&path).to_owned()]));
    // The temporary directory belongs to this user. If that is root, others can write to the directory above it. It may be a mount.
    let reasons = ["not to root", "can write to", "is on a volume"];
    assert!(reasons.iter().any(|reason| refused.contains(reason)), "{refused}");
    let path = path.canonicalize().expect("a path");
    let refused = check_owners(&path).expect_err("refused");
    assert!(reasons.iter().any(|reason| refused.contains(reason)), "{refused}");
    for mode in [0o664, 0o646, 0o777] {
        let refused = check_owner(&path, 0, 0o100_000 | mode).expect_err("refused");
        assert!(refused.contains(&format!("mode 0{mode:o}")), "{refused}");
    }
    assert!(
        check_owner(&path, 1359, 0o100_444)
            .expect_err("refused")
            .contains("1359")
    );
    check_owner(&path, 0, 0o100_444).expect("accepted");
}

#[test]
fn program_files_are_accepted_unless_this_process_can_write_to_them() {
    let file = Path::new("/bin/sh").canonicalize().expect("a file");
    let checked = check_owners(&file);
    match rustix::fs::access(&file, Access::WRITE_OK) {
        Ok(()) => assert!(checked.expect_err("refused").contains("the sidecar itself can write")),
        Err(_) => checked.expect("accepted"),
    }
}

#[test]
fn file_of_another_mount_than_the_program_is_refused() {
    let (_files, path) = precompiled_guest();
    check_mount(&path, directory_of(&path)).expect("accepted");
    let other_mount = Path::new("/proc/self/status");
    let refused = check_mount(other_mount, &path).expect_err("refused");
    assert!(refused.contains("/proc/self/status is on a volume"), "{refused}");
}

#[test]
fn component_that_is_no_plugin_is_not_precompiled() {
    let directory = tempfile::tempdir().expect("a directory");
    let wrong = guests::get("wrong_world").expect("a guest");
    for bytes in [wrong, b"text".as_slice(), &[]] {
        precompile(bytes, directory.path()).expect_err("refused");
    }
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0);
}

#[test]
fn artifact_is_read_only_and_replaced_by_next_run() {
    let (_files, path) = precompiled_guest();
    assert_eq!(
        precompile(guest_bytes(), directory_of(&path)).expect("an artifact"),
        path
    );
    let mode = fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(Permissions::from_mode(mode & 0o777), Permissions::from_mode(0o444));
    assert_eq!(fs::read_dir(directory_of(&path)).expect("a directory").count(), 1);
}
