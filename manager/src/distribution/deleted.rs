//! ShardingConfigs that are deleted: a finalizer holds each until its pods show nothing, and the last of a controller until its
//! rules are gone.

use std::collections::BTreeSet;

use ctrlmesh_contract::names::finalizers;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::planned::entry_of;
use super::read::Documents;
use super::reconcile::{Distributor, Next};
use super::status::{self, listed};
use super::write;
use crate::hand_over::{Teardown, all_pods, entry_of_shard, is_released, shard_of};
use crate::plain::plain;

/// Finalizers that distribution takes off objects.
const FINALIZERS: [&str; 2] = [finalizers::HAND_OVER, finalizers::PROTECTED];
/// Pods that a command for a person names.
const MAX_COMMAND: usize = 20;

/// Entries of the ShardingConfigs that wait for their deletion.
pub(super) fn entries(objects: &Documents) -> BTreeSet<String> {
    let configs = objects.sharding_configs.iter();
    let deleted = configs.filter(|config| config.metadata.deletion_timestamp.is_some() && config.spec.root.is_none());
    let unreadable = objects.unreadable.iter().map(|(document, _)| document);
    let unreadable = unreadable.filter(|document| is_deleted(document) && is_shard(document));
    let unreadable = unreadable.map(|document| entry_of_shard(text(document, "/metadata/name")));
    deleted.map(entry_of).chain(unreadable).collect()
}

/// Entries whose ShardingConfigs need not wait any longer. `next`'s chain lies there.
pub(super) fn released(next: &Next, objects: &Documents, fleet: &Fleet) -> BTreeSet<String> {
    let mut released = entries(objects);
    released.retain(|entry| is_released(entry, &next.chain.entries, &next.claims, fleet));
    released
}

/// Why a ShardingConfig is not gone yet, in a word and in a sentence.
pub(super) fn waits(document: &Value, next: &Next, fleet: &Fleet) -> (&'static str, String) {
    let entry = entry_of_shard(text(document, "/metadata/name"));
    let (reason, message, cost) = match next.claims.teardown_of(&entry) {
        Some(teardown) => {
            let (reason, message) = torn_down(teardown, next, fleet);
            let cost = "every pod of the controller then sees everything at once, and an object has several owners until all \
                        leaders but one have failed to renew their locks";
            (reason, message, cost)
        }
        None => {
            let pods = settling_pods(&entry, next, fleet);
            let pods = if pods.is_empty() {
                "the next chain".to_owned()
            } else {
                pods
            };
            let message = format!("goes when its pods have said that they show nothing any more; waits for {pods}");
            let cost = "nobody then says which pods still show its objects";
            ("Deleting", message, cost)
        }
    };
    match command(document) {
        Some(command) => (reason, format!("{message}. To release it by force: {command}; {cost}")),
        None => (reason, message),
    }
}

fn torn_down(teardown: &Teardown, next: &Next, fleet: &Fleet) -> (&'static str, String) {
    if teardown.is_last_stage() {
        let seconds = super::look::LEASE.as_secs();
        let mut message = format!(
            "its controller has no other shard: all pods show nothing until none can hold a shard's lock any more, {seconds} s and \
             longer, then the rules go"
        );
        let late = late(|name| teardown.is_last_stage_of(name), next, fleet);
        if !late.is_empty() {
            message = format!("{message}; waits for {late}");
        }
        return ("LocksExpiring", message);
    }
    let remaining: BTreeSet<&str> = teardown.remaining(&next.chain.entries, fleet).collect();
    let pods = fleet
        .sidecars
        .iter()
        .filter(|sidecar| remaining.contains(sidecar.uid.as_str()));
    let pods: Vec<&str> = pods.map(|sidecar| sidecar.pod.as_str()).collect();
    let more = match pods.len().saturating_sub(MAX_COMMAND) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let some: Vec<&str> = pods.iter().copied().take(MAX_COMMAND).collect();
    let message = format!(
        "its controller has no other shard: it gets all objects, and pods of the others show nothing until they are gone or made \
         again, then the rules go: `kubectl -n {} delete pods {}`{more}",
        next.chain.namespace,
        some.join(" ")
    );
    ("Gathering", message)
}

/// Pods that have not said yet that they show nothing, and why.
fn settling_pods(entry: &str, next: &Next, fleet: &Fleet) -> String {
    late(|name| shard_of(name) == shard_of(entry), next, fleet)
}

fn late(is_its: impl Fn(&str) -> bool, next: &Next, fleet: &Fleet) -> String {
    let own = next.chain.entries.iter().filter(|own| is_its(&own.name));
    let selectors: Vec<_> = own.map(all_pods).collect();
    let late = fleet.sidecars.iter().filter(|sidecar| {
        let is_own = selectors.iter().any(|pods| pods.matches(&sidecar.labels));
        is_own && !fleet.quiet.contains(&sidecar.pod) && !fleet.is_blank(sidecar)
    });
    let late: Vec<(String, String)> = late
        .map(|sidecar| (sidecar.pod.clone(), fleet.why_unsettled(sidecar, &next.chain.entries)))
        .collect();
    listed(&late, ", ")
}

/// `None`: nothing of ours holds the object.
fn command(document: &Value) -> Option<String> {
    let patch = release_patch(document)?;
    Some(format!(
        "`kubectl -n {} patch shardingconfig {} --type=json --patch='{patch}'`",
        text(document, "/metadata/namespace"),
        text(document, "/metadata/name")
    ))
}

