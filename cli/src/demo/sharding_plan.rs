//! The ShardingConfigs with which a user shards a controller: which replica owns which namespaces, and plugins of their own.

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::names::labels;
use ctrlmesh_manager_api::API_VERSION;
use ctrlmesh_manager_planner::shard_hash;
use ctrlmesh_plugins_builtin::samples;
use serde_json::{Value, json};

use super::controller::AGENT;
use super::replica::Replica;
use super::widget::{NAMESPACES, relate_resources};

pub(crate) const POD_NAMESPACE: &str = "widgets-system";

/// Pod label that identifies the controller.
pub(crate) const APP: (&str, &str) = ("app", "widget-controller");

/// Pod label that identifies the replica.
pub(crate) const SHARD_LABEL: &str = "shard";

/// Entries that each sidecar runs for its ShardingConfig: the shard and the marker.
pub(crate) const OWN_ENTRIES: usize = 2;

/// Calls in a debug build on a busy machine take longer than in production; the demo is not about deadlines.
const TIMEOUT_MS: u32 = 100;

pub(crate) const fn shard_name(replica: Replica) -> &'static str {
    match replica {
        Replica::Zero => "widgets-0",
        Replica::One => "widgets-1",
    }
}

pub(crate) const fn shard_entry(replica: Replica) -> &'static str {
    match replica {
        Replica::Zero => "shard-selector/widgets-0",
        Replica::One => "shard-selector/widgets-1",
    }
}

/// Entry of the plugin that is replaced by a crashing one. It comes before the shard and fails open.
pub(crate) const fn marker_entry(replica: Replica) -> &'static str {
    match replica {
        Replica::Zero => "marker/widgets-0",
        Replica::One => "marker/widgets-1",
    }
}

pub(crate) type Shard = &'static [&'static str];

/// How many of the namespaces belong to replica 0 at first, and how many later.
const FIRST: usize = 6;
const LATER: usize = 4;

/// The first split, uneven.
pub(crate) fn first_shard(replica: Replica) -> Shard {
    split_namespaces(replica, FIRST)
}

/// The second split, even.
pub(crate) fn later_shard(replica: Replica) -> Shard {
    split_namespaces(replica, LATER)
}

/// The namespaces that move from replica 0 to replica 1.
pub(crate) fn moving_namespaces() -> Shard {
    NAMESPACES.get(LATER..FIRST).unwrap_or_default()
}

fn split_namespaces(replica: Replica, at: usize) -> Shard {
    let (zero, one) = NAMESPACES.split_at_checked(at).unwrap_or((&NAMESPACES, &[]));
    match replica {
        Replica::Zero => zero,
        Replica::One => one,
    }
}

/// A plugin of the user's own in the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) repository: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) wasm: &'static [u8],
}

impl Image {
    /// Marks requests without changing the result.
    pub(crate) const MARKER: Self = Self {
        repository: "demo/marker",
        tag: "1.0",
        wasm: samples::HELLO,
    };

    /// A release of the marker that crashes on every request.
    pub(crate) const CRASHING_MARKER: Self = Self {
        tag: "1.1",
        wasm: samples::CRASH,
        ..Self::MARKER
    };

    pub(crate) const NEXT_SHARD_SELECTOR: Self = Self {
        repository: "demo/shard-selector",
        tag: "next",
        wasm: samples::SHARD_SELECTOR_NEXT,
    };

    pub(crate) const ALL: [Self; 3] = [Self::MARKER, Self::CRASHING_MARKER, Self::NEXT_SHARD_SELECTOR];

    /// The digest that sidecars run.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of(self.wasm)
    }

    /// The reference as an object names it.
    fn image_reference(&self, registry: &str) -> String {
        format!("oci://{registry}/{}:{}", self.repository, self.tag)
    }
}

/// The shards that the user wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShardingPlan {
    pub(crate) shards: [Shard; 2],
    pub(crate) marker: Image,
    /// Replaces the built-in shard-selector.
    pub(crate) shard_selector: Option<Image>,
}

impl ShardingPlan {
    pub(crate) fn initial() -> Self {
        Self {
            shards: Replica::BOTH.map(first_shard),
            marker: Image::MARKER,
            shard_selector: None,
        }
    }

    /// Two ShardingConfigs. `registry` is host and port of the registry with the plugins.
    pub(crate) fn documents(&self, registry: &str) -> [Value; 2] {
        Replica::BOTH.map(|replica| self.sharding_config(replica, registry))
    }

    fn sharding_config(&self, replica: Replica, registry: &str) -> Value {
        let [zero, one] = self.shards;
        let namespaces = match replica {
            Replica::Zero => zero,
            Replica::One => one,
        };
        let hashes: Vec<_> = namespaces
            .iter()
            .map(|namespace| shard_hash(namespace).to_string())
            .collect();
        let (app, controller) = APP;
        let mut plugins = vec![json!({
            "name": "marker",
            "image": self.marker.image_reference(registry),
            "onFailure": "Open",
            "timeoutMs": TIMEOUT_MS,
            "settings": { "markUserAgent": AGENT },
        })];
        plugins.extend(self.shard_selector.map(
            |image| json!({ "name": "shard-selector", "image": image.image_reference(registry), "timeoutMs": TIMEOUT_MS }),
        ));
        json!({
            "apiVersion": API_VERSION,
            "kind": "ShardingConfig",
            "metadata": { "namespace": POD_NAMESPACE, "name": shard_name(replica) },
            "spec": {
                "selector": { "matchLabels": { app: controller, SHARD_LABEL: replica.number().to_string() } },
                "controller": { "leaderElectionName": controller },
                "limits": [{
                    "relateResources": relate_resources(),
                    "selector": {
                        "matchExpressions": [{ "key": labels::SHARD_HASH, "operator": "In", "values": hashes }],
                    },
                }],
                "plugins": plugins,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_planner::validate;

    use super::*;

    #[test]
    fn every_namespace_has_one_owner_before_and_after_the_move() {
        for shard in [first_shard as fn(Replica) -> Shard, later_shard] {
            let mut owned = [shard(Replica::Zero), shard(Replica::One)].concat();
            owned.sort_unstable();
            assert_eq!(owned, NAMESPACES);
        }
        assert_eq!(moving_namespaces(), ["fraud", "identity"]);
    }

    #[test]
    fn documents_are_valid_for_manager() {
        let next = Some(Image::NEXT_SHARD_SELECTOR);
        for shard_selector in [None, next] {
            let rules = ShardingPlan {
                shard_selector,
                ..ShardingPlan::initial()
            };
            for document in rules.documents("127.0.0.1:5000") {
                let findings = validate(&document);
                assert!(findings.mistakes.list().is_empty(), "{}", findings.mistakes);
            }
        }
    }

    #[test]
    fn shard_selects_its_replica_and_buckets_of_its_namespaces() {
        let [zero, one] = ShardingPlan::initial().documents("127.0.0.1:5000");
        for (document, number, buckets) in [(&zero, "0", 6), (&one, "1", 2)] {
            assert_eq!(document["spec"]["selector"]["matchLabels"][SHARD_LABEL], number);
            let values = &document["spec"]["limits"][0]["selector"]["matchExpressions"][0]["values"];
            assert_eq!(values.as_array().unwrap().len(), buckets);
        }
        assert_eq!(
            zero["spec"]["controller"], one["spec"]["controller"],
            "one lock, or nothing is handed over"
        );
    }
}
