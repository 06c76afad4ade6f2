//! Helpers of the chain's tests: a mounted volume as kubelet makes it, documents, and a host with real plugins.

pub(crate) mod mount;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ctrlmesh_contract::names::{CHAIN_API_VERSION, files};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::status::Pod;
use ctrlmesh_contract::{Chain, Digest};
use serde_json::{Value, json};

use super::{
    ChainHandle, ChainLocation, CompileProgress, Host, Labels, Metrics, PredecessorRecord, Required, Retirements,
    Source,
};
use crate::wasm::{CompileMode, Compiler, Engine, InstanceInfo, Plugin, StateStore};

/// Namespace of the pod under test.
pub(crate) const NAMESPACE: &str = "demo";

/// The bytes of a test guest.
pub(crate) fn guest_bytes(name: &str) -> &'static [u8] {
    ctrlmesh_plugins_builtin::guests::get(name).unwrap_or_else(|| panic!("there is no guest {name}"))
}

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
    (plugin_file::name(&Digest::of(named), Encoding::Plain), content.to_vec())
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
        let plugins = [scripted_guest(), guest_bytes("refuse_settings")];
        let held = plugins
            .iter()
            .map(|bytes| test_compiler().load(&engine, bytes).unwrap())
            .collect();
        Shared { engine, _held: held }
    })
}

#[test]
fn fixture_writes_valid_documents() {
    Chain::parse(&document(1, &[entry_value("a", scripted_guest())])).unwrap();
}
