//! Decides which deleted ShardingConfigs are still held by our finalizer, why, and which are released. Pure.
//!
//! The finalizer holds a shard until its pods show nothing of it, and the last shards of a controller until their entries are gone.

use std::collections::BTreeSet;

use ctrlmesh_contract::names::finalizers;
use ctrlmesh_manager_api::document::text_at;
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_planner::hand_over::{LOCK_EXPIRY, Teardown, all_pods, entry_of_shard, is_released, shard_of};
use serde_json::{Value, json};

use crate::fleet::{join_first, named_pods};
use crate::next_chain::NextChain;
use crate::observation::{CustomResources, is_deleted, is_shard};
use crate::pod_actions::{MAX_COMMAND, stale_pods};
use crate::pods::Pods;

/// Finalizers that distribution removes from objects.
const FINALIZERS: [&str; 2] = [finalizers::HAND_OVER, finalizers::PROTECTED];

/// Entries of deleted ShardingConfigs that may go now. `next`: the chain that is stored.
pub fn released_entries(next: &NextChain, resources: &CustomResources, pods: Pods<'_>) -> BTreeSet<String> {
    let mut released = resources.deleted_entries();
    released.retain(|entry| is_released(entry, &next.chain.entries, &next.claims, &next.plan.evict, &pods));
    released
}

/// Pods of a deleted shard that the manager evicts, because the shard has `reshard: Restart`.
fn pods_to_replace(entry: &str, next: &NextChain, pods: Pods<'_>) -> Vec<String> {
    let evictions = next.plan.evict.iter().filter(|evict| evict.entry == entry);
    let stale = evictions.flat_map(|evict| stale_pods(evict, pods.fleet));
    stale.map(|sidecar| sidecar.pod.clone()).collect()
}

/// Why a deleted ShardingConfig is not gone yet.
pub fn pending_reason(document: &Value, next: &NextChain, pods: Pods<'_>) -> Reason {
    let entry = entry_of_shard(text_at(document, "/metadata/name"));
    let teardown = next.claims.teardown_of(&entry, &next.chain.entries);
    let reason = match teardown {
        Some(teardown) if teardown.is_of(&entry) => teardown_reason(&entry, teardown, next, pods),
        _ => shard_reason(&entry, teardown, next, pods),
    };
    let cost = if teardown.is_some_and(|teardown| teardown.is_of(&entry)) {
        "every pod of the controller then sees everything at once, and an object has several owners until all leaders but one \
         have failed to renew their locks"
    } else {
        "objects that its pods may still show are then not protected from a second owner, and new pods of this shard are rejected"
    };
    match release_command(document) {
        Some(command) => {
            let message = reason.message;
            Reason::new(
                reason.code,
                format!("{message}. To release it by force: {command}; {cost}"),
            )
        }
        None => reason,
    }
}

/// Why a deleted shard that gets no objects is not gone yet.
fn shard_reason(entry: &str, teardown: Option<&Teardown>, next: &NextChain, pods: Pods<'_>) -> Reason {
    let late = late_pods(|name| shard_of(name) == shard_of(entry), next, pods);
    let replaced = pods_to_replace(entry, next, pods);
    let message = match (late.is_empty(), replaced.is_empty(), teardown) {
        (false, ..) => format!("the shard waits until its pods report that they show nothing any more: {late}"),
        (true, false, _) => format!(
            "pods of this shard show nothing, and are evicted one by one until all are replaced (reshard: Restart): {}",
            join_first(replaced.into_iter(), ", ")
        ),
        // A successor that has no ShardingConfig has no condition of its own.
        (true, true, Some(teardown)) if !teardown.has_object() => return teardown_reason(entry, teardown, next, pods),
        (true, true, Some(teardown)) => format!(
            "pods of this shard show nothing. The object stays until its controller has no sharding any more, so that new pods get a \
             sidecar until then; the condition Distributed of ShardingConfig {} says what that waits for",
            shard_of(teardown.successor())
        ),
        (true, true, None) => "the shard is removed with the next chain".to_owned(),
    };
    Reason::new(Reason::DELETING, message)
}

