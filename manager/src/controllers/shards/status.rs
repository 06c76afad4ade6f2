//! Writes a root's status about its shards: `status.root` and the condition `Sharded`. Distribution writes all other fields of the
//! same status, under another field manager.

use ctrlmesh_manager_api::status::{Condition, ConditionStatus, condition};
use ctrlmesh_manager_api::{API_VERSION, ShardingConfig};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use super::plan::text;

/// Field manager of these fields.
const FIELD_MANAGER: &str = "ctrlmesh-manager-shards";

/// Status, reason and message of the condition.
pub(super) type Said = (ConditionStatus, &'static str, String);

/// Whether the status has ever reported shards.
pub(super) fn has_status(document: &Value) -> bool {
    stored_condition(document, condition::SHARDED).is_some() || !created_shards(document).is_empty()
}

/// Writes the root's status if it differs.
///
/// # Errors
/// The API server refuses the write.
pub(super) async fn patch_status(
    client: &Client,
    document: &Value,
    said: Option<&Said>,
    names: Option<&[String]>,
    now: &str,
) -> Result<(), kube::Error> {
    let before = created_shards(document);
    let names = names.unwrap_or(&before);
    let condition = said.map(|said| condition_of(document, condition::SHARDED, said, now));
    if condition == stored_condition(document, condition::SHARDED) && names == before {
        return Ok(());
    }
    let (namespace, name) = (text(document, "/metadata/namespace"), text(document, "/metadata/name"));
    let kind = ApiResource::erase::<ShardingConfig>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    if names.is_empty() && !before.is_empty() {
        // The field may also belong to KusionStack's field manager, so giving up our own share would not remove it.
        let nothing = json!({ "status": { "root": null } });
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&nothing))
            .await?;
    }
    let mut status = Map::new();
    if !names.is_empty() {
        status.insert("root".to_owned(), json!({ "childShardingConfigs": names }));
    }
    status.insert("conditions".to_owned(), json!(Vec::from_iter(condition)));
    let apply = json!({
        "apiVersion": API_VERSION,
        "kind": "ShardingConfig",
        "metadata": { "name": name, "namespace": namespace },
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch_status(name, &params, &Patch::Apply(&apply)).await?;
    Ok(())
}

/// A condition. If its status is unchanged, so is the time of the last transition.
pub(super) fn condition_of(document: &Value, kind: &str, (status, reason, message): &Said, now: &str) -> Condition {
    let before = stored_condition(document, kind).filter(|before| before.status == *status);
    Condition {
        kind: kind.to_owned(),
        status: *status,
        reason: (*reason).to_owned(),
        message: message.clone(),
        last_transition_time: before.map_or_else(|| now.to_owned(), |before| before.last_transition_time),
        observed_generation: document.pointer("/metadata/generation").and_then(Value::as_i64),
    }
}

/// The stored condition of a type.
pub(super) fn stored_condition(document: &Value, kind: &str) -> Option<Condition> {
    let list = document.pointer("/status/conditions")?.as_array()?.iter();
    list.filter_map(|condition| serde_json::from_value::<Condition>(condition.clone()).ok())
        .find(|condition| condition.kind == kind)
}

fn created_shards(document: &Value) -> Vec<String> {
    let list = document
        .pointer("/status/root/childShardingConfigs")
        .and_then(Value::as_array);
    let names = list.into_iter().flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}
