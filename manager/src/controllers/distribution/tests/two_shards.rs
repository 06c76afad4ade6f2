//! Two shards with a pod each, whose sidecars run what they should: where several tests begin.

use ctrlmesh_contract::names::finalizers::HAND_OVER;
use ctrlmesh_manager_planner::hand_over::shard_of;

use super::lost_pods::{pod_of, shard};
use super::*;

/// Shards `left` and `right`, with pods `left-0` and `right-0`.
pub(super) struct TwoShards {
    pub(super) server: ApiServer,
    left: Sidecar,
    right: Sidecar,
    task: Option<Running>,
}

impl TwoShards {
    /// Waits until both are enforced. The sidecars have the addresses `first` and the next one of 127.0.0.0/24.
    pub(super) async fn start(first: u8) -> Self {
        let (left, port) = Sidecar::start(first, 0).await;
        let (right, _) = Sidecar::start(first + 1, port).await;
        left.set_status(status_running("left-0", 0, None));
        right.set_status(status_running("right-0", 0, None));
        let server = server().await;
        put(&server, pod_of("left", &left.ip));
        put(&server, pod_of("right", &right.ip));
        put(&server, shard("left", "b", 60));
        put(&server, shard("right", "c", 60));
        let mut two = Self {
            server,
            left,
            right,
            task: None,
        };
        two.run().await;
        until_entries(&two.server, 2).await;
        two.acknowledge_chain("left");
        two.acknowledge_chain("right");
        until(&two.server, "both are enforced and held", |state| {
            ["left", "right"].iter().all(|name| {
                let enforced = condition_of(state, "shardingconfigs", name, "Enforced");
                enforced[0] == "True" && finalizers(state, name) == json!([HAND_OVER])
            })
        })
        .await;
        two
    }

    pub(super) fn chain(&self) -> Chain {
        self.server.store().read(chain).unwrap()
    }

    /// A sidecar says that it runs the chain that lies there.
    pub(super) fn acknowledge_chain(&self, shard: &str) {
        let mut own = self.chain();
        own.entries.retain(|entry| shard_of(&entry.name) == shard);
        let sidecar = if shard == "left" { &self.left } else { &self.right };
        sidecar.set_status(status_running(&format!("{shard}-0"), own.generation, Some(&own)));
    }

    /// Starts a manager.
    pub(super) async fn run(&mut self) {
        let (_, task) = super::start(&self.server, self.left.port, &["--settle-ms=0"]).await;
        self.task = Some(task);
    }

    pub(super) async fn stop(&mut self) {
        self.task.take().unwrap().stop().await;
    }
}

pub(super) fn finalizers(state: &Snapshot<'_>, name: &str) -> Value {
    state
        .get("shardingconfigs.ctrlmesh.kusionstack.io", DEMO, name)
        .map_or(Value::Null, |object| object["metadata"]["finalizers"].clone())
}