fn teardown_reason(entry: &str, teardown: &Teardown, next: &NextChain, pods: Pods<'_>) -> Reason {
    if teardown.is_last_stage() {
        let seconds = LOCK_EXPIRY.as_secs();
        let mut message = format!(
            "its controller has no other shard: all pods show nothing until every shard lock has expired, which takes at least \
             {seconds} s. Then the entries of the shards are removed"
        );
        let late = late_pods(|name| teardown.is_last_stage_of(name), next, pods);
        if !late.is_empty() {
            message = format!("{message}; this waits for {late}");
        }
        return Reason::new(Reason::LOCKS_EXPIRING, message);
    }
    let remaining: BTreeSet<&str> = teardown.remaining(&next.chain.entries, &pods).collect();
    let remaining = pods
        .sidecars
        .iter()
        .filter(|sidecar| remaining.contains(sidecar.uid.as_str()));
    let remaining: Vec<&str> = remaining.map(|sidecar| sidecar.pod.as_str()).collect();
    let more = match remaining.len().saturating_sub(MAX_COMMAND) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let some: Vec<&str> = remaining.iter().copied().take(MAX_COMMAND).collect();
    let successor = if teardown.is_of(entry) {
        "this one gets".to_owned()
    } else {
        format!("pods that were in shard {} get", shard_of(teardown.successor()))
    };
    let message = format!(
        "its controller has no other shard: {successor} all objects, and pods of the others show nothing. The entries of the \
         shards are removed when those pods are deleted or replaced: `kubectl -n {} delete pods {}`{more}",
        next.chain.namespace,
        some.join(" ")
    );
    Reason::new(Reason::GATHERING, message)
}

/// Pods of matching entries that have not reported yet that they show nothing, and why.
fn late_pods(is_its: impl Fn(&str) -> bool, next: &NextChain, pods: Pods<'_>) -> String {
    let own = next.chain.entries.iter().filter(|own| is_its(&own.name));
    let selectors: Vec<_> = own.map(all_pods).collect();
    let late = pods.sidecars.iter().filter(|sidecar| {
        let is_own = selectors.iter().any(|selector| selector.matches(&sidecar.labels));
        is_own && !pods.states.quiet.contains(&sidecar.pod) && !pods.is_blank(sidecar)
    });
    let late: Vec<(String, String)> = late
        .map(|sidecar| (sidecar.pod.clone(), pods.unsettled_reason(sidecar, &next.chain.entries)))
        .collect();
    named_pods(&late, ", ")
}

/// Command that releases an object by force. `None`: none of our finalizers holds it.
fn release_command(document: &Value) -> Option<String> {
    let patch = release_patch(document)?;
    Some(format!(
        "`kubectl -n {} patch shardingconfig {} --type=json --patch='{patch}'`",
        text_at(document, "/metadata/namespace"),
        text_at(document, "/metadata/name")
    ))
}

/// JSON patch that removes our finalizers and leaves those of others. The last goes first, so that the indices of the rest stay.
/// Each is tested, because the list may have changed until somebody runs the command.
fn release_patch(document: &Value) -> Option<Value> {
    let all = listed_finalizers(document);
    let ours = all.iter().enumerate().filter(|(_, finalizer)| is_ours(finalizer));
    let operations = ours.rev().flat_map(|(index, finalizer)| {
        let path = format!("/metadata/finalizers/{index}");
        [
            json!({ "op": "test", "path": path, "value": finalizer }),
            json!({ "op": "remove", "path": path }),
        ]
    });
    let operations: Vec<Value> = operations.collect();
    (!operations.is_empty()).then(|| operations.into())
}

/// The finalizers of a document without ours. `None`: it has none of ours, or is a root, which another controller holds until its
/// shards are gone.
pub fn without_our_finalizers(document: &Value) -> Option<Vec<Value>> {
    if !document.pointer("/spec/root").is_none_or(Value::is_null) {
        return None;
    }
    let all = listed_finalizers(document);
    let others: Vec<Value> = all.iter().filter(|one| !is_ours(one)).cloned().collect();
    (others.len() < all.len()).then_some(others)
}

