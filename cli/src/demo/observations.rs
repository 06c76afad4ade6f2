//! Everything that the demo has observed, in one place: tasks add observations, steps wait for them and count them, the picture shows
//! them.

use std::sync::{Arc, Mutex, PoisonError};

use ctrlmesh_contract::status::Status;
use serde_json::Value;

use super::applied_objects::Objects;
use super::audit::OwnershipAudit;
use super::metrics::OwnCounts;
use super::replica::{PerReplica, Replica};
use super::report::Report;
use super::widget::WidgetKey;

/// Clones share the observations.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedObservations(Arc<Mutex<Observations>>);

impl SharedObservations {
    /// Reads or adds observations. `action` runs under a lock, so it must be quick.
    pub(crate) fn with_observations<T>(&self, action: impl FnOnce(&mut Observations) -> T) -> T {
        action(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Observations {
    pub(crate) audit: OwnershipAudit,
    /// From the controllers' reports.
    pub(crate) controllers: PerReplica<ControllerObservations>,
    /// From `/status` and `/metrics` of the sidecars.
    pub(crate) sidecars: PerReplica<SidecarObservations>,
    /// From the status of the applied objects.
    pub(crate) objects: Objects,
    /// The last kubectl command.
    pub(crate) command: String,
    /// Name of the entry that the current step is about.
    pub(crate) added: Option<&'static str>,
    pub(crate) updates: u64,
    /// Why counts are no longer reliable, if they are not.
    pub(crate) blind: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ControllerObservations {
    pub(crate) reconciles: u64,
    pub(crate) writes: u64,
    pub(crate) failures: u64,
    pub(crate) last_failure: Option<String>,
    pub(crate) expired: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct SidecarObservations {
    pub(crate) status: Status,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    /// Counters of the plugins.
    pub(crate) own: OwnCounts,
}

impl SidecarObservations {
    /// The report of an entry's plugin in `/status` under this key.
    pub(crate) fn plugin_report(&self, entry: &str, key: &str) -> Option<&Value> {
        let mut entries = self.status.chain.entries.iter();
        entries.find(|status| status.name == entry)?.reports.get(key)
    }
}

impl Observations {
    pub(crate) fn record_report(&mut self, replica: Replica, report: Report) {
        let controller = self.controllers.get_mut(replica);
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
                self.audit
                    .record_reconcile(replica, WidgetKey { namespace, name }, began, ended);
            }
            Report::RequestFailed { message } | Report::Conflict { message, .. } => {
                controller.failures += 1;
                controller.last_failure = Some(message);
            }
            Report::WatchExpired => controller.expired += 1,
            Report::Dropped { .. } | Report::Paused { .. } => {}
        }
    }

    /// Sum over both controllers.
    pub(crate) fn sum_controllers(&self, number: impl Fn(&ControllerObservations) -> u64) -> u64 {
        self.controllers.both().into_iter().map(number).sum()
    }

    /// Sum over both sidecars.
    pub(crate) fn sum_sidecars(&self, number: impl Fn(&SidecarObservations) -> u64) -> u64 {
        self.sidecars.both().into_iter().map(number).sum()
    }
}
