//! Makes the shards of a root: an optional canary and a number of equal shards; or, with a key, shards with ranges of a hash.
//!
//! Guarantees:
//! - With a key, every object of a divided resource is in exactly one shard, and a shard more or less moves as little as possible
//!   ([`crate::divide_ranges()`]). Labels are not needed, and namespaces do not matter. What follows is about roots without a key.
//! - Every object in a labelled namespace is in one shard at most. It is in exactly one if the canary does not combine hash buckets
//!   with a namespace list, or if all namespaces are known.
//! - Hash buckets are divided evenly: sizes differ by one at most. They do not move when the canary's part changes.
//! - Equal roots make equal shards, with the names that KusionStack gives them (`<prefix>-0-canary`, `<prefix>-1-normal`).

mod by_hash;
mod replicas;
mod sets;

use std::collections::BTreeSet;

use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::names::{annotations, labels};
use ctrlmesh_contract::{Mistakes, Settings};
use ctrlmesh_manager_api::sharding_config::{Auto, Canary, Limit, Root};
use ctrlmesh_manager_api::{LabelSelector, Operator, ShardingConfig, ShardingConfigSpec};
use ctrlmesh_wire::is_label_key;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ObjectMeta;
use kube_core::Resource;
use serde_json::json;

use crate::settings;
use crate::shard_hash::{BUCKETS, is_bucket, shard_hash};
pub(crate) use replicas::follows_replicas;
pub use replicas::{FollowedSize, Workload, follow_replicas, with_shards};
pub use sets::{held_back, owner_uid};

/// Keys of the labels on objects. The manager's flags can change them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelKeys {
    /// The hash bucket of the object's namespace.
    pub shard_hash: String,
    pub namespace: String,
    /// Whether the object is managed.
    pub control: String,
}

impl Default for LabelKeys {
    fn default() -> Self {
        Self {
            shard_hash: labels::SHARD_HASH.to_owned(),
            namespace: labels::NAMESPACE.to_owned(),
            control: labels::CONTROL.to_owned(),
        }
    }
}

impl LabelKeys {
    /// Checks that these are keys of labels, and that they differ. `flags`: the names of the flags with the hash bucket, the
    /// namespace, and whether the object is managed.
    ///
    /// # Errors
    /// The first flag with an invalid key, and what is wrong with it.
    pub fn check<'f>(&self, flags: [&'f str; 3]) -> Result<(), (&'f str, String)> {
        let keys = [&self.shard_hash, &self.namespace, &self.control];
        for (at, (flag, key)) in flags.into_iter().zip(keys).enumerate() {
            if !is_label_key(key) {
                let problem = format!(
                    "{} is not a label key; write it as name or example.com/name",
                    quote(key)
                );
                return Err((flag, problem));
            }
            if keys.iter().take(at).any(|earlier| *earlier == key) {
                let problem = format!("{key:?} is the key of another label, too; write three that differ");
                return Err((flag, problem));
            }
        }
        Ok(())
    }
}

/// Annotation of every shard of a root: the number of shards, and a hash over all of them. Shards with different values are not
/// parts of the same set.
pub const SET: &str = "ctrlmesh.kusionstack.io/auto-sharding-set";

/// Makes the shards of a root; none if the object is disabled or not a root. If the number of shards follows the replicas of the
/// StatefulSet ([`follow_replicas`]), the caller writes it first ([`with_shards`]).
///
/// `namespaces` are the labelled namespaces of the cluster. They matter only if the canary has both namespaces and hash buckets: a
/// label selector can't say "in one of these namespaces or in one of these hash buckets", so the namespaces in those hash buckets
/// are listed by name. A new namespace is in no shard until the next call.
///
/// # Errors
/// The fields for which no shards can be made.
pub fn auto_shard(
    root: &ShardingConfig,
    namespaces: &[String],
    keys: &LabelKeys,
) -> Result<Vec<ShardingConfig>, Mistakes> {
    let Some(spec) = root.spec.root.as_ref().filter(|spec| spec.disable != Some(true)) else {
        return Ok(Vec::new());
    };
    let (auto, shards) = checked_auto(spec)?;
    if let Some(key) = &spec.key {
        return Ok(shards_by_hash(root, spec, (auto, shards), key));
    }
    let canary = spec.canary.as_ref().filter(|canary| canary.replicas > 0);
    let canary_pods = canary.map_or(0, |canary| canary.replicas);
    let mut children = Vec::new();
    if let Some(canary) = canary {
        let name = format!("{}-0-canary", spec.prefix);
        let part = |selector: LabelSelector| canary_part(selector, canary, namespaces, keys);
        children.push(shard_object(
            root,
            spec,
            &name,
            0..canary_pods,
            label_limits(spec, &part),
        ));
    }
    for id in 0..shards {
        let first = canary_pods + auto.every_shard_replicas * id;
        let buckets = buckets_of(id, shards);
        let part = |selector: LabelSelector| normal_part(selector, canary, &buckets, keys);
        let name = format!("{}-{}-normal", spec.prefix, id + 1);
        children.push(shard_object(
            root,
            spec,
            &name,
            first..first + auto.every_shard_replicas,
            label_limits(spec, &part),
        ));
    }
    annotate_set(&mut children);
    Ok(children)
}

