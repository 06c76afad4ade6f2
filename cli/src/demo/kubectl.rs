//! What a person does with kubectl: applies objects, deletes them, and looks at what became of them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use ctrlmesh_manager_api::status::{Condition, ConditionStatus, condition};
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};
use futures_util::{StreamExt as _, stream};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;

use super::facts::Shared;
use super::plan::POD_NAMESPACE;
use crate::error::Error;

/// Kind and name, as `kubectl get` takes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl Name {
    /// Of a document.
    pub(crate) fn of(document: &Value) -> Self {
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

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// An object that was applied, and the generation that this made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) name: Name,
    pub(crate) generation: i64,
}

/// The person.
#[derive(Clone)]
pub(crate) struct Kubectl {
    client: Client,
}

impl Kubectl {
    /// With this way to the API server.
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// `kubectl apply --server-side`.
    pub(crate) async fn apply(&self, document: &Value) -> Result<Applied, Error> {
        let name = Name::of(document);
        let params = PatchParams::apply("kubectl").force();
        let applied = self
            .api(&name.kind)
            .patch(&name.name, &params, &Patch::Apply(document))
            .await;
        let applied = applied.map_err(Error::client(format!("apply {name}")))?;
        let generation = applied.metadata.generation.unwrap_or_default();
        Ok(Applied { name, generation })
    }

    /// `kubectl delete`.
    pub(crate) async fn delete(&self, name: &Name) -> Result<(), Error> {
        let deleted = self.api(&name.kind).delete(&name.name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(Error::client(format!("delete {name}")))
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let [shards, breakers, faults] = kinds();
        let resource = match kind {
            "ShardingConfig" => shards,
            "CircuitBreaker" => breakers,
            _ => faults,
        };
        Api::namespaced_with(self.client.clone(), POD_NAMESPACE, &resource)
    }
}

fn kinds() -> [ApiResource; 3] {
    [
        ApiResource::erase::<ShardingConfig>(&()),
        ApiResource::erase::<CircuitBreaker>(&()),
        ApiResource::erase::<FaultInjection>(&()),
    ]
}

/// `kubectl get --watch`: keeps the facts about all objects up to date until it is dropped.
pub(crate) async fn follow(client: Client, facts: Shared) {
    let watches = kinds().map(|kind| {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), POD_NAMESPACE, &kind);
        watcher(api, watcher::Config::default()).default_backoff().boxed()
    });
    let mut events = pin!(stream::select_all(watches));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => facts.with(|facts| facts.objects.seen(&object)),
            Ok(Event::Delete(object)) => facts.with(|facts| facts.objects.gone(&object)),
            // The watch goes on by itself.
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

/// What became of the objects, by what their status says.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    known: BTreeMap<Name, Progress>,
    /// Which generations of objects have waited until others had given up objects.
    pub(crate) waited: BTreeSet<(Name, i64)>,
}

/// What became of one object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    generation: i64,
    conditions: Vec<Condition>,
    /// Breakers that are open, by the status of a CircuitBreaker.
    pub(crate) opened: u64,
}

const HANDING_OVER: &str = "HandingOver";

impl Objects {
    /// The API server has this now.
    pub(crate) fn seen(&mut self, object: &DynamicObject) {
        let status = object.data.get("status");
        let field = |field: &str| status.and_then(|status| status.get(field)).cloned().unwrap_or_default();
        let progress = Progress {
            generation: object.metadata.generation.unwrap_or_default(),
            conditions: serde_json::from_value(field("conditions")).unwrap_or_default(),
            opened: field("opened").as_u64().unwrap_or_default(),
        };
        let name = name_of(object);
        if progress.is_handing_over() {
            self.waited.insert((name.clone(), progress.generation));
        }
        self.known.insert(name, progress);
    }

    fn gone(&mut self, object: &DynamicObject) {
        self.known.remove(&name_of(object));
    }

    /// What became of an object; `None`: it is not there.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<&Progress> {
        let name = Name {
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        self.known.get(&name)
    }

    /// Whether all of these are in force, in the generation that was applied or a later one. If not, what is said instead.
    pub(crate) fn enforced(&self, applied: &[Applied]) -> Result<(), String> {
        let late: Vec<_> = applied
            .iter()
            .filter(|applied| {
                let known = self.known.get(&applied.name);
                !known.is_some_and(|known| known.generation >= applied.generation && known.is_enforced())
            })
            .map(|applied| {
                let told = self
                    .known
                    .get(&applied.name)
                    .map_or_else(|| "not seen".to_owned(), Progress::whole);
                format!("{}: {told}", applied.name)
            })
            .collect();
        if late.is_empty() { Ok(()) } else { Err(late.join("; ")) }
    }

