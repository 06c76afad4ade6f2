//! The demo's objects and their namespaces.

use std::fmt;

use ctrlmesh_testkit::Resource;
use kube::core::{ApiResource, Object};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) const GROUP: &str = "demo.ctrlmesh.kusionstack.io";
pub(crate) const VERSION: &str = "v1";
pub(crate) const PLURAL: &str = "widgets";
const KIND: &str = "Widget";

/// Hashes of these namespaces differ, so that each namespace can move alone.
pub(crate) const NAMESPACES: [&str; 8] = [
    "billing", "catalog", "checkout", "delivery", "fraud", "identity", "orders", "payouts",
];

pub(crate) const WIDGETS_PER_NAMESPACE: usize = 25;

/// All widgets: 200.
pub(crate) const WIDGETS: u64 = (NAMESPACES.len() * WIDGETS_PER_NAMESPACE) as u64;

/// A widget; its controller records in the status that it handled it.
pub(crate) type Widget = Object<WidgetSpec, WidgetStatus>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WidgetSpec {
    /// The user changes it all the time, to make work.
    pub(crate) size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WidgetStatus {
    /// Name of the replica that handled it last.
    pub(crate) handled_by: String,
    /// `metadata.generation` that was handled.
    pub(crate) observed_generation: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WidgetKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl WidgetKey {
    pub(crate) fn of_widget(widget: &Widget) -> Self {
        Self {
            namespace: widget.metadata.namespace.clone().unwrap_or_default(),
            name: widget.metadata.name.clone().unwrap_or_default(),
        }
    }

    pub(crate) fn all_keys() -> impl Iterator<Item = Self> {
        NAMESPACES.iter().flat_map(|namespace| {
            (0..WIDGETS_PER_NAMESPACE).map(move |number| Self {
                namespace: (*namespace).to_owned(),
                name: format!("widget-{number:02}"),
            })
        })
    }
}

impl fmt::Display for WidgetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The kind for the API server.
pub(crate) fn widget_resource() -> Resource {
    resource_of(PLURAL, KIND)
}

/// A kind of the demo for the API server.
pub(super) fn resource_of(plural: &str, kind: &str) -> Resource {
    Resource::namespaced(GROUP, VERSION, plural, kind).with_status()
}

/// The kind for clients.
pub(crate) fn api_resource() -> ApiResource {
    api_resource_of(PLURAL, KIND)
}

/// A kind of the demo for clients.
pub(super) fn api_resource_of(plural: &str, kind: &str) -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// The widgets as resources of a `ShardingConfig`'s limit.
pub(crate) fn relate_resources() -> Value {
    json!([{ "apiGroups": [GROUP], "resources": [PLURAL] }])
}

/// A namespace without labels; the manager adds them.
pub(crate) fn namespace_object(namespace: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })
}

/// A new widget without labels; the manager adds them.
pub(crate) fn widget_object(key: &WidgetKey) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": { "namespace": key.namespace, "name": key.name },
        "spec": { "size": 1 },
    })
}

/// The ConfigMap that tells the manager to label widgets.
pub(crate) fn kinds_to_label(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "namespace": namespace, "name": "ctrlmesh-sharding-resource" },
        "data": { "resource-config": format!("groupVersionKinds: {{{GROUP}/{VERSION}: [{KIND}]}}\n") },
    })
}

/// Plural name and group: the key under which the API server stores widgets.
pub(crate) fn qualified_name() -> String {
    widget_resource().qualified_name()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ctrlmesh_manager_planner::labels::kinds::SelectedKinds;
    use ctrlmesh_manager_planner::shard_hash;

    use super::*;

    #[test]
    fn namespace_can_move_alone() {
        let hashes: BTreeSet<_> = NAMESPACES.iter().map(|namespace| shard_hash(namespace)).collect();
        assert_eq!(hashes.len(), NAMESPACES.len());
    }

    #[test]
    fn widget_keys_number_200() {
        assert_eq!(WidgetKey::all_keys().count(), 200);
    }

    #[test]
    fn kinds_to_label_lists_widgets() {
        let data = serde_json::from_value(kinds_to_label("ctrlmesh")["data"].clone()).unwrap();
        let desired = SelectedKinds::read(&data).unwrap();
        assert_eq!(
            desired.group_versions().collect::<Vec<_>>(),
            [format!("{GROUP}/{VERSION}")]
        );
    }
}
