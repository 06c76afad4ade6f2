//! Dependencies of crates: none that deny.toml forbids (but for systems that nothing is built for), none of pure crates that
//! reaches a cluster, and none of the command on the manager's controllers. ARCHITECTURE.md, "Crates", lists every crate with those of
//! this repository that it depends on, and every source that two crates compile.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use ctrlmesh_tests::repository_root;

fn forbidden_crates() -> Vec<String> {
    let text = fs::read_to_string(repository_root().join("deny.toml")).unwrap();
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("{ crate = \""));
    named
        .map(|rest| rest.split('"').next().unwrap_or_default().to_owned())
        .collect()
}

fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    // With features unified over the workspace, `cargo tree` prints the tree of the whole workspace for any package.
    command.env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION");
    command
}

/// The crates that need `name` in a workspace's build for this system; empty if none does. Cargo locks crates for all systems and for
/// unused optional features.
fn dependents_of(manifest: &Path, name: &str) -> String {
    let output = cargo()
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
    let output = cargo()
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

/// Crates by folder, each with the folders of the crates that it depends on.
type Crates = BTreeMap<String, BTreeSet<String>>;

/// The crates of the workspace, with their normal dependencies among each other.
fn crates_of_cargo() -> Crates {
    let root = repository_root();
    let output = cargo()
        .args([
            "metadata",
            "--locked",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .args(["--manifest-path".as_ref(), root.join("Cargo.toml").as_os_str()])
        .output()
        .unwrap();
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {problem}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let top = Path::new(metadata["workspace_root"].as_str().unwrap());
    let relative = |path: &Path| path.strip_prefix(top).unwrap().display().to_string();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let crates = packages.map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let ours = dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| dependency["path"].as_str())
            .map(|path| relative(Path::new(path)));
        (relative(manifest.parent().unwrap()), ours.collect())
    });
    crates.collect()
}

/// The rows of the table of crates. In a row's last cell, `folder/*` is every crate directly in that folder, and `folder/{a,b}` are two.
fn crates_of_table(architecture: &str) -> Crates {
    let section = architecture.split("\n## Crates\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let section = section.split("\n| file | ").next().unwrap();
    let quoted = |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.trim_end_matches('|').split('|').collect();
        let [crates, _, dependencies] = cells[..] else {
            return None;
        };
        Some((quoted(crates), quoted(dependencies)))
    });
    let rows: Vec<(Vec<String>, Vec<String>)> = rows.filter(|(crates, _)| !crates.is_empty()).collect();
    let all: Vec<&String> = rows.iter().flat_map(|(crates, _)| crates).collect();
    let expand = |name: &String| -> Vec<String> {
        if let Some((folder, names)) = name.strip_suffix('}').and_then(|name| name.split_once('{')) {
            return names.split(',').map(|name| format!("{folder}{name}")).collect();
        }
        let Some(folder) = name.strip_suffix('*') else {
            return vec![name.clone()];
        };
        let below = all.iter().filter(|other| {
            other
                .strip_prefix(folder)
                .is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
        });
        below.map(|name| (*name).clone()).collect()
    };
    let mut found = Crates::new();
    for (crates, dependencies) in &rows {
        let dependencies: BTreeSet<String> = dependencies.iter().flat_map(expand).collect();
        for name in crates {
            assert!(
                found.insert(name.clone(), dependencies.clone()).is_none(),
                "{name} is in two rows"
            );
        }
    }
    found
}

#[test]
fn table_of_crates_lists_every_crate_and_its_dependencies() {
    let architecture = fs::read_to_string(repository_root().join("ARCHITECTURE.md")).unwrap();
    let (table, cargo) = (crates_of_table(&architecture), crates_of_cargo());
    let names = |crates: &Crates| crates.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&table), names(&cargo));
    for (name, dependencies) in &cargo {
        assert_eq!(&table[name], dependencies, "{name}");
    }
}

#[test]
fn rows_of_crates_may_have_several_names_and_patterns() {
    let document = "# T\n\n## Crates\n\n| crate | holds | depends on |\n|---|---|---|\n| `a/b`, `a/c` | x | |\n| `a/b/d` | y | `a/*` |\n| `e` | y | `a/{b,c}` |\n\n| `no` | z |\n\n## Z\n";
    let names = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let expected = [
        ("a/b", names(&[])),
        ("a/b/d", names(&["a/b", "a/c"])),
        ("a/c", names(&[])),
        ("e", names(&["a/b", "a/c"])),
    ];
    let expected = expected.map(|(name, dependencies)| (name.to_owned(), dependencies));
    assert_eq!(crates_of_table(document), Crates::from(expected));
}

/// Rust files below a folder.
fn add_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            add_sources(&path, files);
        } else if path.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// A path without `..` and `.`, which need not exist.
fn normalized(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(parts.pop(), "{}", path.display()),
            Component::CurDir => {}
            _ => parts.push(part),
        }
    }
    parts
}

/// Files with a `#[path]` that leaves the folder of their crate, and the files that they name.
fn sources_of_other_crates() -> BTreeSet<(String, String)> {
    let root = normalized(&repository_root());
    let mut files = Vec::new();
    add_sources(&root, &mut files);
    let mut found = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let package = file
            .ancestors()
            .find(|folder| folder.join("Cargo.toml").is_file())
            .unwrap();
        let named = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("#[path = \"")?.split('"').next());
        for named in named {
            let target = normalized(&file.parent().unwrap().join(named));
            if !target.starts_with(package) {
                let relative = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
                found.insert((relative(&file), relative(&target)));
            }
        }
    }
    found
}

#[test]
fn architecture_lists_every_source_that_two_crates_compile() {
    let architecture = fs::read_to_string(repository_root().join("ARCHITECTURE.md")).unwrap();
    let section = architecture.split("\n## Crates\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let table = section.split("\n| file | compiles | why |\n").nth(1).unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let listed: BTreeSet<(String, String)> = rows
        .filter_map(|row| {
            let mut quoted = row.split('`').skip(1).step_by(2).map(str::to_owned);
            Some((quoted.next()?, quoted.next()?))
        })
        .collect();
    assert_eq!(listed, sources_of_other_crates());
}
