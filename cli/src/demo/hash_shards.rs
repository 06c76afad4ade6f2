//! Step 11: objects without labels are divided by a hash of their UIDs, among two shards and then among three. Step 12: when there are
//! four, a replica that was paused writes an object that is not its own any more.
//!
//! | file | holds |
//! |---|---|
//! | `late_write` | step 12 |
//! | `gadget_replicas` | the pods of the controller, with what runs in them |
//! | `handled_gadgets` | which replica handled which gadget when |
//! | `root` | the user's root, whether its shards are in force, and which gadgets they have |

mod gadget_replicas;
mod handled_gadgets;
mod late_write;
mod root;

use std::collections::BTreeSet;

use super::checks::Expected::{AtLeast, AtMost, Exactly};
use super::gadget::{self, GADGET_NAMESPACE, GADGETS, gadget_objects};
use super::scenario::Scenario;
use crate::error::Error;
use gadget_replicas::GadgetReplicas;

const STEP: usize = 11;

/// Entries without which a sidecar of the gadgets serves no traffic, as injected ones do not.
pub(crate) const AWAITED: &str = "shard-selector/";

/// Of 300 objects, 50 of each earlier shard are expected in the third. By chance it may be some less: UIDs are random. One run of a
/// million has less than 20.
const FROM_EACH: u64 = 20;

/// Likewise, 100 are expected in all.
const AT_MOST: u64 = 145;

/// Verbs that change objects.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

