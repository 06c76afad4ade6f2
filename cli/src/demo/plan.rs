//! What the manager would write: which replica owns which namespaces, and the chain document that makes it so.

use std::collections::BTreeMap;

use ctrlmesh_contract::chain::{Chain, Entry, FailurePolicy, Origin, Settings};
use ctrlmesh_contract::names::{files, labels};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_contract::{Digest, LabelSelector};
use ctrlmesh_plugins_builtin::{SHARD_SELECTOR, samples};
use serde_json::json;

use super::added::Added;
use super::controller::AGENT;
use super::replica::Replica;
use super::widget::{NAMESPACES, relate_resources, shard_hash};

/// The namespace of the controller's pods.
pub(crate) const POD_NAMESPACE: &str = "widgets-system";

/// Label of the pods that tells replicas apart.
pub(crate) const SHARD_LABEL: &str = "shard";

/// Name of the entry that a crashing plugin is put into. It goes first and fails open.
pub(crate) const MARKER: &str = "marker";

/// Calls of a debug build on a busy machine take longer than in production; the demo is not about deadlines.
const TIMEOUT_MS: u32 = 100;

/// Entry of a replica's shard.
pub(crate) const fn shard_entry(replica: Replica) -> &'static str {
    match replica {
        Replica::Zero => "shard-selector/widgets-0",
        Replica::One => "shard-selector/widgets-1",
    }
}

/// The namespaces that a shard has.
pub(crate) type Shard = &'static [&'static str];

/// How many of the namespaces are replica 0's at first, and how many in the end.
const FIRST: usize = 6;
const LATER: usize = 4;

/// The first split, uneven.
pub(crate) fn first_shard(replica: Replica) -> Shard {
    split(replica, FIRST)
}

/// The second split, even.
pub(crate) fn later_shard(replica: Replica) -> Shard {
    split(replica, LATER)
}

/// The namespaces that change from replica 0 to replica 1.
pub(crate) fn moving() -> Shard {
    NAMESPACES.get(LATER..FIRST).unwrap_or_default()
}

fn split(replica: Replica, at: usize) -> Shard {
    let (zero, one) = NAMESPACES.split_at_checked(at).unwrap_or((&NAMESPACES, &[]));
    match replica {
        Replica::Zero => zero,
        Replica::One => one,
    }
}

/// The rules in force, as a person would write them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) shards: Option<[Shard; 2]>,
    pub(crate) shard_selector: &'static [u8],
    pub(crate) marker: &'static [u8],
}

impl Rules {
    /// No rules at all.
    pub(crate) const NONE: Self = Self {
        shards: None,
        shard_selector: SHARD_SELECTOR,
        marker: samples::HELLO,
    };

    /// The chain document of these rules and what is added to them.
    pub(crate) fn chain(&self, added: &[Added], generation: u64) -> Chain {
        let mut entries = Vec::new();
        if let Some([zero, one]) = self.shards {
            entries.push(self.marker_entry());
            entries.push(self.shard(Replica::Zero, zero));
            entries.push(self.shard(Replica::One, one));
        }
        entries.extend(added.iter().map(|added| added.entry(TIMEOUT_MS)));
        Chain {
            namespace: POD_NAMESPACE.to_owned(),
            generation,
            entries,
        }
    }

    fn marker_entry(&self) -> Entry {
        Entry {
            name: MARKER.to_owned(),
            plugin: Digest::of(self.marker),
            pod_selector: LabelSelector::default(),
            order: 0,
            on_failure: FailurePolicy::Open,
            timeout_ms: TIMEOUT_MS,
            memory_mib: ctrlmesh_contract::chain::DEFAULT_MEMORY_MIB,
            settings: Settings::new(json!({ "markUserAgent": AGENT })),
            origin: None,
        }
    }