/// Takes off our finalizers and leaves those of others. The last goes first, so that the indices of the rest stay; each is tested, because
/// the list may have changed until somebody runs the command.
fn release_patch(document: &Value) -> Option<Value> {
    let all = finalizers(document);
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

/// Puts the finalizer onto a shard that has none. Whether anything was written.
pub(super) async fn protect(distributor: &Distributor, namespace: &str, document: &Value) -> bool {
    if !is_shard(document) || is_deleted(document) || has(document, finalizers::HAND_OVER) {
        return false;
    }
    let mut all = finalizers(document);
    all.push(finalizers::HAND_OVER.into());
    written(distributor, namespace, document, &all).await
}

/// Takes our finalizers off an object.
pub(super) async fn release(distributor: &Distributor, namespace: &str, document: &Value) {
    // Roots are held until their shards are gone.
    if !document.pointer("/spec/root").is_none_or(Value::is_null) {
        return;
    }
    let all = finalizers(document);
    let others: Vec<Value> = all.iter().filter(|one| !is_ours(one)).cloned().collect();
    if others.len() < all.len() {
        written(distributor, namespace, document, &others).await;
    }
}

/// Takes them off all objects of a namespace that is being deleted, which would wait for them. Whether there were any.
pub(super) async fn release_all(distributor: &Distributor, namespace: &str, documents: &[Value]) -> bool {
    let is_held = |document: &&Value| is_deleted(document) && finalizers(document).iter().any(is_ours);
    let held: Vec<&Value> = documents.iter().filter(is_held).collect();
    for document in &held {
        release(distributor, namespace, document).await;
    }
    !held.is_empty()
}

fn finalizers(document: &Value) -> Vec<Value> {
    let list = document.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}

fn is_ours(finalizer: &Value) -> bool {
    finalizer
        .as_str()
        .is_some_and(|finalizer| FINALIZERS.contains(&finalizer))
}

fn has(document: &Value, finalizer: &str) -> bool {
    finalizers(document).iter().any(|one| one == finalizer)
}

/// The list is written as a whole, so it has to be the one that was seen.
async fn written(distributor: &Distributor, namespace: &str, document: &Value, finalizers: &[Value]) -> bool {
    let (name, kind) = (text(document, "/metadata/name"), text(document, "/kind"));
    let patch = json!({ "metadata": {
        "uid": text(document, "/metadata/uid"),
        "resourceVersion": text(document, "/metadata/resourceVersion"),
        "finalizers": finalizers,
    } });
    let api = status::api(&distributor.context.client, namespace, kind);
    match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => true,
        // It has changed or is gone, which is seen and leads to another pass.
        Err(error) if write::has_code(&error, 409) || write::has_code(&error, 404) => false,
        Err(error) => {
            tracing::warn!(error = plain(&error), %namespace, kind, name, "failed to change the finalizers of an object; trying again");
            false
        }
    }
}

pub(super) fn is_deleted(document: &Value) -> bool {
    document.pointer("/metadata/deletionTimestamp").is_some()
}

pub(super) fn is_shard(document: &Value) -> bool {
    document["kind"] == "ShardingConfig" && document.pointer("/spec/root").is_none_or(Value::is_null)
}

fn text<'a>(document: &'a Value, pointer: &str) -> &'a str {
    document.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: [&str; 2] = ["example.com/first", "foregroundDeletion"];

    fn document(finalizers: &[&str]) -> Value {
        json!({ "metadata": { "namespace": "demo", "name": "left", "finalizers": finalizers } })
    }

    /// What the command makes of an object, as an API server applies it.
    fn run(command: &str, document: &mut Value) -> Result<(), json_patch::PatchError> {
        let (head, patch) = command.split_once(" --patch='").unwrap();
        assert_eq!(head, "`kubectl -n demo patch shardingconfig left --type=json");
        let patch = patch.strip_suffix("'`").unwrap();
        let patch: json_patch::Patch = serde_json::from_str(patch).unwrap();
        json_patch::patch(document, &patch)
    }

    #[test]
    fn command_takes_off_our_finalizers_and_leaves_those_of_others() {
        let [first, second] = OTHERS;
        let (hand_over, protected) = (finalizers::HAND_OVER, finalizers::PROTECTED);
        for (before, after) in [
            (vec![hand_over], vec![]),
            (vec![first, hand_over, second], vec![first, second]),
            (vec![hand_over, first, second, protected], vec![first, second]),
            (vec![protected, hand_over, first], vec![first]),
        ] {
            let mut object = document(&before);
            run(&command(&object).unwrap(), &mut object).unwrap();
            assert_eq!(object, document(&after), "{before:?}");
        }
    }

    #[test]
    fn command_fails_when_finalizers_have_changed_since() {
        let [first, second] = OTHERS;
        let command = command(&document(&[first, finalizers::HAND_OVER])).unwrap();
        for changed in [vec![finalizers::HAND_OVER], vec![finalizers::HAND_OVER, second], vec![]] {
            let mut object = document(&changed);
            assert!(run(&command, &mut object).is_err(), "{changed:?}");
            assert_eq!(object, document(&changed));
        }
    }

    #[test]
    fn object_without_our_finalizers_has_no_command() {
        assert_eq!(command(&document(&OTHERS)), None);
    }

    #[test]
    fn documented_loop_takes_off_the_same_finalizers_and_protected_only_where_nothing_begins_to_act() {
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