impl Scenario<'_> {
    pub(crate) async fn run_hash_steps(&mut self) -> Result<(), Error> {
        let mut replicas = GadgetReplicas::create(&self.env)?;
        self.shard_by_hash(&mut replicas).await?;
        self.refuse_late_write(&mut replicas).await
    }

    async fn shard_by_hash(&mut self, replicas: &mut GadgetReplicas) -> Result<(), Error> {
        self.begin_step(STEP, "300 gadgets without labels; a root divides them among two shards");
        for gadget in gadget_objects() {
            self.env.cluster.server.store().put(gadget)?;
        }
        self.add_shards(replicas, 2).await?;
        self.wait_until_handled(replicas).await?;
        let alone = replicas
            .reports
            .with_reports(|reports| reports.handled.handled_by_one());
        self.record_check(STEP, "gadgets that one shard handled alone", Exactly(GADGETS), alone);
        self.pause_for_reader().await;
        self.note_event(STEP, "shardingSize becomes 3, and a third pod starts");
        self.add_shards(replicas, 3).await?;
        let shown = self.wait_for_last_shard(replicas).await?;
        let foreign = self.foreign_writes(replicas).await?;
        self.record_hash_checks(replicas, &shown, foreign);
        let taken = shown.last().map_or(0, BTreeSet::len);
        self.end_step(
            STEP,
            &format!("the third shard took {taken} of {GADGETS} from both; no label, no write"),
        )
        .await;
        Ok(())
    }

    /// Waits until the shards are in force and each gadget is handled.
    async fn wait_until_handled(&self, replicas: &GadgetReplicas) -> Result<(), Error> {
        self.wait_until("each gadget is handled", |scenario, _| {
            scenario.check_divided(replicas)?;
            let handled = replicas.reports.with_reports(|reports| reports.handled.gadgets());
            (handled == GADGETS)
                .then_some(())
                .ok_or_else(|| format!("{handled} of {GADGETS} are"))
        })
        .await
    }

    /// Waits until the shards are in force and the last one has handled its gadgets. Returns the gadgets that each one shows.
    async fn wait_for_last_shard(&self, replicas: &GadgetReplicas) -> Result<Vec<BTreeSet<String>>, Error> {
        self.wait_until("the new shards are in force", |scenario, _| {
            scenario.check_divided(replicas)
        })
        .await?;
        let shown = replicas.list_gadgets().await?;
        let own = shown.last().cloned().unwrap_or_default();
        let last = replicas.len().saturating_sub(1);
        self.wait_until("the last shard handles its gadgets", |_, _| {
            let missing = replicas
                .reports
                .with_reports(|reports| reports.handled.not_handled_by(last, &own));
            (missing == 0)
                .then_some(())
                .ok_or_else(|| format!("{missing} of {} are not handled", own.len()))
        })
        .await?;
        Ok(shown)
    }

    /// Applies a root with this number of shards, and starts the pods that the new ones lack. They serve no traffic before the chain
    /// has their shards.
    async fn add_shards(&mut self, replicas: &mut GadgetReplicas, shards: usize) -> Result<(), Error> {
        self.apply_documents(&[root::root_document(shards)]).await?;
        // There may be no chain before the first pod runs.
        if replicas.len() > 0 {
            self.wait_for_entry(shards).await?;
        }
        while replicas.len() < shards {
            replicas.start_next(&self.env, &self.gadget_sidecars).await?;
        }
        Ok(())
    }

    /// Waits until the chain has the entry of this shard.
    async fn wait_for_entry(&self, shard: usize) -> Result<(), Error> {
        let entry = format!("{AWAITED}{}", root::shard_name(shard));
        self.wait_until("the chain has the new shard", |scenario, _| {
            let chain = scenario.env.cluster.chain_document(GADGET_NAMESPACE);
            chain
                .is_some_and(|chain| chain.contains(&entry))
                .then_some(())
                .ok_or_else(|| format!("it lacks {entry}"))
        })
        .await
    }

    /// Whether a shard for each replica is in force, while all processes run.
    fn check_divided(&self, replicas: &GadgetReplicas) -> Result<(), String> {
        if !replicas.are_running() {
            return Err("a sidecar or controller of the gadgets has ended".to_owned());
        }
        let store = self.env.cluster.server.store();
        let late = store.read(|state| root::late_shards(state, replicas.len()));
        match late.is_empty() {
            true => Ok(()),
            false => Err(format!("not in force: {}", late.join(", "))),
        }
    }

    /// Writes of gadgets that the API server got from anybody but the controllers.
    async fn foreign_writes(&self, replicas: &GadgetReplicas) -> Result<u64, Error> {
        // Reports come through a pipe, so the last ones may be late.
        self.wait_until("the controllers report their writes", |scenario, _| {
            let reported = replicas.reports.with_reports(|reports| reports.writes);
            let requests = scenario.env.cluster.server.requests();
            let patched = requests.count_of("patch", gadget::PLURAL);
            (reported >= patched)
                .then_some(())
                .ok_or_else(|| format!("{reported} of {patched} are reported"))
        })
        .await?;
        let reported = replicas.reports.with_reports(|reports| reports.writes);
        Ok(self.gadget_writes().abs_diff(reported))
    }

    /// Writes of gadgets that the API server got.
    fn gadget_writes(&self) -> u64 {
        let requests = self.env.cluster.server.requests();
        WRITES.map(|verb| requests.count_of(verb, gadget::PLURAL)).iter().sum()
    }

    /// `shown`: the gadgets that each shard shows.
    fn record_hash_checks(&mut self, replicas: &GadgetReplicas, shown: &[BTreeSet<String>], foreign: u64) {
        let all: BTreeSet<&String> = shown.iter().flatten().collect();
        let listed: usize = shown.iter().map(BTreeSet::len).sum();
        let (once, twice) = (all.len() as u64, listed.saturating_sub(all.len()) as u64);
        let labelled = self.env.cluster.server.store().read(|state| {
            let gadgets = state.list(&gadget::qualified_name());
            let labelled = gadgets.filter(|gadget| gadget.pointer("/metadata/labels").is_some());
            labelled.count() as u64
        });
        let third = shown.last().map_or(0, BTreeSet::len) as u64;
        let (from_first, from_second, between, two_owners, failed) = replicas.reports.with_reports(|reports| {
            let handled = &reports.handled;
            (
                handled.handled_by_both(0, 2),
                handled.handled_by_both(1, 2),
                handled.handled_by_both(0, 1),
                handled.with_two_owners(),
                reports.failures + reports.conflicts.len() as u64,
            )
        });
        for (text, expected, counted) in [
            ("gadgets that a shard shows", Exactly(GADGETS), once),
            ("gadgets that two shards show", Exactly(0), twice),
            (
                "gadgets of the first that the third got",
                AtLeast(FROM_EACH),
                from_first,
            ),
            (
                "gadgets of the second that the third got",
                AtLeast(FROM_EACH),
                from_second,
            ),
            ("gadgets in the third, of 300", AtMost(AT_MOST), third),
            ("gadgets that moved between the first two", Exactly(0), between),
            ("gadgets with two owners at a time", Exactly(0), two_owners),
            ("gadgets with a label", Exactly(0), labelled),
            ("writes of gadgets by others than controllers", Exactly(0), foreign),
            ("requests of their controllers that failed", Exactly(0), failed),
        ] {
            self.record_check(STEP, text, expected, counted);
        }
    }
}
