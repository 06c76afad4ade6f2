//! Makes the `status` of an object from its summary, and the patch that leads there from the stored one. Pure.

use std::collections::BTreeMap;

use ctrlmesh_contract::Origin;
use ctrlmesh_contract::names::{annotations, labels};
use ctrlmesh_manager_api::status::{Condition, ConditionDraft, ConditionStatus, Reason, condition, stored_condition};
use serde_json::{Map, Value, json};

use crate::fleet::{join_first, named_pods};
use crate::next_chain::OVERLAP_GRACE;
use crate::object_summary::{Enforcement, ObjectSummary};

/// Fields that are ours as a whole: what others write into them is removed.
const FIELDS: [&str; 6] = [
    "enforced",
    "currentSpecHash",
    "targetStatus",
    "plugins",
    "opened",
    "leader",
];
/// Types of our conditions. Others stay.
const CONDITIONS: [&str; 5] = [
    condition::ACCEPTED,
    condition::PLUGINS_RESOLVED,
    condition::DISTRIBUTED,
    condition::ENFORCED,
    condition::BYPASSED,
];

/// The status of an object. Conditions that are as before keep their transition times.
#[must_use]
pub fn object_status(origin: &Origin, summary: &ObjectSummary, before: &Value, now: &str) -> Value {
    let generation = i64::try_from(origin.generation).unwrap_or_default();
    let mut list: Vec<Condition> = Vec::new();
    let was_bypassed = |before: &Value| {
        let mut list = before["conditions"].as_array().into_iter().flatten();
        list.any(|condition| condition["type"] == condition::BYPASSED)
    };
    let bypassed = (was_bypassed(before) || !summary.bypassed.is_empty()).then(|| bypassed_condition(summary));
    for mut draft in condition_drafts(summary).into_iter().chain(bypassed) {
        let stored = stored_condition(before, draft.kind);
        // A new generation of the chain that other objects have caused changes nothing about this one.
        if let Some(stored) = &stored
            && draft.reason.code == Reason::DISTRIBUTED
            && (stored.status, &*stored.reason) == (draft.status, Reason::DISTRIBUTED)
            && stored.observed_generation == Some(generation)
        {
            draft.reason.message.clone_from(&stored.message);
        }
        list.push(draft.into_condition(stored, Some(generation), now));
    }
    let enforcement = &summary.enforcement;
    let mut status = Map::new();
    let mut put = |field: &str, value: Value| status.insert(field.to_owned(), value);
    put("observedGeneration", json!(generation));
    put("conditions", json!(list));
    if !summary.is_root {
        put(
            "enforced",
            json!(format!("{}/{}", enforcement.enforced, enforcement.selected)),
        );
    }
    if origin.kind != "ShardingConfig" {
        put("currentSpecHash", json!(summary.hash));
        put("targetStatus", json!(enforcement.targets));
    } else {
        if let Some(plugins) = &summary.plugins {
            put("plugins", json!(plugins));
        }
        if let Some(leader) = &summary.leader {
            put("leader", json!(leader));
        }
    }
    if origin.kind == "CircuitBreaker" {
        put("opened", json!(enforcement.opened));
    }
    Value::Object(status)
}

fn condition_drafts(summary: &ObjectSummary) -> Vec<ConditionDraft> {
    let mut drafts = vec![accepted_condition(summary)];
    drafts.extend(
        summary
            .plugins
            .as_deref()
            .map(|plugins| resolved_condition(plugins, summary)),
    );
    if !summary.is_root {
        drafts.extend([distributed_condition(summary), enforced_condition(summary)]);
    }
    drafts
}

fn accepted_condition(summary: &ObjectSummary) -> ConditionDraft {
    if summary.mistakes.is_empty() {
        let message = summary.warnings.clone();
        return ConditionDraft::new(condition::ACCEPTED, ConditionStatus::True, Reason::ACCEPTED, message);
    }
    let message = format!("{}{}", summary.mistakes, kept_suffix(summary));
    ConditionDraft::new(condition::ACCEPTED, ConditionStatus::False, Reason::INVALID, message)
}

const fn kept_suffix(summary: &ObjectSummary) -> &'static str {
    if summary.is_kept {
        "; sidecars keep its last valid rules"
    } else {
        ""
    }
}

