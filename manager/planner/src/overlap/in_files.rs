//! Finds what shards of one controller share, from files alone. The namespaces of the cluster are not known, so one name of each
//! hash bucket stands for all namespaces that no limit names.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use ctrlmesh_contract::Mistake;
use ctrlmesh_contract::names::labels::IGNORE_VALIDATE;
use ctrlmesh_manager_api::ShardingConfig;

use super::{Overlap, OverlapKind, config_name, controller_key, limits_of, overlaps_among};
use crate::auto_shard::LabelKeys;
use crate::label_set::LabelSet;
use crate::labels::has_label;
use crate::shard_hash::{BUCKETS, shard_hash};

/// Maximum warnings for a shard.
const MAX_WARNINGS: usize = 8;

/// The ShardingConfigs of all files, by controller and by namespace. Controllers are compared once for all their shards, so that the
/// time does not grow with the cube of their number.
#[derive(Debug, Default)]
pub struct ShardIndex {
    configs: Vec<ShardingConfig>,
    keys: LabelKeys,
    /// By namespace and lock.
    controllers: HashMap<(String, String), Controller>,
    /// Positions in `configs`.
    namespaces: HashMap<Option<String>, Vec<usize>>,
}

/// The shards of one controller. Of several with one name, the first counts.
#[derive(Debug, Default)]
struct Controller {
    members: Vec<Member>,
    /// Positions in `members`.
    by_name: HashMap<String, usize>,
    /// Objects that each shard shares, by its name.
    shared_objects: OnceCell<HashMap<String, Vec<Mistake>>>,
}

#[derive(Debug)]
struct Member {
    name: String,
    /// Position in the index.
    position: usize,
    /// `None`: the shard selects no pod.
    pods: Option<LabelSet>,
}

impl ShardIndex {
    /// An index for a cluster whose manager has these keys. `configs` come from all files, in their order.
    #[must_use]
    pub fn new(configs: Vec<ShardingConfig>, keys: LabelKeys) -> Self {
        let mut controllers: HashMap<_, Controller> = HashMap::new();
        let mut namespaces: HashMap<_, Vec<usize>> = HashMap::new();
        for (position, config) in configs.iter().enumerate() {
            let namespace = config.metadata.namespace.clone();
            namespaces.entry(namespace).or_default().push(position);
            let is_going = config.metadata.deletion_timestamp.is_some();
            if let Some((namespace, lock)) = controller_key(config).filter(|_| !is_going) {
                let key = (namespace.to_owned(), lock.to_owned());
                controllers.entry(key).or_default().add(position, config);
            }
        }
        Self {
            configs,
            keys,
            controllers,
            namespaces,
        }
    }

    /// The keys of the labels that the manager sets.
    #[must_use]
    pub const fn keys(&self) -> &LabelKeys {
        &self.keys
    }

    /// ShardingConfigs in the order of the files; `None` for those that name no namespace.
    pub fn of_namespace(&self, namespace: Option<&str>) -> impl Iterator<Item = &ShardingConfig> {
        let positions = self.namespaces.get(&namespace.map(str::to_owned)).into_iter().flatten();
        positions.filter_map(|position| self.configs.get(*position))
    }

    /// Warns of objects and pods that a shard shares with other shards of its controller. Objects that no shard sees are not
    /// reported, because the files may not contain all shards.
    #[must_use]
    pub fn shared(&self, shard: &ShardingConfig) -> Vec<Mistake> {
        let Some((namespace, lock)) = controller_key(shard).filter(|_| !has_label(&shard.metadata, IGNORE_VALIDATE))
        else {
            return Vec::new();
        };
        let (key, own) = ((namespace.to_owned(), lock.to_owned()), config_name(shard));
        let Some(controller) = self.controllers.get(&key) else {
            return Vec::new();
        };
        let others = controller.members.iter().filter(|member| member.name != own);
        let own_pods = selected_pods(shard);
        let pods = others.clone().filter_map(|other| {
            let (own, others) = (own_pods.as_ref()?, other.pods.as_ref()?);
            shared_pods(own, others, &other.name)
        });
        let objects = if self.is_member(controller, shard) {
            let shared = controller.shared_objects.get_or_init(|| self.compare_all(controller));
            shared.get(&own).cloned().unwrap_or_default()
        } else {
            let others = others.filter_map(|other| self.configs.get(other.position));
            let shards = [shard].into_iter().chain(others).collect();
            let mut shared = shared_objects(shards, &self.keys);
            shared.remove(&own).unwrap_or_default()
        };
        pods.chain(objects).take(MAX_WARNINGS).collect()
    }

    /// Whether the shard is one of the index, and no second one of its name.
    fn is_member(&self, controller: &Controller, shard: &ShardingConfig) -> bool {
        let position = controller.by_name.get(&config_name(shard));
        let member = position.and_then(|position| controller.members.get(*position));
        member.and_then(|member| self.configs.get(member.position)) == Some(shard)
    }

