//! From the facts of an object to its `status`, and to the patch that leads there from the stored one. Pure.

use std::collections::BTreeMap;

use ctrlmesh_contract::Origin;
use ctrlmesh_contract::names::{annotations, labels};
use ctrlmesh_manager_api::status::{Condition, ConditionDraft, ConditionStatus, Reason, condition, stored_condition};
use serde_json::{Map, Value, json};

use crate::facts::{Facts, Rollout};
use crate::named_pods::{join_first, named_pods};
use crate::next_chain::OVERLAP_GRACE;

/// Reason code of objects whose entries are in the chain.
const DISTRIBUTED: &str = "Distributed";
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
pub fn object_status(origin: &Origin, facts: &Facts, before: &Value, now: &str) -> Value {
    let generation = i64::try_from(origin.generation).unwrap_or_default();
    let mut list: Vec<Condition> = Vec::new();
    let was_bypassed = |before: &Value| {
        let mut list = before["conditions"].as_array().into_iter().flatten();
        list.any(|condition| condition["type"] == condition::BYPASSED)
    };
    let bypassed = (was_bypassed(before) || !facts.bypassed.is_empty()).then(|| bypassed(facts));
    for mut draft in drafts(facts).into_iter().chain(bypassed) {
        let stored = stored_condition(before, draft.kind);
        // Another generation of the chain, because of other objects, is no news of this one.
        if let Some(stored) = &stored
            && draft.reason.code == DISTRIBUTED
            && (stored.status, &*stored.reason) == (draft.status, DISTRIBUTED)
            && stored.observed_generation == Some(generation)
        {
            draft.reason.message.clone_from(&stored.message);
        }
        list.push(draft.into_condition(stored, Some(generation), now));
    }
    let rollout = &facts.rollout;
    let mut status = Map::new();
    let mut put = |field: &str, value: Value| status.insert(field.to_owned(), value);
    put("observedGeneration", json!(generation));
    put("conditions", json!(list));
    if !facts.is_root {
        put("enforced", json!(format!("{}/{}", rollout.enforced, rollout.selected)));
    }
    if origin.kind != "ShardingConfig" {
        put("currentSpecHash", json!(facts.hash));
        put("targetStatus", json!(rollout.targets));
    } else {
        if let Some(plugins) = &facts.plugins {
            put("plugins", json!(plugins));
        }
        if let Some(leader) = &facts.leader {
            put("leader", json!(leader));
        }
    }
    if origin.kind == "CircuitBreaker" {
        put("opened", json!(rollout.opened));
    }
    Value::Object(status)
}

fn drafts(facts: &Facts) -> Vec<ConditionDraft> {
    let mut drafts = vec![accepted(facts)];
    drafts.extend(facts.plugins.as_deref().map(|plugins| resolved(plugins, facts)));
    if !facts.is_root {
        drafts.extend([distributed(facts), enforced(facts)]);
    }
    drafts
}

fn accepted(facts: &Facts) -> ConditionDraft {
    if facts.mistakes.is_empty() {
        let message = facts.warnings.clone();
        return ConditionDraft::new(condition::ACCEPTED, ConditionStatus::True, "Accepted", message);
    }
    let message = format!("{}{}", facts.mistakes, kept(facts));
    ConditionDraft::new(condition::ACCEPTED, ConditionStatus::False, "Invalid", message)
}

const fn kept(facts: &Facts) -> &'static str {
    if facts.is_kept {
        "; sidecars keep its last valid rules"
    } else {
        ""
    }
}

fn resolved(plugins: &[Value], facts: &Facts) -> ConditionDraft {
    let text = |plugin: &Value, field: &str| plugin.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let problems: Vec<String> = plugins
        .iter()
        .map(|plugin| (text(plugin, "name"), text(plugin, "message")))
        .filter(|(_, message)| !message.is_empty())
        .map(|(name, message)| format!("{name}: {message}"))
        .collect();
    let (status, code) = if problems.is_empty() {
        (ConditionStatus::True, "Resolved")
    } else {
        (ConditionStatus::False, facts.plugins_problem.unwrap_or("Unresolved"))
    };
    ConditionDraft::new(condition::PLUGINS_RESOLVED, status, code, problems.join("; "))
}

