//! Tells objects what became of them: status, Events, and the end of those that are deleted.

use std::collections::BTreeSet;

use ctrlmesh_contract::{Entry, Origin};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use serde_json::{Value, json};

use super::bypassed::bypassed;
use super::decide::Reason;
use super::desired::{self, origin};
use super::fleet::Fleet;
use super::leading::leading;
use super::objects::CustomResources;
use super::reconcile::{Decision, Distributor};
use super::rollout::outcome;
use super::start_gate::StartBlocker;
use super::status::{self, Facts};
use super::{deletion, sidecar_support, unreachable_pods, write};
use crate::api::API_VERSION;
use crate::api::status::condition;
use crate::compile::kept;
use crate::events;
use crate::hand_over::entry_of_shard;
use crate::plain::plain;
use crate::rbac::{Rule, Scope};
use crate::{switches, timestamp};

/// Statuses that are written at a time.
const CONCURRENCY: usize = 8;
/// Reasons that another condition, or time, explains: no Event.
const QUIET: [&str; 7] = [
    "Progressing",
    "Restarting",
    "Settling",
    "Fetching",
    "PluginsUnresolved",
    "Deleting",
    "LocksExpiring",
];

/// What telling needs.
pub(super) const RULES: &[Rule] = &[Rule {
    scope: Scope::Cluster,
    group: "ctrlmesh.kusionstack.io",
    resources: &["shardingconfigs", "circuitbreakers", "faultinjections"],
    verbs: &["patch"],
    names: &[],
}];

/// Tells all objects of a namespace.
pub(super) async fn report(
    distributor: &Distributor,
    namespace: &str,
    objects: &CustomResources,
    next: &Decision,
    fleet: &Fleet,
) {
    let now = timestamp::now();
    let mut tells = Vec::new();
    for document in &objects.stored {
        tells.push(tell_one(distributor, namespace, document, objects, next, fleet, &now));
    }
    stream::iter(tells).buffer_unordered(CONCURRENCY).collect::<()>().await;
}

async fn tell_one(
    distributor: &Distributor,
    namespace: &str,
    document: &Value,
    objects: &CustomResources,
    next: &Decision,
    fleet: &Fleet,
    now: &str,
) {
    let is_deleted = deletion::is_deleted(document);
    let waits = is_deleted && deletion::is_shard(document);
    let is_released = || next.released.contains(&entry_of_shard(&origin(document).name));
    if is_deleted && (!waits || is_released()) {
        return deletion::release(distributor, namespace, document).await;
    }
    // It is seen, and leads to the next pass.
    if deletion::protect(distributor, namespace, document).await {
        return;
    }
    let (origin, mut facts) = facts(document, objects, next, fleet);
    facts.deleted = waits.then(|| deletion::waits(document, next, fleet));
    tell(distributor, namespace, document, &origin, &facts, now).await;
}

/// What is known of an object.
fn facts(document: &Value, objects: &CustomResources, next: &Decision, fleet: &Fleet) -> (Origin, Facts) {
    let origin = origin(document);
    let entries: Vec<&Entry> = kept::entries(Some(&next.chain), &origin).collect();
    let is_it = |other: &Origin| (&other.kind, &other.name) == (&origin.kind, &origin.name);
    let refused = next.refused.iter().find(|refused| is_it(&refused.origin));
    let mut unreadable = objects.unreadable.iter();
    let unreadable = unreadable.find(|(other, _)| is_it(&desired::origin(other)));
    let is_unresolved = refused.is_some_and(|refused| refused.is_unresolved);
    let mistakes = refused
        .filter(|refused| !refused.is_unresolved)
        .map(|refused| &refused.reasons)
        .or(unreadable.map(|(_, mistakes)| mistakes));
    let holders: BTreeSet<&String> = entries
        .iter()
        .filter_map(|entry| next.plan.waiting.get(&entry.name))
        .flatten()
        .collect();
    let settling = entries.iter().flat_map(|entry| next.settling.others_of(&entry.name));
    let settling: BTreeSet<&str> = settling.collect();
    let blocker = entries.iter().find_map(|entry| next.blocked.get(&entry.name));
    let restart = entries.iter().find_map(|entry| restarting(next, &entry.name));
    let hashes: Vec<String> = entries.iter().map(|entry| entry.settings.hash().to_owned()).collect();
    let facts = Facts {
        mistakes: mistakes.map(ToString::to_string).unwrap_or_default(),
        warnings: warnings(&origin, next),
        is_unresolved,
        is_kept: (mistakes.is_some() || is_unresolved) && !entries.is_empty(),
        is_root: document.pointer("/spec/root").is_some(),
        withheld: withheld(document, &origin, objects, next),
        chain: next.chain.generation,
        waits_for: holders
            .into_iter()
            .map(|holder| unreachable_pods::named(holder, &next.plan.awaited, &next.chain.entries, fleet))
            .collect(),
        settling: settling.into_iter().map(str::to_owned).collect(),
        start_blocker: blocker.map(StartBlocker::reason),
        deleted: None,
        restart,
        plugins: plugins(document, next),
        plugins_problem: next.found.problem(&origin.name),
        hash: status::hash(&hashes),
        outcome: outcome(&entries, &next.chain, fleet),
        bypassed: bypassed(&entries, fleet),
        leader: leading(&entries, fleet, document.pointer("/status/leader")),
    };
    (origin, facts)
}

