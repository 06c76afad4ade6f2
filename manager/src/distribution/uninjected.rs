//! Pods without a sidecar. Nothing watches them, for those are all other pods of the cluster: they are listed when a shard may have to
//! wait for them ([`super::begin`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::LabelSelector;
use ctrlmesh_contract::names::{annotations, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use tokio::time::timeout;

use super::config_maps::StoredConfigMaps;
use super::memory::Memory;
use super::objects::CustomResources;
use super::reconcile::Distributor;
use super::start_gate::{StartBlocker, may_wait};
use crate::plain::plain;

/// Pods of one answer.
const PAGE: u32 = 500;
/// For all answers together. Shards that have begun wait for them, too.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is known of a namespace's pods without a sidecar.
#[derive(Clone, Debug, Default)]
pub(super) struct UninjectedPods {
    /// Their labels, by name.
    pub(super) pods: BTreeMap<String, BTreeMap<String, String>>,
    /// Why they are not known.
    pub(super) unknown: Option<String>,
}

impl Distributor {
    /// Who has no sidecar. Asked for only if a shard may have to wait; else nobody.
    pub(super) async fn uninjected(
        &self,
        namespace: &str,
        objects: &CustomResources,
        stored: &StoredConfigMaps,
        memory: &mut Memory,
    ) -> UninjectedPods {
        let last = stored.chain.as_ref().or(memory.last.as_ref().map(|(chain, _)| chain));
        if !may_wait(objects, last.map_or(&[], |chain| &chain.entries)) {
            return UninjectedPods::default();
        }
        if let Some(problem) = memory.start_gate.failed(Instant::now()) {
            return UninjectedPods::unknown(problem.to_owned());
        }
        let problem = match timeout(PATIENCE, self.list(namespace)).await {
            Ok(Ok(pods)) => {
                memory.start_gate.failed = None;
                return UninjectedPods { pods, unknown: None };
            }
            Ok(Err(error)) => plain(&error),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        tracing::warn!(
            namespace,
            error = problem,
            "pods can't be listed: shards that would begin wait"
        );
        memory.start_gate.failed = Some((Instant::now(), problem.clone()));
        UninjectedPods::unknown(problem)
    }

    /// Labels of the pods without a sidecar that have not ended. The label that pods with one have is no proof: KusionStack's pods have it,
    /// too, and there people write it into templates.
    async fn list(&self, namespace: &str) -> Result<BTreeMap<String, BTreeMap<String, String>>, kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let mut params = ListParams::default()
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .limit(PAGE);
        let mut pods = BTreeMap::new();
        loop {
            let page = api.list_metadata(&params).await?;
            let uninjected = page.items.iter().filter(|pod| !has_sidecar(*pod));
            pods.extend(uninjected.map(|pod| (pod.name_any(), pod.labels().clone())));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(pods);
            }
        }
    }
}

/// Whether it was made with a sidecar of ours that we see.
fn has_sidecar(pod: &impl ResourceExt) -> bool {
    let is_watched = pod.labels().get(labels::WATCHING).is_some_and(|value| value == "true");
    is_watched && pod.annotations().contains_key(annotations::INJECTED)
}

impl UninjectedPods {
    const fn unknown(problem: String) -> Self {
        Self {
            pods: BTreeMap::new(),
            unknown: Some(problem),
        }
    }

    /// Why a shard waits whose controller has these pods, if it does.
    pub(super) fn why(&self, selectors: &[LabelSelector]) -> Option<StartBlocker> {
        if let Some(problem) = &self.unknown {
            return Some(StartBlocker::Unknown(problem.clone()));
        }
        let is_selected = |labels: &BTreeMap<String, String>| selectors.iter().any(|pods| pods.matches(labels));
        let selected = self.pods.iter().filter(|(_, labels)| is_selected(labels));
        let pods: BTreeSet<String> = selected.map(|(pod, _)| pod.clone()).collect();
        (!pods.is_empty()).then_some(StartBlocker::Pods(pods))
    }
}
