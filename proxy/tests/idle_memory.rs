//! The budget of an idle sidecar that runs the four built-in plugins of custom resources.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ctrlmesh_contract::Digest;
use ctrlmesh_plugins_builtin::builtin;
use serde_json::{Value, json};

/// Maximum memory of a sidecar that has compiled its plugins: anonymous, and files in memory, which hold their code. One that has
/// precompiled plugins takes less. The four artifacts have 3.5 MiB; the rest is the sidecar in the dev profile. With huge pages it would be
/// 39 MiB.
const BUDGET_KIB: u64 = 15 << 10;
/// Compiling four plugins takes seconds on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Ends the sidecar with the test.
struct Sidecar(Child);

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn plugin_settings(plugin: &str) -> Value {
    let configmaps = json!([{ "apiGroups": [""], "resources": ["configmaps"] }]);
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "namespaces": ["*"] }]);
    match plugin {
        "shard-selector" => json!({
            "shard": "a",
            "limits": [{ "relateResources": configmaps, "selector": { "matchLabels": { "shard": "a" } } }],
        }),
        "rate-limit" => json!({ "rateLimitings": [{
            "name": "a", "resourceRules": rules, "bucket": { "limit": 10, "interval": "1s", "burst": 10 },
        }] }),
        "circuit-breaker" => json!({ "rateLimitings": [{
            "name": "a", "resourceRules": rules, "triggerPolicy": "Normal",
            "trip": { "errorPercent": 50, "minimumRequests": 20, "window": "30s" },
            "recoverPolicy": { "type": "SleepingWindow", "sleepingWindowSize": "15s" },
        }] }),
        "fault-inject" => json!({ "faults": [{
            "name": "a", "match": { "resources": configmaps }, "do": { "delay": { "for": "1ms" } }, "percent": 1,
        }] }),
        other => panic!("there are no settings for {other}"),
    }
}

fn write_chain(directory: &Path) {
    fs::create_dir(directory).unwrap();
    let entries: Vec<Value> = builtin()
        .iter()
        // Off unless a ShardingConfig names it.
        .filter(|plugin| plugin.name != "trim-objects")
        .enumerate()
        .map(|(order, plugin)| {
            let digest = Digest::of(plugin.bytes);
            fs::write(directory.join(format!("{}.wasm", digest.hex())), plugin.bytes).unwrap();
            json!({
                "name": format!("{}/a", plugin.name), "plugin": digest.to_string(), "podSelector": {}, "order": order,
                "onFailure": "Closed", "settings": plugin_settings(plugin.name),
            })
        })
        .collect();
    let chain = json!({
        "apiVersion": "chain.ctrlmesh.kusionstack.io/v1", "namespace": "a", "generation": 1, "entries": entries,
    });
    fs::write(directory.join("chain.yaml"), chain.to_string()).unwrap();
}

/// Starts a sidecar, and returns it with the address of its admin port.
fn start(directory: &Path) -> (Sidecar, String) {
    write_chain(&directory.join("chain"));
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": { "server": "http://127.0.0.1:9" } }],
        "users": [{ "name": "a", "user": {} }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    fs::write(directory.join("kubeconfig"), kubeconfig.to_string()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ctrlmesh-proxy"))
        .current_dir(directory)
        .args(["--api-address=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--log=warn"])
        .args(["--kubeconfig=kubeconfig", "--chain-dir=chain", "--pod-namespace=a"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    let admin = line.pointer("/listening/admin").and_then(Value::as_str).unwrap();
    (Sidecar(child), admin.to_owned())
}

fn is_ready(admin: &str) -> bool {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.starts_with("HTTP/1.1 200 ")
}

fn anonymous_kib(sidecar: &Sidecar) -> u64 {
    let memory = fs::read_to_string(format!("/proc/{}/smaps_rollup", sidecar.0.id())).unwrap();
    let line = memory.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Size of the memory files that the sidecar has open. The kernel counts all of it as shared memory of the container; `smaps_rollup` and
/// `RssShmem` have only the pages that have been touched.
fn memory_files_kib(sidecar: &Sidecar) -> u64 {
    let files = fs::read_dir(format!("/proc/{}/fd", sidecar.0.id())).unwrap().flatten();
    let memory_files = files.filter(|file| {
        let target = fs::read_link(file.path()).unwrap_or_default();
        target.to_string_lossy().starts_with("/memfd:")
    });
    // A file may be open several times.
    let by_inode: BTreeMap<u64, u64> = memory_files
        .filter_map(|file| fs::metadata(file.path()).ok())
        .map(|file| (file.ino(), file.blocks() / 2))
        .collect();
    by_inode.values().sum()
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn idle_sidecar_with_all_builtin_plugins_stays_within_budget() {
    let directory = tempfile::tempdir().unwrap();
    let (sidecar, admin) = start(directory.path());
    wait_until("the sidecar is not ready", || is_ready(&admin));
    let measure = || (anonymous_kib(&sidecar), memory_files_kib(&sidecar));
    let (mut anonymous, mut in_files) = measure();
    // The compiler's child has just ended.
    let end = Instant::now() + Duration::from_secs(5);
    while anonymous + in_files > BUDGET_KIB && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
        (anonymous, in_files) = measure();
    }
    println!("{anonymous} KiB of anonymous memory, {in_files} KiB of memory files");
    assert!(
        anonymous + in_files <= BUDGET_KIB,
        "{anonymous} KiB of anonymous memory and {in_files} KiB of memory files"
    );
}
