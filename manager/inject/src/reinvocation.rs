//! Containers that an earlier call of this webhook injected: API servers call again after another webhook has changed the pod
//! (`reinvocationPolicy: IfNeeded`).
//!
//! A pod that was injected a moment ago looks like one whose author has written annotation `injected` and containers of our names.
//! So nothing of these containers is trusted: image, command, arguments, variables, mounts and rights are rebuilt from the
//! manager's settings. Only their resources are kept, which a pod may set by annotation anyway.

use std::mem;

use ctrlmesh_contract::names::pod;

use super::pod::Container;

/// The only field whose changes by other webhooks are kept: it does not decide what runs, or as which user.
const RESOURCES: &str = "resources";

#[derive(Debug, Default)]
pub(super) struct PreviousContainers(Vec<Container>);

impl PreviousContainers {
    /// Removes the injected containers from a list and remembers them.
    pub(super) fn take(&mut self, list: &mut Vec<Container>) {
        let is_ours = |container: &Container| [pod::SIDECAR, pod::INIT].contains(&container.name());
        let (ours, others) = mem::take(list).into_iter().partition(is_ours);
        *list = others;
        self.0.extend::<Vec<_>>(ours);
    }

    /// Copies the resources that others have set in the earlier container.
    pub(super) fn carry_over(&self, container: &mut Container) {
        let before = self.0.iter().find(|it| it.name() == container.name());
        let resources = before.and_then(|before| before.0.get(RESOURCES)?.as_object());
        // API servers set `resources: {}` if there are none.
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
