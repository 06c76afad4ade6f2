//! Step 10: a user empties the chain that the manager has written, then applies an invalid ShardingConfig. The manager restores the
//! first and refuses the second; the sidecars keep working.

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, files};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::status_writes;
use crate::demo::applied_objects::Applied;
use crate::demo::checks::Expected::Exactly;
use crate::demo::scenario::{Scenario, allowed_owners};
use crate::demo::sharding_plan::{POD_NAMESPACE, ShardingPlan, later_shard};
use crate::demo::widget::WIDGETS;
use crate::error::Error;

const STEP: usize = 10;

/// A chain with which every replica would see everything.
const EMPTIED_CHAIN: &str =
    "apiVersion: chain.ctrlmesh.kusionstack.io/v1\nnamespace: widgets-system\ngeneration: 1000\nentries: []\n";

/// A label key with a space in it: schemas accept it, the manager refuses it.
const INVALID_LABEL_KEY: &str = "shard hash";

/// The field with the invalid key.
const INVALID_FIELD: &str = "limits[0].selector";

impl Scenario<'_> {
    pub(super) async fn make_bad_edits(&mut self, rules: &ShardingPlan) -> Result<(), Error> {
        self.begin_step(STEP, "somebody empties the chain in the ConfigMap");
        self.start_audit_period(allowed_owners(later_shard));
        let start = self.take_snapshot().await?;
        let good = self.env.cluster.chain_document(POD_NAMESPACE);
        self.edit_chain().await?;
        self.env.start_burst();
        let (repaired, running) = self.wait_for_repair(good.as_deref()).await?;
        self.note_event(
            STEP,
            "it is as it was; now a ShardingConfig is applied that makes no sense",
        );
        let applied = self.apply_invalid_objects(rules).await?;
        let reason = self.wait_for_refusal(&applied).await?;
        self.note_event(STEP, &format!("refused: {reason}"));
        self.wait_until_all_handled(|_| {}).await?;
        let passage = self.changes_since(&start).await?;
        let (handled, violated) = self.observations().with_observations(|observations| {
            (
                status_writes(observations),
                observations.audit.violations_in_all_periods(),
            )
        });
        let names_field = u64::from(reason.contains(INVALID_FIELD));
        self.record_check(STEP, "spoiled chains that the manager put right", Exactly(1), repaired);
        self.record_check(STEP, "sidecars that run the manager's chain", Exactly(2), running);
        self.record_check(
            STEP,
            "objects refused with the field that is wrong",
            Exactly(1),
            names_field,
        );
        self.record_check(STEP, "widgets changed and handled meanwhile", Exactly(WIDGETS), handled);
        self.record_check(STEP, "requests failed meanwhile", Exactly(0), passage.failed);
        self.record_check(STEP, "watches cut meanwhile", Exactly(0), passage.watches);
        self.record_check(STEP, "widgets with two owners in all", Exactly(0), violated);
        let applied = self
            .apply_documents(&rules.documents(&self.env.cluster.registry.tls_host()))
            .await?;
        self.wait_until_enforced(&applied).await?;
        self.end_step(STEP, "one put right, one refused with its reason; nobody noticed")
            .await;
        Ok(())
    }

    async fn edit_chain(&self) -> Result<(), Error> {
        self.screen.print_command(
            "kubectl edit configmap ctrlmesh-chain",
            &EMPTIED_CHAIN.lines().collect::<Vec<_>>(),
        );
        let maps = Api::<ConfigMap>::namespaced(self.env.client(), POD_NAMESPACE);
        let edit = Patch::Merge(json!({ "data": { files::CHAIN: EMPTIED_CHAIN } }));
        let edited = maps.patch(CHAIN_CONFIG_MAP, &PatchParams::default(), &edit).await;
        self.observations()
            .with_observations(|observations| observations.command = format!("edit configmap/{CHAIN_CONFIG_MAP}"));
        edited.map(drop).map_err(Error::client("edit the chain"))
    }

    /// Waits until the manager has restored the chain and both sidecars run it. Returns whether it is restored, and how many run it.
    async fn wait_for_repair(&self, good: Option<&str>) -> Result<(u64, u64), Error> {
        self.wait_until("the manager writes the chain again", |scenario, _| {
            let now = scenario.env.cluster.chain_document(POD_NAMESPACE);
            (now.as_deref() == good)
                .then_some(())
                .ok_or_else(|| format!("it is {now:?}"))
        })
        .await?;
        let digest = Digest::of(good.unwrap_or_default().as_bytes());
        self.wait_until_status("both sidecars run the chain of before", |observations| {
            let found = observations.sidecars.both().map(|sidecar| sidecar.status.chain.digest);
            (found == [Some(digest); 2])
                .then_some(())
                .ok_or_else(|| format!("they run {found:?}"))
        })
        .await?;
        let running = self.observations().with_observations(|observations| {
            observations.sum_sidecars(|sidecar| u64::from(sidecar.status.chain.digest == Some(digest)))
        });
        let is_repaired = self
            .env
            .cluster
            .chain_document(POD_NAMESPACE)
            .is_some_and(|now| now != EMPTIED_CHAIN);
        Ok((u64::from(is_repaired), running))
    }

    async fn apply_invalid_objects(&mut self, rules: &ShardingPlan) -> Result<Vec<Applied>, Error> {
        let [_, document] = rules.documents(&self.env.cluster.registry.tls_host());
        self.apply_documents(&[invalid_document(document)]).await
    }

    /// Waits until the manager refuses all of these. Returns the message for the first.
    async fn wait_for_refusal(&self, applied: &[Applied]) -> Result<String, Error> {
        self.wait_until("the manager refuses what makes no sense", |_, observations| {
            let refusal = applied
                .first()
                .and_then(|applied| observations.objects.refusal_message(applied));
            refusal.map(str::to_owned).ok_or_else(|| "it does not".to_owned())
        })
        .await
    }
}

fn invalid_document(mut document: Value) -> Value {
    if let Some(key) = document.pointer_mut("/spec/limits/0/selector/matchExpressions/0/key") {
        *key = Value::from(INVALID_LABEL_KEY);
    }
    document
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_planner::validate;

    use super::*;

    #[test]
    fn manager_names_invalid_field() {
        let [_, document] = ShardingPlan::initial().documents("127.0.0.1:5000");
        let mistakes = validate(&invalid_document(document)).mistakes.to_string();
        assert!(
            mistakes.contains(INVALID_FIELD) && mistakes.contains(INVALID_LABEL_KEY),
            "{mistakes}"
        );
    }
}