/// The finalizers of a shard with ours. `None`: it has it, or must not get it.
pub fn with_our_finalizer(document: &Value) -> Option<Vec<Value>> {
    let has_it = || {
        listed_finalizers(document)
            .iter()
            .any(|one| one == finalizers::HAND_OVER)
    };
    if !is_shard(document) || is_deleted(document) || has_it() {
        return None;
    }
    let mut all = listed_finalizers(document);
    all.push(finalizers::HAND_OVER.into());
    Some(all)
}

/// Whether a document is deleted and held by one of our finalizers.
pub fn is_held(document: &Value) -> bool {
    is_deleted(document) && listed_finalizers(document).iter().any(is_ours)
}

fn listed_finalizers(document: &Value) -> Vec<Value> {
    let list = document.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}

fn is_ours(finalizer: &Value) -> bool {
    finalizer
        .as_str()
        .is_some_and(|finalizer| FINALIZERS.contains(&finalizer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: [&str; 2] = ["example.com/first", "foregroundDeletion"];

    fn document(finalizers: &[&str]) -> Value {
        json!({ "metadata": { "namespace": "demo", "name": "left", "finalizers": finalizers } })
    }

    /// Applies the command to an object, as an API server does.
    fn run(command: &str, document: &mut Value) -> Result<(), json_patch::PatchError> {
        let (head, patch) = command.split_once(" --patch='").unwrap();
        assert_eq!(head, "`kubectl -n demo patch shardingconfig left --type=json");
        let patch = patch.strip_suffix("'`").unwrap();
        let patch: json_patch::Patch = serde_json::from_str(patch).unwrap();
        json_patch::patch(document, &patch)
    }

    #[test]
    fn command_removes_our_finalizers_and_leaves_those_of_others() {
        let [first, second] = OTHERS;
        let (hand_over, protected) = (finalizers::HAND_OVER, finalizers::PROTECTED);
        for (before, after) in [
            (vec![hand_over], vec![]),
            (vec![first, hand_over, second], vec![first, second]),
            (vec![hand_over, first, second, protected], vec![first, second]),
            (vec![protected, hand_over, first], vec![first]),
        ] {
            let mut object = document(&before);
            run(&release_command(&object).unwrap(), &mut object).unwrap();
            assert_eq!(object, document(&after), "{before:?}");
        }
    }

    #[test]
    fn command_fails_when_finalizers_have_changed_since() {
        let [first, second] = OTHERS;
        let command = release_command(&document(&[first, finalizers::HAND_OVER])).unwrap();
        for changed in [vec![finalizers::HAND_OVER], vec![finalizers::HAND_OVER, second], vec![]] {
            let mut object = document(&changed);
            assert!(run(&command, &mut object).is_err(), "{changed:?}");
            assert_eq!(object, document(&changed));
        }
    }

    #[test]
    fn object_without_our_finalizers_has_no_command() {
        assert_eq!(release_command(&document(&OTHERS)), None);
    }

    #[test]
    fn documented_loop_removes_the_same_finalizers_and_keeps_protected_where_objects_would_begin_to_act() {
        let page = include_str!("../../../docs/install.md");
        let (_, template) = page.split_once("-o go-template='").unwrap();
        let (template, _) = template.split_once("' |").unwrap();
        let (_, condition) = template.split_once("{{- if ").unwrap();
        let (condition, _) = condition.split_once("}}").unwrap();
        let words: Vec<&str> = condition.split_whitespace().collect();
        let [hand_over, protected] = FINALIZERS;
        let expected = format!(
            "or (eq $finalizer \"{hand_over}\") (and (eq $finalizer \"{protected}\") (or (eq $object.kind \"ShardingConfig\") \
             $object.metadata.deletionTimestamp))"
        );
        assert_eq!(words.join(" "), expected);
    }
}
