//! Pods that a shard selects and that have no sidecar. They see everything, and the lock that they ask for is another: while one
//! runs, shards that would begin to show objects wait, so that an operator can be sharded by a rolling restart.
//!
//! Shards that show objects already are left alone: a pod that is started beside them without a sidecar must not take anything from
//! who works.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ctrlmesh_contract::Entry;
use ctrlmesh_contract::names::labels;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use super::memory::Memory;
use super::planned::entry_of;
use super::read::Documents;
use super::reconcile::Distributor;
use super::stored::Stored;
use crate::hand_over::{is_of_shard, lock_of, shows_nothing};

/// Until it is looked again whether they are gone: nothing watches pods without a sidecar.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// Pods of one answer.
const PAGE: u32 = 500;

/// Labels of a namespace's pods without a sidecar, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Bare(BTreeMap<String, BTreeMap<String, String>>);

/// Entries that wait, each with the pods for which it does.
pub(super) type Waiting = BTreeMap<String, BTreeSet<String>>;

impl Distributor {
    /// Who has no sidecar. Asked for only if a shard may begin to show objects; else nobody.
    pub(super) async fn bare(
        &self,
        namespace: &str,
        objects: &Documents,
        stored: &Stored,
        memory: &Memory,
    ) -> Result<Bare, kube::Error> {
        let last = stored.chain.as_ref().or(memory.last.as_ref().map(|(chain, _)| chain));
        let entries = last.map_or(&[][..], |chain| &chain.entries);
        let mut shards = objects
            .sharding_configs
            .iter()
            .filter(|config| config.spec.root.is_none());
        if !shards.any(|config| begins(&entry_of(config), entries)) {
            return Ok(Bare::default());
        }
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let mut params = ListParams::default()
            .labels(&format!("{}!=true", labels::WATCHING))
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .limit(PAGE);
        let mut bare = BTreeMap::new();
        loop {
            let page = api.list_metadata(&params).await?;
            bare.extend(page.items.iter().map(|pod| (pod.name_any(), pod.labels().clone())));
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(Bare(bare));
            }
        }
    }
}

impl Bare {
    /// Which of the wanted entries wait.
    pub(super) fn waiting(&self, last: &[Entry], wanted: &[Entry]) -> Waiting {
        let mut waiting = Waiting::new();
        let beginning = wanted
            .iter()
            .filter(|entry| is_of_shard(&entry.name) && !shows_nothing(entry));
        for entry in beginning.filter(|entry| begins(&entry.name, last)) {
            // What one of them handles may be of any shard.
            let is_sibling = |other: &&Entry| {
                let is_same_lock = || lock_of(other).is_some() && lock_of(other) == lock_of(entry);
                other.name == entry.name || is_same_lock()
            };
            let siblings: Vec<&Entry> = wanted.iter().filter(is_sibling).collect();
            let is_selected =
                |labels: &BTreeMap<String, String>| siblings.iter().any(|it| it.pod_selector.matches(labels));
            let selected = self.0.iter().filter(|(_, labels)| is_selected(labels));
            let pods: BTreeSet<String> = selected.map(|(pod, _)| pod.clone()).collect();
            if !pods.is_empty() {
                waiting.insert(entry.name.clone(), pods);
            }
        }
        waiting
    }
}

/// Whether an entry shows nothing yet.
fn begins(name: &str, last: &[Entry]) -> bool {
    let last = last.iter().find(|entry| entry.name == name);
    last.is_none_or(shows_nothing)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::selector::LabelSelector;
    use crate::samples;

    fn shard(name: &str, lock: Option<&str>, value: &str) -> Entry {
        let mut entry = samples::entry(&format!("shard-selector/{name}"));
        let resources = json!([{"apiGroups": [""], "resources": ["pods"]}]);
        let limits = json!([{"relateResources": resources, "selector": {"matchLabels": {"a": value}}}]);
        entry.settings = ctrlmesh_contract::Settings::new(json!({"leaderElectionName": lock, "limits": limits}));
        let pods: LabelSelector = serde_json::from_value(json!({"matchLabels": {"shard": name}})).unwrap();
        entry.pod_selector = (&pods).into();
        entry
    }

    fn bare(shard: &str) -> Bare {
        let labels = [("shard".to_owned(), shard.to_owned())].into();
        Bare([("old-0".to_owned(), labels)].into())
    }

    fn names(waiting: &Waiting) -> Vec<&str> {
        waiting.keys().map(String::as_str).collect()
    }

    #[test]
    fn shards_of_a_controller_begin_when_all_its_pods_have_sidecars() {
        let wanted = [shard("a", Some("lock"), "1"), shard("b", Some("lock"), "2")];
        let waiting = bare("b").waiting(&[], &wanted);
        assert_eq!(names(&waiting), ["shard-selector/a", "shard-selector/b"]);
        assert!(waiting.values().all(|pods| pods.iter().eq(["old-0"])));
        // Another manager goes on.
        let held = crate::hand_over::unshared(&[], &wanted, waiting.keys());
        assert_eq!(bare("b").waiting(&held, &wanted), waiting);
        assert!(bare("c").waiting(&held, &wanted).is_empty(), "it is nobody's pod");
        assert!(Bare::default().waiting(&held, &wanted).is_empty());
    }

    #[test]
    fn who_shows_objects_goes_on() {
        let last = [shard("a", Some("lock"), "1")];
        let wanted = [shard("a", Some("lock"), "3"), shard("b", Some("lock"), "2")];
        assert_eq!(names(&bare("a").waiting(&last, &wanted)), ["shard-selector/b"]);
    }

    #[test]
    fn controllers_do_not_wait_for_each_other() {
        let of = |lock: Option<&str>, other: Option<&str>| [shard("a", lock, "1"), shard("b", other, "2")];
        for wanted in [of(Some("lock"), Some("another")), of(None, None)] {
            assert_eq!(names(&bare("b").waiting(&[], &wanted)), ["shard-selector/b"]);
        }
    }
}
