//! Containers that an earlier call of this webhook injected: API servers call again after another webhook has changed the pod
//! (`reinvocationPolicy: IfNeeded`).
//!
//! Nobody can tell a pod that was injected a moment ago from one whose author has written annotation `injected` and containers of
//! our names. So nothing of them is trusted: image, command, arguments, variables, mounts and rights are built again from the manager's
//! settings. What stays is how much the containers may use, which a pod may say by annotation anyway.

use std::mem;

use ctrlmesh_contract::names::pod;

use super::pod::Container;

/// The one field that another webhook may change, and keep: it says nothing about what runs, or as whom.
const RESOURCES: &str = "resources";

#[derive(Debug, Default)]
pub(super) struct PreviousContainers(Vec<Container>);

impl PreviousContainers {
    /// Takes ours out of a list.
    pub(super) fn take(&mut self, list: &mut Vec<Container>) {
        let is_ours = |container: &Container| [pod::SIDECAR, pod::INIT].contains(&container.name());
        let (ours, others) = mem::take(list).into_iter().partition(is_ours);
        *list = others;
        self.0.extend::<Vec<_>>(ours);
    }

    /// Gives a container that is made anew the resources that others have set in it.
    pub(super) fn carry_over(&self, container: &mut Container) {
        let before = self.0.iter().find(|it| it.name() == container.name());
        let resources = before.and_then(|before| before.0.get(RESOURCES)?.as_object());
        // API servers fill `resources: {}` in where nobody has said any.
        if let Some(resources) = resources.filter(|it| !it.is_empty()) {
            let fields = resources
                .iter()
                .filter(|(field, _)| matches!(field.as_str(), "requests" | "limits"));
            let fields = fields.map(|(field, value)| (field.clone(), value.clone())).collect();
            container
                .0
                .insert(RESOURCES.to_owned(), serde_json::Value::Object(fields));
        }
    }
}
