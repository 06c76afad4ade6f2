//! Connects the chain to the process: builds its source from the settings, and has workers prepare each snapshot before it comes into
//! force.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_contract::names::readiness::{AWAIT_ENTRY, FIRST_CHAIN};
use ctrlmesh_contract::status::Pod;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{make_room, prepare_workers};
use crate::chain::{
    self, ChainHandle, ChainLocation, Labels, MakeRoom, PredecessorRecord, Prepare, Required, Source, Timing,
};
use crate::config::Settings;
use crate::error::Error;
use crate::listen::threads::Task;
use crate::observe::readiness::{Guard, Readiness};
use crate::request::worker::Shared;
use crate::wasm::{CompileMode, Compiler, InstanceInfo, StateStore};

/// A handle without a chain yet.
pub(super) fn chain_handle(settings: &Settings, registry: &mut Registry) -> Arc<ChainHandle> {
    let pod = Pod {
        namespace: settings.pod_namespace.clone(),
        name: settings.pod_name.clone(),
    };
    Arc::new(ChainHandle::new(
        pod,
        readiness_requirement(settings),
        chain::Metrics::new(registry),
    ))
}

fn readiness_requirement(settings: &Settings) -> Required {
    match (&settings.chain_dir, &settings.await_entry) {
        (None, _) => Required::Nothing,
        (Some(_), None) => Required::Chain,
        (Some(_), Some(name)) => Required::Entry(name.clone()),
    }
}

/// Readiness guards of the parts that requests wait for.
pub(super) struct Awaited {
    first_chain: Guard,
    own_entry: Option<Guard>,
}

impl Awaited {
    pub(super) fn from_settings(settings: &Settings, readiness: &Readiness) -> Self {
        let own_entry = settings.await_entry.as_ref();
        Self {
            first_chain: readiness.guard(FIRST_CHAIN),
            own_entry: own_entry.map(|_| readiness.guard(AWAIT_ENTRY)),
        }
    }
}

/// Loads the chain, and has the workers prepare each new one.
pub(super) struct ChainLoader<'a> {
    pub(super) settings: &'a Settings,
    pub(super) shared: &'a Shared,
    pub(super) states: Arc<StateStore>,
    pub(super) workers: Vec<mpsc::Sender<Task>>,
}

impl ChainLoader<'_> {
    /// Follows the chain's directory, if there is one, and drops each guard of `awaited` when its condition is met.
    pub(super) fn start(
        self,
        tasks: &mut JoinSet<()>,
        awaited: Awaited,
        control: CancellationToken,
    ) -> Result<(), Error> {
        let (settings, shared) = (self.settings, self.shared);
        if let Some(directory) = &settings.chain_dir {
            let predecessors = predecessors(settings)?;
            if predecessors.is_there() {
                shared.chain.follow_another();
                shared.list_views.note_predecessor();
            }
            let source = Source::new(chain_location(settings, directory)?, self.host()?, predecessors);
            let workers = self.workers;
            let prepare: Prepare = Arc::new(move |snapshot| {
                let workers = workers.clone();
                Box::pin(async move { prepare_workers(&workers, &snapshot).await })
            });
            let chain = Arc::clone(&shared.chain);
            tasks.spawn(chain::reload::run(source, chain, prepare, Timing::default(), control));
        }
        let chain = Arc::clone(&shared.chain);
        tasks.spawn(async move {
            chain.first_chain().await;
            drop(awaited.first_chain);
            chain.wait_until_ready().await;
            drop(awaited.own_entry);
        });
        Ok(())
    }

    fn host(&self) -> Result<chain::Host, Error> {
        let settings = self.settings;
        let program = std::env::current_exe().map_err(Error::Thread)?;
        let compiler = Compiler::new(CompileMode::Child { program }, settings.cache_dir.as_deref())?
            .with_precompiled(&settings.precompiled_dir);
        let info = InstanceInfo {
            pod_namespace: settings.pod_namespace.clone(),
            pod_name: settings.pod_name.clone(),
            host_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(chain::Host {
            engine: Arc::clone(&self.shared.engine),
            compiler,
            states: Arc::clone(&self.states),
            info,
            compiling: self.shared.chain.compiling().clone(),
            retirements: self.shared.chain.retirements().clone(),
            workers: usize::from(settings.workers),
            make_room: room_maker(self.workers.clone(), Timing::default().prepare),
        })
    }
}

/// Makes room on the workers from the thread that builds chains, which may block.
fn room_maker(workers: Vec<mpsc::Sender<Task>>, limit: Duration) -> MakeRoom {
    let runtime = tokio::runtime::Handle::current();
    Arc::new(move |kept| {
        let made = runtime.block_on(async { timeout(limit, make_room(&workers, kept.clone())).await });
        if made.is_err() {
            tracing::warn!("workers are too busy to make room for a new chain");
        }
    })
}

fn predecessors(settings: &Settings) -> Result<PredecessorRecord, Error> {
    let Some(directory) = &settings.state_dir else {
        return Ok(PredecessorRecord::without_record());
    };
    let predecessors = PredecessorRecord::open(directory).map_err(|source| Error::State {
        directory: directory.clone(),
        source,
    })?;
    Ok(predecessors.await_entry(settings.await_entry.clone()))
}

fn chain_location(settings: &Settings, directory: &Path) -> Result<ChainLocation, Error> {
    let labels = match &settings.labels_file {
        Some(file) => Labels::File(file.clone()),
        None => Labels::Fixed(std::collections::BTreeMap::new()),
    };
    Ok(ChainLocation {
        directory: directory.to_owned(),
        labels,
        public_keys: settings.public_keys()?,
        namespace: settings.pod_namespace.clone(),
    })
}
