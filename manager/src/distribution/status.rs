//! From what became of an object to its `status`. Pure, but for [`publish`].

use std::collections::BTreeSet;

use ctrlmesh_contract::names::{annotations, labels};
use ctrlmesh_contract::{Digest, Origin};
use kube::api::{DynamicObject, Patch};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use super::decide::Reason;
use super::overlap_grace::OVERLAP_GRACE;
use super::rollout::Rollout;
use crate::api::sharding_config::LeaderStatus;
use crate::api::status::{Condition, ConditionStatus, condition};
use crate::api::{CircuitBreaker, FaultInjection, ShardingConfig};
use crate::context::patch_params;
use crate::rbac::{Rule, Scope};

mod change;

use change::change;
pub(super) use change::is_same;

/// Reason of what is in the chain.
const DISTRIBUTED: &str = "Distributed";
/// Sidecars that a condition names.
const MAX_NAMED: usize = 5;

/// What publishing needs.
pub(super) const RULES: &[Rule] = &[Rule {
    scope: Scope::Cluster,
    group: "ctrlmesh.kusionstack.io",
    resources: &[
        "shardingconfigs/status",
        "circuitbreakers/status",
        "faultinjections/status",
    ],
    verbs: &["patch"],
    names: &[],
}];

/// What is known of an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// Every field that is wrong; empty: it makes sense.
    pub(super) mistakes: String,
    /// What is legal in it, and probably not meant.
    pub(super) warnings: String,
    /// It makes sense, and waits for bytes of plugins.
    pub(super) is_unresolved: bool,
    /// The entries that it had before go on.
    pub(super) is_kept: bool,
    /// It makes shards, and is none.
    pub(super) is_root: bool,
    /// Why its entries are not in the chain.
    pub(super) withheld: Option<Reason>,
    /// Generation of the chain.
    pub(super) chain: u64,
    /// Shards that have to give up objects first, each with the pods that are waited for and why.
    pub(super) waits_for: Vec<String>,
    /// Shards that have some of its objects, and may be about to give them up.
    pub(super) settling: Vec<String>,
    /// Why it has not begun.
    pub(super) start_blocker: Option<Reason>,
    /// Why it is not gone though it was deleted.
    pub(super) deleted: Option<Reason>,
    /// Why its pods are not made again yet.
    pub(super) restart: Option<Reason>,
    /// What its plugins' references led to; `None`: it names none.
    pub(super) plugins: Option<Vec<Value>>,
    /// Why not all of them led to bytes, in a word.
    pub(super) plugins_problem: Option<&'static str>,
    /// Hash of its entries.
    pub(super) hash: String,
    /// What its sidecars say.
    pub(super) outcome: Rollout,
    /// Pods that run and send nothing through their sidecars.
    pub(super) bypassed: BTreeSet<String>,
    /// Who leads in the shard.
    pub(super) leader: Option<LeaderStatus>,
}

/// A hash of hashes; empty if there are none.
#[must_use]
pub(super) fn hash(hashes: &[String]) -> String {
    match hashes {
        [] => String::new(),
        [one] => one.clone(),
        many => Digest::of(many.concat().as_bytes()).hex(),
    }
}

/// The status of an object. Transition times of conditions that did not change are those of `before`.
#[must_use]
pub(super) fn status(origin: &Origin, facts: &Facts, before: &Value, now: &str) -> Value {
    let generation = i64::try_from(origin.generation).unwrap_or_default();
    let mut list: Vec<Condition> = Vec::new();
    let was_bypassed = |before: &Value| {
        let mut list = before["conditions"].as_array().into_iter().flatten();
        list.any(|condition| condition["type"] == condition::BYPASSED)
    };
    let bypassed = (was_bypassed(before) || !facts.bypassed.is_empty()).then(|| bypassed(facts));
    for Draft { kind, status, reason } in drafts(facts).into_iter().chain(bypassed) {
        let old = before["conditions"].as_array().into_iter().flatten();
        let old = old
            .filter_map(|condition| serde_json::from_value::<Condition>(condition.clone()).ok())
            .find(|condition| condition.kind == kind && condition.status == status);
        // That others of the namespace have changed since is no news of this object.
        let is_said = |old: &&Condition| {
            let is_same = (&*old.reason, old.observed_generation) == (reason.code, Some(generation));
            is_same && reason.code == DISTRIBUTED
        };
        let message = old
            .as_ref()
            .filter(is_said)
            .map_or(reason.message, |old| old.message.clone());
        list.push(Condition {
            kind: kind.to_owned(),
            status,
            reason: reason.code.to_owned(),
            message,
            last_transition_time: old.map_or_else(|| now.to_owned(), |old| old.last_transition_time),
            observed_generation: Some(generation),
        });
    }
    let outcome = &facts.outcome;
    let mut status = Map::new();
    let mut put = |field: &str, value: Value| status.insert(field.to_owned(), value);
    put("observedGeneration", json!(generation));
    put("conditions", json!(list));
    if !facts.is_root {
        put("enforced", json!(format!("{}/{}", outcome.enforced, outcome.selected)));
    }
    if origin.kind != "ShardingConfig" {
        put("currentSpecHash", json!(facts.hash));
        put("targetStatus", json!(outcome.targets));
    } else {
        if let Some(plugins) = &facts.plugins {
            put("plugins", json!(plugins));
        }
        if let Some(leader) = &facts.leader {
            put("leader", json!(leader));
        }
    }
    if origin.kind == "CircuitBreaker" {
        put("opened", json!(outcome.opened));
    }
    Value::Object(status)
}

