//! Builds the plugins for `wasm32-wasip2` with a nested cargo, and copies the components to `OUT_DIR` for `src/lib.rs`.
//!
//! The nested cargo has a target folder of its own, because sharing the outer one would wait for a lock that the outer cargo holds.
//! It lies beside the outer profiles instead of in `OUT_DIR`, so that the builds of all profiles and features share it.
//!
//! With `CTRLMESH_PREBUILT_PLUGINS` it compiles nothing, and takes components that `write-plugins` wrote.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "wasm32-wasip2";
const PROFILE: &str = "plugin";

/// A folder of `write-plugins`. Images of all architectures contain the same components, because a sidecar finds precompiled plugins by
/// their digest, and cargo may compile other bytes on another architecture (docs/adr/0064).
const PREBUILT: &str = "CTRLMESH_PREBUILT_PLUGINS";

/// Inputs of the nested build, relative to the repository. Folders are watched with all their contents.
const SOURCES: [&str; 11] = [
    "sdk",
    "wire",
    "plugins/rules",
    "plugins/circuit-breaker",
    "plugins/rate-limit",
    "plugins/shard-selector",
    "plugins/fault-inject",
    "plugins/trim-objects",
    "tests/guests",
    "Cargo.toml",
    "Cargo.lock",
];

/// Constant name and file name of each component.
const PLUGINS: [(&str, &str); 5] = [
    ("CIRCUIT_BREAKER", "ctrlmesh_plugin_circuit_breaker.wasm"),
    ("FAULT_INJECT", "ctrlmesh_plugin_fault_inject.wasm"),
    ("RATE_LIMIT", "ctrlmesh_plugin_rate_limit.wasm"),
    ("SHARD_SELECTOR", "ctrlmesh_plugin_shard_selector.wasm"),
    ("TRIM_OBJECTS", "ctrlmesh_plugin_trim_objects.wasm"),
];
const SAMPLES: [(&str, &str); 3] = [
    ("HELLO", "examples/hello.wasm"),
    ("SHARD_SELECTOR_NEXT", "examples/shard_selector_next.wasm"),
    ("CRASH", "examples/crash.wasm"),
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The folder with the components.
enum Components {
    /// Of the nested cargo: files have the names of their crates and examples.
    Compiled(PathBuf),
    /// Of `write-plugins`: files have the names of the plugins and guests.
    Prebuilt(PathBuf),
}

impl Components {
    fn path(&self, name: &str, compiled: &str) -> PathBuf {
        match self {
            Self::Compiled(folder) => folder.join(compiled),
            Self::Prebuilt(folder) => folder.join(format!("{name}.wasm")),
        }
    }
}

fn main() -> Result<()> {
    let manifest_dir = PathBuf::from(required_variable("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir.join("../..").canonicalize()?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={PREBUILT}");

    let out = PathBuf::from(required_variable("OUT_DIR")?);
    let with_guests = env::var_os("CARGO_FEATURE_GUESTS").is_some();
    let components = find_components(&root, &out, with_guests)?;

    let mut code = String::new();
    for (constant, file) in PLUGINS {
        write_constant(&mut code, constant, &components, file, &out)?;
    }
    writeln!(
        code,
        "/// Plugins for demonstrations; no cluster runs them.\npub mod samples {{"
    )?;
    for (constant, file) in SAMPLES {
        write_constant(&mut code, constant, &components, file, &out)?;
    }
    writeln!(code, "}}")?;
    if with_guests {
        write_guest_constants(&mut code, &root, &components, &out)?;
    }
    fs::write(out.join("components.rs"), code)?;
    Ok(())
}

fn required_variable(name: &str) -> Result<OsString> {
    env::var_os(name).ok_or_else(|| format!("cargo did not set {name}").into())
}

/// The script runs again when what it takes or compiles changes.
fn find_components(root: &Path, out: &Path, with_guests: bool) -> Result<Components> {
    if let Some(folder) = env::var_os(PREBUILT).filter(|folder| !folder.is_empty()) {
        let folder = PathBuf::from(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        return Ok(Components::Prebuilt(folder));
    }
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    build_components(root, &target_dir(out), with_guests).map(Components::Compiled)
}

/// `<target>/plugins` for an `OUT_DIR` of `<target>/<profile>/build/<package>/out`.
fn target_dir(out: &Path) -> PathBuf {
    out.ancestors().nth(4).unwrap_or(out).join("plugins")
}

/// Builds all components with one cargo, since they share their dependencies. Returns the folder with the components.
fn build_components(root: &Path, target_dir: &Path, with_guests: bool) -> Result<PathBuf> {
    let mut cargo = Command::new(required_variable("CARGO")?);
    cargo
        .current_dir(root)
        .args(["build", "--locked", "--target", TARGET, "--profile", PROFILE]);
    cargo.args([
        "-p",
        "ctrlmesh-sdk",
        "-p",
        "ctrlmesh-plugin-circuit-breaker",
        "-p",
        "ctrlmesh-plugin-rate-limit",
        "-p",
        "ctrlmesh-plugin-shard-selector",
        "-p",
        "ctrlmesh-plugin-fault-inject",
        "-p",
        "ctrlmesh-plugin-trim-objects",
        "--lib",
        "--examples",
    ]);
    if with_guests {
        cargo.args(["-p", "ctrlmesh-test-guests"]);
    }
    cargo.arg("--target-dir").arg(target_dir);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(concerns_outer_build_only) {
            cargo.env_remove(name);
        }
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", path_flags(root));
    let done = cargo.output()?;
    if !done.status.success() {
        let log = String::from_utf8_lossy(&done.stderr);
        return Err(
            format!("building the plugins failed; is the target there (`rustup target add {TARGET}`)?\n{log}").into(),
        );
    }
    Ok(target_dir.join(TARGET).join(PROFILE))
}

/// Flags that remove this machine's paths, which stand in panic messages, from the components, so that the same sources give the same
/// digest in every folder. Parts are separated as `CARGO_ENCODED_RUSTFLAGS` requires.
fn path_flags(root: &Path) -> OsString {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    let mut flags = OsString::new();
    for (from, to) in [(cargo_home, "/cargo"), (Some(root.to_owned()), "/ctrlmesh")] {
        if let Some(from) = from {
            flags.push(if flags.is_empty() { "" } else { "\u{1f}" });
            flags.push("--remap-path-prefix=");
            flags.push(from);
            flags.push(format!("={to}"));
        }
    }
    flags
}

/// Variables about the outer build: flags for another target, clippy's wrapper, coverage, cargo's own variables for this script. With
/// them the nested build would fail, or rebuild everything whenever the outer command changes.
fn concerns_outer_build_only(name: &str) -> bool {
    const PREFIXES: [&str; 6] = [
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
    ];
    const NAMES: [&str; 19] = [
        "CARGO_BUILD_BUILD_DIR",
        "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_BUILD_TARGET_DIR",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_MAKEFLAGS",
        "CLIPPY_ARGS",
        "CLIPPY_CONF_DIR",
        "DEBUG",
        "HOST",
        "LLVM_PROFILE_FILE",
        "NUM_JOBS",
        "OPT_LEVEL",
        "OUT_DIR",
        "PROFILE",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        "TARGET",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Copies a component into `out`; returns the copy's file name.
fn copy_component(from: &Path, out: &Path) -> Result<String> {
    let name = from.file_name().ok_or("no file name")?;
    fs::copy(from, out.join(name)).map_err(|error| format!("{}: {error}", from.display()))?;
    Ok(name.to_string_lossy().into_owned())
}

/// Copies a component into `out`, and adds a constant with its bytes.
fn write_constant(
    code: &mut String,
    constant: &str,
    components: &Components,
    compiled: &str,
    out: &Path,
) -> Result<()> {
    let name = constant.to_lowercase().replace('_', "-");
    let file = copy_component(&components.path(&name, compiled), out)?;
    writeln!(code, "/// The component `{name}`.")?;
    writeln!(
        code,
        "pub static {constant}: &[u8] = include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{file}\"));"
    )?;
    Ok(())
}

fn write_guest_constants(code: &mut String, root: &Path, components: &Components, out: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("tests/guests/examples"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort_unstable();
    writeln!(code, "static GUESTS: &[(&str, &[u8])] = &[")?;
    for name in names {
        let file = copy_component(&components.path(&name, &format!("examples/{name}.wasm")), out)?;
        writeln!(
            code,
            "    (\"{name}\", include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{file}\"))),"
        )?;
    }
    writeln!(code, "];")?;
    Ok(())
}
