//! Steps 7 to 10: a plugin is added to both sidecars, works while the controllers do, and is removed again; at the end, a user
//! edits what the manager has made.

mod bad_edits;
mod circuit_breaker;
mod fault_inject;
mod rate_limit;

use serde_json::Value;

use super::observations::Observations;
use super::plugin_documents;
use super::replica::Replica;
use super::scenario::{Scenario, allowed_owners};
use super::sharding_plan::{OWN_ENTRIES, ShardingPlan, later_shard};
use super::widget::WIDGETS;
use crate::error::Error;

impl Scenario<'_> {
    /// Each step restores the state in which it found the environment.
    pub(crate) async fn run_plugin_steps(&mut self, rules: &ShardingPlan) -> Result<(), Error> {
        self.limit_rate().await?;
        self.break_circuit().await?;
        self.inject_faults().await?;
        self.make_bad_edits(rules).await
    }

    /// Applies an object for both sidecars, waits until it is in force, and starts an audit period. The picture shows `entry`.
    async fn add_plugin_object(&mut self, document: Value, entry: &'static str) -> Result<(), Error> {
        let applied = self.apply_documents(&[document]).await?;
        self.wait_until_enforced(&applied).await?;
        self.observations()
            .with_observations(|observations| observations.added = Some(entry));
        self.start_audit_period(allowed_owners(later_shard));
        Ok(())
    }

    /// Switches the faults off and waits until the sidecars no longer run them.
    async fn remove_faults(&mut self) -> Result<(), Error> {
        self.apply_documents(&[plugin_documents::fault_injection_document(false)?])
            .await?;
        self.observations()
            .with_observations(|observations| observations.added = None);
        self.wait_for_entries(OWN_ENTRIES).await
    }

    /// Waits until each widget has been changed since the audit period started, and handled by a write of its owner. `meanwhile`
    /// repeatedly gets the number of writes that the API server has seen.
    async fn wait_until_all_handled(&self, mut meanwhile: impl FnMut(u64)) -> Result<(), Error> {
        self.wait_until("each widget is changed and handled", |scenario, observations| {
            meanwhile(scenario.env.request_count("patch"));
            let (handled, behind) = (status_writes(observations), observations.audit.pending_changes());
            (handled == WIDGETS && behind == 0)
                .then_some(())
                .ok_or_else(|| format!("{handled} of {WIDGETS} are, {behind} are behind"))
        })
        .await
    }
}

/// Widgets whose status their owner has written in this audit period. Reports don't count: after a list, a controller reconciles
/// every widget without having anything to write.
fn status_writes(observations: &Observations) -> u64 {
    let by = |replica| observations.audit.handled_by(replica, later_shard(replica));
    Replica::BOTH.into_iter().map(by).sum()
}
