//! Deletion: options, preconditions, and finalizers (apiserver `pkg/registry/rest/delete.go`). There is no garbage collector and no
//! namespace controller; deletions that need one are rejected.

use std::sync::Arc;

use ctrlmesh_wire::Query;
use serde_json::Value;

use crate::object::{self, Object, finalizers, generation, is_deleting, metadata_text, set_metadata};
use crate::refusal::Refusal;
use crate::store::Store;
use crate::write::Target;

/// The supported fields of `DeleteOptions`.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) dry_run: bool,
    /// `preconditions.uid`
    pub(crate) uid: Option<String>,
    /// `preconditions.resourceVersion`
    pub(crate) resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the options from the body, or from the query if there is none, as the real server does. Ignores `gracePeriodSeconds`:
    /// nothing here needs a grace period.
    pub(crate) fn from_request(query: &Query<'_>, body: Option<&Value>) -> Result<Self, Refusal> {
        let Some(options) = body else {
            check_propagation(
                query.get("propagationPolicy").as_deref(),
                query.get("orphanDependents").as_deref(),
            )?;
            return Ok(Self {
                dry_run: is_dry_run(query.get("dryRun").as_deref())?,
                ..Self::default()
            });
        };
        let field = |field: &str| options.get(field).and_then(Value::as_str);
        let orphan = options
            .get("orphanDependents")
            .and_then(Value::as_bool)
            .map(|orphan| orphan.to_string());
        check_propagation(field("propagationPolicy"), orphan.as_deref())?;
        // The query is then ignored.
        let mut dry_run = false;
        for stage in options.get("dryRun").and_then(Value::as_array).into_iter().flatten() {
            dry_run |= is_dry_run(stage.as_str())?;
        }
        let precondition = |field: &str| options.get("preconditions")?.get(field)?.as_str().map(str::to_owned);
        Ok(Self {
            dry_run,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        })
    }
}

pub(crate) fn is_dry_run(stage: Option<&str>) -> Result<bool, Refusal> {
    match stage {
        None | Some("") => Ok(false),
        Some("All") => Ok(true),
        Some(other) => Err(Refusal::bad_request(format!(
            "dryRun: Unsupported value: \"{other}\": supported values: \"All\""
        ))),
    }
}

fn check_propagation(policy: Option<&str>, orphan: Option<&str>) -> Result<(), Refusal> {
    match (policy, orphan) {
        (None | Some("" | "Background"), None | Some("" | "false")) => Ok(()),
        _ => Err(Refusal::not_implemented(
            "foreground or orphaning deletion: it has no garbage collector",
        )),
    }
}

#[derive(Debug)]
pub(crate) enum DeleteOutcome {
    /// The object is gone. Holds its last state.
    Gone(Arc<Object>),
    /// The object waits for its finalizers.
    Waiting(Arc<Object>),
}

pub(crate) fn delete_object(store: &Store, target: &Target, options: &DeleteOptions) -> Result<DeleteOutcome, Refusal> {
    let (resource, name) = (&target.resource, target.name.as_str());
    store.run_transaction(&resource.qualified_name(), options.dry_run, |transaction| {
        let Some(existing) = transaction.get(&target.key()) else {
            return Err(Refusal::not_found(resource, name));
        };
        check_preconditions(target, &existing, options)?;
        if resource.plural == "namespaces" && transaction.is_populated(name) {
            let what = "deleting a namespace that holds objects: it has no namespace controller; delete them first";
            return Err(Refusal::not_implemented(what));
        }
        if finalizers(&existing.value).is_empty() {
            return Ok(DeleteOutcome::Gone(
                transaction.remove(target.key(), existing.value.clone()),
            ));
        }
        if is_deleting(&existing.value) {
            return Ok(DeleteOutcome::Waiting(existing));
        }
        let mut waiting = existing.value.clone();
        set_metadata(&mut waiting, "deletionTimestamp", object::now_rfc3339().into());
        set_metadata(&mut waiting, "deletionGracePeriodSeconds", 0.into());
        if resource.generation {
            set_metadata(&mut waiting, "generation", (generation(&existing.value) + 1).into());
        }
        Ok(DeleteOutcome::Waiting(transaction.put(target.key(), waiting)))
    })
}

fn check_preconditions(target: &Target, existing: &Object, options: &DeleteOptions) -> Result<(), Refusal> {
    let uid = metadata_text(&existing.value, "uid");
    if let Some(expected) = options.uid.as_deref().filter(|expected| *expected != uid) {
        let why = format!("Precondition failed: UID in precondition: {expected}, UID in object meta: {uid}");
        return Err(Refusal::conflict(&target.resource, &target.name, &why));
    }
    let version = existing.resource_version.to_string();
    if let Some(expected) = options
        .resource_version
        .as_deref()
        .filter(|expected| *expected != version)
    {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {expected}, ResourceVersion in object meta: {version}"
        );
        return Err(Refusal::conflict(&target.resource, &target.name, &why));
    }
    Ok(())
}
