//! Writes by the program that runs the server instead of a client: [`Store::put`] and [`Store::delete`]. All rules apply except the
//! check of the resource version.

use std::sync::Arc;

use serde_json::Value;

use crate::Error;
use crate::admit::admit_object;
use crate::delete::{DeleteOptions, delete_object};
use crate::managed::{FieldManager, Operation};
use crate::object::{metadata_text, set_metadata};
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::store::Store;
use crate::write::{Target, insert_object, replace_object};

impl Store {
    /// Creates or replaces an object including its status, without checking the resource version: for seeding, and for tests that play
    /// another client. Watches see it like any other write.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason that a client would get: unknown kind, missing namespace, bad name.
    pub fn put(&self, object: Value) -> Result<Value, Error> {
        put_object(self, object).map_err(Error::from)
    }

    /// Deletes an object; finalizers delay it as they would for a client.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not exist or `resource` (`configmaps`, `deployments.apps`) is unknown.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> Result<(), Error> {
        delete_by_name(self, resource, namespace, name).map_err(Error::from)
    }
}

fn put_object(store: &Store, mut body: Value) -> Result<Value, Refusal> {
    let field = |field: &str| body.get(field).and_then(Value::as_str).unwrap_or_default();
    let Some(resource) = store.registry().by_kind(field("apiVersion"), field("kind")) else {
        return Err(Refusal::bad_request(format!(
            "no kind {} in {}",
            field("kind"),
            field("apiVersion")
        )));
    };
    let namespace = match resource.namespaced {
        true => metadata_text(&body, "namespace"),
        false => "",
    };
    let target = target_of(resource, namespace, metadata_text(&body, "name"));
    let manager = FieldManager {
        name: "testkit".into(),
        operation: Operation::Update,
        api_version: resource.api_version(),
        subresource: String::new(),
    };
    admit_object(resource, &target.namespace, &mut body)?;
    set_metadata(&mut body, "resourceVersion", Value::Null);
    set_metadata(&mut body, "uid", Value::Null);
    let status = body.get("status").cloned();
    let written = store.run_transaction(&resource.qualified_name(), false, |transaction| {
        let written = match transaction.get(&target.key()) {
            Some(existing) => replace_object(transaction, &target, &existing, body, &manager)?,
            None => insert_object(transaction, &target, body, &manager)?,
        };
        let (Some(status), true) = (status, resource.status) else {
            return Ok(written);
        };
        let mut with_status = written.object.value.clone();
        if let Some(fields) = with_status.as_object_mut() {
            fields.insert("status".into(), status);
        }
        let target = Target {
            status: true,
            name: metadata_text(&with_status, "name").into(),
            ..target.clone()
        };
        replace_object(transaction, &target, &written.object, with_status, &manager)
    })?;
    Ok(written.object.value.clone())
}

fn delete_by_name(store: &Store, resource: &str, namespace: &str, name: &str) -> Result<(), Refusal> {
    let Some(resource) = store.registry().by_qualified_name(resource) else {
        return Err(Refusal::bad_request(format!("no resource {resource}")));
    };
    let target = target_of(resource, namespace, name);
    delete_object(store, &target, &DeleteOptions::default()).map(|_| ())
}

fn target_of(resource: &Arc<Resource>, namespace: &str, name: &str) -> Target {
    Target {
        resource: Arc::clone(resource),
        namespace: namespace.into(),
        name: name.into(),
        status: false,
    }
}
