//! Steps 1 to 6: sharding, a move, a plugin update and a crashing plugin.

use ctrlmesh_contract::status::{EntryState, EntryStatus};

use super::applied_objects::Applied;
use super::audit::AllowedOwner;
use super::checks::Expected::{AtLeast, Exactly};
use super::plugin_documents;
use super::replica::Replica;
use super::scenario::{Scenario, allowed_owners, count_running, owner_of};
use super::sharding_plan::{
    Image, ShardingPlan, first_shard, later_shard, marker_entry, moving_namespaces, shard_entry,
};
use super::widget::{WIDGETS, WIDGETS_PER_NAMESPACE};
use crate::error::Error;

/// Widgets of the two namespaces that move.
const MOVING: u64 = 2 * WIDGETS_PER_NAMESPACE as u64;

/// Overwrites between the replicas that are enough to show the problem.
const FIGHT: u64 = 400;

/// Reconciles that must happen while plugins are replaced, before the counts are taken.
const UNDER_LOAD: u64 = 100;

/// Faults in a row that lead to quarantine (docs/adr/0007), in both sidecars.
const QUARANTINE_FAULTS: u64 = 2 * 5;

impl Scenario<'_> {
    pub(crate) async fn run_sharding_steps(&mut self) -> Result<(), Error> {
        self.no_rules().await?;
        let rules = self.shard_controllers().await?;
        let rules = self.move_namespaces(rules).await?;
        let rules = self.replace_code(rules).await?;
        self.crash_plugin(rules).await?;
        self.restore_plugin(rules).await?;
        self.run_plugin_steps(&rules).await?;
        self.run_hash_steps().await
    }

    /// Step 1: without sharding, both replicas handle all widgets.
    async fn no_rules(&mut self) -> Result<(), Error> {
        self.begin_step(1, "both replicas see all widgets; the chain is empty");
        // Switched off, it produces an empty chain, without which no sidecar serves traffic.
        let applied = self
            .apply_documents(&[plugin_documents::fault_injection_document(false)?])
            .await?;
        self.wait_until_enforced(&applied).await?;
        self.wait_until_status("both sidecars run the empty chain", |observations| {
            let found = observations
                .sidecars
                .both()
                .map(|sidecar| sidecar.status.chain.generation);
            found
                .iter()
                .all(|generation| *generation > 0)
                .then_some(())
                .ok_or_else(|| format!("generations {found:?}"))
        })
        .await?;
        self.wait_until("the replicas get in each other's way", |_, observations| {
            let overwrites = observations.audit.overwrite_count();
            (overwrites >= FIGHT)
                .then_some(())
                .ok_or_else(|| format!("{overwrites} writes of the other one overwritten"))
        })
        .await?;
        self.pause_for_reader().await;
        let text = self.observations().with_observations(|observations| {
            let (both, overwrites) = (
                observations.audit.period_counts().handled_by_both,
                observations.audit.overwrite_count(),
            );
            let waiting = observations.audit.pending_changes();
            format!("{both} handled by both, {overwrites} overwrites, {waiting} starve")
        });
        self.end_step(1, &text).await;
        Ok(())
    }

    /// Step 2: sharding takes effect.
    async fn shard_controllers(&mut self) -> Result<ShardingPlan, Error> {
        self.begin_step(2, "a ShardingConfig for each replica is applied");
        let rules = ShardingPlan::initial();
        self.wait_until_settled(&rules).await?;
        self.start_audit_period(allowed_owners(first_shard));
        self.note_event(2, "sharded; from here on a user changes 100 widgets a second");
        self.env.start_load();
        self.wait_until("each widget is changed and handled once", |_, observations| {
            let handled = observations.audit.period_counts().handled;
            (handled == WIDGETS)
                .then_some(())
                .ok_or_else(|| format!("{handled} of {WIDGETS} are"))
        })
        .await?;
        let counts = self
            .observations()
            .with_observations(|observations| observations.audit.period_counts());
        let by_one = counts.handled - counts.violated;
        self.record_check(
            2,
            "widgets handled by their replica and no other",
            Exactly(WIDGETS),
            by_one,
        );
        self.record_check(
            2,
            "widgets handled by both replicas",
            Exactly(0),
            counts.handled_by_both,
        );
        let text = format!(
            "{} changed and handled, by both replicas: {}",
            counts.handled, counts.handled_by_both
        );
        self.end_step(2, &text).await;
        Ok(rules)
    }

    async fn apply_shards(&mut self, rules: &ShardingPlan) -> Result<Vec<Applied>, Error> {
        let documents = rules.documents(&self.env.cluster.registry.tls_host());
        self.apply_documents(&documents).await
    }

    /// Applies the first shards and waits until every widget was handled by its owner.
    async fn wait_until_settled(&mut self, rules: &ShardingPlan) -> Result<(), Error> {
        let start = self.take_snapshot().await?;
        let applied = self.apply_shards(rules).await?;
        self.wait_until_enforced(&applied).await?;
        self.note_event(
            2,
            "enforced: both sidecars have ended their watches; the controllers list again",
        );
        self.wait_for_relists(&start, 2).await?;
        self.wait_until(
            "each widget is in the hands of its shard's replica",
            |_, observations| {
                let is_settled = observations
                    .audit
                    .is_settled(|namespace| owner_of(first_shard, namespace));
                is_settled
                    .then_some(())
                    .ok_or_else(|| format!("{} widgets are behind", observations.audit.pending_changes()))
            },
        )
        .await
    }

    /// Step 3: two namespaces move.
    async fn move_namespaces(&mut self, rules: ShardingPlan) -> Result<ShardingPlan, Error> {
        let names = moving_namespaces().join(" and ");
        self.begin_step(3, &format!("both ShardingConfigs are edited: {names} go to replica-1"));
        self.start_audit_period(|namespace| match owner_of(later_shard, namespace) {
            _ if moving_namespaces().contains(&namespace) => AllowedOwner::MovingFrom(Replica::Zero),
            Some(owner) => AllowedOwner::Only(owner),
            None => AllowedOwner::Anyone,
        });
        let (rules, hand_overs) = self.hand_over(rules).await?;
        let taken = self
            .wait_until("replica-1 handles each widget that moved", |_, observations| {
                let taken = observations.audit.handled_by(Replica::One, moving_namespaces());
                (taken == MOVING)
                    .then_some(taken)
                    .ok_or_else(|| format!("{taken} of {MOVING}"))
            })
            .await?;
        let two = self
            .observations()
            .with_observations(|observations| observations.audit.violations_in_all_periods());
        self.record_check(3, "shards that waited until another had let go", Exactly(1), hand_overs);
        self.record_check(3, "widgets with two owners at a time", Exactly(0), two);
        self.record_check(3, "moved widgets that the new owner handles", Exactly(MOVING), taken);
        self.record_check(
            3,
            "controllers and sidecars still the same processes",
            Exactly(4),
            self.env.running_processes(),
        );
        self.end_step(
            3,
            &format!("{taken} of {MOVING} taken over, with two owners at a time: {two}"),
        )
        .await;
        Ok(rules)
    }

    /// One edit, two phases: the manager widens the gaining shard once the losing one has acknowledged its new limits. Returns how many
    /// shards waited.
    async fn hand_over(&mut self, rules: ShardingPlan) -> Result<(ShardingPlan, u64), Error> {
        let start = self.take_snapshot().await?;
        let before = self
            .observations()
            .with_observations(|observations| observations.objects.waited.len());
        let rules = ShardingPlan {
            shards: Replica::BOTH.map(later_shard),
            ..rules
        };
        let applied = self.apply_shards(&rules).await?;
        self.note_event(3, "widgets-1 waits (HandingOver) until replica-0's sidecar has let go");
        self.wait_until_enforced(&applied).await?;
        self.wait_for_relists(&start, 2).await?;
        let hand_overs = self
            .observations()
            .with_observations(|observations| observations.objects.waited.len())
            - before;
        Ok((rules, u64::try_from(hand_overs).unwrap_or(u64::MAX)))
    }

    /// Step 4: the plugin's code is replaced under load.
    async fn replace_code(&mut self, rules: ShardingPlan) -> Result<ShardingPlan, Error> {
        self.begin_step(
            4,
            "spec.plugins names the next shard-selector in a registry; both controllers work",
        );
        self.start_audit_period(allowed_owners(later_shard));
        let named = self.env.count_responses_with_shard().await?;
        let start = self.take_snapshot().await?;
        let next = Image::NEXT_SHARD_SELECTOR;
        let rules = ShardingPlan {
            shard_selector: Some(next),
            ..rules
        };
        let applied = self.apply_shards(&rules).await?;
        self.wait_until_enforced(&applied).await?;
        self.wait_for_reconciles(UNDER_LOAD).await?;
        let passage = self.changes_since(&start).await?;
        let swapped = self
            .observations()
            .with_observations(|observations| count_running(observations, &next, shard_entry));
        let named = self.env.count_responses_with_shard().await?.saturating_sub(named);
        self.record_check(4, "sidecars whose /status shows the new digest", Exactly(2), swapped);
        self.record_check(
            4,
            "sidecars whose responses show the new code at work",
            Exactly(2),
            named,
        );
        self.record_check(4, "requests failed by the replacement", Exactly(0), passage.failed);
        self.record_check(4, "watches cut by the replacement", Exactly(0), passage.watches);
        self.record_check(4, "reconciles meanwhile", AtLeast(UNDER_LOAD), passage.reconciles);
        let text = format!(
            "{} reconciles, requests failed: {}, watches cut: {}",
            passage.reconciles, passage.failed, passage.watches
        );
        self.end_step(4, &text).await;
        Ok(rules)
    }

    /// Step 5: a plugin that crashes on every request.
    async fn crash_plugin(&mut self, rules: ShardingPlan) -> Result<(), Error> {
        self.begin_step(
            5,
            "the image of the plugin marker becomes one that crashes on every request",
        );
        let start = self.take_snapshot().await?;
        let broken = ShardingPlan {
            marker: Image::CRASHING_MARKER,
            ..rules
        };
        self.apply_shards(&broken).await?;
        self.wait_until_running(&Image::CRASHING_MARKER, marker_entry).await?;
        self.wait_for_quarantine().await?;
        self.note_event(5, "both sidecars have quarantined it; the controllers go on");
        self.wait_for_reconciles(UNDER_LOAD).await?;
        let passage = self.changes_since(&start).await?;
        let quarantined = self.observations().with_observations(|observations| {
            observations.sum_sidecars(|s| u64::from(s.status.counts.quarantines > 0))
        });
        // On a slow machine, lost time leads to quarantine before five crashes.
        self.record_check_at_speed(
            5,
            "faults of the crashing plugin that were counted",
            AtLeast(QUARANTINE_FAULTS),
            passage.faults,
        );
        self.record_check(5, "sidecars that quarantined it", Exactly(2), quarantined);
        self.record_check(5, "requests failed by the crashes", Exactly(0), passage.failed);
        self.record_check(5, "watches cut by the crashes", Exactly(0), passage.watches);
        self.record_check(5, "reconciles meanwhile", AtLeast(UNDER_LOAD), passage.reconciles);
        let text = format!(
            "{} faults, requests failed: {}, watches cut: {}",
            passage.faults, passage.failed, passage.watches
        );
        self.end_step(5, &text).await;
        Ok(())
    }

    async fn wait_for_quarantine(&self) -> Result<(), Error> {
        self.wait_until_status("both sidecars quarantine the crashing plugin", |observations| {
            let found = Replica::BOTH.map(|replica| {
                let status = &observations.sidecars.get(replica).status;
                let mut entries = status.chain.entries.iter();
                let marker = entries.find(|entry| entry.name == marker_entry(replica));
                (
                    marker.map(|entry| entry.state),
                    status.counts.faults,
                    status.counts.quarantines,
                )
            });
            let is_contained = found.iter().all(|(_, _, quarantines)| *quarantines > 0);
            is_contained
                .then_some(())
                .ok_or_else(|| format!("state, faults, quarantines: {found:?}"))
        })
        .await
    }

    /// Step 6: the marker is restored, and the final counts are taken.
    async fn restore_plugin(&mut self, rules: ShardingPlan) -> Result<(), Error> {
        self.begin_step(6, "the image is the old one again, the user stops");
        let applied = self.apply_shards(&rules).await?;
        self.wait_until_enforced(&applied).await?;
        self.wait_for_reconciles(UNDER_LOAD).await?;
        self.env.stop_load().await;
        self.wait_until("the last changes are handled", |_, observations| {
            let is_settled = observations
                .audit
                .is_settled(|namespace| owner_of(later_shard, namespace));
            is_settled
                .then_some(())
                .ok_or_else(|| format!("{} widgets are behind", observations.audit.pending_changes()))
        })
        .await?;
        let updates = self
            .observations()
            .with_observations(|observations| observations.updates);
        let arrived = self.env.request_count("patch") - updates;
        self.wait_until("the controllers report the last writes", |_, observations| {
            let reported = observations.sum_controllers(|controller| controller.writes);
            (reported >= arrived)
                .then_some(())
                .ok_or_else(|| format!("{reported} of {arrived} are reported"))
        })
        .await?;
        self.env.ask_sidecars().await?;
        self.record_last_checks(arrived);
        self.end_step(6, "every change was handled exactly once").await;
        Ok(())
    }

    fn record_last_checks(&mut self, arrived: u64) {
        let active = |entries: &[EntryStatus]| {
            let active = entries.iter().filter(|entry| entry.state == EntryState::Active);
            active.count() as u64
        };
        let (active, violated, behind, controllers, sidecars, reported) =
            self.observations().with_observations(|observations| {
                (
                    observations.sum_sidecars(|sidecar| active(&sidecar.status.chain.entries)),
                    observations.audit.violations_in_all_periods(),
                    observations.audit.pending_changes(),
                    observations.sum_controllers(|controller| controller.failures),
                    observations.sum_sidecars(|sidecar| sidecar.failures),
                    observations.sum_controllers(|controller| controller.writes),
                )
            });
        self.record_check(6, "entries active again, of two in each sidecar", Exactly(4), active);
        self.record_check(
            6,
            "widgets with two owners at any time since sharding",
            Exactly(0),
            violated,
        );
        self.record_check(6, "changes by the user that were never handled", Exactly(0), behind);
        self.record_check(
            6,
            "requests failed in all, by the controllers' count",
            Exactly(0),
            controllers,
        );
        self.record_check(
            6,
            "requests failed in all, by the sidecars' count",
            Exactly(0),
            sidecars,
        );
        self.record_check(
            6,
            "writes that the API server did not see exactly once",
            Exactly(0),
            arrived.abs_diff(reported),
        );
    }
}
