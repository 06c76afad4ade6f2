//! What crates depend on: nothing that deny.toml forbids (but for systems that nothing is built for), pure crates on nothing that
//! reaches a cluster, and the command not on the manager's controllers.

use std::collections::BTreeSet;
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

/// Crates that decide, or read and write text: whoever reads them need not think of what a network or another task does meanwhile.
const PURE: [&str; 6] = [
    "ctrlmesh-contract",
    "ctrlmesh-wire",
    "ctrlmesh-manager-api",
    "ctrlmesh-manager-planner",
    "ctrlmesh-manager-inject",
    "ctrlmesh-manager-rollout",
];

/// Names of all crates in the normal dependency tree of one of ours.
fn dependency_names(name: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none"])
        .args(["--format", "{p}", "--package", name, "--manifest-path"])
        .arg(repository_root().join("Cargo.toml"))
        .output()
        .unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree --package {name}: {problem}");
    let tree = String::from_utf8_lossy(&output.stdout);
    let names: BTreeSet<String> = tree
        .lines()
        .filter_map(|line| Some(line.split(' ').next()?.to_owned()))
        .collect();
    assert!(names.contains(name) && names.len() > 5, "{tree}");
    names
}

#[test]
fn pure_crates_depend_on_nothing_that_reaches_a_cluster() {
    let reaches = ["tokio", "hyper", "reqwest", "kube", "kube-client", "kube-runtime"];
    for name in PURE {
        let dependencies = dependency_names(name);
        for other in reaches {
            assert!(
                !dependencies.contains(other),
                "{name} depends on {other}; see cargo tree -p {name} -i {other}"
            );
        }
    }
    let manager = dependency_names("ctrlmesh-manager");
    for other in reaches {
        assert!(
            manager.contains(other),
            "{other} is not what the manager reaches a cluster with"
        );
    }
}

#[test]
fn command_depends_on_managers_decisions_and_not_on_its_controllers() {
    let dependencies = dependency_names("ctrlmesh-cli");
    assert!(dependencies.contains("ctrlmesh-manager-planner"));
    assert!(!dependencies.contains("ctrlmesh-manager"));
}