fn shards_by_hash(root: &ShardingConfig, spec: &Root, (auto, shards): (&Auto, i32), key: &str) -> Vec<ShardingConfig> {
    let limits = by_hash::limits_by_hash(spec, (auto, shards), key);
    let shard = |(id, limits): (i32, Vec<Limit>)| {
        let first = auto.every_shard_replicas * id;
        let name = format!("{}-{}-normal", spec.prefix, id + 1);
        shard_object(root, spec, &name, first..first + auto.every_shard_replicas, limits)
    };
    let mut children: Vec<ShardingConfig> = (0..).zip(limits).map(shard).collect();
    annotate_set(&mut children);
    children
}

/// Annotates each shard with its set ([`SET`]).
fn annotate_set(children: &mut [ShardingConfig]) {
    let all: Vec<String> = children
        .iter()
        .flat_map(|child| [child.metadata.name.clone(), hash_of(child)])
        .flatten()
        .collect();
    let hash = Settings::new(json!(all)).hash().to_owned();
    let set = format!("{}-{hash}", children.len());
    for child in children {
        let annotations = child.metadata.annotations.get_or_insert_default();
        annotations.insert(SET.to_owned(), set.clone());
    }
}

fn hash_of(child: &ShardingConfig) -> Option<String> {
    let annotations = child.metadata.annotations.as_ref()?;
    annotations.get(annotations::AUTO_SHARDING_HASH).cloned()
}

/// Maximum pods of a shard: their names are the values of one requirement (`LabelSelector::validate` of the contract).
const MAX_PODS: i32 = 256;

/// Maximum weight of a shard.
const MAX_WEIGHT: i32 = 100;

/// Maximum shards of a root: one for each hash bucket.
pub const MAX_SHARDS: i32 = 32;

/// `auto`, and the number of shards. Checks the schema's bounds again, for roots that no API server has validated.
fn checked_auto(root: &Root) -> Result<(&Auto, i32), Mistakes> {
    let mut mistakes = Mistakes::default();
    let Some(auto) = &root.auto else {
        mistakes.add("spec.root.auto", "is missing; without it no shard is made");
        return Err(mistakes);
    };
    let shards = auto.sharding_size.unwrap_or_default();
    if auto.sharding_size.is_none() {
        let problem = format!("is missing; write the number of shards, 1 to {MAX_SHARDS}");
        mistakes.add("spec.root.auto.shardingSize", problem);
    } else if !(1..=MAX_SHARDS).contains(&shards) {
        let problem = format!("is {shards}; write 1 to {MAX_SHARDS}: there are {MAX_SHARDS} hash buckets to divide");
        mistakes.add("spec.root.auto.shardingSize", problem);
    }
    if !(1..=MAX_PODS).contains(&auto.every_shard_replicas) {
        let problem = format!("is {}; write 1 to {MAX_PODS}", auto.every_shard_replicas);
        mistakes.add("spec.root.auto.everyShardReplicas", problem);
    }
    check_weights(root, auto, shards, &mut mistakes);
    match &root.canary {
        Some(_) if root.key.is_some() => mistakes.add(
            "spec.root.canary",
            "has no effect beside key; give a shard less in auto.weights",
        ),
        Some(canary) => check_canary(canary, &mut mistakes),
        None => {}
    }
    if mistakes.list().is_empty() {
        Ok((auto, shards))
    } else {
        Err(mistakes)
    }
}

fn check_weights(root: &Root, auto: &Auto, shards: i32, mistakes: &mut Mistakes) {
    if auto.weights.is_empty() {
        return;
    }
    let path = "spec.root.auto.weights";
    if root.key.is_none() {
        mistakes.add(path, "has no effect without key; remove it, or write key");
    } else if usize::try_from(shards) != Ok(auto.weights.len()) {
        let weights = auto.weights.len();
        mistakes.add(
            path,
            format!("must have one number for each shard: there are {shards} shards and {weights} numbers"),
        );
    }
    for (index, weight) in auto.weights.iter().enumerate() {
        if !(1..=MAX_WEIGHT).contains(weight) {
            let problem = format!("is {weight}; write 1 to {MAX_WEIGHT}");
            mistakes.add(format!("{path}[{index}]"), problem);
        }
    }
}

