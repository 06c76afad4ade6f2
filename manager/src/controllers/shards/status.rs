//! Writes a root's status about its shards: `status.root` and the condition `Sharded`. Distribution writes all other fields of the
//! same status, under another field manager.

use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::document::text_at;
use ctrlmesh_manager_api::status::{Condition, ConditionDraft, condition, stored_condition};
use kube::Client;
use kube::core::ApiResource;
use serde_json::{Map, Value, json};

use crate::cluster::status::{StatusPatch, patch_status};

/// Field manager of these fields.
const FIELD_MANAGER: &str = "ctrlmesh-manager-shards";

/// Whether the status has ever reported shards.
pub(super) fn has_status(document: &Value) -> bool {
    stored_of(document, condition::SHARDED).is_some() || !created_shards(document).is_empty()
}

/// Writes the root's status if it differs.
///
/// # Errors
/// The API server refuses the write.
pub(super) async fn write_root_status(
    client: &Client,
    document: &Value,
    draft: Option<&ConditionDraft>,
    names: Option<&[String]>,
    now: &str,
) -> Result<(), kube::Error> {
    let before = created_shards(document);
    let names = names.unwrap_or(&before);
    let stored = stored_of(document, condition::SHARDED);
    let condition = draft.map(|draft| condition_of(document, draft, now));
    if condition == stored && names == before {
        return Ok(());
    }
    if names.is_empty() && !before.is_empty() {
        // The field may also belong to KusionStack's field manager, so giving up our own share would not remove it.
        patch_config(client, document, StatusPatch::Remove { field: "root" }).await?;
    }
    let mut status = Map::new();
    if !names.is_empty() {
        status.insert("root".to_owned(), json!({ "childShardingConfigs": names }));
    }
    status.insert("conditions".to_owned(), json!(Vec::from_iter(condition)));
    let patch = StatusPatch::Apply {
        field_manager: FIELD_MANAGER,
        status: Value::Object(status),
    };
    patch_config(client, document, patch).await
}

/// Patches the status of a ShardingConfig.
///
/// # Errors
/// The API server refuses the write.
pub(super) async fn patch_config(client: &Client, document: &Value, patch: StatusPatch<'_>) -> Result<(), kube::Error> {
    let kind = ApiResource::erase::<ShardingConfig>(&());
    let (namespace, name) = (
        text_at(document, "/metadata/namespace"),
        text_at(document, "/metadata/name"),
    );
    patch_status(client, &kind, Some(namespace), name, patch)
        .await
        .map(drop)
}

/// The condition of an object. If its status is unchanged, so is the time of the last transition.
pub(super) fn condition_of(document: &Value, draft: &ConditionDraft, now: &str) -> Condition {
    let generation = document.pointer("/metadata/generation").and_then(Value::as_i64);
    draft
        .clone()
        .into_condition(stored_of(document, draft.kind), generation, now)
}

/// The stored condition of a type.
pub(super) fn stored_of(document: &Value, kind: &str) -> Option<Condition> {
    stored_condition(document.get("status")?, kind)
}

fn created_shards(document: &Value) -> Vec<String> {
    let list = document
        .pointer("/status/root/childShardingConfigs")
        .and_then(Value::as_array);
    let names = list.into_iter().flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}