fn distributed(facts: &Facts) -> ConditionDraft {
    let reason = match (&facts.withheld, &facts.deleted, &facts.start_blocker) {
        // Nobody releases the object while the chain can't be written, so it says how a person can.
        (Some(withheld), Some(deleted), _) => {
            let message = format!("{}. The object is being deleted: {}", withheld.message, deleted.message);
            Reason::new(withheld.code, message)
        }
        (Some(withheld), None, _) => withheld.clone(),
        (None, Some(deleted), _) => deleted.clone(),
        _ if !facts.mistakes.is_empty() => Reason::new("Invalid", "the object is invalid; see Accepted"),
        _ if facts.is_unresolved => {
            let message = format!("a plugin is not resolved; see PluginsResolved{}", kept(facts));
            Reason::new("PluginsUnresolved", message)
        }
        (.., Some(blocker)) => blocker.clone(),
        _ if !facts.waits_for.is_empty() => {
            let shards = facts.waits_for.join(", ");
            let message = format!("this shard waits for the sidecars of {shards} to give up the objects that it gets");
            Reason::new("HandingOver", message)
        }
        _ if !facts.overlaps.is_empty() => Reason::new("Settling", overlap_message(&facts.overlaps)),
        _ => {
            let message = format!("since generation {} of the chain", facts.chain);
            return ConditionDraft::new(condition::DISTRIBUTED, ConditionStatus::True, DISTRIBUTED, message);
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

fn enforced(facts: &Facts) -> ConditionDraft {
    let rollout = &facts.rollout;
    let count = format!("{}/{}", rollout.enforced, rollout.selected);
    let is_whole = facts.withheld.is_none()
        && facts.mistakes.is_empty()
        && facts.waits_for.is_empty()
        && facts.overlaps.is_empty()
        && facts.start_blocker.is_none()
        && facts.deleted.is_none()
        && !facts.is_unresolved
        && facts.restart.is_none();
    let draft = |status, code, message: String| ConditionDraft::new(condition::ENFORCED, status, code, message);
    if facts.withheld.is_some() {
        let message = format!("{count}; see Distributed{}", lagging(rollout));
        draft(ConditionStatus::False, "Progressing", message)
    } else if facts.hash.is_empty() && facts.is_unresolved {
        let message = "a plugin is not resolved; see PluginsResolved".to_owned();
        draft(ConditionStatus::False, "PluginsUnresolved", message)
    } else if facts.hash.is_empty() && facts.mistakes.is_empty() {
        let message = "the object is disabled or has no rules";
        draft(ConditionStatus::True, "NothingToRun", message.to_owned())
    } else if rollout.selected == 0 {
        let message = "no pod with a sidecar is selected; set label ctrlmesh.kusionstack.io/enable-proxy: \"true\" in the pod template";
        draft(ConditionStatus::Unknown, "NoPods", message.to_owned())
    } else if rollout.lagging.is_empty() && is_whole {
        draft(ConditionStatus::True, "Enforced", count)
    } else {
        let (code, more) = match &facts.restart {
            Some(restart) => (restart.code, format!("; {}", restart.message)),
            None if is_whole => ("Progressing", String::new()),
            None => ("Progressing", "; see Accepted and Distributed".to_owned()),
        };
        let message = format!("{count}{more}{}", lagging(rollout));
        draft(ConditionStatus::False, code, message)
    }
}

/// Present from the first bypassed pod on.
fn bypassed(facts: &Facts) -> ConditionDraft {
    if facts.bypassed.is_empty() {
        let message = "all pods that were named before send requests through their sidecars";
        return ConditionDraft::new(condition::BYPASSED, ConditionStatus::False, "TrafficSeen", message);
    }
    let message = format!(
        "containers of {} have sent nothing to the API server through their sidecars for a minute since they started, or for two \
         hours. A program that ignores KUBECONFIG bypasses its sidecar and all rules. If it has a flag --kubeconfig, name its container \
         in annotation {}; otherwise redirect its traffic with label {}: \"true\"",
        join_first(facts.bypassed.iter().cloned(), ", "),
        annotations::KUBECONFIG_ARG,
        labels::ENABLE_IPTABLES,
    );
    ConditionDraft::new(condition::BYPASSED, ConditionStatus::True, "NoTraffic", message)
}

fn lagging(rollout: &Rollout) -> String {
    match named_pods(&rollout.lagging, "; ") {
        pods if pods.is_empty() => pods,
        pods => format!("; {pods}"),
    }
}

/// Conditions of a status, by type: ours, or those of others.
fn conditions(status: &Value, is_ours: bool) -> impl Iterator<Item = (&str, &Value)> {
    let list = status["conditions"].as_array().into_iter().flatten();
    let by_type = list.filter_map(|condition| Some((condition["type"].as_str()?, condition)));
    by_type.filter(move |(kind, _)| CONDITIONS.contains(kind) == is_ours)
}

/// Whether the stored status says the same already.
#[must_use]
pub fn is_same(before: &Value, after: &Value) -> bool {
    let ours = |status| conditions(status, true).collect::<BTreeMap<_, _>>();
    let is_nothing = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        value => value.is_null(),
    };
    let is_field = |field: &str| match (&before[field], &after[field]) {
        (before, after) if is_nothing(before) => is_nothing(after),
        (before, after) if field == "targetStatus" => uncounted(before) == uncounted(after),
        (before, after) => before == after,
    };
    ours(before) == ours(after) && is_field("observedGeneration") && FIELDS.into_iter().all(is_field)
}

/// `targetStatus` without the counters of circuit breakers, which change with every request.
fn uncounted(targets: &Value) -> Value {
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
    let foreign: Vec<Value> = conditions(before, false)
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