    /// Why the manager refuses an object as it is now; `None`: it does not, or has not looked yet.
    pub(crate) fn refusal(&self, applied: &Applied) -> Option<&str> {
        let known = self.known.get(&applied.name)?;
        let accepted = known.condition(condition::ACCEPTED)?;
        let is_refused = known.generation >= applied.generation && accepted.status == ConditionStatus::False;
        is_refused.then_some(&accepted.message)
    }
}

impl Progress {
    /// A condition, if it speaks of the object as it is now.
    fn condition(&self, kind: &str) -> Option<&Condition> {
        let is_current = |condition: &&Condition| condition.observed_generation == Some(self.generation);
        self.conditions
            .iter()
            .filter(is_current)
            .find(|condition| condition.kind == kind)
    }

    fn is_enforced(&self) -> bool {
        self.condition(condition::ENFORCED)
            .is_some_and(|enforced| enforced.status == ConditionStatus::True)
    }

    fn is_handing_over(&self) -> bool {
        self.condition(condition::DISTRIBUTED)
            .is_some_and(|distributed| distributed.reason == HANDING_OVER)
    }

    /// In two words: the first condition that is not true, or how many sidecars run it.
    pub(crate) fn text(&self) -> String {
        let kinds = [condition::PLUGINS_RESOLVED, condition::ACCEPTED, condition::DISTRIBUTED];
        let not_yet = kinds
            .into_iter()
            .filter_map(|kind| self.condition(kind))
            .find(|condition| condition.status == ConditionStatus::False);
        match (not_yet, self.condition(condition::ENFORCED)) {
            (Some(condition), _) => condition.reason.clone(),
            (None, Some(enforced)) => {
                // The count comes first; why some lag, after it.
                let count = enforced.message.split(';').next().unwrap_or_default();
                match enforced.reason.as_str() {
                    reason @ ("Enforced" | "Progressing") => format!("{reason} {count}"),
                    reason => reason.to_owned(),
                }
            }
            (None, None) => "applied".to_owned(),
        }
    }

    /// Everything that is said, for a wait that was in vain.
    fn whole(&self) -> String {
        let conditions = self.conditions.iter();
        let said = conditions.map(|one| format!("{}={:?} {} {}", one.kind, one.status, one.reason, one.message));
        said.collect::<Vec<_>>().join(", ")
    }
}

fn name_of(object: &DynamicObject) -> Name {
    Name {
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

    fn object(generation: i64, conditions: &[(&str, &str, &str, &str, i64)]) -> DynamicObject {
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

    fn applied(generation: i64) -> Applied {
        let name = Name::of(&json!({ "kind": "ShardingConfig", "metadata": { "name": "widgets-0" } }));
        Applied { name, generation }
    }

    #[test]
    fn an_object_is_enforced_when_that_is_said_of_the_generation_that_was_applied() {
        let mut objects = Objects::default();
        assert!(objects.enforced(&[applied(1)]).is_err());
        objects.seen(&object(1, &[("Enforced", "True", "Enforced", "1/1", 1)]));
        assert_eq!(objects.enforced(&[applied(1)]), Ok(()));
        let late = objects.enforced(&[applied(2)]).unwrap_err();
        assert!(late.contains("ShardingConfig/widgets-0: Enforced=True"), "{late}");
        // The API server has it, the manager has not looked.
        objects.seen(&object(2, &[("Enforced", "True", "Enforced", "1/1", 1)]));
        assert!(objects.enforced(&[applied(2)]).is_err());
        objects.gone(&object(2, &[]));
        assert!(objects.enforced(&[applied(1)]).is_err());
    }

    #[test]
    fn what_is_wrong_comes_before_how_many_run_it() {
        let mut objects = Objects::default();
        let mut text = |conditions: &[(&str, &str, &str, &str, i64)]| {
            objects.seen(&object(1, conditions));
            objects.get("ShardingConfig", "widgets-0").map(Progress::text).unwrap()
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
        assert_eq!(objects.refusal(&applied(1)), Some("limits[0]"));
        assert_eq!(objects.refusal(&applied(2)), None);
    }

    #[test]
    fn each_hand_over_is_counted_once() {
        let mut objects = Objects::default();
        let waits = object(1, &[("Distributed", "False", "HandingOver", "", 1)]);
        objects.seen(&waits);
        objects.seen(&waits);
        // Another controller's word in between: here, where no schema says so, conditions are not merged.
        objects.seen(&object(1, &[("Overlapping", "False", "Apart", "", 1)]));
        objects.seen(&waits);
        assert_eq!(objects.waited.len(), 1);
        objects.seen(&object(2, &[("Distributed", "False", "HandingOver", "", 2)]));
        assert_eq!(objects.waited.len(), 2);
    }
}
