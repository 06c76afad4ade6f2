//! Create, update, patch and delete: what a write changes, what it may not change, and when it is rejected (apiserver
//! `pkg/registry/generic/registry/store.go` and `pkg/registry/rest`). Each runs as one transaction of the store.

use std::sync::Arc;

use serde_json::Value;

use crate::admit::{admit_object, check_name, expect_name, is_unchanged, spec_differs};
use crate::apply::merge_applied;
use crate::managed::{self, FieldManager, Operation};
use crate::object::{
    self, Key, Object, copy_metadata, finalizers, generated_name, generation, is_deleting, metadata_text, set_metadata,
};
use crate::patch::Patch;
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::store::{Store, Transaction};

/// How often a generated name is retried if it is taken; upstream's number.
const GENERATED_NAME_TRIES: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether the path ends in `/status`.
    pub(crate) status: bool,
}

impl Target {
    pub(crate) fn key(&self) -> Key {
        let namespace = if self.resource.namespaced {
            self.namespace.as_str()
        } else {
            ""
        };
        Key::new(namespace, &self.name)
    }

    fn ignores_status(&self) -> bool {
        self.resource.status && !self.status
    }
}

#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    /// Field manager of the written fields.
    pub(crate) field_manager: String,
    /// Server-side apply: take over fields of other managers.
    pub(crate) force: bool,
}

impl WriteOptions {
    fn field_manager(&self, target: &Target, operation: Operation) -> FieldManager {
        FieldManager {
            name: self.field_manager.clone(),
            operation,
            api_version: target.resource.api_version(),
            subresource: if target.status { "status".into() } else { String::new() },
        }
    }
}

#[derive(Debug)]
pub(crate) struct WriteResult {
    pub(crate) object: Arc<Object>,
    pub(crate) created: bool,
}

/// `POST` to a collection.
pub(crate) fn create_object(
    store: &Store,
    target: &Target,
    mut body: Value,
    options: &WriteOptions,
) -> Result<WriteResult, Refusal> {
    admit_object(&target.resource, &target.namespace, &mut body)?;
    let generate = metadata_text(&body, "name").is_empty() && !metadata_text(&body, "generateName").is_empty();
    store.run_transaction(&target.resource.qualified_name(), options.dry_run, |transaction| {
        for _ in 1..GENERATED_NAME_TRIES {
            if generate {
                let name = generated_name(metadata_text(&body, "generateName"));
                set_metadata(&mut body, "name", name.into());
            }
            let taken = transaction.get(&Key::of_object(&body)).is_some();
            if !(generate && taken) {
                break;
            }
        }
        insert_object(
            transaction,
            target,
            body,
            &options.field_manager(target, Operation::Update),
        )
    })
}

