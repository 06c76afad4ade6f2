//! Handles each step of an object: creates one child per step, then records the step as observed.
//!
//! The child is the externally visible effect. Its name follows from object and step, so that a second replica finds it: a step handled
//! by two replicas is reported as "twice".

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::controller::Action;
use kube::{Api, Client, Error, ResourceExt as _};
use serde_json::json;

/// Pause before a failed object is retried.
const RETRY: Duration = Duration::from_millis(500);

pub(crate) struct Reconciler {
    pub(crate) client: Client,
    pub(crate) journal: Journal,
}

pub(crate) async fn reconcile(object: Arc<ConfigMap>, reconciler: Arc<Reconciler>) -> Result<Action, Error> {
    let Some(step) = data_field(&object, "step").filter(|step| data_field(&object, "observed") != Some(step)) else {
        return Ok(Action::await_change());
    };
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let objects = Api::<ConfigMap>::namespaced(reconciler.client.clone(), &namespace);
    reconciler
        .make_child(&objects, &format!("{namespace}/{name}"), &name, step)
        .await?;
    match objects
        .replace(
            &name,
            &PostParams::default(),
            &reconciler.with_observed_step(&object, step),
        )
        .await
    {
        Ok(_) => reconciler
            .journal
            .write_event("handled", &format!("{namespace}/{name}"), step, ""),
        // The object has changed or is gone: a common event, and the watch will report it.
        Err(Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(Action::await_change())
}

pub(crate) fn retry_later(_: Arc<ConfigMap>, _: &Error, _: Arc<Reconciler>) -> Action {
    Action::requeue(RETRY)
}

impl Reconciler {
    /// If another replica has created the child, leaves it alone and reports that.
    async fn make_child(&self, objects: &Api<ConfigMap>, key: &str, name: &str, step: &str) -> Result<(), Error> {
        let child = ConfigMap {
            metadata: ObjectMeta {
                name: Some(format!("{name}-step-{step}")),
                ..ObjectMeta::default()
            },
            data: Some([("by".to_owned(), self.journal.id.clone())].into()),
            ..ConfigMap::default()
        };
        match objects.create(&PostParams::default(), &child).await {
            Err(Error::Api(status)) if status.is_already_exists() => {}
            made => return made.map(drop),
        }
        let present = objects.get(&child.name_any()).await?;
        let by = data_field(&present, "by").unwrap_or_default();
        if by != self.journal.id {
            self.journal
                .write_event("twice", key, step, &format!("first handled by {by}"));
        }
        Ok(())
    }

    /// The object with the step recorded, and with the resource version that was read as a precondition.
    fn with_observed_step(&self, object: &ConfigMap, step: &str) -> ConfigMap {
        let mut object = object.clone();
        let noted = [("observed", step), ("by", &self.journal.id)];
        let noted = noted.map(|(field, value)| (field.to_owned(), value.to_owned()));
        object.data.get_or_insert_default().extend(noted);
        object
    }
}

fn data_field<'o>(object: &'o ConfigMap, name: &str) -> Option<&'o str> {
    object.data.as_ref()?.get(name).map(String::as_str)
}

/// Reports to standard output what this replica did.
pub(crate) struct Journal {
    pub(crate) id: String,
}

impl Journal {
    /// One line with the fields of `record` in tests/e2e/operator. The event is leading, handled, twice or failed.
    #[expect(
        clippy::print_stdout,
        reason = "who started the program reads it; it panics where a record would be lost"
    )]
    pub(crate) fn write_event(&self, event: &str, object: &str, step: &str, detail: &str) {
        let record = json!({"event": event, "id": self.id, "object": object, "step": step, "detail": detail});
        println!("{record}");
    }
}