fn resolved_condition(plugins: &[Value], summary: &ObjectSummary) -> ConditionDraft {
    let text = |plugin: &Value, field: &str| plugin.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let problems: Vec<String> = plugins
        .iter()
        .map(|plugin| (text(plugin, "name"), text(plugin, "message")))
        .filter(|(_, message)| !message.is_empty())
        .map(|(name, message)| format!("{name}: {message}"))
        .collect();
    let (status, code) = if problems.is_empty() {
        (ConditionStatus::True, Reason::RESOLVED)
    } else {
        (
            ConditionStatus::False,
            summary.plugins_problem.unwrap_or(Reason::UNRESOLVED),
        )
    };
    ConditionDraft::new(condition::PLUGINS_RESOLVED, status, code, problems.join("; "))
}

fn distributed_condition(summary: &ObjectSummary) -> ConditionDraft {
    let reason = match (&summary.blocker, &summary.deleted, &summary.begin_blocker) {
        // Nobody releases the object while the chain can't be written, so it says how a person can.
        (Some(blocker), Some(deleted), _) => {
            let message = format!("{}. The object is being deleted: {}", blocker.message, deleted.message);
            Reason::new(blocker.code, message)
        }
        (Some(blocker), None, _) => blocker.clone(),
        (None, Some(deleted), _) => deleted.clone(),
        _ if !summary.mistakes.is_empty() => Reason::new(Reason::INVALID, "the object is invalid; see Accepted"),
        _ if summary.is_unresolved => {
            let message = format!("a plugin is not resolved; see PluginsResolved{}", kept_suffix(summary));
            Reason::new(Reason::PLUGINS_UNRESOLVED, message)
        }
        (.., Some(blocker)) => blocker.clone(),
        _ if !summary.waits_for.is_empty() => {
            let shards = summary.waits_for.join(", ");
            let message = format!("this shard waits for the sidecars of {shards} to give up the objects that it gets");
            Reason::new(Reason::HANDING_OVER, message)
        }
        _ if !summary.overlaps.is_empty() => Reason::new(Reason::SETTLING, overlap_message(&summary.overlaps)),
        _ => {
            let message = format!("since generation {} of the chain", summary.chain);
            return ConditionDraft::new(
                condition::DISTRIBUTED,
                ConditionStatus::True,
                Reason::DISTRIBUTED,
                message,
            );
        }
    };
    ConditionDraft {
        kind: condition::DISTRIBUTED,
        status: ConditionStatus::False,
        reason,
    }
}

/// Message of a shard that would begin to share objects with these.
fn overlap_message(others: &[String]) -> String {
    format!(
        "some objects of this shard also belong to {}. If they are given up there within {} s, they are handed over; otherwise both shards see them",
        others.join(", "),
        OVERLAP_GRACE.as_secs()
    )
}

fn enforced_condition(summary: &ObjectSummary) -> ConditionDraft {
    let enforcement = &summary.enforcement;
    let count = format!("{}/{}", enforcement.enforced, enforcement.selected);
    let is_whole = summary.blocker.is_none()
        && summary.mistakes.is_empty()
        && summary.waits_for.is_empty()
        && summary.overlaps.is_empty()
        && summary.begin_blocker.is_none()
        && summary.deleted.is_none()
        && !summary.is_unresolved
        && summary.restart.is_none();
    let draft = |status, code, message: String| ConditionDraft::new(condition::ENFORCED, status, code, message);
    if summary.blocker.is_some() {
        let message = format!("{count}; see Distributed{}", lagging_suffix(enforcement));
        draft(ConditionStatus::False, Reason::PROGRESSING, message)
    } else if summary.hash.is_empty() && summary.is_unresolved {
        let message = "a plugin is not resolved; see PluginsResolved".to_owned();
        draft(ConditionStatus::False, Reason::PLUGINS_UNRESOLVED, message)
    } else if summary.hash.is_empty() && summary.mistakes.is_empty() {
        let message = "the object is disabled or has no rules";
        draft(ConditionStatus::True, Reason::NOTHING_TO_RUN, message.to_owned())
    } else if enforcement.selected == 0 {
        let message = "no pod with a sidecar is selected; set label ctrlmesh.kusionstack.io/enable-proxy: \"true\" in the pod template";
        draft(ConditionStatus::Unknown, Reason::NO_PODS, message.to_owned())
    } else if enforcement.lagging.is_empty() && is_whole {
        draft(ConditionStatus::True, Reason::ENFORCED, count)
    } else {
        let (code, more) = match &summary.restart {
            Some(restart) => (restart.code, format!("; {}", restart.message)),
            None if is_whole => (Reason::PROGRESSING, String::new()),
            None => (Reason::PROGRESSING, "; see Accepted and Distributed".to_owned()),
        };
        let message = format!("{count}{more}{}", lagging_suffix(enforcement));
        draft(ConditionStatus::False, code, message)
    }
}