    fn compare_all(&self, controller: &Controller) -> HashMap<String, Vec<Mistake>> {
        let members = controller.members.iter();
        let shards = members.filter_map(|member| self.configs.get(member.position)).collect();
        shared_objects(shards, &self.keys)
    }
}

impl Controller {
    fn add(&mut self, position: usize, config: &ShardingConfig) {
        let name = config_name(config);
        if self.by_name.contains_key(&name) {
            return;
        }
        self.by_name.insert(name.clone(), self.members.len());
        let pods = selected_pods(config);
        self.members.push(Member { name, position, pods });
    }
}

fn selected_pods(config: &ShardingConfig) -> Option<LabelSet> {
    config.spec.selector.as_ref().and_then(LabelSet::from_selector)
}

/// A mistake if one of the two selectors selects all pods of the other. Selectors that only intersect are not reported, because no
/// pod may ever have both sets of labels.
fn shared_pods(own: &LabelSet, others: &LabelSet, other: &str) -> Option<Mistake> {
    let whose = if own.is_within(others) {
        "this shard"
    } else if others.is_within(own) {
        "that shard"
    } else {
        return None;
    };
    let problem = format!(
        "selects pods that {other} selects, too: every pod of {whose}. A pod of two shards sees only what both show; let the selectors \
         exclude each other"
    );
    let path = "spec.selector".to_owned();
    Some(Mistake { path, problem })
}

/// Objects that each shard shares with another one, by its name.
fn shared_objects(shards: Vec<&ShardingConfig>, keys: &LabelKeys) -> HashMap<String, Vec<Mistake>> {
    let of_buckets: BTreeMap<String, u32> = (0..BUCKETS).map(|bucket| (any_of_bucket(bucket), bucket)).collect();
    let named = shards.iter().flat_map(|shard| named_namespaces(shard, &keys.namespace));
    let namespaces: BTreeSet<String> = of_buckets.keys().cloned().chain(named).collect();
    let namespaces: Vec<String> = namespaces.into_iter().collect();
    let mut shared: HashMap<String, Vec<Mistake>> = HashMap::new();
    for overlap in overlaps_among(shards, &namespaces, keys, &|| false) {
        if overlap.kind != OverlapKind::Shared {
            continue;
        }
        let problem = format!(
            "{} of {} can be in both {}; let their selectors exclude each other",
            overlap.resource,
            place_text(&overlap, namespaces.len(), &of_buckets),
            overlap.shards.join(", ")
        );
        for name in &overlap.shards {
            let warnings = shared.entry(name.clone()).or_default();
            if warnings.len() < MAX_WARNINGS {
                warnings.push(Mistake {
                    path: "spec.limits".to_owned(),
                    problem: problem.clone(),
                });
            }
        }
    }
    shared
}

fn place_text(overlap: &Overlap, all: usize, of_buckets: &BTreeMap<String, u32>) -> String {
    if overlap.namespaces == all {
        return "every namespace".to_owned();
    }
    let examples = overlap.examples.iter().map(|example| match of_buckets.get(example) {
        Some(bucket) => format!("hash bucket {bucket}"),
        None => format!("namespace {example}"),
    });
    let examples = examples.collect::<Vec<_>>().join(", ");
    match overlap.namespaces.saturating_sub(overlap.examples.len()) {
        0 => examples,
        more => format!("{examples} and {more} more"),
    }
}

/// A name in this hash bucket that no namespace has, because it contains an upper-case letter. Names sort in the order of their
/// hash buckets.
fn any_of_bucket(bucket: u32) -> String {
    let names = ('@'..='_').map(|last| format!("{bucket:02}{last}"));
    let mut of_bucket = names.filter(|name| shard_hash(name) == bucket);
    of_bucket.next().unwrap_or_default()
}