/// A condition without its times.
struct Draft {
    kind: &'static str,
    status: ConditionStatus,
    reason: Reason,
}

impl Draft {
    fn new(kind: &'static str, status: ConditionStatus, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            status,
            reason: Reason::new(code, message),
        }
    }
}

fn drafts(facts: &Facts) -> Vec<Draft> {
    let mut drafts = vec![accepted(facts)];
    drafts.extend(facts.plugins.as_deref().map(|plugins| resolved(plugins, facts)));
    if !facts.is_root {
        drafts.extend([distributed(facts), enforced(facts)]);
    }
    drafts
}

fn accepted(facts: &Facts) -> Draft {
    if facts.mistakes.is_empty() {
        let message = facts.warnings.clone();
        return Draft::new(condition::ACCEPTED, ConditionStatus::True, "Accepted", message);
    }
    let message = format!("{}{}", facts.mistakes, kept(facts));
    Draft::new(condition::ACCEPTED, ConditionStatus::False, "Invalid", message)
}

const fn kept(facts: &Facts) -> &'static str {
    if facts.is_kept {
        "; sidecars go on with what it said before"
    } else {
        ""
    }
}

fn resolved(plugins: &[Value], facts: &Facts) -> Draft {
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
    Draft::new(condition::PLUGINS_RESOLVED, status, code, problems.join("; "))
}

fn distributed(facts: &Facts) -> Draft {
    let reason = match (&facts.withheld, &facts.deleted, &facts.start_blocker) {
        (Some(withheld), ..) => withheld.clone(),
        (None, Some(deleted), _) => deleted.clone(),
        _ if !facts.mistakes.is_empty() => Reason::new("Invalid", "see Accepted"),
        _ if facts.is_unresolved => {
            let message = format!("see PluginsResolved{}", kept(facts));
            Reason::new("PluginsUnresolved", message)
        }
        (.., Some(blocker)) => blocker.clone(),
        _ if !facts.waits_for.is_empty() => {
            let shards = facts.waits_for.join(", ");
            let message = format!("gets its objects when the sidecars of {shards} have given them up");
            Reason::new("HandingOver", message)
        }
        _ if !facts.settling.is_empty() => Reason::new("Settling", settling(&facts.settling)),
        _ => {
            let message = format!("since generation {} of the chain", facts.chain);
            return Draft::new(condition::DISTRIBUTED, ConditionStatus::True, DISTRIBUTED, message);
        }
    };
    Draft {
        kind: condition::DISTRIBUTED,
        status: ConditionStatus::False,
        reason,
    }
}

/// Of a shard that begins when these are gone.
pub(super) fn without_sidecar(pods: &BTreeSet<String>) -> String {
    format!(
        "shows nothing while pods without a sidecar see everything: {}; restart their workload with label {}: \"true\", or change \
         their labels if they are not of this controller; one that ends and stays, on a node that is lost, goes by kubectl delete pod --force",
        few(pods.iter().cloned(), ", "),
        labels::ENABLE_PROXY
    )
}

/// Of a shard that would begin to share with these.
fn settling(others: &[String]) -> String {
    format!(
        "some of its objects are those of {}, too: taken from there within {} s they are handed over, else both see them",
        others.join(", "),
        OVERLAP_GRACE.as_secs()
    )
}

