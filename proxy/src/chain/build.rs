//! Builds a snapshot from a document: with all entries that select the pod, or not at all.
//!
//! Flow: choose by labels, load what is new, let each new plugin check its settings, keep what has not changed. Blocking
//! and slow (it may compile): never on a worker thread. Leaves reading files to `directory.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_contract::chain::MAX_ENTRIES_PER_POD;
use ctrlmesh_contract::{Chain, Digest};
use tokio::time::Instant;

use super::compiling::{CompileBatch, CompileProgress};
use super::directory::Version;
use super::error::Error;
use super::matcher::Matcher;
use super::quarantine::Quarantine;
use super::retirement::Retirements;
use super::snapshot::{Entry, EntryId, Snapshot};
use crate::wasm::{self, Compiler, Engine, EntryConfig, Instance, InstanceInfo, StateStore};

/// Makes every worker thread end the instances of all entries but these. Blocks until they have; the implementation bounds the wait.
pub type MakeRoom = Arc<dyn Fn(&BTreeSet<EntryId>) + Send + Sync>;

/// The engine, state and limits that plugins are loaded with.
pub struct Host {
    pub engine: Arc<Engine>,
    pub compiler: Compiler,
    /// State of entries that outlives a reload.
    pub states: Arc<StateStore>,
    /// Facts about this sidecar that plugins can query.
    pub info: InstanceInfo,
    pub compiling: CompileProgress,
    pub retirements: Retirements,
    /// Threads that run an instance of each entry.
    pub workers: usize,
    /// Called when a plugin can't be compiled or tried beside the instances that are there.
    pub make_room: MakeRoom,
}

impl Host {
    /// Builds the snapshot of a document for a pod with these labels. Returns `None` if the same chain is in force already.
    pub(super) fn build(
        &self,
        chain: &Chain,
        document: Digest,
        labels: &BTreeMap<String, String>,
        version: &Version,
        previous: &Snapshot,
    ) -> Result<Option<Snapshot>, Error> {
        let selected: Vec<_> = chain
            .entries
            .iter()
            .filter(|entry| entry.pod_selector.matches(labels))
            .collect();
        if selected.len() > MAX_ENTRIES_PER_POD {
            return Err(Error::TooManyEntries {
                selected: selected.len(),
            });
        }
        let compiling = self.compiling.begin_batch(self.to_compile(&selected, previous));
        let kept = kept_entries(&selected, previous);
        let entries = selected
            .into_iter()
            .map(|entry| self.build_entry(entry, version, previous.entry(&entry.name), &kept, &compiling))
            .collect::<Result<Vec<_>, _>>()?;
        drop(compiling);
        self.check_memory(&entries)?;
        let snapshot = Snapshot::new(chain.generation, document, entries);
        let same = snapshot.document == previous.document
            && snapshot.entries().len() == previous.entries().len()
            && snapshot
                .entries()
                .iter()
                .zip(previous.entries())
                .all(|(a, b)| Arc::ptr_eq(a, b));
        Ok((!same).then_some(snapshot))
    }

    /// Checks that the initial instances of all entries fit into memory together. Instances that run now do not count, because they can be
    /// ended: by [`Host::make_room`] while the chain is built, by `Instances::prepare` afterwards.
    fn check_memory(&self, entries: &[Arc<Entry>]) -> Result<(), Error> {
        let code: BTreeMap<_, _> = entries
            .iter()
            .map(|entry| (entry.digest, entry.plugin.code_bytes()))
            .collect();
        let instances: usize = entries.iter().map(|entry| entry.start_bytes).sum();
        let needed_bytes = code.values().sum::<usize>() + instances * self.workers;
        let held = self.engine.memory().could_hold(needed_bytes);
        held.map_err(|over| Error::InitialMemory {
            needed_bytes,
            workers: self.workers,
            over,
        })
    }

    /// The plugins that must be compiled: no entry in force runs them, and the cache does not have them.
    fn to_compile(&self, selected: &[&ctrlmesh_contract::Entry], previous: &Snapshot) -> BTreeSet<Digest> {
        let is_running = |desired: &ctrlmesh_contract::Entry| {
            let running = previous.entry(&desired.name);
            running.is_some_and(|running| runs_the_same(desired, running))
        };
        let fresh = selected.iter().filter(|desired| !is_running(desired));
        fresh
            .map(|desired| desired.plugin)
            .filter(|plugin| !self.compiler.is_compiled(&self.engine, plugin))
            .collect()
    }

