//! Step 12: a replica has read a gadget and is paused before it writes. Meanwhile the gadget moves to another shard. When the replica
//! goes on, its sidecar refuses the write.
//!
//! Only writes are paused. A controller whose whole process is stopped lists nothing, and the hand-over would wait for it for two
//! minutes (docs/adr/0014).

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::gadget_replicas::{GadgetReplicas, ReplicaGadget, replica_name};
use super::root::Division;
use crate::demo::checks::Expected::Exactly;
use crate::demo::gadget::{self, GADGET_NAMESPACE};
use crate::demo::scenario::Scenario;
use crate::demo::widget::Widget;
use crate::error::Error;

const STEP: usize = 12;

/// Shards before and after the edit of the root.
const BEFORE: usize = 3;
const AFTER: usize = 4;

/// The replica that is paused, and the one that gets its gadget: numbers from 0.
const PAUSED: usize = 0;
const NEW_OWNER: usize = 3;

/// What a late write would change, and what counts it.
struct GadgetState {
    /// Writes of gadgets that the API server has got.
    writes: u64,
    /// Requests that the paused replica's sidecar has refused.
    refused: u64,
    gadget: Value,
}

impl Scenario<'_> {
    pub(super) async fn refuse_late_write(&mut self, replicas: &mut GadgetReplicas) -> Result<(), Error> {
        let moving = (PAUSED, self.find_moving_gadget().await?);
        let (_, name) = &moving;
        self.begin_step(
            STEP,
            &format!("a user changes {name}; the first replica is paused before it writes the status"),
        );
        replicas.pause(PAUSED)?;
        self.change_gadget(name).await?;
        self.wait_until_paused(replicas, &moving).await?;
        self.note_event(
            STEP,
            "shardingSize becomes 4: the fourth shard gets the gadget and handles it",
        );
        self.add_shards(replicas, AFTER).await?;
        let shown = self.wait_for_last_shard(replicas).await?;
        let before = self.gadget_state(replicas, name).await?;
        self.note_event(STEP, "the first replica goes on and sends its write");
        replicas.resume(PAUSED)?;
        self.wait_until_dropped(replicas, &moving).await?;
        let after = self.gadget_state(replicas, name).await?;
        let showing = shown.iter().filter(|names| names.contains(name)).count() as u64;
        let is_taken = shown.get(NEW_OWNER).is_some_and(|names| names.contains(name));
        self.record_check(STEP, "shards that show the moved gadget", Exactly(1), showing);
        self.record_check(
            STEP,
            "moved gadgets that the new shard shows",
            Exactly(1),
            u64::from(is_taken),
        );
        self.record_late_write(replicas, &moving, &before, &after);
        self.end_step(
            STEP,
            &format!("the sidecar refused the late write of {name} with 409; the controller gave it up"),
        )
        .await;
        Ok(())
    }

    /// Name of a gadget of the first shard that a fourth one gets. About 25 of them move.
    async fn find_moving_gadget(&self) -> Result<String, Error> {
        let (before, after) = (Division::among(BEFORE), Division::among(AFTER));
        let moves = |gadget: &Value| {
            let uid = gadget.pointer("/metadata/uid").and_then(Value::as_str)?;
            (before.shard_of(uid)? == PAUSED && after.shard_of(uid)? == NEW_OWNER).then_some(())?;
            gadget.pointer("/metadata/name")?.as_str().map(str::to_owned)
        };
        self.wait_until(
            "a gadget of the first shard is one that a fourth gets",
            |scenario, _| {
                let store = scenario.env.cluster.server.store();
                store
                    .read(|state| state.list(&gadget::qualified_name()).find_map(moves))
                    .ok_or_else(|| "none is".to_owned())
            },
        )
        .await
    }

    /// Changes a gadget as a user does, so that its controller has to handle it again.
    async fn change_gadget(&self, name: &str) -> Result<(), Error> {
        let gadgets = Api::<Widget>::namespaced_with(self.env.client(), GADGET_NAMESPACE, &gadget::api_resource());
        let change = Patch::Merge(json!({ "spec": { "size": 2 } }));
        let changed = gadgets.patch(name, &PatchParams::default(), &change).await;
        changed.map(drop).map_err(Error::client(format!("change {name}")))
    }

    async fn wait_until_paused(&self, replicas: &GadgetReplicas, moving: &ReplicaGadget) -> Result<(), Error> {
        self.wait_until("the first replica is paused before its write", |_, _| {
            let is_paused = replicas.reports.with_reports(|reports| reports.paused.contains(moving));
            is_paused
                .then_some(())
                .ok_or_else(|| "it has not come to the gadget".to_owned())
        })
        .await
    }

    /// Waits until the controller has looked for the gadget again after a conflict, and has not found it.
    async fn wait_until_dropped(&self, replicas: &GadgetReplicas, moving: &ReplicaGadget) -> Result<(), Error> {
        self.wait_until("the first replica gives up its write", |_, _| {
            replicas.reports.with_reports(|reports| {
                (reports.conflicts.contains(moving) && reports.dropped.contains(moving))
                    .then_some(())
                    .ok_or_else(|| {
                        format!(
                            "conflicts: {:?}; dropped: {:?}; other failures: {}",
                            reports.conflicts, reports.dropped, reports.failures
                        )
                    })
            })
        })
        .await
    }

    async fn gadget_state(&self, replicas: &GadgetReplicas, name: &str) -> Result<GadgetState, Error> {
        let store = self.env.cluster.server.store();
        let gadget = store.read(|state| state.get(&gadget::qualified_name(), GADGET_NAMESPACE, name).cloned());
        Ok(GadgetState {
            writes: self.gadget_writes(),
            refused: replicas.refused_requests(PAUSED).await?,
            gadget: gadget.unwrap_or_default(),
        })
    }

    /// `before`, `after`: around the late write.
    fn record_late_write(
        &mut self,
        replicas: &GadgetReplicas,
        moving: &ReplicaGadget,
        before: &GadgetState,
        after: &GadgetState,
    ) {
        let (conflicts, others, is_dropped) = replicas.reports.with_reports(|reports| {
            let all = reports.conflicts.len() as u64;
            let conflicts = reports.conflicts.iter().filter(|conflict| *conflict == moving).count() as u64;
            let others = reports.failures + all - conflicts;
            (conflicts, others, reports.dropped.contains(moving))
        });
        let is_kept = after.gadget == before.gadget && is_handled_by(&after.gadget, NEW_OWNER);
        for (text, expected, counted) in [
            ("late writes answered with 409", 1, conflicts),
            (
                "late writes that the sidecar counts as refused",
                1,
                after.refused.abs_diff(before.refused),
            ),
            (
                "late writes that reached the API server",
                0,
                after.writes.abs_diff(before.writes),
            ),
            ("moved gadgets as the new owner wrote them", 1, u64::from(is_kept)),
            ("late writes that the controller gave up", 1, u64::from(is_dropped)),
            ("other requests of their controllers that failed", 0, others),
        ] {
            self.record_check(STEP, text, Exactly(expected), counted);
        }
    }
}

/// Whether the status is that of this replica, about the current spec.
fn is_handled_by(gadget: &Value, replica: usize) -> bool {
    let by = gadget.pointer("/status/handledBy").and_then(Value::as_str);
    let observed = gadget.pointer("/status/observedGeneration");
    by.is_some_and(|by| by == replica_name(replica)) && observed == gadget.pointer("/metadata/generation")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gadget_is_handled_when_status_is_of_replica_and_current_spec() {
        let gadget = |by: &str, observed: u32| {
            json!({
                "metadata": { "generation": 2 },
                "status": { "handledBy": by, "observedGeneration": observed },
            })
        };
        assert!(is_handled_by(&gadget("gadgets-3", 2), 3));
        assert!(!is_handled_by(&gadget("gadgets-0", 2), 3));
        assert!(!is_handled_by(&gadget("gadgets-3", 1), 3));
        assert!(!is_handled_by(&json!({ "metadata": { "generation": 2 } }), 3));
    }
}
