//! Rules of a ShardingConfig, of a shard and of a root.

use ctrlmesh_contract::names::labels::STATEFUL_SET_POD_NAME;
use ctrlmesh_manager_api::sharding_config::{Limit, NamedGets, Root, UnreachablePolicy};
use ctrlmesh_manager_api::{LabelSelector, ShardingConfig};
use ctrlmesh_wire::{is_dns_label, is_dns_subdomain};
use serde_json::json;

use super::findings::at_index;
use super::limit_resources::warn_of_duplicate_resources;
use super::{
    Findings, buckets, keyed_root, plugins, resource_names, warn_hash_keys, warn_hidden_children, warn_unlocked_shards,
};
use crate::auto_shard::{LabelKeys, MAX_SHARDS, auto_shard, follows_replicas, with_shards};
use crate::built_in::BuiltIn;
use crate::settings;

/// `validation.LabelValueMaxLength` of apimachinery.
const MAX_LABEL_VALUE: usize = 63;

/// `keys`: of the labels that shards of a root are made with.
pub fn check_sharding_config(config: &ShardingConfig, keys: &LabelKeys) -> Findings {
    let mut findings = Findings::default();
    if let Some(selector) = &config.spec.selector {
        selector.validate("spec.selector", &mut findings.mistakes);
    }
    if let Some(webhook) = &config.spec.webhook {
        if webhook.cert_dir.is_empty() {
            findings.refuse(
                "spec.webhook.certDir",
                "is empty; write the folder where the certificate is mounted",
            );
        }
        if !(1..=i32::from(u16::MAX)).contains(&webhook.port) {
            findings.refuse("spec.webhook.port", format!("is {}; write 1 to 65535", webhook.port));
        }
        let problem = "has no effect: what API servers send to the controller's webhooks does not go through a sidecar, and comes to any \
                       pod of any shard; remove it";
        findings.warn("spec.webhook", problem);
    }
    let unreachable = config.spec.unreachable_pods.as_ref();
    if unreachable.is_some_and(|pods| pods.policy == UnreachablePolicy::Wait && pods.after_seconds.is_some()) {
        findings.refuse(
            "spec.unreachablePods.afterSeconds",
            "has no effect with Wait; write policy: Proceed",
        );
    }
    warn_of_named_gets(config, &mut findings);
    plugins::check_plugins(&config.spec.plugins, &mut findings);
    resource_names::warn_of_names_in_shard(config, &mut findings);
    warn_hidden_children::warn_of_hidden_children(config, keys, &mut findings);
    buckets::check_buckets(config, keys, &mut findings);
    match &config.spec.root {
        Some(root) => check_root(config, root, keys, &mut findings),
        None => check_shard(config, &mut findings),
    }
    findings
}

/// Warns of a setting that has no effect, and of a 404 for objects that exist.
fn warn_of_named_gets(config: &ShardingConfig, findings: &mut Findings) {
    let spec = &config.spec;
    if spec.named_gets == NamedGets::Pass {
        return;
    }
    let has_ranges = || spec.limits.iter().flatten().any(|limit| limit.hash_ranges.is_some());
    let is_divided = spec.root.as_ref().map_or_else(has_ranges, |root| root.key.is_some());
    if !is_divided {
        let problem =
            "has no effect without root.key or hashRanges: gets by name are not filtered by labels; remove it";
        findings.warn("spec.namedGets", problem);
    } else if spec.named_gets == NamedGets::NotFound {
        let problem = "is NotFound: a controller that gets 404 for an object of another shard may create it again, or remove what \
                       belongs to it; write Forbidden, unless the controller is known to do neither";
        findings.warn("spec.namedGets", problem);
    }
}

fn check_shard(config: &ShardingConfig, findings: &mut Findings) {
    if config.spec.selector.as_ref().is_none_or(LabelSelector::is_empty) {
        let problem = "is missing or empty; say which pods are this shard, or write root";
        findings.refuse("spec.selector", problem);
    }
    let limits = config.spec.limits.as_deref().unwrap_or_default();
    if limits.is_empty() {
        findings.refuse(
            "spec.limits",
            "is missing or empty; say what this shard sees, or write root",
        );
    }
    let namespace = config.metadata.namespace.as_deref().unwrap_or_default();
    check_limits(limits, "spec.limits", namespace, findings);
    keyed_root::refuse_replacement(limits, &config.spec.plugins, findings);
    warn_hash_keys::warn_of_limit_keys(config, findings);
    if findings.is_accepted() {
        let settings = settings::shard_selector(config);
        findings.ask_whole(
            BuiltIn::ShardSelector,
            &settings,
            lock_namespace(namespace),
            &|path| match path {
                "leaderElectionName" => "spec.controller.leaderElectionName".to_owned(),
                "shard" => "metadata.name".to_owned(),
                path => format!("spec.{path}"),
            },
        );
    }
}

/// Namespace for the plugin's check. At admission of an object in the default namespace the field may still be empty.
fn lock_namespace(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}

