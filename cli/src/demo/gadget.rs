//! Objects of the demo that nobody labels: gadgets, all in one namespace.

use ctrlmesh_testkit::Resource;
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::widget::{GROUP, VERSION, api_resource_of, resource_of};

pub(crate) const PLURAL: &str = "gadgets";
const KIND: &str = "Gadget";

/// The namespace of all gadgets, and of the pods whose controller handles them.
pub(crate) const GADGET_NAMESPACE: &str = "gadgets-system";

pub(crate) const GADGETS: u64 = 300;

/// The kind for the API server.
pub(crate) fn gadget_resource() -> Resource {
    resource_of(PLURAL, KIND)
}

/// The kind for clients.
pub(crate) fn api_resource() -> ApiResource {
    api_resource_of(PLURAL, KIND)
}

/// The gadgets as resources of a root.
pub(crate) fn relate_resources() -> Value {
    json!([{ "apiGroups": [GROUP], "resources": [PLURAL] }])
}

/// All gadgets, as somebody creates them.
pub(crate) fn gadget_objects() -> impl Iterator<Item = Value> {
    (0..GADGETS).map(|number| {
        json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": KIND,
            "metadata": { "namespace": GADGET_NAMESPACE, "name": format!("gadget-{number:03}") },
            "spec": { "size": 1 },
        })
    })
}

/// Plural name and group: the key under which the API server stores gadgets.
pub(crate) fn qualified_name() -> String {
    gadget_resource().qualified_name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::widget::kinds_to_label;

    #[test]
    fn gadgets_have_no_labels_and_manager_adds_none() {
        for gadget in gadget_objects() {
            assert_eq!(gadget["metadata"].get("labels"), None);
        }
        let labelled = kinds_to_label("ctrlmesh")["data"].to_string();
        assert!(labelled.contains("Widget") && !labelled.contains(KIND), "{labelled}");
    }
}