/// Namespaces that limits of a shard name.
fn named_namespaces(shard: &ShardingConfig, key: &str) -> Vec<String> {
    let selectors = limits_of(shard).filter_map(|limit| limit.selector.as_ref());
    let values = selectors.flat_map(|selector| {
        let label = selector.match_labels.get(key).into_iter();
        let requirements = selector
            .match_expressions
            .iter()
            .filter(|requirement| requirement.key == key);
        label.chain(requirements.flat_map(|requirement| &requirement.values))
    });
    values.cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::shard_hash::is_bucket;

    fn shard(name: &str, pods: &Value, objects: &Value) -> ShardingConfig {
        let document = json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
            "kind": "ShardingConfig",
            "metadata": {"name": name, "namespace": "demo"},
            "spec": {
                "controller": {"leaderElectionName": "lock"},
                "selector": {"matchLabels": pods},
                "limits": [{"relateResources": [{"apiGroups": [""], "resources": ["pods"]}], "selector": objects}],
            },
        });
        serde_json::from_value(document).unwrap()
    }

    fn in_buckets(buckets: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": LabelKeys::default().shard_hash, "operator": "In", "values": buckets}]})
    }

    fn in_namespaces(names: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": LabelKeys::default().namespace, "operator": "In", "values": names}]})
    }

    /// Objects that the first shard shares with the others.
    fn overlap_warnings(configs: &[ShardingConfig]) -> Vec<String> {
        let found = ShardIndex::new(configs.to_vec(), LabelKeys::default()).shared(&configs[0]);
        found.iter().map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    #[test]
    fn each_bucket_has_name_that_no_namespace_can_have() {
        let names: Vec<String> = (0..BUCKETS).map(any_of_bucket).collect();
        assert!(names.is_sorted(), "{names:?}");
        for (bucket, name) in (0..BUCKETS).zip(&names) {
            assert_eq!(shard_hash(name), bucket, "{name}");
            assert!(!ctrlmesh_wire::is_dns_subdomain(name), "{name}");
        }
        assert!(is_bucket("31") && !is_bucket(&BUCKETS.to_string()));
    }

    #[test]
    fn objects_in_common_buckets_and_namespaces_are_reported() {
        let left = shard("left", &json!({"shard": "left"}), &in_buckets(&["0", "5", "9"]));
        let right = |objects: &Value| shard("right", &json!({"shard": "right"}), objects);
        let told_beside = |objects: &Value| overlap_warnings(&[left.clone(), right(objects)]);
        assert_eq!(
            told_beside(&in_buckets(&["5", "9", "31"])),
            [
                "spec.limits: pods of hash bucket 5, hash bucket 9 can be in both left, right; let their selectors exclude each other"
            ]
        );
        assert_eq!(told_beside(&in_buckets(&["1", "2"])), Vec::<String>::new());
        // `default` is in hash bucket 5.
        assert_eq!(
            told_beside(&in_namespaces(&["default", "kube-system"])),
            [
                "spec.limits: pods of namespace default can be in both left, right; let their selectors exclude each other"
            ]
        );
        let all = shard("left", &json!({"shard": "left"}), &json!({}));
        assert_eq!(
            overlap_warnings(&[all, right(&json!({}))]),
            ["spec.limits: pods of every namespace can be in both left, right; let their selectors exclude each other"]
        );
    }

    #[test]
    fn pods_of_two_shards_are_reported_to_both() {
        let objects = |bucket: &str| in_buckets(&[bucket]);
        let [one, other] =
            [("left", "1"), ("right", "2")].map(|(name, bucket)| shard(name, &json!({"app": "a"}), &objects(bucket)));
        for (shards, of) in [([one.clone(), other.clone()], "right"), ([other, one.clone()], "left")] {
            let warnings = overlap_warnings(&shards);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(
                warnings[0].starts_with(&format!("spec.selector: selects pods that {of} selects, too")),
                "{warnings:?}"
            );
        }
        let canary = shard("canary", &json!({"app": "a", "shard": "canary"}), &objects("2"));
        assert!(overlap_warnings(&[canary.clone(), one.clone()])[0].contains("every pod of this shard"));
        assert!(overlap_warnings(&[one.clone(), canary])[0].contains("every pod of that shard"));
        // A pod could have both labels, but usually has not.
        let apart = shard("apart", &json!({"shard": "apart"}), &objects("2"));
        assert_eq!(overlap_warnings(&[one, apart]), Vec::<String>::new());
    }

    #[test]
    fn shards_of_other_controllers_and_copies_of_a_shard_share_nothing() {
        let left = shard("left", &json!({"app": "a"}), &json!({}));
        let mut elsewhere = shard("right", &json!({"app": "a"}), &json!({}));
        elsewhere.metadata.namespace = Some("other".to_owned());
        let mut unlocked = shard("right", &json!({"app": "a"}), &json!({}));
        unlocked.spec.controller = None;
        let ignored = |mut config: ShardingConfig| {
            config.metadata.labels = Some([(IGNORE_VALIDATE.to_owned(), String::new())].into());
            config
        };
        let right = shard("right", &json!({"app": "a"}), &json!({}));
        for configs in [
            vec![left.clone(), left.clone()],
            vec![left.clone(), elsewhere],
            vec![left.clone(), unlocked.clone()],
            vec![unlocked, left.clone()],
            vec![ignored(left.clone()), right.clone()],
        ] {
            assert_eq!(overlap_warnings(&configs), Vec::<String>::new());
        }
        assert_eq!(overlap_warnings(&[left, right]).len(), 2);
    }

    #[test]
    fn second_shard_of_a_name_is_compared_by_what_it_has_itself() {
        let of = |name: &str, bucket: &str| shard(name, &json!({"shard": name}), &in_buckets(&[bucket]));
        let (left, right) = (of("left", "1"), of("right", "2"));
        let mut copy = of("left", "2");
        copy.metadata.labels = Some([("copy".to_owned(), String::new())].into());
        let index = ShardIndex::new(vec![left.clone(), copy.clone(), right.clone()], LabelKeys::default());
        let shared = |shard| index.shared(shard).len();
        assert_eq!((shared(&left), shared(&copy), shared(&right)), (0, 1, 0));
        let mut going = left;
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let index = ShardIndex::new(vec![going, copy, right.clone()], LabelKeys::default());
        assert_eq!(
            index.shared(&right).len(),
            1,
            "the shard that is deleted does not count"
        );
    }
}
