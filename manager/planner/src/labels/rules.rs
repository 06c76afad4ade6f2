//! Decides which labels a namespace and its objects carry. Webhooks and the back-fill use the same rules.
//!
//! A namespace is managed if its control label is `true`. Without the label it is managed unless it is one of Kubernetes' own
//! ([`EXCEPTED`]). A managed namespace and every object in it carry the hash bucket, the name and the control label. In any other
//! namespace no object carries one of the three, and the namespace keeps only the control label that a person wrote.
//!
//! Different from KusionStack: labels are removed when a namespace opts out (there they stayed, and objects stayed in their
//! shards); Kubernetes' own namespaces are excepted at admission, too, and `kube-node-lease` is one of them; an object gets the
//! labels that its namespace should carry, so that it does not have to wait until the namespace is labelled.

use std::collections::BTreeMap;

use ctrlmesh_manager_api::{FIELD_MANAGER, MANAGED_BY};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::auto_shard::LabelKeys;
use crate::shard_hash::shard_hash;

/// Namespaces that are managed only if somebody labels them `true`, because the objects in them keep a cluster running.
pub const EXCEPTED: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Our own API group. Its objects configure ctrlmesh and are not sharded, so they carry no labels.
pub const OWN_GROUP: &str = "ctrlmesh.kusionstack.io";

/// Value of the control label in managed namespaces.
const MANAGED: &str = "true";

/// Labels to set (a value) and to remove (`None`). Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes(BTreeMap<String, Option<String>>);

impl Changes {
    /// The difference between an object's labels and the desired ones; `None`: there is none.
    fn new(object: &ObjectMeta, desired: impl IntoIterator<Item = (String, Option<String>)>) -> Option<Self> {
        let differs = |(key, value): &(String, Option<String>)| label_value(object, key) != value.as_deref();
        let changes: BTreeMap<_, _> = desired.into_iter().filter(differs).collect();
        (!changes.is_empty()).then_some(Self(changes))
    }

    /// Changes that give any object of a namespace the right labels, whatever labels it has.
    #[must_use]
    pub fn all_changes(namespace: &str, is_managed: bool, is_ours: bool, keys: &LabelKeys) -> Self {
        Self(desired_labels_of_object(namespace, is_managed, is_ours, keys).into())
    }

    /// Changes by key, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_deref()))
    }

    /// As a JSON merge patch (RFC 7386) of the object: `null` removes a label.
    #[must_use]
    pub fn merge_patch(&self) -> Value {
        json!({ "metadata": { "labels": self.0 } })
    }

    /// As [`Self::merge_patch`], but the API server answers with a conflict if the object has another version.
    #[must_use]
    pub fn merge_patch_at(&self, version: Option<&str>) -> Value {
        json!({ "metadata": { "labels": self.0, "resourceVersion": version } })
    }

    /// As operations of a JSON patch (RFC 6902) for an object with these labels, which admission responses need.
    #[must_use]
    pub fn json_patch(&self, object: &ObjectMeta) -> Vec<Value> {
        let Some(labels) = &object.labels else {
            let values: BTreeMap<&str, &str> = self.iter().filter_map(|(key, value)| Some((key, value?))).collect();
            return vec![json!({ "op": "add", "path": "/metadata/labels", "value": values })];
        };
        let operation = |(key, value): (&str, Option<&str>)| {
            let path = format!("/metadata/labels/{}", key.replace('~', "~0").replace('/', "~1"));
            match value {
                Some(value) => json!({ "op": "add", "path": path, "value": value }),
                None => json!({ "op": "remove", "path": path }),
            }
        };
        debug_assert!(
            self.iter()
                .all(|(key, value)| value.is_some() || labels.contains_key(key))
        );
        self.iter().map(operation).collect()
    }
}

/// Whether the objects in a namespace are sharded.
#[must_use]
pub fn is_managed(namespace: &ObjectMeta, keys: &LabelKeys) -> bool {
    match label_value(namespace, &keys.control) {
        Some(control) => control == MANAGED,
        None => !EXCEPTED.contains(&object_name(namespace)),
    }
}

/// Changes for a namespace. A namespace whose name the API server is still to generate has no hash bucket; it is labelled by the
/// back-fill.
#[must_use]
pub fn patch_for_namespace(namespace: &ObjectMeta, keys: &LabelKeys) -> Option<Changes> {
    if object_name(namespace).is_empty() {
        return None;
    }
    if is_managed(namespace, keys) {
        return Changes::new(namespace, desired_labels(object_name(namespace), true, keys));
    }
    let gone = [&keys.shard_hash, &keys.namespace].map(|key| (key.clone(), None));
    Changes::new(namespace, gone)
}

/// Changes for an object in this namespace.
#[must_use]
pub fn patch_for_object(object: &ObjectMeta, namespace: &ObjectMeta, keys: &LabelKeys) -> Option<Changes> {
    patch_in(object, object_name(namespace), is_managed(namespace, keys), keys)
}

/// As [`patch_for_object`], for a namespace of which only the name is known and whether it is managed.
#[must_use]
pub fn patch_in(object: &ObjectMeta, namespace: &str, is_managed: bool, keys: &LabelKeys) -> Option<Changes> {
    Changes::new(
        object,
        desired_labels_of_object(namespace, is_managed, is_ours(object), keys),
    )
}

/// Whether the manager made an object for itself or for its sidecars.
pub fn is_ours(object: &ObjectMeta) -> bool {
    label_value(object, MANAGED_BY) == Some(FIELD_MANAGER)
}

/// The labels that an object in a namespace should have. The manager's own objects belong to no shard.
fn desired_labels_of_object(
    namespace: &str,
    is_managed: bool,
    is_ours: bool,
    keys: &LabelKeys,
) -> [(String, Option<String>); 3] {
    desired_labels(namespace, is_managed && !is_ours, keys)
}

fn desired_labels(namespace: &str, is_managed: bool, keys: &LabelKeys) -> [(String, Option<String>); 3] {
    let value = |value: String| is_managed.then_some(value);
    [
        (keys.shard_hash.clone(), value(shard_hash(namespace).to_string())),
        (keys.namespace.clone(), value(namespace.to_owned())),
        (keys.control.clone(), value(MANAGED.to_owned())),
    ]
}

fn object_name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

fn label_value<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests;