/// Checks each limit on its own, so that all mistakes are reported.
fn check_limits(limits: &[Limit], path: &str, namespace: &str, findings: &mut Findings) {
    for (index, limit) in limits.iter().enumerate() {
        let settings = json!({"limits": [settings::json_of(limit)]});
        findings.check_with_plugin(BuiltIn::ShardSelector, &settings, namespace, &|inner| {
            format!(
                "{path}{}",
                at_index(inner, "limits", index).trim_start_matches("limits")
            )
        });
    }
    warn_of_duplicate_resources(limits, path, findings);
}

fn check_root(config: &ShardingConfig, root: &Root, keys: &LabelKeys, findings: &mut Findings) {
    if config.spec.limits.is_some() {
        findings.refuse("spec.limits", "has no effect beside root; write root.resourceSelector");
    }
    for (field, name) in [
        ("prefix", &root.prefix),
        ("targetStatefulSet", &root.target_stateful_set),
    ] {
        if !is_dns_subdomain(name) {
            let problem = format!("{name:?} is no name; use lower-case letters, digits, '-' and '.'");
            findings.refuse(format!("spec.root.{field}"), problem);
        }
    }
    let name = config.metadata.name.as_deref().unwrap_or_default();
    if name.len() > MAX_LABEL_VALUE {
        let problem =
            format!("is longer than {MAX_LABEL_VALUE} characters; the shards carry it as a label: shorten it");
        findings.refuse("metadata.name", problem);
    }
    keyed_root::check_lists(config, root, findings);
    if root.disable == Some(true) {
        findings.warn("spec.root.disable", effect_of_disabling(config));
        return;
    }
    warn_unlocked_shards::warn_of_unlocked_root(config, findings);
    refuse_pod_names(config, findings);
    if root.auto.is_none() {
        let problem =
            "is missing; without it no shard is made (to remove the shards that there are, write disable: true)";
        findings.refuse("spec.root.auto", problem);
    }
    if root.resource_selector.is_empty() {
        let problem = "is missing or empty; say which resources are divided among the shards";
        findings.refuse("spec.root.resourceSelector", problem);
    }
    let namespace = config.metadata.namespace.as_deref().unwrap_or_default();
    check_limits(
        &root.resource_selector,
        "spec.root.resourceSelector",
        namespace,
        findings,
    );
    check_canary_namespaces(root, findings);
    if let Some(key) = &root.key {
        keyed_root::check_keyed_root(config, root, key, findings);
    }
    if findings.is_accepted() {
        check_children(config, keys, findings);
    }
}

/// The effect of disabling a root on its shards' objects.
fn effect_of_disabling(config: &ShardingConfig) -> &'static str {
    if config.spec.controller.is_some() {
        "removes the shards: one of them gets everything, and pods of the others show nothing until they are deleted or made again \
         (docs/manager.md, \"Deleting shards\")"
    } else {
        "removes the shards while their pods run, and without spec.controller all of them see everything at once; to have one owner at any \
         time, scale the controller to zero first"
    }
}

/// Refuses a selector that names pods: it would leave at most one pod to all shards.
fn refuse_pod_names(config: &ShardingConfig, findings: &mut Findings) {
    let Some(selector) = &config.spec.selector else { return };
    let problem =
        "names pods, which follow from root.targetStatefulSet here; with both, shards would have no pods: remove it";
    if selector.match_labels.contains_key(STATEFUL_SET_POD_NAME) {
        findings.refuse("spec.selector.matchLabels", problem);
    }
    for (index, requirement) in selector.match_expressions.iter().enumerate() {
        if requirement.key == STATEFUL_SET_POD_NAME {
            findings.refuse(format!("spec.selector.matchExpressions[{index}]"), problem);
        }
    }
}

fn check_canary_namespaces(root: &Root, findings: &mut Findings) {
    let namespaces = root.canary.iter().flat_map(|canary| &canary.in_namespaces);
    for (index, namespace) in namespaces.enumerate() {
        if !is_dns_label(namespace) || namespace.len() > 63 {
            let path = format!("spec.root.canary.inNamespaces[{index}]");
            findings.refuse(path, format!("{namespace:?} is no namespace; write the name of one"));
        }
    }
}

/// All other mistakes show in the shards that the root would make.
fn check_children(config: &ShardingConfig, keys: &LabelKeys, findings: &mut Findings) {
    // Any number of shards that may follow from replicas must be valid.
    let follows = config.spec.root.as_ref().is_some_and(follows_replicas);
    let largest = follows.then(|| with_shards(config, MAX_SHARDS));
    match auto_shard(largest.as_ref().unwrap_or(config), &[], keys) {
        Err(mistakes) => findings.mistakes = mistakes,
        // All shards have the same mistakes, so one is enough.
        Ok(children) => {
            let wrong = |child: &ShardingConfig| {
                Some((
                    child.metadata.name.clone()?,
                    check_sharding_config(child, keys).mistakes,
                ))
            };
            let mut wrong = children
                .iter()
                .filter_map(wrong)
                .filter(|(_, mistakes)| !mistakes.list().is_empty());
            if let Some((name, mistakes)) = wrong.next() {
                for mistake in mistakes.list() {
                    let problem = format!(
                        "makes {name} with {}, which does not do: {}",
                        mistake.path, mistake.problem
                    );
                    findings.refuse("spec.root", problem);
                }
            }
        }
    }
}
