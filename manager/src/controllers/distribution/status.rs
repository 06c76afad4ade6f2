//! Writes the status of a namespace's objects, and Events about conditions that have turned. Nothing else in distribution writes
//! status. [`object_summary`] summarizes an object, and [`conditions`] makes a status and a patch of the summary.

use std::collections::BTreeSet;

use ctrlmesh_contract::Origin;
use ctrlmesh_manager_api::status::{Reason, condition};
use futures_util::{StreamExt as _, stream};
use kube::runtime::events::EventType;
use serde_json::Value;

use super::act::{custom_resource, has_code, object_reference};
use crate::cluster::events::{self, EventDraft};
use crate::cluster::status::{StatusPatch, patch_status, timestamp_now};
use crate::cluster::{Context, RbacRule, Scope, error_text};
use ctrlmesh_manager_rollout::decision::{Decision, Outcome};
use ctrlmesh_manager_rollout::observation::{Observation, origin_of};
use ctrlmesh_manager_rollout::{conditions, object_summary};

/// Statuses that are written at a time.
const CONCURRENCY: usize = 8;
/// Reason codes without an Event, because another condition explains them, or time resolves them.
const WITHOUT_EVENT: [&str; 7] = [
    Reason::PROGRESSING,
    Reason::RESTARTING,
    Reason::SETTLING,
    Reason::FETCHING,
    Reason::PLUGINS_UNRESOLVED,
    Reason::DELETING,
    Reason::LOCKS_EXPIRING,
];