/// Stores a new object. Its fields are owned by `manager`, unless it was applied and already has owners.
pub(crate) fn insert_object(
    transaction: &mut Transaction<'_>,
    target: &Target,
    mut body: Value,
    manager: &FieldManager,
) -> Result<WriteResult, Refusal> {
    let resource = &target.resource;
    check_name(resource, &body)?;
    let key = Key::of_object(&body);
    if resource.namespaced && !transaction.object_exists("namespaces", &Key::new("", &target.namespace)) {
        let message = format!("namespaces \"{}\" not found", target.namespace);
        return Err(Refusal::new(http::StatusCode::NOT_FOUND, "NotFound", message));
    }
    if transaction.get(&key).is_some() {
        return Err(Refusal::already_exists(resource, &key.name));
    }
    if !matches!(metadata_text(&body, "resourceVersion"), "" | "0") {
        return Err(Refusal::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    if resource.status
        && let Some(fields) = body.as_object_mut()
    {
        fields.remove("status");
    }
    for (field, value) in [
        ("uid", object::new_uid().into()),
        ("creationTimestamp", object::now_rfc3339().into()),
        ("generation", if resource.generation { 1.into() } else { Value::Null }),
        ("deletionTimestamp", Value::Null),
        ("deletionGracePeriodSeconds", Value::Null),
        ("resourceVersion", Value::Null),
        ("selfLink", Value::Null),
    ] {
        set_metadata(&mut body, field, value);
    }
    if manager.operation == Operation::Update {
        managed::record_update(None, &mut body, manager, &object::now_rfc3339());
    }
    Ok(WriteResult {
        object: transaction.put(key, body),
        created: true,
    })
}

/// `PUT` to an object or its status.
pub(crate) fn update_object(
    store: &Store,
    target: &Target,
    mut body: Value,
    options: &WriteOptions,
) -> Result<WriteResult, Refusal> {
    let resource = &target.resource;
    admit_object(resource, &target.namespace, &mut body)?;
    expect_name(&target.name, &mut body)?;
    store.run_transaction(&resource.qualified_name(), options.dry_run, |transaction| {
        let Some(existing) = transaction.get(&target.key()) else {
            let may_create = resource.create_on_update && !target.status && metadata_text(&body, "uid").is_empty();
            if !may_create {
                return Err(Refusal::not_found(resource, &target.name));
            }
            set_metadata(&mut body, "resourceVersion", Value::Null);
            return insert_object(
                transaction,
                target,
                body,
                &options.field_manager(target, Operation::Update),
            );
        };
        if metadata_text(&body, "resourceVersion").is_empty() && !resource.unconditional_update && !target.status {
            let problem = "Invalid value: 0x0: must be specified for an update";
            return Err(Refusal::invalid(
                resource,
                &target.name,
                "metadata.resourceVersion",
                problem,
            ));
        }
        replace_object(
            transaction,
            target,
            &existing,
            body,
            &options.field_manager(target, Operation::Update),
        )
    })
}

/// `PATCH` of an object or its status.
pub(crate) fn patch_object(
    store: &Store,
    target: &Target,
    patch: &Patch,
    options: &WriteOptions,
) -> Result<WriteResult, Refusal> {
    let resource = &target.resource;
    store.run_transaction(&resource.qualified_name(), options.dry_run, |transaction| {
        let existing = transaction.get(&target.key());
        let config = match (patch, &existing) {
            (Patch::Apply(config), _) => config,
            (_, None) => return Err(Refusal::not_found(resource, &target.name)),
            (patch, Some(existing)) => {
                let mut patched = patch.apply_to(&existing.value)?;
                admit_object(resource, &target.namespace, &mut patched)?;
                expect_name(&target.name, &mut patched)?;
                return replace_object(
                    transaction,
                    target,
                    existing,
                    patched,
                    &options.field_manager(target, Operation::Update),
                );
            }
        };
        let manager = options.field_manager(target, Operation::Apply);
        apply_config(
            transaction,
            target,
            existing.as_ref(),
            config.clone(),
            &manager,
            options.force,
        )
    })
}

fn apply_config(
    transaction: &mut Transaction<'_>,
    target: &Target,
    existing: Option<&Arc<Object>>,
    mut config: Value,
    manager: &FieldManager,
    force: bool,
) -> Result<WriteResult, Refusal> {
    let resource = &target.resource;
    for field in ["apiVersion", "kind"] {
        if config.get(field).is_none() {
            return Err(Refusal::bad_request(format!("an applied object must name its {field}")));
        }
    }
    admit_object(resource, &target.namespace, &mut config)?;
    expect_name(&target.name, &mut config)?;
    if object::metadata(&config).is_some_and(|metadata| metadata.contains_key("managedFields")) {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    restrict_to_path(target, &mut config);
    let live = match existing {
        Some(existing) => existing.value.clone(),
        None if target.status => return Err(Refusal::not_found(resource, &target.name)),
        None => Value::Object(serde_json::Map::new()),
    };
    let merged = merge_applied(&live, &config, manager, force)
        .map_err(|causes| Refusal::apply_conflict(resource, &target.name, causes))?;
    match existing {
        Some(existing) => replace_object(transaction, target, existing, merged, manager),
        None if !metadata_text(&config, "uid").is_empty() => {
            let why = format!(
                "uid mismatch: the provided object specified uid {}, and no existing object was found",
                metadata_text(&config, "uid")
            );
            Err(Refusal::conflict(resource, &target.name, &why))
        }
        None => insert_object(transaction, target, merged, manager),
    }
}

/// Removes from an applied configuration what the path may not write, so that it is not owned either.
fn restrict_to_path(target: &Target, config: &mut Value) {
    let Some(fields) = config.as_object_mut() else { return };
    if target.status {
        fields.retain(|field, _| matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|field, _| matches!(field.as_str(), "name" | "namespace" | "uid" | "resourceVersion"));
        }
    } else if target.ignores_status() {
        fields.remove("status");
    }
}

/// Replaces `existing` by the writable part of `body`. Without a change, nothing is written.
pub(crate) fn replace_object(
    transaction: &mut Transaction<'_>,
    target: &Target,
    existing: &Arc<Object>,
    body: Value,
    manager: &FieldManager,
) -> Result<WriteResult, Refusal> {
    let (resource, old) = (&target.resource, &existing.value);
    check_versions(target, existing, &body)?;
    let mut new = permitted_value(target, old, body);
    check_finalizers(target, old, &new)?;
    if resource.generation && spec_differs(old, &new, resource.status) {
        set_metadata(&mut new, "generation", (generation(old) + 1).into());
    }
    if manager.operation == Operation::Update {
        managed::record_update(Some(old), &mut new, manager, &object::now_rfc3339());
    }
    let object = if is_deleting(&new) && finalizers(&new).is_empty() {
        transaction.remove(target.key(), new)
    } else if is_unchanged(old, &new) {
        Arc::clone(existing)
    } else {
        transaction.put(target.key(), new)
    };
    Ok(WriteResult { object, created: false })
}

/// Rejects a write that is meant for another object of this name, or for an older state of it.
fn check_versions(target: &Target, existing: &Object, body: &Value) -> Result<(), Refusal> {
    let (uid, version) = (metadata_text(body, "uid"), metadata_text(body, "resourceVersion"));
    let known = metadata_text(&existing.value, "uid");
    if !uid.is_empty() && uid != known {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {known}");
        return Err(Refusal::conflict(&target.resource, &target.name, &why));
    }
    if !matches!(version, "" | "0") && version != existing.resource_version.to_string() {
        return Err(Refusal::modified(&target.resource, &target.name));
    }
    Ok(())
}

/// Rejects new finalizers on an object that is being deleted.
fn check_finalizers(target: &Target, old: &Value, new: &Value) -> Result<(), Refusal> {
    let known = finalizers(old);
    let mut added = finalizers(new)
        .into_iter()
        .filter(|finalizer| !known.contains(finalizer));
    match added.next() {
        Some(added) if is_deleting(old) => {
            let problem = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
                 []string{{\"{added}\"}}"
            );
            Err(Refusal::invalid(
                &target.resource,
                &target.name,
                "metadata.finalizers",
                &problem,
            ))
        }
        _ => Ok(()),
    }
}

/// `body` with the parts that the path may not write taken from `old`.
fn permitted_value(target: &Target, old: &Value, body: Value) -> Value {
    let mut new = if target.status { old.clone() } else { body.clone() };
    if target.status || target.ignores_status() {
        let source = if target.status { &body } else { old };
        let status = source.get("status").cloned();
        if let Some(fields) = new.as_object_mut() {
            match status {
                Some(status) => fields.insert("status".into(), status),
                None => fields.remove("status"),
            };
        }
    }
    if target.status {
        copy_metadata(&body, &mut new, "managedFields");
    }
    for field in [
        "uid",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "resourceVersion",
    ] {
        copy_metadata(old, &mut new, field);
    }
    new
}
