//! From what became of an object to its `status`. Pure, but for [`publish`].

use ctrlmesh_contract::{Digest, Origin};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use super::outcome::Outcome;
use crate::api::status::{Condition, ConditionStatus, condition};
use crate::api::{API_VERSION, CircuitBreaker, FaultInjection, ShardingConfig};
use crate::context::FIELD_MANAGER;
use crate::rbac::{Rule, Scope};

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
    /// The entries that it had before go on.
    pub(super) is_kept: bool,
    /// It makes shards, and is none.
    pub(super) is_root: bool,
    /// Why its entries are not in the chain, in a word and in a sentence.
    pub(super) withheld: Option<(&'static str, String)>,
    /// Generation of the chain.
    pub(super) chain: u64,
    /// Shards that have to give up objects first.
    pub(super) waits_for: Vec<String>,
    /// What its plugins' references led to; `None`: it names none.
    pub(super) plugins: Option<Vec<Value>>,
    /// Hash of its entries.
    pub(super) hash: String,
    /// What its sidecars say.
    pub(super) outcome: Outcome,
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
    for (kind, status, reason, message) in said(facts) {
        let old = before["conditions"].as_array().into_iter().flatten();
        let old = old
            .filter_map(|condition| serde_json::from_value::<Condition>(condition.clone()).ok())
            .find(|condition| condition.kind == kind && condition.status == status);
        list.push(Condition {
            kind: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            last_transition_time: old.map_or_else(|| now.to_owned(), |old| old.last_transition_time),
            observed_generation: Some(generation),
        });
    }
    let outcome = &facts.outcome;
    let mut status = json!({
        "observedGeneration": generation,
        "conditions": list,
    });
    if !facts.is_root {
        status["enforced"] = json!(format!("{}/{}", outcome.enforced, outcome.selected));
    }
    if origin.kind == "ShardingConfig" {
        if let Some(plugins) = &facts.plugins {
            status["plugins"] = json!(plugins);
        }
    } else {
        status["currentSpecHash"] = json!(facts.hash);
        status["targetStatus"] = json!(outcome.targets);
        if origin.kind == "CircuitBreaker" {
            status["opened"] = json!(outcome.opened);
        }
    }
    status
}

/// Type, status, reason and message of each condition.
fn said(facts: &Facts) -> Vec<(&'static str, ConditionStatus, &'static str, String)> {
    use ConditionStatus::{False, True, Unknown};
    let mut said = Vec::new();
    let is_accepted = facts.mistakes.is_empty();
    said.push(if is_accepted {
        (condition::ACCEPTED, True, "Accepted", String::new())
    } else {
        let kept = if facts.is_kept {
            "; sidecars go on with what it said before"
        } else {
            ""
        };
        (
            condition::ACCEPTED,
            False,
            "Invalid",
            format!("{}{kept}", facts.mistakes),
        )
    });
    if let Some(plugins) = &facts.plugins {
        let problems = plugins.iter().filter_map(|plugin| {
            let message = plugin["message"].as_str().filter(|message| !message.is_empty())?;
            Some(format!("{}: {message}", plugin["name"].as_str().unwrap_or_default()))
        });
        let problems: Vec<String> = problems.collect();
        said.push(if problems.is_empty() {
            (condition::PLUGINS_RESOLVED, True, "Resolved", String::new())
        } else {
            (condition::PLUGINS_RESOLVED, False, "Unresolved", problems.join("; "))
        });
    }
    if facts.is_root {
        return said;
    }
    let chain = facts.chain;
    said.push(match &facts.withheld {
        Some((reason, message)) => (condition::DISTRIBUTED, False, *reason, message.clone()),
        None if !is_accepted => (condition::DISTRIBUTED, False, "Invalid", "see Accepted".to_owned()),
        None if !facts.waits_for.is_empty() => {
            let shards = facts.waits_for.join(", ");
            let message = format!("gets its objects when the sidecars of {shards} have given them up");
            (condition::DISTRIBUTED, False, "HandingOver", message)
        }
        None => (
            condition::DISTRIBUTED,
            True,
            "Distributed",
            format!("in generation {chain} of the chain"),
        ),
    });
    let outcome = &facts.outcome;
    let count = format!("{}/{}", outcome.enforced, outcome.selected);
    said.push(if facts.hash.is_empty() && is_accepted {
        (
            condition::ENFORCED,
            True,
            "NothingToRun",
            "it is disabled, or has no rule".to_owned(),
        )
    } else if outcome.selected == 0 {
        let message =
            "no pod with a sidecar is selected; has the operator's pod the label ctrlmesh.kusionstack.io/watching?";
        (condition::ENFORCED, Unknown, "NoPods", message.to_owned())
    } else if outcome.lagging.is_empty() && facts.withheld.is_none() && is_accepted && facts.waits_for.is_empty() {
        (condition::ENFORCED, True, "Enforced", count)
    } else {
        (
            condition::ENFORCED,
            False,
            "Progressing",
            format!("{count}{}", lagging(outcome)),
        )
    });
    said
}

fn lagging(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (pod, problem) in outcome.lagging.iter().take(MAX_NAMED) {
        text.push_str(&format!("; {pod} {problem}"));
    }
    match outcome.lagging.len().saturating_sub(MAX_NAMED) {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

/// Whether the stored status says the same already.
#[must_use]
pub(super) fn is_same(before: &Value, after: &Value) -> bool {
    let by_type = |status: &Value| -> Map<String, Value> {
        let list = status["conditions"].as_array().into_iter().flatten();
        list.filter_map(|condition| Some((condition["type"].as_str()?.to_owned(), condition.clone())))
            .collect()
    };
    let (old, new) = (by_type(before), by_type(after));
    let has_all = new.iter().all(|(kind, condition)| old.get(kind) == Some(condition));
    let fields = after.as_object().into_iter().flatten();
    has_all
        && fields
            .filter(|(field, _)| *field != "conditions")
            .all(|(field, value)| before.get(field) == Some(value) || is_nothing(value) && before.get(field).is_none())
}

fn is_nothing(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_str().is_some_and(str::is_empty)
}

/// Writes a status.
///
/// # Errors
/// What the API server says.
pub(super) async fn publish(
    client: &Client,
    namespace: &str,
    origin: &Origin,
    mut status: Value,
    now: &str,
) -> Result<(), kube::Error> {
    let kind = match origin.kind.as_str() {
        "ShardingConfig" => ApiResource::erase::<ShardingConfig>(&()),
        "CircuitBreaker" => ApiResource::erase::<CircuitBreaker>(&()),
        _ => ApiResource::erase::<FaultInjection>(&()),
    };
    if origin.kind != "ShardingConfig" {
        status["lastUpdatedTime"] = json!(now);
    }
    let document = json!({
        "apiVersion": API_VERSION,
        "kind": origin.kind,
        "metadata": { "name": origin.name, "namespace": namespace },
        "status": status,
    });
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch_status(&origin.name, &params, &Patch::Apply(&document))
        .await?;
    Ok(())
}