fn check_canary(canary: &Canary, mistakes: &mut Mistakes) {
    if !(0..=MAX_PODS).contains(&canary.replicas) {
        let problem = format!("is {}; write 0 (no canary) to {MAX_PODS}", canary.replicas);
        mistakes.add("spec.root.canary.replicas", problem);
    }
    if canary.in_namespaces.is_empty() && canary.in_shard_hash.is_empty() {
        mistakes.add(
            "spec.root.canary",
            "has no part of the objects; write inNamespaces, inShardHash, or both",
        );
    }
    for (index, bucket) in canary.in_shard_hash.iter().enumerate() {
        if !is_bucket(bucket) {
            let path = format!("spec.root.canary.inShardHash[{index}]");
            mistakes.add(
                path,
                format!("{bucket:?} is no hash bucket; write \"0\" to \"{}\"", BUCKETS - 1),
            );
        }
    }
}

/// The hash buckets of shard `id` of `shards`.
fn buckets_of(id: i32, shards: i32) -> Vec<String> {
    let buckets = i32::try_from(BUCKETS).unwrap_or(i32::MAX);
    let bound = |id: i32| buckets * id / shards;
    (bound(id)..bound(id + 1)).map(|bucket| bucket.to_string()).collect()
}

fn canary_part(selector: LabelSelector, canary: &Canary, namespaces: &[String], keys: &LabelKeys) -> LabelSelector {
    let Canary {
        in_namespaces,
        in_shard_hash,
        ..
    } = canary;
    if in_namespaces.is_empty() {
        return selector.with_requirement(&keys.shard_hash, Operator::In, in_shard_hash.clone());
    }
    let is_in_bucket = |namespace: &&String| in_shard_hash.contains(&shard_hash(namespace).to_string());
    let names: BTreeSet<&String> = namespaces.iter().filter(is_in_bucket).chain(in_namespaces).collect();
    selector.with_requirement(&keys.namespace, Operator::In, names.into_iter().cloned().collect())
}

fn normal_part(
    mut selector: LabelSelector,
    canary: Option<&Canary>,
    buckets: &[String],
    keys: &LabelKeys,
) -> LabelSelector {
    if let Some(canary) = canary {
        for (key, values) in [
            (&keys.namespace, &canary.in_namespaces),
            (&keys.shard_hash, &canary.in_shard_hash),
        ] {
            if !values.is_empty() {
                selector = selector.with_requirement(key, Operator::NotIn, values.clone());
            }
        }
    }
    selector.with_requirement(&keys.shard_hash, Operator::In, buckets.to_vec())
}

/// The limits of a shard that has a part of the objects by labels.
fn label_limits(spec: &Root, part: &dyn Fn(LabelSelector) -> LabelSelector) -> Vec<Limit> {
    let limit = |limit: &Limit| Limit {
        relate_resources: limit.relate_resources.clone(),
        selector: Some(part(limit.selector.clone().unwrap_or_default())),
        ..Limit::default()
    };
    spec.resource_selector.iter().map(limit).collect()
}

fn shard_object(
    root: &ShardingConfig,
    spec: &Root,
    name: &str,
    pods: std::ops::Range<i32>,
    limits: Vec<Limit>,
) -> ShardingConfig {
    let pods = pods
        .map(|ordinal| format!("{}-{ordinal}", spec.target_stateful_set))
        .collect();
    let selector = root.spec.selector.clone().unwrap_or_default();
    let spec = ShardingConfigSpec {
        selector: Some(selector.with_requirement(labels::STATEFUL_SET_POD_NAME, Operator::In, pods)),
        controller: root.spec.controller.clone(),
        webhook: root.spec.webhook.clone(),
        limits: Some(limits),
        named_gets: root.spec.named_gets,
        reshard: root.spec.reshard,
        settle_seconds: root.spec.settle_seconds,
        unreachable_pods: root.spec.unreachable_pods.clone(),
        plugins: root.spec.plugins.clone(),
        root: None,
    };
    let hash = Settings::new(settings::json_of(&spec)).hash().to_owned();
    let mut child = ShardingConfig::new(name, spec);
    child.metadata = shard_metadata(root, name, hash);
    child
}

/// Shards are in the root's namespace and owned by it. Roots of the same name in two namespaces are unrelated.
fn shard_metadata(root: &ShardingConfig, name: &str, hash: String) -> ObjectMeta {
    let root_name = root.metadata.name.clone().unwrap_or_default();
    let owner = root.metadata.uid.as_ref().map(|uid| OwnerReference {
        api_version: ShardingConfig::api_version(&()).into_owned(),
        kind: ShardingConfig::kind(&()).into_owned(),
        name: root_name.clone(),
        uid: uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    });
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: root.metadata.namespace.clone(),
        labels: Some([(labels::AUTO_SHARDING_ROOT.to_owned(), root_name)].into()),
        annotations: Some([(annotations::AUTO_SHARDING_HASH.to_owned(), hash)].into()),
        owner_references: owner.map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests;
