//! deny.toml: what it forbids is in no lock file, or there only for systems that nothing is built for.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use ctrlmesh_tests::root;

fn forbidden() -> Vec<String> {
    let text = fs::read_to_string(root().join("deny.toml")).unwrap();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("{ crate = \""));
    named
        .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
        .collect()
}

/// Who in a workspace's build for this system needs a crate: empty if nobody does. Cargo locks a crate for all systems, and
/// for optional features of others that nobody asked for.
fn dependents(manifest: &Path, name: &str) -> String {
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
fn no_build_has_a_crate_that_deny_toml_forbids() {
    let forbidden = forbidden();
    for name in ["ring", "openssl", "wasmtime-wasi"] {
        assert!(forbidden.iter().any(|known| known == name), "deny.toml allows {name}");
    }
    for folder in ["", "fuzz"] {
        let folder = root().join(folder);
        let locked = fs::read_to_string(folder.join("Cargo.lock")).unwrap();
        for name in &forbidden {
            if locked.contains(&format!("\nname = \"{name}\"\n")) {
                let found = dependents(&folder.join("Cargo.toml"), name);
                assert!(found.is_empty(), "{name} is forbidden by deny.toml, but:\n{found}");
            }
        }
    }
}
