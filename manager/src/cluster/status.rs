//! The one function that patches the status of custom resources. Controllers share objects: [`StatusPatch`] says which fields
//! of a status a controller owns.

use ctrlmesh_manager_api::status::timestamp;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};

/// A change of a status.
#[derive(Debug)]
pub(crate) enum StatusPatch<'a> {
    /// Replaces these fields of the version that was read; 409 if another writer has changed the object since.
    Replace { version: Option<&'a Value>, status: Value },
    /// Makes these fields, and no others, the ones of a field manager.
    Apply { field_manager: &'a str, status: Value },
    /// Replaces these fields, even if somebody else has changed the object since.
    Overwrite { status: Value },
    /// Removes a field, whichever field managers own it.
    Remove { field: &'a str },
}

/// The time now, as an API server writes it.
pub(crate) fn timestamp_now() -> String {
    timestamp(Timestamp::now())
}

/// Patches the status of an object, and returns the object. `namespace`: `None` for kinds of the whole cluster.
///
/// # Errors
/// The API server's error.
pub(crate) async fn patch_status(
    client: &Client,
    kind: &ApiResource,
    namespace: Option<&str>,
    name: &str,
    patch: StatusPatch<'_>,
) -> Result<DynamicObject, kube::Error> {
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    };
    let (params, patch) = match patch {
        StatusPatch::Replace { version, status } => {
            let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
            (super::patch_params(), Patch::Merge(patch))
        }
        StatusPatch::Apply { field_manager, status } => {
            let patch = json!({
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "metadata": { "name": name, "namespace": namespace },
                "status": status,
            });
            (PatchParams::apply(field_manager).force(), Patch::Apply(patch))
        }
        StatusPatch::Overwrite { status } => (super::patch_params(), Patch::Merge(json!({ "status": status }))),
        StatusPatch::Remove { field } => (
            PatchParams::default(),
            Patch::Merge(json!({ "status": { field: null } })),
        ),
    };
    api.patch_status(name, &params, &patch).await
}