    fn shard(&self, replica: Replica, namespaces: Shard) -> Entry {
        let number = replica.number().to_string();
        let name = format!("widgets-{number}");
        let hashes: Vec<_> = namespaces
            .iter()
            .map(|namespace| shard_hash(namespace).to_string())
            .collect();
        let settings = json!({
            "shard": name,
            "limits": [{
                "relateResources": relate_resources(),
                "selector": { "matchExpressions": [{ "key": labels::SHARD_HASH, "operator": "In", "values": hashes }] },
            }],
        });
        Entry {
            name: shard_entry(replica).to_owned(),
            plugin: Digest::of(self.shard_selector),
            pod_selector: LabelSelector {
                match_labels: BTreeMap::from([(SHARD_LABEL.to_owned(), number)]),
                ..LabelSelector::default()
            },
            order: 100,
            on_failure: FailurePolicy::Closed,
            timeout_ms: TIMEOUT_MS,
            memory_mib: ctrlmesh_contract::chain::DEFAULT_MEMORY_MIB,
            settings: Settings::new(settings),
            origin: Some(Origin {
                kind: "ShardingConfig".to_owned(),
                name,
                ..Origin::default()
            }),
        }
    }

    /// The content of the chain's volume: document, signature and the plugins that it names.
    pub(crate) fn files(&self, added: &[Added], generation: u64, key: &SigningKey) -> BTreeMap<String, Vec<u8>> {
        let document = self.chain(added, generation).to_json().into_bytes();
        let signature = key.sign(&document).into_bytes();
        let mut content = BTreeMap::from([
            (files::CHAIN.to_owned(), document),
            (files::CHAIN_SIGNATURE.to_owned(), signature),
        ]);
        let mut plugins = Vec::from_iter(added.iter().map(|added| added.plugin));
        if self.shards.is_some() {
            plugins.extend([self.shard_selector, self.marker]);
        }
        for plugin in plugins {
            content.insert(plugin_file::name(&Digest::of(plugin), Encoding::Plain), plugin.to_vec());
        }
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_namespace_has_one_owner_before_and_after_the_move() {
        for shard in [first_shard as fn(Replica) -> Shard, later_shard] {
            let mut owned = [shard(Replica::Zero), shard(Replica::One)].concat();
            owned.sort_unstable();
            assert_eq!(owned, NAMESPACES);
        }
        assert_eq!(moving(), ["fraud", "identity"]);
    }

    #[test]
    fn chain_is_valid_and_each_pod_has_the_marker_and_its_own_shard() {
        let shards = Some([first_shard(Replica::Zero), first_shard(Replica::One)]);
        let chain = Rules { shards, ..Rules::NONE }.chain(&[], 3);
        chain.validate().unwrap();
        assert_eq!(Chain::parse(chain.to_json().as_bytes()).unwrap(), chain);
        for replica in Replica::BOTH {
            let labels = BTreeMap::from([(SHARD_LABEL.to_owned(), replica.number().to_string())]);
            let names: Vec<_> = chain
                .entries
                .iter()
                .filter(|entry| entry.pod_selector.matches(&labels))
                .map(|e| &e.name)
                .collect();
            assert_eq!(names, [MARKER, shard_entry(replica)]);
        }
    }

    #[test]
    fn what_is_added_goes_last_to_every_pod_with_its_file() {
        let shards = Some([first_shard(Replica::Zero), first_shard(Replica::One)]);
        let rules = Rules { shards, ..Rules::NONE };
        for added in [Added::rate_limit(), Added::circuit_breaker(), Added::fault_inject()] {
            let added = [added.unwrap()];
            let chain = rules.chain(&added, 3);
            chain.validate().unwrap();
            let last = chain.entries.iter().max_by_key(|entry| entry.order).unwrap();
            assert_eq!(last.plugin, Digest::of(added[0].plugin));
            assert_eq!(last.pod_selector, LabelSelector::default());
            let files = rules.files(&added, 3, &SigningKey::generate().unwrap());
            assert_eq!(
                files[&plugin_file::name(&last.plugin, Encoding::Plain)],
                added[0].plugin
            );
        }
    }
}
