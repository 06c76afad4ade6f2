//! The objects that a user has applied, and how far each has come, by its status.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_manager_api::status::{Condition, ConditionStatus, condition};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

/// Kind and name, as `kubectl get` takes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectName {
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl ObjectName {
    pub(crate) fn of_document(document: &Value) -> Self {
        let text = |pointer: &str| {
            document
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            kind: text("/kind"),
            name: text("/metadata/name"),
        }
    }
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// An applied object and the generation that this produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) name: ObjectName,
    pub(crate) generation: i64,
}

/// The status of all applied objects.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    known: BTreeMap<ObjectName, ObjectProgress>,
    /// Object generations that have waited until others had given up objects.
    pub(crate) waited: BTreeSet<(ObjectName, i64)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectProgress {
    generation: i64,
    conditions: Vec<Condition>,
    /// Open breakers, from the status of a CircuitBreaker.
    pub(crate) opened: u64,
}

const HANDING_OVER: &str = "HandingOver";

impl Objects {
    pub(crate) fn record_object(&mut self, object: &DynamicObject) {
        let status = object.data.get("status");
        let field = |field: &str| status.and_then(|status| status.get(field)).cloned().unwrap_or_default();
        let progress = ObjectProgress {
            generation: object.metadata.generation.unwrap_or_default(),
            conditions: serde_json::from_value(field("conditions")).unwrap_or_default(),
            opened: field("opened").as_u64().unwrap_or_default(),
        };
        let name = object_name(object);
        if progress.is_handing_over() {
            self.waited.insert((name.clone(), progress.generation));
        }
        self.known.insert(name, progress);
    }

    pub(crate) fn forget_object(&mut self, object: &DynamicObject) {
        self.known.remove(&object_name(object));
    }

    /// The progress of an object; `None` if it does not exist.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<&ObjectProgress> {
        let name = ObjectName {
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        self.known.get(&name)
    }

    /// Whether all of these are enforced in the applied generation or a later one. The error describes the first that is not.
    pub(crate) fn check_enforced(&self, applied: &[Applied]) -> Result<(), String> {
        let late: Vec<_> = applied
            .iter()
            .filter(|applied| {
                let known = self.known.get(&applied.name);
                !known.is_some_and(|known| known.generation >= applied.generation && known.is_enforced())
            })
            .map(|applied| {
                let shown_state = self
                    .known
                    .get(&applied.name)
                    .map_or_else(|| "not seen".to_owned(), ObjectProgress::full_text);
                format!("{}: {shown_state}", applied.name)
            })
            .collect();
        if late.is_empty() { Ok(()) } else { Err(late.join("; ")) }
    }

    /// The message with which the manager refuses the current generation; `None` if it does not, or has not looked yet.
    pub(crate) fn refusal_message(&self, applied: &Applied) -> Option<&str> {
        let known = self.known.get(&applied.name)?;
        let accepted = known.current_condition(condition::ACCEPTED)?;
        let is_refused = known.generation >= applied.generation && accepted.status == ConditionStatus::False;
        is_refused.then_some(&accepted.message)
    }
}

impl ObjectProgress {
    /// A condition, if it is about the current generation.
    fn current_condition(&self, kind: &str) -> Option<&Condition> {
        let is_current = |condition: &&Condition| condition.observed_generation == Some(self.generation);
        self.conditions
            .iter()
            .filter(is_current)
            .find(|condition| condition.kind == kind)
    }

    fn is_enforced(&self) -> bool {
        self.current_condition(condition::ENFORCED)
            .is_some_and(|enforced| enforced.status == ConditionStatus::True)
    }

    fn is_handing_over(&self) -> bool {
        self.current_condition(condition::DISTRIBUTED)
            .is_some_and(|distributed| distributed.reason == HANDING_OVER)
    }

    /// In two words: the first condition that is not true, or how many sidecars run it.
    pub(crate) fn short_text(&self) -> String {
        let kinds = [condition::PLUGINS_RESOLVED, condition::ACCEPTED, condition::DISTRIBUTED];
        let not_yet = kinds
            .into_iter()
            .filter_map(|kind| self.current_condition(kind))
            .find(|condition| condition.status == ConditionStatus::False);
        match (not_yet, self.current_condition(condition::ENFORCED)) {
            (Some(condition), _) => condition.reason.clone(),
            (None, Some(enforced)) => {
                // The count comes first, the reason why some lag follows it.
                let count = enforced.message.split(';').next().unwrap_or_default();
                match enforced.reason.as_str() {
                    reason @ ("Enforced" | "Progressing") => format!("{reason} {count}"),
                    reason => reason.to_owned(),
                }
            }
            (None, None) => "applied".to_owned(),
        }
    }

