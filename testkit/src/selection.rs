//! The objects that a request selects: by namespace, name, label and field selector. ctrlmesh-wire parses the selectors.

use ctrlmesh_wire::{FieldSelector, LabelSelector, Query, SelectorError};
use serde_json::Value;

use crate::object::{metadata, metadata_text};
use crate::refusal::Refusal;
use crate::resource::Resource;

/// Selectable fields of every kind; upstream supports more for some built-in kinds.
const FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];
/// Selectable fields of pods, as far as they are needed here (`pkg/apis/core/v1/conversion.go`).
const POD_FIELDS: [&str; 1] = ["status.phase"];

#[derive(Debug, Clone)]
pub(crate) struct Selection {
    /// Empty for all namespaces.
    pub(crate) namespace: String,
    labels: LabelSelector,
    fields: FieldSelector,
    /// From the path (`/watch/../name`); list and watch also take a name from the field selector, where it is one of the requirements.
    name: Option<String>,
}

impl Selection {
    /// Reads the selectors of a request.
    pub(crate) fn from_query(
        resource: &Resource,
        namespace: &str,
        name: Option<&str>,
        query: &Query<'_>,
    ) -> Result<Self, Refusal> {
        let unreadable =
            |what: &str, error: SelectorError| Refusal::bad_request(format!("unable to parse {what}: {error}"));
        let labels = query.get("labelSelector").unwrap_or_default();
        let labels = LabelSelector::parse(&labels).map_err(|error| unreadable("labelSelector", error))?;
        let fields = query.get("fieldSelector").unwrap_or_default();
        let fields = FieldSelector::parse(&fields).map_err(|error| unreadable("fieldSelector", error))?;
        let of_pods = resource.group.is_empty() && resource.plural == "pods";
        let is_known = |field: &str| FIELDS.contains(&field) || of_pods && POD_FIELDS.contains(&field);
        if let Some(unknown) = fields.requirements.iter().find(|r| !is_known(&r.field)) {
            let version = resource.api_version();
            let problem = format!(
                "Unable to find \"{version}, Resource={}\" that match field selector \"{fields}\": field label not supported: {}",
                resource.plural, unknown.field
            );
            return Err(Refusal::bad_request(problem));
        }
        let namespace = if resource.namespaced {
            namespace.to_owned()
        } else {
            String::new()
        };
        Ok(Self {
            namespace,
            labels,
            fields,
            name: name.map(str::to_owned),
        })
    }

    /// Whether there is a selector; then the server does not count the remaining items of a list.
    pub(crate) fn has_selectors(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    pub(crate) fn contains_object(&self, object: &Value) -> bool {
        let labels = metadata(object).and_then(|m| m.get("labels"));
        let label = |key: &str| labels?.get(key)?.as_str();
        let field = |field: &str| match field.strip_prefix("metadata.") {
            Some(field) => Some(metadata_text(object, field)),
            None => {
                let value = field.split('.').try_fold(object, |object, field| object.get(field));
                Some(value.and_then(Value::as_str).unwrap_or_default())
            }
        };
        (self.namespace.is_empty() || self.namespace == metadata_text(object, "namespace"))
            && self
                .name
                .as_deref()
                .is_none_or(|name| name == metadata_text(object, "name"))
            && self.labels.matches(&label)
            && self.fields.matches(&field)
    }
}