pub(crate) const RULES: &[RbacRule] = &[RbacRule {
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

/// Writes the status of every object, but those with these UIDs.
pub(crate) async fn publish_all(
    context: &Context,
    observation: &Observation,
    decision: &Decision,
    outcome: &Outcome,
    skipped: &BTreeSet<String>,
) {
    let now = timestamp_now();
    let publish = async |document: &Value| {
        let (origin, summary) = object_summary::summary_of(document, observation, decision, outcome);
        let before = document.get("status").cloned().unwrap_or_default();
        let after = conditions::object_status(&origin, &summary, &before, &now);
        if !conditions::is_same(&before, &after) {
            publish_status(context, &observation.namespace, document, &origin, after, &now).await;
        }
    };
    let documents = observation.resources.documents.iter();
    let documents = documents.filter(|document| !skipped.contains(&origin_of(document).uid));
    let writes: Vec<_> = documents.map(publish).collect();
    stream::iter(writes).buffer_unordered(CONCURRENCY).collect::<()>().await;
}

async fn publish_status(
    context: &Context,
    namespace: &str,
    document: &Value,
    origin: &Origin,
    after: Value,
    now: &str,
) {
    let before = &document["status"];
    let events = events_of(before, &after);
    let has_time = origin.kind != "ShardingConfig";
    let patch = StatusPatch::Replace {
        version: document.pointer("/metadata/resourceVersion"),
        status: conditions::status_patch(before, after, has_time.then_some(now)),
    };
    let kind = custom_resource(&origin.kind);
    match patch_status(&context.client, &kind, Some(namespace), &origin.name, patch).await {
        // Events follow the status that they are about.
        Ok(_) => {
            let about = object_reference(namespace, origin);
            for event in &events {
                events::publish(context, &about, event).await;
            }
        }
        Err(error) if has_code(&error, 404) => {}
        // The object has changed. The watch shows that, and another pass follows.
        Err(error) if has_code(&error, 409) => {
            tracing::debug!(error = error_text(&error), kind = origin.kind, %namespace, name = origin.name, "object has changed; its status follows in the next pass");
        }
        Err(error) => {
            context.metrics.distribution.status_failed.inc();
            tracing::warn!(error = error_text(&error), kind = origin.kind, %namespace, name = origin.name, "failed to update status");
        }
    }
}

/// Events about conditions that have turned bad, and about an object that is enforced everywhere.
fn events_of(before: &Value, after: &Value) -> Vec<EventDraft> {
    let state_of = |status: &Value, kind: &Value| {
        let list = status["conditions"].as_array().into_iter().flatten();
        let mut own = list.filter(|condition| condition["type"] == *kind);
        own.next()
            .map(|condition| (condition["status"].clone(), condition["reason"].clone()))
    };
    let list = after["conditions"].as_array().into_iter().flatten();
    let turned = list.filter(|condition| {
        let has_turned = state_of(before, &condition["type"]) != state_of(after, &condition["type"]);
        let is_bad = match condition["type"].as_str() {
            Some(condition::BYPASSED) => condition["status"] == "True",
            _ => condition["status"] == "False" && !is_without_event(&condition["reason"]),
        };
        has_turned && (is_bad || condition["reason"] == Reason::ENFORCED)
    });
    let event = |condition: &Value| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        let is_bad = !matches!(
            condition["reason"].as_str(),
            Some(Reason::HANDING_OVER | Reason::ENFORCED)
        );
        EventDraft {
            type_: if is_bad { EventType::Warning } else { EventType::Normal },
            reason: text("reason"),
            note: text("message"),
        }
    };
    turned.map(event).collect()
}

fn is_without_event(reason: &Value) -> bool {
    reason.as_str().is_some_and(|code| WITHOUT_EVENT.contains(&code))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_of_conditions_match_snapshot() {
        let conditions: [(&str, &str, &[&str]); 10] = [
            (condition::ACCEPTED, "True", &[Reason::ACCEPTED]),
            (condition::ACCEPTED, "False", &[Reason::INVALID]),
            (condition::PLUGINS_RESOLVED, "True", &[Reason::RESOLVED]),
            (
                condition::PLUGINS_RESOLVED,
                "False",
                &[Reason::UNRESOLVED, Reason::FETCHING],
            ),
            (condition::DISTRIBUTED, "True", &[Reason::DISTRIBUTED]),
            (
                condition::DISTRIBUTED,
                "False",
                &[
                    Reason::INVALID,
                    Reason::INVALID_CHAIN,
                    Reason::NO_GENERATION,
                    Reason::NO_ROOM,
                    Reason::WRITE_FAILED,
                    Reason::PROGRESSING,
                    Reason::PLUGINS_UNRESOLVED,
                    Reason::SIDECAR_OUTDATED,
                    Reason::SWITCHED_OFF,
                    Reason::HANDING_OVER,
                    Reason::SETTLING,
                    Reason::WITHOUT_SIDECAR,
                    Reason::NO_PODS,
                    Reason::BEGINNING,
                    Reason::PODS_UNKNOWN,
                    Reason::DELETING,
                    Reason::GATHERING,
                    Reason::LOCKS_EXPIRING,
                ],
            ),
            (condition::ENFORCED, "True", &[Reason::ENFORCED, Reason::NOTHING_TO_RUN]),
            (
                condition::ENFORCED,
                "False",
                &[Reason::PROGRESSING, Reason::RESTARTING, Reason::EVICTION_REFUSED],
            ),
            (condition::BYPASSED, "True", &[Reason::NO_TRAFFIC]),
            (condition::BYPASSED, "False", &[Reason::TRAFFIC_SEEN]),
        ];
        let mut text = String::new();
        for (kind, status, reasons) in conditions {
            for reason in reasons {
                let condition = json!({ "type": kind, "status": status, "reason": reason, "message": "why" });
                let after = json!({ "conditions": [condition] });
                let said = match events_of(&Value::Null, &after).pop() {
                    Some(event) => {
                        assert_eq!((&*event.reason, &*event.note), (*reason, "why"));
                        let is_warning = matches!(event.type_, EventType::Warning);
                        if is_warning { "Warning" } else { "Normal" }
                    }
                    None => "no Event",
                };
                text += &format!("{kind}={status} {reason}: {said}\n");
            }
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn condition_that_stays_makes_no_event() {
        let status = json!({ "conditions": [{ "type": "Accepted", "status": "False", "reason": "Invalid" }] });
        assert!(events_of(&status, &status).is_empty());
    }
}
