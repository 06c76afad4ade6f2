//! Somebody edits the chain that the manager has written, and then a ShardingConfig so that it makes no sense: the first is put
//! right, the second is refused, and sidecars go on.

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, files};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::written;
use crate::demo::claims::Expected::Exactly;
use crate::demo::kubectl::Applied;
use crate::demo::plan::{POD_NAMESPACE, Rules, later_shard};
use crate::demo::steps::WIDGETS;
use crate::demo::story::{Story, owners};
use crate::error::Error;

const STEP: usize = 10;

/// What somebody writes into the chain: with it, every replica would see everything.
const SPOILED: &str =
    "apiVersion: chain.ctrlmesh.kusionstack.io/v1\nnamespace: widgets-system\ngeneration: 1000\nentries: []\n";

/// A label with a space, as the key of the selector: schemas let it pass.
const NONSENSE: &str = "shard hash";

/// Where that is.
const FIELD: &str = "limits[0].selector";

impl Story<'_> {
    /// Step 10: what people spoil is put right, or refused.
    pub(super) async fn spoil(&mut self, rules: &Rules) -> Result<(), Error> {
        self.begin(STEP, "somebody empties the chain in the ConfigMap");
        self.open_books(owners(later_shard));
        let start = self.moment().await?;
        let good = self.world.cluster.chain();
        self.edit_chain().await?;
        self.world.start_burst();
        let (repaired, running) = self.repaired(good.as_deref()).await?;
        self.note(
            STEP,
            "it is as it was; now a ShardingConfig is applied that makes no sense",
        );
        let applied = self.nonsense(rules).await?;
        let reason = self.refused(&applied).await?;
        self.note(STEP, &format!("refused: {reason}"));
        self.all_handled(|_| {}).await?;
        let passage = self.since(&start).await?;
        let (handled, violated) = self
            .facts()
            .with(|facts| (written(facts), facts.ledger.violated_in_all()));
        let names_field = u64::from(reason.contains(FIELD));
        self.claim(STEP, "spoiled chains that the manager put right", Exactly(1), repaired);
        self.claim(STEP, "sidecars that run the manager's chain", Exactly(2), running);
        self.claim(
            STEP,
            "objects refused with the field that is wrong",
            Exactly(1),
            names_field,
        );
        self.claim(STEP, "widgets changed and handled meanwhile", Exactly(WIDGETS), handled);
        self.claim(STEP, "requests failed meanwhile", Exactly(0), passage.failed);
        self.claim(STEP, "watches cut meanwhile", Exactly(0), passage.watches);
        self.claim(STEP, "widgets with two owners in all", Exactly(0), violated);
        let applied = self
            .apply(&rules.documents(&self.world.cluster.registry.tls_host()))
            .await?;
        self.enforced(&applied).await?;
        self.end(STEP, "one put right, one refused with its reason; nobody noticed")
            .await;
        Ok(())
    }

    async fn edit_chain(&self) -> Result<(), Error> {
        self.screen.show(
            "kubectl edit configmap ctrlmesh-chain",
            &SPOILED.lines().collect::<Vec<_>>(),
        );
        let maps = Api::<ConfigMap>::namespaced(self.world.client(), POD_NAMESPACE);
        let edit = Patch::Merge(json!({ "data": { files::CHAIN: SPOILED } }));
        let edited = maps.patch(CHAIN_CONFIG_MAP, &PatchParams::default(), &edit).await;
        self.facts()
            .with(|facts| facts.command = format!("edit configmap/{CHAIN_CONFIG_MAP}"));
        edited.map(drop).map_err(Error::client("edit the chain"))
    }

    /// Waits until the chain is as it was, and until both sidecars run it. Returns whether it is and how many do.
    async fn repaired(&self, good: Option<&str>) -> Result<(u64, u64), Error> {
        self.until("the manager writes the chain again", |story, _| {
            let now = story.world.cluster.chain();
            (now.as_deref() == good)
                .then_some(())
                .ok_or_else(|| format!("it is {now:?}"))
        })
        .await?;
        let digest = Digest::of(good.unwrap_or_default().as_bytes());
        self.until_status("both sidecars run the chain of before", |facts| {
            let found = facts.sidecars.both().map(|sidecar| sidecar.status.chain.digest);
            (found == [Some(digest); 2])
                .then_some(())
                .ok_or_else(|| format!("they run {found:?}"))
        })
        .await?;
        let running = self
            .facts()
            .with(|facts| facts.sidecars(|sidecar| u64::from(sidecar.status.chain.digest == Some(digest))));
        let is_repaired = self.world.cluster.chain().is_some_and(|now| now != SPOILED);
        Ok((u64::from(is_repaired), running))
    }

    async fn nonsense(&mut self, rules: &Rules) -> Result<Vec<Applied>, Error> {
        let [_, document] = rules.documents(&self.world.cluster.registry.tls_host());
        self.apply(&[spoiled(document)]).await
    }

    /// Waits until the manager refuses all of these. Returns why it refuses the first.
    async fn refused(&self, applied: &[Applied]) -> Result<String, Error> {
        self.until("the manager refuses what makes no sense", |_, facts| {
            let refusal = applied.first().and_then(|applied| facts.objects.refusal(applied));
            refusal.map(str::to_owned).ok_or_else(|| "it does not".to_owned())
        })
        .await
    }
}

fn spoiled(mut document: Value) -> Value {
    if let Some(key) = document.pointer_mut("/spec/limits/0/selector/matchExpressions/0/key") {
        *key = Value::from(NONSENSE);
    }
    document
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_planner::validate;

    use super::*;

    #[test]
    fn the_manager_names_the_field_that_makes_no_sense() {
        let [_, document] = Rules::first().documents("127.0.0.1:5000");
        let mistakes = validate(&spoiled(document)).mistakes.to_string();
        assert!(mistakes.contains(FIELD) && mistakes.contains(NONSENSE), "{mistakes}");
    }
}
