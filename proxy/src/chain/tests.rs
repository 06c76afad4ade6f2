//! Helpers of the chain's tests: a mounted volume as kubelet makes it, documents, and a host and a worker with real plugins.

pub(crate) mod mount;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ctrlmesh_contract::names::{CHAIN_API_VERSION, files};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::status::Pod;
use ctrlmesh_contract::{Chain, Digest, FailurePolicy};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ChainHandle, ChainLocation, CompileProgress, Entry, EntryId, Host, Labels, Matcher, Metrics, PredecessorRecord,
    Quarantine, Required, Retirements, Source,
};
use crate::wasm::{CompileMode, Compiler, Engine, EntryConfig, Instance, InstanceInfo, Plugin, StateStore};

/// Namespace of the pod under test.
pub(crate) const NAMESPACE: &str = "demo";

/// The bytes of a test guest.
pub(crate) fn guest_bytes(name: &str) -> &'static [u8] {
    ctrlmesh_plugins_builtin::guests::get(name).unwrap_or_else(|| panic!("there is no guest {name}"))
}

/// The circuit breaker that was built against interface 0.1.
pub(crate) const BREAKER_V0_1_BYTES: &[u8] = include_bytes!("../../../tests/guests/kept/0.1/circuit-breaker.wasm");

/// A guest whose behaviour is scripted by its settings, and which accepts any settings.
pub(crate) fn scripted_guest() -> &'static [u8] {
    guest_bytes("scripted")
}

/// An entry of a document.
pub(crate) fn entry_value(name: &str, plugin: &[u8]) -> Value {
    json!({"name": name, "plugin": Digest::of(plugin).to_string()})
}

/// The entry with one more field.
pub(crate) fn with_field(mut entry: Value, field: &str, value: Value) -> Value {
    entry[field] = value;
    entry
}

pub(crate) fn document(generation: u64, entries: &[Value]) -> Vec<u8> {
    let head = json!({"apiVersion": CHAIN_API_VERSION, "namespace": NAMESPACE, "generation": generation});
    with_field(head, "entries", entries.into()).to_string().into_bytes()
}

/// A document as a file, with the plugins that it needs.
pub(crate) fn files_of(document: Vec<u8>, plugins: &[&[u8]]) -> Vec<(String, Vec<u8>)> {
    let plugins = plugins.iter().map(|bytes| plugin_file_of(bytes, bytes));
    [(files::CHAIN.to_owned(), document)]
        .into_iter()
        .chain(plugins)
        .collect()
}

/// A plugin file whose name has the digest of `named`, with `content` inside.
pub(crate) fn plugin_file_of(named: &[u8], content: &[u8]) -> (String, Vec<u8>) {
    (
        plugin_file::file_name(&Digest::of(named), Encoding::Plain),
        content.to_vec(),
    )
}

/// A `ChainLocation` whose input is valid.
pub(crate) fn valid_location(directory: &Path) -> ChainLocation {
    ChainLocation {
        directory: directory.to_owned(),
        labels: Labels::Fixed(BTreeMap::new()),
        public_keys: None,
        namespace: NAMESPACE.to_owned(),
    }
}

/// The same with a labels file.
pub(crate) fn location_with_labels(directory: &Path, labels: PathBuf) -> ChainLocation {
    ChainLocation {
        labels: Labels::File(labels),
        ..valid_location(directory)
    }
}

/// A source with a real engine.
pub(crate) fn test_source(location: ChainLocation) -> Source {
    source_after(location, PredecessorRecord::without_record())
}

/// A source for a sidecar with predecessors.
pub(crate) fn source_after(location: ChainLocation, predecessors: PredecessorRecord) -> Source {
    Source::new(location, host(), predecessors)
}

/// A handle that waits for its first chain.
pub(crate) fn test_handle(metrics: Metrics) -> Arc<ChainHandle> {
    let pod = Pod {
        namespace: NAMESPACE.to_owned(),
        name: "pod-0".to_owned(),
    };
    Arc::new(ChainHandle::new(pod, Required::Chain, metrics))
}

fn host() -> Host {
    Host {
        engine: Arc::clone(&shared_parts().engine),
        compiler: test_compiler(),
        states: Arc::new(StateStore::new()),
        info: InstanceInfo::default(),
        compiling: CompileProgress::default(),
        retirements: Retirements::default(),
        workers: 2,
        make_room: Arc::new(|_| {}),
    }
}

fn test_compiler() -> Compiler {
    Compiler::new(CompileMode::InProcess, None).unwrap()
}

struct Shared {
    engine: Arc<Engine>,
    /// Keeps plugins alive, because the engine drops those without a holder: so each is compiled once for all tests.
    _held: Vec<Arc<Plugin>>,
}

fn shared_parts() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let engine = Engine::new().unwrap();
        let guests = ["scripted", "refuse_settings", "decision_tree"].map(guest_bytes);
        let builtin = ctrlmesh_plugins_builtin::builtin().iter().map(|builtin| builtin.bytes);
        let held = guests
            .into_iter()
            .chain(builtin)
            .chain([BREAKER_V0_1_BYTES])
            .map(|bytes| test_compiler().load(&engine, bytes).unwrap())
            .collect();
        Shared { engine, _held: held }
    })
}

pub(crate) fn test_engine() -> &'static Arc<Engine> {
    &shared_parts().engine
}

/// An entry of a chain in force, with its state in this store. Its plugin gets a second for each call, because tests run side by side.
pub(crate) fn test_entry(name: &str, order: i32, plugin: &[u8], settings: &str, states: &StateStore) -> Arc<Entry> {
    let engine = test_engine();
    let loaded = test_compiler().load(engine, plugin).unwrap();
    let config = Arc::new(EntryConfig {
        name: name.to_owned(),
        settings_json: settings.to_owned(),
        timeout: Duration::from_secs(1),
        memory_bytes: 16 << 20,
        info: InstanceInfo::default(),
    });
    let state = states.entry(name);
    let (subscription, start_bytes) = Instance::subscription(engine, &loaded, &config, &state).unwrap();
    Arc::new(Entry {
        id: EntryId::next_id(),
        name: name.to_owned(),
        order,
        on_failure: FailurePolicy::Closed,
        digest: Digest::of(plugin),
        settings_hash: String::new(),
        plugin: loaded,
        config,
        state,
        start_bytes,
        matcher: Matcher::new(&subscription),
        subscription,
        quarantine: Arc::new(Quarantine::new(Instant::now())),
        reuse: Arc::default(),
        retirement: Retirements::default().guard(),
    })
}

#[test]
fn fixture_writes_valid_documents() {
    Chain::parse(&document(1, &[entry_value("a", scripted_guest())])).unwrap();
}
