//! Containers of ours that a pod has already: it is injected once more, because another webhook has changed it since.
//!
//! Kept is what such webhooks are for: another image (a mirror of the registry), its pull policy, resources, variables and mounts of
//! theirs, fields that we do not set. All else is made anew.

use std::mem;

use ctrlmesh_contract::names::pod;

use super::pod::{Container, name_of};
use super::volumes;

/// Set by us, and theirs to change.
const THEIRS: [&str; 3] = ["image", "imagePullPolicy", "resources"];
/// Of ours, though a container may do without: its shape in the pod decides.
const OURS: [&str; 2] = ["restartPolicy", "startupProbe"];

/// What was there.
#[derive(Debug, Default)]
pub(super) struct Before(Vec<Container>);

impl Before {
    /// Takes ours out of a list.
    pub(super) fn take(&mut self, list: &mut Vec<Container>) {
        let is_ours = |container: &Container| [pod::SIDECAR, pod::INIT].contains(&container.name());
        let (ours, others) = mem::take(list).into_iter().partition(is_ours);
        *list = others;
        self.0.extend::<Vec<_>>(ours);
    }

    /// Gives a container that is made anew what others have changed in it.
    pub(super) fn carry_over(&self, container: &mut Container) {
        let Some(before) = self.0.iter().find(|it| it.name() == container.name()) else {
            return;
        };
        for variable in before.items("env").iter().filter(|it| !is_our_variable(name_of(it))) {
            if container.variable(name_of(variable)).is_none() {
                container.set_variable(variable.clone());
            }
        }
        let mounts = before.items("volumeMounts").iter();
        for mount in mounts.filter(|it| !volumes::NAMES.contains(&name_of(it))) {
            container.mount(mount.clone());
        }
        for (field, value) in &before.0 {
            let is_new = !container.0.contains_key(field) && !OURS.contains(&field.as_str());
            // API servers fill `resources: {}` in where nobody has said any.
            let is_said = value.as_object().is_none_or(|fields| !fields.is_empty());
            if is_new || is_said && THEIRS.contains(&field.as_str()) {
                container.0.insert(field.clone(), value.clone());
            }
        }
    }
}

/// One that was ours then need not be so now.
fn is_our_variable(name: &str) -> bool {
    name.starts_with("CTRLMESH_")
}
