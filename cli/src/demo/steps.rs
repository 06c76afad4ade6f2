//! The steps of the story: what is done, what is waited for, what is claimed.

use ctrlmesh_contract::status::{EntryState, EntryStatus};

use super::added;
use super::claims::Expected::{AtLeast, Exactly};
use super::kubectl::Applied;
use super::ledger::Right;
use super::plan::{Image, Rules, first_shard, later_shard, marker_entry, moving, shard_entry};
use super::replica::Replica;
use super::story::{Story, owner, owners, running};
use super::widget::{NAMESPACES, WIDGETS_PER_NAMESPACE};
use crate::error::Error;

/// All widgets.
pub(crate) const WIDGETS: u64 = (NAMESPACES.len() * WIDGETS_PER_NAMESPACE) as u64;

/// Entries that each sidecar runs for its ShardingConfig: the shard and the marker.
pub(crate) const OWN_ENTRIES: usize = 2;

/// Widgets of the two namespaces that move.
const MOVING: u64 = 2 * WIDGETS_PER_NAMESPACE as u64;

/// So many times one replica overwrites what the other wrote, before the demo has seen enough.
const FIGHT: u64 = 400;

/// Reconciles that must go on while plugins are swapped, before the numbers are taken.
const UNDER_LOAD: u64 = 100;

/// Faults in a row that lead to quarantine (docs/adr/0007), in both sidecars.
const QUARANTINE_FAULTS: u64 = 2 * 5;