    fn build_entry(
        &self,
        desired: &ctrlmesh_contract::Entry,
        version: &Version,
        previous: Option<&Arc<Entry>>,
        kept: &BTreeSet<EntryId>,
        compiling: &CompileBatch<'_>,
    ) -> Result<Arc<Entry>, Error> {
        if let Some(previous) = previous.filter(|previous| runs_the_same(desired, previous)) {
            if (desired.order, desired.on_failure) == (previous.order, previous.on_failure) {
                return Ok(Arc::clone(previous));
            }
            return Ok(Arc::new(moved_entry(previous, desired)));
        }
        let bytes = version.read_plugin(&desired.name, &desired.plugin)?;
        let started = self.start(desired, &bytes, compiling).or_else(|error| {
            if !error.is_want_of_memory() {
                return Err(error);
            }
            tracing::info!(%error, "closing plugin instances that the new chain does not keep, to make room for it");
            (self.make_room)(kept);
            self.start(desired, &bytes, compiling)
        });
        started.map(Arc::new)
    }

    /// Loads a plugin and lets it check its settings.
    fn start(
        &self,
        desired: &ctrlmesh_contract::Entry,
        bytes: &[u8],
        compiling: &CompileBatch<'_>,
    ) -> Result<Entry, Error> {
        let name = &desired.name;
        let plugin = self
            .compiler
            .load(&self.engine, bytes)
            .map_err(|source| Error::Plugin {
                entry: name.clone(),
                source,
            })?;
        compiling.mark_compiled(&desired.plugin);
        let config = Arc::new(EntryConfig {
            name: name.clone(),
            settings_json: desired.settings.json().to_owned(),
            timeout: call_timeout(desired),
            memory_bytes: memory_bytes(desired),
            info: self.info.clone(),
        });
        let state = self.states.entry(name);
        // Worker threads start their instances before the swap, when every entry of the chain is known to be good.
        let asked = Instance::subscription(&self.engine, &plugin, &config, &state);
        let (subscription, start_bytes) = asked.map_err(|source: wasm::Fault| Error::Configure {
            entry: name.clone(),
            source,
        })?;
        Ok(Entry {
            id: EntryId::next_id(),
            name: name.clone(),
            order: desired.order,
            on_failure: desired.on_failure,
            digest: desired.plugin,
            settings_hash: desired.settings.hash().to_owned(),
            plugin,
            config,
            state,
            start_bytes,
            matcher: Matcher::new(&subscription),
            subscription,
            quarantine: Arc::new(Quarantine::new(Instant::now())),
            reuse: Arc::default(),
            retirement: self.retirements.guard(),
        })
    }
}

/// The entries whose live instances continue in the new chain.
fn kept_entries(selected: &[&ctrlmesh_contract::Entry], previous: &Snapshot) -> BTreeSet<EntryId> {
    let running = selected.iter().filter_map(|desired| {
        let running = previous.entry(&desired.name)?;
        runs_the_same(desired, running).then_some(running.id)
    });
    running.collect()
}

/// Whether live instances of an entry can continue as instances of the desired one.
fn runs_the_same(desired: &ctrlmesh_contract::Entry, entry: &Entry) -> bool {
    desired.plugin == entry.digest
        && desired.settings.hash() == entry.settings_hash
        && call_timeout(desired) == entry.config.timeout
        && memory_bytes(desired) == entry.config.memory_bytes
}

/// An entry that runs on at another position, or with another failure policy.
fn moved_entry(entry: &Entry, desired: &ctrlmesh_contract::Entry) -> Entry {
    Entry {
        id: entry.id,
        name: entry.name.clone(),
        order: desired.order,
        on_failure: desired.on_failure,
        digest: entry.digest,
        settings_hash: entry.settings_hash.clone(),
        plugin: Arc::clone(&entry.plugin),
        config: Arc::clone(&entry.config),
        state: Arc::clone(&entry.state),
        start_bytes: entry.start_bytes,
        subscription: entry.subscription.clone(),
        matcher: entry.matcher.clone(),
        quarantine: Arc::clone(&entry.quarantine),
        reuse: Arc::clone(&entry.reuse),
        retirement: entry.retirement.clone(),
    }
}

fn call_timeout(entry: &ctrlmesh_contract::Entry) -> Duration {
    Duration::from_millis(entry.timeout_ms.into())
}

/// The contract bounds this far below a `usize`.
const fn memory_bytes(entry: &ctrlmesh_contract::Entry) -> usize {
    entry.memory_mib as usize * 1024 * 1024
}
