//! Shares a directory between all containers, by annotation: the volume that one of them mounts there, or a new one.

use ctrlmesh_contract::names::pod;
use serde_json::{Value, json};

use super::pod::{Draft, name_of};

/// Mounts the directory in all containers. Returns the sidecar's mount.
pub(super) fn mount_in_all_containers(draft: &mut Draft, path: &str) -> Value {
    let mounts = draft
        .containers
        .iter()
        .flat_map(|container| container.items("volumeMounts"));
    let is_there = |mount: &&Value| {
        let at = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        at.trim_end_matches('/') == path
    };
    let volume = mounts.into_iter().find(is_there).map(name_of);
    let volume = volume.unwrap_or(pod::SHARED_LOGS_VOLUME).to_owned();
    if draft.find_volume(&volume).is_none() {
        draft.volumes.push(json!({"name": volume, "emptyDir": {}}));
    }
    let mount = json!({"name": volume, "mountPath": path});
    for container in &mut draft.containers {
        let has_one = container.items("volumeMounts").iter().any(|it| is_there(&it));
        if !has_one {
            container.add_mount(mount.clone());
        }
    }
    mount
}