/// What is legal in an object, and probably not meant.
fn warnings(origin: &Origin, next: &Decision) -> String {
    let mut warned = next.warned.iter();
    let is_it = |other: &Origin| (&other.kind, &other.name) == (&origin.kind, &origin.name);
    let warned = warned.find(|warned| is_it(&warned.origin));
    let told = warned.into_iter().flat_map(|warned| warned.warnings.list());
    let told = told.map(|it| format!("warning: {}: {}", it.path, it.problem));
    told.collect::<Vec<_>>().join("; ")
}

/// Why the pods of a shard do not all see what it shows now, also in a pass that has just written the chain.
fn restarting(next: &Decision, entry: &str) -> Option<Reason> {
    let is_at_work = || next.plan.preparing.contains(entry) || next.plan.evict.iter().any(|evict| evict.entry == entry);
    let soon = || Reason::new("Restarting", "its pods are made again one by one");
    let told = next.restarting.get(entry).cloned();
    told.or_else(|| is_at_work().then(soon))
}

/// Why an object that KusionStack's manager had does nothing.
fn inert(document: &Value, next: &Decision) -> Option<Reason> {
    switches::why_inert(document, &next.chain).map(|why| Reason::new("SwitchedOff", why))
}

/// What its references to plugins led to. Pins stay on what can't be read.
fn plugins(document: &Value, next: &Decision) -> Option<Vec<Value>> {
    let is_shard = document["kind"] == "ShardingConfig";
    let name = document
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .filter(|_| is_shard)?;
    match next.found.status(name) {
        Some(found) => Some(found.iter().map(|plugin| json!(plugin)).collect()),
        None if document.pointer("/spec/plugins").is_some() => document.pointer("/status/plugins")?.as_array().cloned(),
        None => None,
    }
}

/// Why the entries of an object stay as they were.
fn withheld(document: &Value, origin: &Origin, objects: &CustomResources, next: &Decision) -> Option<Reason> {
    let unsupported = || {
        next.unsupported
            .of(origin)
            .map(|message| Reason::new(sidecar_support::OUTDATED, message))
    };
    let withheld = next.withheld.clone().or_else(|| held(origin, objects));
    withheld.or_else(|| inert(document, next)).or_else(unsupported)
}

/// Why the entries of a shard stay as they were.
fn held(origin: &Origin, objects: &CustomResources) -> Option<Reason> {
    let message = "taken when all shards of its root are written";
    objects
        .held
        .contains(&origin.uid)
        .then(|| Reason::new("Progressing", message))
}

async fn tell(distributor: &Distributor, namespace: &str, document: &Value, origin: &Origin, facts: &Facts, now: &str) {
    let before = document.get("status").cloned().unwrap_or_default();
    let after = status::status(origin, facts, &before, now);
    if status::is_same(&before, &after) {
        return;
    }
    let context = &distributor.context;
    let news = news(&before, &after);
    match status::publish(&context.client, namespace, origin, document, after, now).await {
        // Events say what a status says: not before it does.
        Ok(()) => {
            for (type_, reason, note) in news {
                events::publish(context, &reference(namespace, origin), type_, &reason, &note).await;
            }
        }
        Err(error) if write::has_code(&error, 404) => {}
        // It has changed, which is seen, and leads to another pass.
        Err(error) if write::has_code(&error, 409) => {
            tracing::debug!(error = plain(&error), kind = origin.kind, %namespace, name = origin.name, "a status is written later");
        }
        Err(error) => {
            context.metrics.distribution.status_failed.inc();
            tracing::warn!(error = plain(&error), kind = origin.kind, %namespace, name = origin.name, "a status was not written");
        }
    }
}

/// Conditions that have turned bad, and that everything is enforced: how bad that is, the reason and the message.
fn news(before: &Value, after: &Value) -> Vec<(EventType, String, String)> {
    let said = |status: &Value, kind: &Value| {
        let list = status["conditions"].as_array().into_iter().flatten();
        let mut own = list.filter(|condition| condition["type"] == *kind);
        own.next()
            .map(|condition| (condition["status"].clone(), condition["reason"].clone()))
    };
    let list = after["conditions"].as_array().into_iter().flatten();
    let turned = list.filter(|condition| {
        let is_news = said(before, &condition["type"]) != said(after, &condition["type"]);
        let is_bad = match condition["type"].as_str() {
            Some(condition::BYPASSED) => condition["status"] == "True",
            _ => condition["status"] == "False" && !is_one_of(&condition["reason"], &QUIET),
        };
        is_news && (is_bad || condition["reason"] == "Enforced")
    });
    turned
        .map(|condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            let is_bad = !matches!(condition["reason"].as_str(), Some("HandingOver" | "Enforced"));
            let type_ = if is_bad { EventType::Warning } else { EventType::Normal };
            (type_, text("reason"), text("message"))
        })
        .collect()
}

fn is_one_of(reason: &Value, words: &[&str]) -> bool {
    reason.as_str().is_some_and(|reason| words.contains(&reason))
}

/// The object that an Event is about.
pub(super) fn reference(namespace: &str, origin: &Origin) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(origin.kind.clone()),
        name: Some(origin.name.clone()),
        namespace: Some(namespace.to_owned()),
        uid: Some(origin.uid.clone()),
        ..ObjectReference::default()
    }
}
