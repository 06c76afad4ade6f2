//! deny.toml: the crates that it forbids are in no lock file, or only for systems that nothing is built for.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use ctrlmesh_tests::repository_root;

fn forbidden_crates() -> Vec<String> {
    let text = fs::read_to_string(repository_root().join("deny.toml")).unwrap();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("{ crate = \""));
    named
        .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
        .collect()
}

/// The crates that need `name` in a workspace's build for this system; empty if none does. Cargo locks crates for all systems and for
/// unused optional features.
fn dependents_of(manifest: &Path, name: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let output = Command::new(cargo)
        .args([
            "tree",
            "--locked",
            "--offline",
            "--workspace",
            "--invert",
            name,
            "--manifest-path",
        ])
        .arg(manifest)
        .output()
        .unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree --invert {name}: {problem}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn builds_contain_no_forbidden_crate() {
    let forbidden = forbidden_crates();
    for name in ["ring", "openssl", "wasmtime-wasi"] {
        assert!(forbidden.iter().any(|known| known == name), "deny.toml allows {name}");
    }
    for folder in ["", "fuzz"] {
        let folder = repository_root().join(folder);
        let locked = fs::read_to_string(folder.join("Cargo.lock")).unwrap();
        for name in &forbidden {
            if locked.contains(&format!("\nname = \"{name}\"\n")) {
                let found = dependents_of(&folder.join("Cargo.toml"), name);
                assert!(found.is_empty(), "{name} is forbidden by deny.toml, but:\n{found}");
            }
        }
    }
}
