//! Gives the sidecar a kubeconfig of the pod's own instead of the service account: label `kubeconfig-volume`.
//!
//! The volume names the file, or its source has one key, which the sidecar finds by itself. The manager reads neither ConfigMaps
//! nor Secrets for a pod, so that its responses reveal nothing of them.

use ctrlmesh_contract::names::labels;
use serde_json::{Map, Value, json};

use super::pod::Draft;
use super::refusal::Refusal;

/// The kubeconfig of the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Upstream {
    pub(super) volume: String,
    /// Path in the volume; `None`: the only file there.
    pub(super) file: Option<String>,
    /// The sidecar's own volume of the same source: files in the pod's volume may be readable by another user only.
    pub(super) own: Value,
}

/// Name of the sidecar's volume.
pub(super) const OWN: &str = "ctrlmesh-upstream";
/// Readable by all users, because only the sidecar's container mounts it.
const READABLE: u32 = 0o444;

pub(super) fn read_upstream(pod: &Draft) -> Result<Option<Upstream>, Refusal> {
    let wrong = |problem: String| Err(Refusal::key(labels::KUBECONFIG_VOLUME, problem));
    let Some(name) = pod
        .labels
        .get(labels::KUBECONFIG_VOLUME)
        .filter(|name| !name.is_empty())
    else {
        return Ok(None);
    };
    let Some(volume) = pod.find_volume(name) else {
        return wrong(format!("the pod has no volume {name}"));
    };
    if volume.get("configMap").or(volume.get("secret")).is_none() {
        return wrong(format!(
            "volume {name} is neither a ConfigMap nor a Secret; use one of these"
        ));
    }
    let listed: Vec<String> = ["configMap", "secret"]
        .iter()
        .flat_map(|kind| volume_items(volume, kind))
        .filter_map(|item| item.get("path")?.as_str().map(str::to_owned))
        .collect();
    let upstream = |file| Upstream {
        volume: name.clone(),
        file,
        own: own_copy(volume),
    };
    match <[String; 1]>::try_from(listed) {
        Ok([file]) => Ok(Some(upstream(Some(file)))),
        Err(files) if files.is_empty() => Ok(Some(upstream(None))),
        Err(files) => wrong(format!(
            "volume {name} has {} items, but only the kubeconfig may be in it; remove the other items",
            files.len()
        )),
    }
}

/// A copy of the volume under our name that every user in the container may read.
fn own_copy(volume: &Value) -> Value {
    let mut own = Map::from_iter([("name".to_owned(), json!(OWN))]);
    for kind in ["configMap", "secret"] {
        let Some(source) = volume.get(kind).and_then(Value::as_object) else {
            continue;
        };
        let mut source = source.clone();
        source.insert("defaultMode".to_owned(), json!(READABLE));
        let items = source.get_mut("items").and_then(Value::as_array_mut);
        for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
            item.remove("mode");
        }
        own.insert(kind.to_owned(), Value::Object(source));
    }
    Value::Object(own)
}

fn volume_items<'a>(volume: &'a Value, kind: &str) -> &'a [Value] {
    let items = volume.get(kind).and_then(|source| source.get("items"));
    items.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
