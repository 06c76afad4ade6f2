//! Selects the kinds of objects that are labelled: a ConfigMap lists them, discovery resolves them.
//!
//! The form is KusionStack's, key `resource-config`:
//!
//! ```yaml
//! groupVersionKinds:
//!   v1: [Pod, Service, Endpoint]   # accepted for Endpoints: KusionStack's own list spells it so
//!   apps/v1: ["*"]                 # every kind that discovery finds
//! ```
//!
//! Only namespaced kinds count. Our own kinds ([`OWN_GROUP`]) are skipped, and so are Events under `*`: nobody shards them, and
//! each would cost a write.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube_core::GroupVersion;
use kube_core::discovery::{ApiResource, verbs};
use serde::Deserialize;

use super::rules::OWN_GROUP;

pub const CONFIG_KEY: &str = "resource-config";
/// Every kind of a group and version.
const ALL: &str = "*";
const EVENT: &str = "Event";

/// Why a ConfigMap can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("has no key {CONFIG_KEY}; write there groupVersionKinds, or delete the ConfigMap to have the default list")]
    NoKey,
    #[error("{CONFIG_KEY}: {0}; write groupVersionKinds: {{<group/version>: [<Kind>, ...]}}")]
    Unreadable(String),
    /// An invalid key of `groupVersionKinds`.
    #[error("{CONFIG_KEY}: {0:?} is no group and version; write v1 for the core group, or group/version")]
    GroupVersion(String),
    /// An invalid value of `groupVersionKinds`.
    #[error("{CONFIG_KEY}: {group_version}: {kind:?} is no kind; write its name as in `kind:`, or \"*\"")]
    Kind { group_version: String, kind: String },
}

/// The kinds that are to be labelled, whether the cluster has them or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedKinds {
    kinds: BTreeMap<String, Vec<String>>,
    /// The default list: kinds that the cluster does not have are not reported.
    is_default: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    group_version_kinds: BTreeMap<String, Vec<String>>,
}

impl Default for SelectedKinds {
    /// The kinds that KusionStack's chart labels.
    fn default() -> Self {
        let kinds: [(&str, &[&str]); 3] = [
            (
                "v1",
                &["Pod", "PersistentVolumeClaim", "Service", "ConfigMap", "Endpoints"],
            ),
            (
                "apps/v1",
                &["Deployment", "ReplicaSet", "StatefulSet", "ControllerRevision"],
            ),
            ("apps.kusionstack.io/v1alpha1", &[ALL]),
        ];
        let owned = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect();
        Self {
            kinds: kinds.map(|(version, kinds)| (version.to_owned(), owned(kinds))).into(),
            is_default: true,
        }
    }
}

impl SelectedKinds {
    /// Reads a ConfigMap's data.
    ///
    /// # Errors
    /// The ConfigMap is invalid.
    pub fn read(data: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let text = data.get(CONFIG_KEY).ok_or(ConfigError::NoKey)?;
        let document: Document =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Unreadable(error.to_string()))?;
        let mut desired = BTreeMap::new();
        for (group_version, mut kinds) in document.group_version_kinds {
            let parsed = group_version_of(&group_version)?;
            for kind in &mut kinds {
                if kind != ALL && !is_kind(kind) {
                    let kind = kind.clone();
                    return Err(ConfigError::Kind { group_version, kind });
                }
                if parsed.group.is_empty() && kind == "Endpoint" {
                    "Endpoints".clone_into(kind);
                }
            }
            if parsed.group != OWN_GROUP {
                desired.insert(group_version, kinds);
            }
        }
        Ok(Self {
            kinds: desired,
            is_default: false,
        })
    }

    /// Groups and versions to discover, as `apps/v1`.
    pub fn group_versions(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// Selects from the discovered resources of a group and version. Returns the kinds to label, and those that are skipped, with
    /// the reason.
    #[must_use]
    pub fn select_resources(&self, group_version: &str, found: &[APIResource]) -> (Vec<ApiResource>, Vec<String>) {
        let (mut selected, mut left): (Vec<ApiResource>, Vec<String>) = Default::default();
        let Ok(parsed) = group_version_of(group_version) else {
            return (selected, left);
        };
        let kinds = self.kinds.get(group_version).map(Vec::as_slice).unwrap_or_default();
        // Subresources such as `pods/status` are not kinds.
        let found = || found.iter().filter(|found| !found.name.contains('/'));
        if kinds.iter().any(|kind| kind == ALL) {
            let fits = |found: &&APIResource| found.kind != EVENT && reason_to_skip(found).is_none();
            selected.extend(found().filter(fits).map(|found| discovered_resource(&parsed, found)));
            if found().next().is_none() && !self.is_default {
                left.push(format!("{group_version}: the cluster has no such group and version"));
            }
        }
        for kind in kinds.iter().filter(|kind| *kind != ALL) {
            match found().find(|found| found.kind == *kind) {
                None => left.push(format!("{group_version} {kind}: the cluster has no such kind")),
                Some(found) => match reason_to_skip(found) {
                    Some(reason) => left.push(format!("{group_version} {kind}: {reason}")),
                    None => selected.push(discovered_resource(&parsed, found)),
                },
            }
        }
        selected.sort_by(|one, other| one.plural.cmp(&other.plural));
        selected.dedup();
        (selected, left)
    }
}

/// Why objects of a kind can't be labelled.
fn reason_to_skip(found: &APIResource) -> Option<&'static str> {
    let can = |verb: &str| found.verbs.iter().any(|known| known == verb);
    if !found.namespaced {
        Some("its objects lie in no namespace")
    } else if ![verbs::LIST, verbs::WATCH, verbs::PATCH].into_iter().all(can) {
        Some("its objects can't be listed, watched and patched")
    } else {
        None
    }
}

fn discovered_resource(group_version: &GroupVersion, found: &APIResource) -> ApiResource {
    ApiResource::from_gvk_with_plural(&group_version.clone().with_kind(&found.kind), &found.name)
}

fn group_version_of(text: &str) -> Result<GroupVersion, ConfigError> {
    let is_part = |part: &str| {
        let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        !part.is_empty() && part.chars().all(is_known)
    };
    match *text.split('/').collect::<Vec<_>>() {
        [version] if is_part(version) => Ok(GroupVersion::gv("", version)),
        [group, version] if is_part(group) && is_part(version) => Ok(GroupVersion::gv(group, version)),
        _ => Err(ConfigError::GroupVersion(text.to_owned())),
    }
}

fn is_kind(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests;