    /// The whole status, for the error of a wait that timed out.
    fn full_text(&self) -> String {
        let conditions = self.conditions.iter();
        let said = conditions.map(|one| format!("{}={:?} {} {}", one.kind, one.status, one.reason, one.message));
        said.collect::<Vec<_>>().join(", ")
    }
}

fn object_name(object: &DynamicObject) -> ObjectName {
    ObjectName {
        kind: object
            .types
            .as_ref()
            .map(|types| types.kind.clone())
            .unwrap_or_default(),
        name: object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object_with(generation: i64, conditions: &[(&str, &str, &str, &str, i64)]) -> DynamicObject {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(kind, status, reason, message, generation)| {
                json!({
                    "type": kind, "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation,
                })
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
            "metadata": { "name": "widgets-0", "generation": generation },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    fn applied_generation(generation: i64) -> Applied {
        let name = ObjectName::of_document(&json!({ "kind": "ShardingConfig", "metadata": { "name": "widgets-0" } }));
        Applied { name, generation }
    }

    #[test]
    fn object_is_enforced_when_condition_has_applied_generation() {
        let mut objects = Objects::default();
        assert!(objects.check_enforced(&[applied_generation(1)]).is_err());
        objects.record_object(&object_with(1, &[("Enforced", "True", "Enforced", "1/1", 1)]));
        assert_eq!(objects.check_enforced(&[applied_generation(1)]), Ok(()));
        let late = objects.check_enforced(&[applied_generation(2)]).unwrap_err();
        assert!(late.contains("ShardingConfig/widgets-0: Enforced=True"), "{late}");
        // The API server has it, the manager has not looked yet.
        objects.record_object(&object_with(2, &[("Enforced", "True", "Enforced", "1/1", 1)]));
        assert!(objects.check_enforced(&[applied_generation(2)]).is_err());
        objects.forget_object(&object_with(2, &[]));
        assert!(objects.check_enforced(&[applied_generation(1)]).is_err());
    }

    #[test]
    fn short_text_puts_failed_condition_before_count() {
        let mut objects = Objects::default();
        let mut text = |conditions: &[(&str, &str, &str, &str, i64)]| {
            objects.record_object(&object_with(1, conditions));
            objects
                .get("ShardingConfig", "widgets-0")
                .map(ObjectProgress::short_text)
                .unwrap()
        };
        assert_eq!(text(&[]), "applied");
        let enforced = ("Enforced", "True", "Enforced", "1/1", 1);
        assert_eq!(
            text(&[("Accepted", "True", "Accepted", "", 1), enforced]),
            "Enforced 1/1"
        );
        let lags = (
            "Enforced",
            "False",
            "Progressing",
            "0/1; replica-0 does not answer in time",
            1,
        );
        assert_eq!(text(&[lags]), "Progressing 0/1");
        assert_eq!(
            text(&[("Accepted", "False", "Invalid", "limits[0]", 1), lags]),
            "Invalid"
        );
        assert_eq!(objects.refusal_message(&applied_generation(1)), Some("limits[0]"));
        assert_eq!(objects.refusal_message(&applied_generation(2)), None);
    }

    #[test]
    fn hand_over_is_counted_once() {
        let mut objects = Objects::default();
        let waits = object_with(1, &[("Distributed", "False", "HandingOver", "", 1)]);
        objects.record_object(&waits);
        objects.record_object(&waits);
        // Another controller writes in between: without a schema, conditions are not merged.
        objects.record_object(&object_with(1, &[("Overlapping", "False", "Apart", "", 1)]));
        objects.record_object(&waits);
        assert_eq!(objects.waited.len(), 1);
        objects.record_object(&object_with(2, &[("Distributed", "False", "HandingOver", "", 2)]));
        assert_eq!(objects.waited.len(), 2);
    }
}
