//! Where the chain comes from: the settings become a source, its snapshots reach the workers before they come into force.

use std::path::Path;
use std::sync::Arc;

use ctrlmesh_contract::status::Pod;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::prepare;
use crate::chain::{self, ChainHandle, Labels, Past, Place, Prepare, Source, Timing};
use crate::config::Settings;
use crate::error::Error;
use crate::readiness::Guard;
use crate::wasm::{CompileMode, Compiler, InstanceInfo};
use crate::worker::{Order, Shared};

/// The chain in force, empty at first.
pub(super) fn handle(settings: &Settings, registry: &mut Registry) -> Arc<ChainHandle> {
    let pod = Pod {
        namespace: settings.pod_namespace.clone(),
        name: settings.pod_name.clone(),
    };
    Arc::new(ChainHandle::new(
        pod,
        settings.chain_dir.is_some(),
        chain::Metrics::new(registry),
    ))
}

/// Follows the chain's directory, if there is one. `first_chain` is given back with the first chain.
pub(super) fn start(
    tasks: &mut JoinSet<()>,
    settings: &Settings,
    shared: &Shared,
    workers: Vec<mpsc::Sender<Order>>,
    first_chain: Guard,
    control: CancellationToken,
) -> Result<(), Error> {
    if let Some(directory) = &settings.chain_dir {
        let past = past(settings)?;
        if past.is_there() {
            shared.chain.follow_another();
            shared.ledger.inherit();
        }
        let source = Source::new(place(settings, directory)?, host(settings, shared)?, past);
        let tell: Prepare = Arc::new(move |snapshot| {
            let workers = workers.clone();
            Box::pin(async move { prepare(&workers, &snapshot).await })
        });
        tasks.spawn(chain::watch::run(
            source,
            Arc::clone(&shared.chain),
            tell,
            Timing::default(),
            control,
        ));
    }
    let chain = Arc::clone(&shared.chain);
    tasks.spawn(async move {
        chain.ready().await;
        drop(first_chain);
    });
    Ok(())
}

fn past(settings: &Settings) -> Result<Past, Error> {
    let Some(directory) = &settings.state_dir else {
        return Ok(Past::unknown());
    };
    Past::open(directory).map_err(|source| Error::State {
        directory: directory.clone(),
        source,
    })
}

fn place(settings: &Settings, directory: &Path) -> Result<Place, Error> {
    let labels = match &settings.labels_file {
        Some(file) => Labels::File(file.clone()),
        None => Labels::Fixed(std::collections::BTreeMap::new()),
    };
    Ok(Place {
        directory: directory.to_owned(),
        labels,
        public_keys: settings.public_keys()?,
        namespace: settings.pod_namespace.clone(),
    })
}

fn host(settings: &Settings, shared: &Shared) -> Result<chain::Host, Error> {
    let program = std::env::current_exe().map_err(Error::Thread)?;
    let compiler = Compiler::new(CompileMode::Child { program }, settings.cache_dir.as_deref())?;
    let info = InstanceInfo {
        pod_namespace: settings.pod_namespace.clone(),
        pod_name: settings.pod_name.clone(),
        host_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok(chain::Host {
        engine: Arc::clone(&shared.engine),
        compiler,
        states: Arc::clone(&shared.states),
        info,
    })
}
