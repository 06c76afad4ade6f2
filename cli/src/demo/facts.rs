//! Everything that the demo knows, in one place: tasks add facts, the story waits for them and counts them, the view shows them.

use std::sync::{Arc, Mutex, PoisonError};

use ctrlmesh_contract::status::Status;
use serde_json::Value;

use super::kubectl::Objects;
use super::ledger::Ledger;
use super::metrics::OwnCounts;
use super::replica::{PerReplica, Replica};
use super::report::Report;
use super::widget::WidgetKey;

/// The facts; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Facts>>);

impl Shared {
    /// Reads or adds facts. `action` runs under a lock: it must be quick.
    pub(crate) fn with<T>(&self, action: impl FnOnce(&mut Facts) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Who handled what.
    pub(crate) ledger: Ledger,
    /// By the controllers' reports.
    pub(crate) controllers: PerReplica<ControllerFacts>,
    /// By `/status` and `/metrics` of the sidecars.
    pub(crate) sidecars: PerReplica<SidecarFacts>,
    /// By the status of the objects that somebody applied.
    pub(crate) objects: Objects,
    /// What was done last with kubectl.
    pub(crate) command: String,
    /// Name of the entry that the act is about.
    pub(crate) added: Option<&'static str>,
    /// Changes that a user made to widgets.
    pub(crate) updates: u64,
    /// Why nothing can be counted any more.
    pub(crate) blind: Option<String>,
}

/// What a controller reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct ControllerFacts {
    pub(crate) reconciles: u64,
    /// Reconciles that wrote a status.
    pub(crate) writes: u64,
    /// Requests that failed.
    pub(crate) failures: u64,
    pub(crate) last_failure: Option<String>,
    /// Watches that ended with 410 Expired.
    pub(crate) expired: u64,
}

/// What a sidecar says of itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct SidecarFacts {
    pub(crate) status: Status,
    pub(crate) requests: u64,
    /// Requests that failed.
    pub(crate) failures: u64,
    /// What the plugins count themselves.
    pub(crate) own: OwnCounts,
}

impl SidecarFacts {
    /// What the plugin of an entry shows of itself in `/status` under this key.
    pub(crate) fn report(&self, entry: &str, key: &str) -> Option<&Value> {
        let mut entries = self.status.chain.entries.iter();
        entries.find(|status| status.name == entry)?.reports.get(key)
    }
}

impl Facts {
    /// A controller has reported.
    pub(crate) fn reported(&mut self, replica: Replica, report: Report) {
        let controller = self.controllers.of_mut(replica);
        match report {
            Report::Reconciled {
                namespace,
                name,
                wrote,
                began,
                ended,
            } => {
                controller.reconciles += 1;
                controller.writes += u64::from(wrote);
                self.ledger
                    .reconciled(replica, WidgetKey { namespace, name }, began, ended);
            }
            Report::RequestFailed { message } => {
                controller.failures += 1;
                controller.last_failure = Some(message);
            }
            Report::WatchExpired => controller.expired += 1,
        }
    }

    /// A number of both controllers together.
    pub(crate) fn controllers(&self, number: impl Fn(&ControllerFacts) -> u64) -> u64 {
        self.controllers.both().into_iter().map(number).sum()
    }

    /// A number of both sidecars together.
    pub(crate) fn sidecars(&self, number: impl Fn(&SidecarFacts) -> u64) -> u64 {
        self.sidecars.both().into_iter().map(number).sum()
    }
}