impl Story<'_> {
    /// Tells the whole story.
    pub(crate) async fn tell(&mut self) -> Result<(), Error> {
        self.no_rules().await?;
        let rules = self.shard().await?;
        let rules = self.move_namespaces(rules).await?;
        let rules = self.replace_code(rules).await?;
        self.crash(rules).await?;
        self.finish(rules).await?;
        self.acts(&rules).await
    }

    /// Step 1: the problem.
    async fn no_rules(&mut self) -> Result<(), Error> {
        self.begin(1, "both replicas see all widgets; the chain is empty");
        // Switched off, it makes an empty chain, without which no sidecar lets anything through.
        let applied = self.apply(&[added::fault_injection(false)?]).await?;
        self.enforced(&applied).await?;
        self.until_status("both sidecars run the empty chain", |facts| {
            let found = facts.sidecars.both().map(|sidecar| sidecar.status.chain.generation);
            found
                .iter()
                .all(|generation| *generation > 0)
                .then_some(())
                .ok_or_else(|| format!("generations {found:?}"))
        })
        .await?;
        self.until("the replicas get in each other's way", |_, facts| {
            let overwrites = facts.ledger.overwrites();
            (overwrites >= FIGHT)
                .then_some(())
                .ok_or_else(|| format!("{overwrites} writes of the other one overwritten"))
        })
        .await?;
        self.rest().await;
        let text = self.facts().with(|facts| {
            let (both, overwrites) = (facts.ledger.counts().handled_by_both, facts.ledger.overwrites());
            let waiting = facts.ledger.behind();
            format!("{both} handled by both, {overwrites} overwrites, {waiting} starve")
        });
        self.end(1, &text).await;
        Ok(())
    }

    /// Step 2: sharding takes effect.
    async fn shard(&mut self) -> Result<Rules, Error> {
        self.begin(2, "a ShardingConfig for each replica is applied");
        let rules = Rules::first();
        self.settle(&rules).await?;
        self.open_books(owners(first_shard));
        self.note(2, "sharded; from here on a user changes 100 widgets a second");
        self.world.start_load();
        self.until("each widget is changed and handled once", |_, facts| {
            let handled = facts.ledger.counts().handled;
            (handled == WIDGETS)
                .then_some(())
                .ok_or_else(|| format!("{handled} of {WIDGETS} are"))
        })
        .await?;
        let counts = self.facts().with(|facts| facts.ledger.counts());
        let by_one = counts.handled - counts.violated;
        self.claim(
            2,
            "widgets handled by their replica and no other",
            Exactly(WIDGETS),
            by_one,
        );
        self.claim(
            2,
            "widgets handled by both replicas",
            Exactly(0),
            counts.handled_by_both,
        );
        let text = format!(
            "{} changed and handled, by both replicas: {}",
            counts.handled, counts.handled_by_both
        );
        self.end(2, &text).await;
        Ok(rules)
    }

    /// Applies both ShardingConfigs.
    async fn apply_shards(&mut self, rules: &Rules) -> Result<Vec<Applied>, Error> {
        let documents = rules.documents(&self.world.cluster.registry.tls_host());
        self.apply(&documents).await
    }

    /// Applies the first shards, and waits until every widget is in the right hands.
    async fn settle(&mut self, rules: &Rules) -> Result<(), Error> {
        let start = self.moment().await?;
        let applied = self.apply_shards(rules).await?;
        self.enforced(&applied).await?;
        self.note(
            2,
            "enforced: both sidecars have ended their watches; the controllers list again",
        );
        self.listed_again(&start, 2).await?;
        self.until("each widget is in the hands of its shard's replica", |_, facts| {
            let is_settled = facts.ledger.is_settled(|namespace| owner(first_shard, namespace));
            is_settled
                .then_some(())
                .ok_or_else(|| format!("{} widgets are behind", facts.ledger.behind()))
        })
        .await
    }

    /// Step 3: two namespaces move.
    async fn move_namespaces(&mut self, rules: Rules) -> Result<Rules, Error> {
        let names = moving().join(" and ");
        self.begin(3, &format!("both ShardingConfigs are edited: {names} go to replica-1"));
        self.open_books(|namespace| match owner(later_shard, namespace) {
            _ if moving().contains(&namespace) => Right::MovingFrom(Replica::Zero),
            Some(owner) => Right::Only(owner),
            None => Right::Anyone,
        });
        let (rules, hand_overs) = self.hand_over(rules).await?;
        let taken = self
            .until("replica-1 handles each widget that moved", |_, facts| {
                let taken = facts.ledger.handled_by(Replica::One, moving());
                (taken == MOVING)
                    .then_some(taken)
                    .ok_or_else(|| format!("{taken} of {MOVING}"))
            })
            .await?;
        let two = self.facts().with(|facts| facts.ledger.violated_in_all());
        self.claim(3, "shards that waited until another had let go", Exactly(1), hand_overs);
        self.claim(3, "widgets with two owners at a time", Exactly(0), two);
        self.claim(3, "moved widgets that the new owner handles", Exactly(MOVING), taken);
        self.claim(
            3,
            "controllers and sidecars still the same processes",
            Exactly(4),
            self.world.running(),
        );
        self.end(
            3,
            &format!("{taken} of {MOVING} taken over, with two owners at a time: {two}"),
        )
        .await;
        Ok(rules)
    }

    /// One edit, two phases: the manager widens who gains when who loses has acknowledged that it lets go. Returns how many shards
    /// waited.
    async fn hand_over(&mut self, rules: Rules) -> Result<(Rules, u64), Error> {
        let start = self.moment().await?;
        let before = self.facts().with(|facts| facts.objects.waited.len());
        let rules = Rules {
            shards: Replica::BOTH.map(later_shard),
            ..rules
        };
        let applied = self.apply_shards(&rules).await?;
        self.note(3, "widgets-1 waits (HandingOver) until replica-0's sidecar has let go");
        self.enforced(&applied).await?;
        self.listed_again(&start, 2).await?;
        let hand_overs = self.facts().with(|facts| facts.objects.waited.len()) - before;
        Ok((rules, u64::try_from(hand_overs).unwrap_or(u64::MAX)))
    }

    /// Step 4: the plugin's code is replaced under load.
    async fn replace_code(&mut self, rules: Rules) -> Result<Rules, Error> {
        self.begin(
            4,
            "spec.plugins names the next shard-selector in a registry; both controllers work",
        );
        self.open_books(owners(later_shard));
        let named = self.world.answers_that_name_the_shard().await?;
        let start = self.moment().await?;
        let next = Image::NEXT_SHARD_SELECTOR;
        let rules = Rules {
            shard_selector: Some(next),
            ..rules
        };
        let applied = self.apply_shards(&rules).await?;
        self.enforced(&applied).await?;
        self.reconciled(UNDER_LOAD).await?;
        let passage = self.since(&start).await?;
        let swapped = self.facts().with(|facts| running(facts, &next, shard_entry));
        let named = self.world.answers_that_name_the_shard().await?.saturating_sub(named);
        self.claim(4, "sidecars whose /status shows the new digest", Exactly(2), swapped);
        self.claim(4, "sidecars whose answers show the new code at work", Exactly(2), named);
        self.claim(4, "requests failed by the replacement", Exactly(0), passage.failed);
        self.claim(4, "watches cut by the replacement", Exactly(0), passage.watches);
        self.claim(4, "reconciles meanwhile", AtLeast(UNDER_LOAD), passage.reconciles);
        let text = format!(
            "{} reconciles, requests failed: {}, watches cut: {}",
            passage.reconciles, passage.failed, passage.watches
        );
        self.end(4, &text).await;
        Ok(rules)
    }

    /// Step 5: a plugin that crashes on every request.
    async fn crash(&mut self, rules: Rules) -> Result<(), Error> {
        self.begin(
            5,
            "the image of the plugin marker becomes one that crashes on every request",
        );
        let start = self.moment().await?;
        let broken = Rules {
            marker: Image::CRASHING_MARKER,
            ..rules
        };
        self.apply_shards(&broken).await?;
        self.runs(&Image::CRASHING_MARKER, marker_entry).await?;
        self.quarantined().await?;
        self.note(5, "both sidecars have quarantined it; the controllers go on");
        self.reconciled(UNDER_LOAD).await?;
        let passage = self.since(&start).await?;
        let quarantined = self
            .facts()
            .with(|facts| facts.sidecars(|s| u64::from(s.status.counts.quarantines > 0)));
        // Where crashes take long, time lost leads to quarantine before five of them are.
        self.claim_at_speed(
            5,
            "faults of the crashing plugin that were counted",
            AtLeast(QUARANTINE_FAULTS),
            passage.faults,
        );
        self.claim(5, "sidecars that quarantined it", Exactly(2), quarantined);
        self.claim(5, "requests failed by the crashes", Exactly(0), passage.failed);
        self.claim(5, "watches cut by the crashes", Exactly(0), passage.watches);
        self.claim(5, "reconciles meanwhile", AtLeast(UNDER_LOAD), passage.reconciles);
        let text = format!(
            "{} faults, requests failed: {}, watches cut: {}",
            passage.faults, passage.failed, passage.watches
        );
        self.end(5, &text).await;
        Ok(())
    }

    async fn quarantined(&self) -> Result<(), Error> {
        self.until_status("both sidecars quarantine the crashing plugin", |facts| {
            let found = Replica::BOTH.map(|replica| {
                let status = &facts.sidecars.of(replica).status;
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

    /// Step 6: everything is well again; what is still open is counted.
    async fn finish(&mut self, rules: Rules) -> Result<(), Error> {
        self.begin(6, "the image is the old one again, the user stops");
        let applied = self.apply_shards(&rules).await?;
        self.enforced(&applied).await?;
        self.reconciled(UNDER_LOAD).await?;
        self.world.stop_load().await;
        self.until("the last changes are handled", |_, facts| {
            let is_settled = facts.ledger.is_settled(|namespace| owner(later_shard, namespace));
            is_settled
                .then_some(())
                .ok_or_else(|| format!("{} widgets are behind", facts.ledger.behind()))
        })
        .await?;
        let updates = self.facts().with(|facts| facts.updates);
        let arrived = self.world.requests("patch") - updates;
        self.until("the controllers report the last writes", |_, facts| {
            let reported = facts.controllers(|controller| controller.writes);
            (reported >= arrived)
                .then_some(())
                .ok_or_else(|| format!("{reported} of {arrived} are reported"))
        })
        .await?;
        self.world.ask_sidecars().await?;
        self.last_claims(arrived);
        self.end(6, "every change was handled exactly once").await;
        Ok(())
    }

    fn last_claims(&mut self, arrived: u64) {
        let active = |entries: &[EntryStatus]| {
            let active = entries.iter().filter(|entry| entry.state == EntryState::Active);
            active.count() as u64
        };
        let (active, violated, behind, controllers, sidecars, reported) = self.facts().with(|facts| {
            (
                facts.sidecars(|sidecar| active(&sidecar.status.chain.entries)),
                facts.ledger.violated_in_all(),
                facts.ledger.behind(),
                facts.controllers(|controller| controller.failures),
                facts.sidecars(|sidecar| sidecar.failures),
                facts.controllers(|controller| controller.writes),
            )
        });
        self.claim(6, "entries active again, of two in each sidecar", Exactly(4), active);
        self.claim(
            6,
            "widgets with two owners at any time since sharding",
            Exactly(0),
            violated,
        );
        self.claim(6, "changes by the user that were never handled", Exactly(0), behind);
        self.claim(
            6,
            "requests failed in all, by the controllers' count",
            Exactly(0),
            controllers,
        );
        self.claim(
            6,
            "requests failed in all, by the sidecars' count",
            Exactly(0),
            sidecars,
        );
        self.claim(
            6,
            "writes that the API server did not see exactly once",
            Exactly(0),
            arrived.abs_diff(reported),
        );
    }
}