fn enforced(facts: &Facts) -> Draft {
    let outcome = &facts.outcome;
    let count = format!("{}/{}", outcome.enforced, outcome.selected);
    let is_whole = facts.withheld.is_none()
        && facts.mistakes.is_empty()
        && facts.waits_for.is_empty()
        && facts.settling.is_empty()
        && facts.start_blocker.is_none()
        && facts.deleted.is_none()
        && !facts.is_unresolved
        && facts.restart.is_none();
    let draft = |status, code, message: String| Draft::new(condition::ENFORCED, status, code, message);
    if facts.withheld.is_some() {
        let message = format!("{count}; see Distributed{}", lagging(outcome));
        draft(ConditionStatus::False, "Progressing", message)
    } else if facts.hash.is_empty() && facts.is_unresolved {
        let message = "see PluginsResolved".to_owned();
        draft(ConditionStatus::False, "PluginsUnresolved", message)
    } else if facts.hash.is_empty() && facts.mistakes.is_empty() {
        let message = "it is disabled, or has no rule";
        draft(ConditionStatus::True, "NothingToRun", message.to_owned())
    } else if outcome.selected == 0 {
        let message = "no pod with a sidecar is selected; sidecars come with the label ctrlmesh.kusionstack.io/enable-proxy: \"true\" in pod templates";
        draft(ConditionStatus::Unknown, "NoPods", message.to_owned())
    } else if outcome.lagging.is_empty() && is_whole {
        draft(ConditionStatus::True, "Enforced", count)
    } else {
        let (code, more) = match &facts.restart {
            Some(restart) => (restart.code, format!("; {}", restart.message)),
            None if is_whole => ("Progressing", String::new()),
            None => ("Progressing", "; see Accepted and Distributed".to_owned()),
        };
        let message = format!("{count}{more}{}", lagging(outcome));
        draft(ConditionStatus::False, code, message)
    }
}

/// Present from the first bypassed pod on.
fn bypassed(facts: &Facts) -> Draft {
    if facts.bypassed.is_empty() {
        let message = "requests come from all pods that were named before";
        return Draft::new(condition::BYPASSED, ConditionStatus::False, "TrafficSeen", message);
    }
    let message = format!(
        "containers of {} have sent nothing to the API server through their sidecars, for a minute since they run or for two hours: a program \
         that ignores KUBECONFIG goes past its sidecar, and no rule holds for it; name its container in annotation {} if it has a flag --kubeconfig, or redirect its \
         traffic by label {}: \"true\"",
        few(facts.bypassed.iter().cloned(), ", "),
        annotations::KUBECONFIG_ARG,
        labels::ENABLE_IPTABLES,
    );
    Draft::new(condition::BYPASSED, ConditionStatus::True, "NoTraffic", message)
}

fn lagging(outcome: &Rollout) -> String {
    match listed(&outcome.lagging, "; ") {
        pods if pods.is_empty() => pods,
        pods => format!("; {pods}"),
    }
}

/// Pods and what is to be said of each, not too many of them.
pub(super) fn listed(pods: &[(String, String)], between: &str) -> String {
    few(pods.iter().map(|(pod, problem)| format!("{pod} {problem}")), between)
}

pub(super) fn few(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = all.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
    let more = more.map(|more| format!("and {more} more"));
    all.take(MAX_NAMED).chain(more).collect::<Vec<_>>().join(between)
}

/// Writes a status, if the object is still the one that was read.
///
/// # Errors
/// What the API server says; 409 if somebody else wrote.
pub(super) async fn publish(
    client: &Client,
    namespace: &str,
    origin: &Origin,
    document: &Value,
    status: Value,
    now: &str,
) -> Result<(), kube::Error> {
    let has_time = origin.kind != "ShardingConfig";
    let patch = json!({
        "metadata": { "resourceVersion": document.pointer("/metadata/resourceVersion") },
        "status": change(&document["status"], status, has_time.then_some(now)),
    });
    let api = api(client, namespace, &origin.kind);
    let params = patch_params();
    api.patch_status(&origin.name, &params, &Patch::Merge(&patch)).await?;
    Ok(())
}

/// Objects of one of our kinds.
pub(super) fn api(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let kind = match kind {
        "ShardingConfig" => ApiResource::erase::<ShardingConfig>(&()),
        "CircuitBreaker" => ApiResource::erase::<CircuitBreaker>(&()),
        _ => ApiResource::erase::<FaultInjection>(&()),
    };
    Api::namespaced_with(client.clone(), namespace, &kind)
}

#[cfg(test)]
mod tests;
