//! Writes that come from the program that runs the server, not from a client: [`crate::Store::put`] and
//! [`crate::Store::delete`]. They keep all rules but the check of the resource version.

use std::sync::Arc;

use serde_json::Value;

use crate::admit::admit;
use crate::delete::DeleteOptions;
use crate::managed::{Manager, Operation};
use crate::object::{set, text};
use crate::refusal::Refusal;
use crate::resource::{Registry, Resource};
use crate::store::Store;
use crate::write::{Target, insert, replace};

/// Creates or replaces with no check of the resource version: [`Store::put`].
pub(crate) fn put(store: &Store, registry: &Registry, mut body: Value) -> Result<Value, Refusal> {
    let field = |field: &str| body.get(field).and_then(Value::as_str).unwrap_or_default();
    let Some(resource) = registry.by_kind(field("apiVersion"), field("kind")) else {
        return Err(Refusal::bad_request(format!(
            "no kind {} in {}",
            field("kind"),
            field("apiVersion")
        )));
    };
    let namespace = match resource.namespaced {
        true => text(&body, "namespace"),
        false => "",
    };
    let target = target(resource, namespace, text(&body, "name"));
    let manager = Manager {
        name: "testkit".into(),
        operation: Operation::Update,
        api_version: resource.api_version(),
        subresource: String::new(),
    };
    admit(resource, &target.namespace, &mut body)?;
    set(&mut body, "resourceVersion", Value::Null);
    set(&mut body, "uid", Value::Null);
    let status = body.get("status").cloned();
    let written = store.transact(&resource.qualified_name(), false, |transaction| {
        let written = match transaction.get(&target.key()) {
            Some(existing) => replace(transaction, &target, &existing, body, &manager)?,
            None => insert(transaction, &target, body, &manager)?,
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
            name: text(&with_status, "name").into(),
            ..target.clone()
        };
        replace(transaction, &target, &written.object, with_status, &manager)
    })?;
    Ok(written.object.value.clone())
}

/// [`Store::delete`].
pub(crate) fn delete(
    store: &Store,
    registry: &Registry,
    resource: &str,
    namespace: &str,
    name: &str,
) -> Result<(), Refusal> {
    let Some(resource) = registry.by_qualified_name(resource) else {
        return Err(Refusal::bad_request(format!("no resource {resource}")));
    };
    let target = target(resource, namespace, name);
    crate::delete::delete(store, &target, &DeleteOptions::default()).map(|_| ())
}

fn target(resource: &Arc<Resource>, namespace: &str, name: &str) -> Target {
    Target {
        resource: Arc::clone(resource),
        namespace: namespace.into(),
        name: name.into(),
        status: false,
    }
}