/// Present from the first bypassed pod on.
fn bypassed_condition(summary: &ObjectSummary) -> ConditionDraft {
    if summary.bypassed.is_empty() {
        let message = "all pods that were named before send requests through their sidecars";
        return ConditionDraft::new(
            condition::BYPASSED,
            ConditionStatus::False,
            Reason::TRAFFIC_SEEN,
            message,
        );
    }
    let message = format!(
        "containers of {} have sent nothing to the API server through their sidecars for a minute since they started, or for two \
         hours. A program that ignores KUBECONFIG bypasses its sidecar and all rules. If it has a flag --kubeconfig, name its container \
         in annotation {}; otherwise redirect its traffic with label {}: \"true\"",
        join_first(summary.bypassed.iter().cloned(), ", "),
        annotations::KUBECONFIG_ARG,
        labels::ENABLE_IPTABLES,
    );
    ConditionDraft::new(condition::BYPASSED, ConditionStatus::True, Reason::NO_TRAFFIC, message)
}

fn lagging_suffix(enforcement: &Enforcement) -> String {
    match named_pods(&enforcement.lagging, "; ") {
        pods if pods.is_empty() => pods,
        pods => format!("; {pods}"),
    }
}

/// Conditions of a status, by type: ours, or those of others.
fn conditions_by_type(status: &Value, is_ours: bool) -> impl Iterator<Item = (&str, &Value)> {
    let list = status["conditions"].as_array().into_iter().flatten();
    let by_type = list.filter_map(|condition| Some((condition["type"].as_str()?, condition)));
    by_type.filter(move |(kind, _)| CONDITIONS.contains(kind) == is_ours)
}

/// Whether the stored status says the same already.
#[must_use]
pub fn is_same(before: &Value, after: &Value) -> bool {
    let ours = |status| conditions_by_type(status, true).collect::<BTreeMap<_, _>>();
    let is_null_or_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        value => value.is_null(),
    };
    let is_field = |field: &str| match (&before[field], &after[field]) {
        (before, after) if is_null_or_empty(before) => is_null_or_empty(after),
        (before, after) if field == "targetStatus" => without_counters(before) == without_counters(after),
        (before, after) => before == after,
    };
    ours(before) == ours(after) && is_field("observedGeneration") && FIELDS.into_iter().all(is_field)
}

/// `targetStatus` without the counters of circuit breakers, which change with every request.
fn without_counters(targets: &Value) -> Value {
    let mut targets = targets.clone();
    let all = targets.as_array_mut().into_iter().flatten();
    let snapshots = all.filter_map(|target| target.get_mut("limitingSnapshots")?.as_array_mut());
    for snapshot in snapshots.flatten().filter_map(Value::as_object_mut) {
        snapshot.remove("requests");
        snapshot.remove("failures");
    }
    targets
}

/// A merge patch from the stored status to this one. Fields of ours are replaced as a whole: with server-side apply, elements of
/// `targetStatus` that another manager applied would stay for ever.
pub fn status_patch(before: &Value, after: Value, now: Option<&str>) -> Value {
    let mut fields = match after {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let foreign: Vec<Value> = conditions_by_type(before, false)
        .map(|(_, condition)| condition.clone())
        .collect();
    if let Some(Value::Array(list)) = fields.get_mut("conditions") {
        list.extend(foreign);
    }
    for field in FIELDS {
        if before.get(field).is_some() && !fields.contains_key(field) {
            fields.insert(field.to_owned(), Value::Null);
        }
    }
    if let Some(now) = now {
        fields.insert("lastUpdatedTime".to_owned(), json!(now));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests;
