//! Parses a document as one of the custom resources, as an API server would.

use std::sync::LazyLock;

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::suggest::did_you_mean;
use ctrlmesh_manager_api::schema::Tolerated;
use ctrlmesh_manager_api::{API_VERSION, CircuitBreaker, FaultInjection, ManagerState, ShardingConfig, crds, schema};
use ctrlmesh_wire::is_dns_subdomain;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube_core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::labels::has_label;

#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    ShardingConfig(Box<ShardingConfig>),
    CircuitBreaker(Box<CircuitBreaker>),
    FaultInjection(Box<FaultInjection>),
    ManagerState(Box<ManagerState>),
}

impl Object {
    #[must_use]
    pub const fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ShardingConfig(object) => &object.metadata,
            Self::CircuitBreaker(object) => &object.metadata,
            Self::FaultInjection(object) => &object.metadata,
            Self::ManagerState(object) => &object.metadata,
        }
    }

    /// Whether the object carries a label, whatever its value.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        has_label(self.metadata(), label)
    }
}

/// Made once, because a schema takes some hundred allocations.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(crds::definitions);

/// Parses a document of one of our kinds. Watches should use this for one object at a time, so that an object that is older than
/// its schema does not hide the others.
///
/// # Errors
/// Every field that its schema does not allow.
pub fn read(document: &Value) -> Result<Object, Mistakes> {
    let mut mistakes = Mistakes::default();
    let mut document = document.clone();
    schema::prune_nulls(&mut document);
    if !document.is_object() {
        mistakes.add("", "is no mapping; write apiVersion, kind, metadata and spec");
        return Err(mistakes);
    }
    check_api_version(&document, &mut mistakes);
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    let Some(schema) = schema_of(kind) else {
        mistakes.add("kind", no_kind(&document));
        return Err(mistakes);
    };
    let kind = kind.to_owned();
    schema::check(&own_fields(&document, schema, &mut mistakes), schema, "", &mut mistakes);
    schema::check_metadata(&document, &mut mistakes);
    check_name(&document, &mut mistakes);
    if !mistakes.list().is_empty() {
        return Err(mistakes);
    }
    match kind.as_str() {
        "ShardingConfig" => decode_object(document).map(Object::ShardingConfig),
        "CircuitBreaker" => decode_object(document).map(Object::CircuitBreaker),
        "FaultInjection" => decode_object(document).map(Object::FaultInjection),
        _ => decode_object(document).map(Object::ManagerState),
    }
}

fn check_api_version(document: &Value, mistakes: &mut Mistakes) {
    match document.get("apiVersion") {
        None => mistakes.add("apiVersion", format!("is missing; write {API_VERSION}")),
        Some(version) if version != API_VERSION => {
            let written = version.as_str().map_or_else(|| version.to_string(), quote);
            mistakes.add("apiVersion", format!("is {written}; write {API_VERSION}"));
        }
        Some(_) => {}
    }
}

/// Why a document is not one of our kinds.
fn no_kind(document: &Value) -> String {
    let kinds: Vec<&str> = CRDS.iter().map(|crd| crd.spec.names.kind.as_str()).collect();
    let known = kinds.join(", ");
    match document.get("kind") {
        None => format!("is missing; write the kind of {API_VERSION} that is meant: {known}"),
        Some(kind) => {
            let written = kind.as_str().map_or_else(|| kind.to_string(), quote);
            let meant = did_you_mean(kind.as_str().unwrap_or_default(), kinds);
            format!("{written} is no kind of {API_VERSION}; known are {known}{meant}")
        }
    }
}

/// The object that [`read`] would return without the mistakes of the document.
pub(super) struct ValidRest {
    pub(super) object: Object,
    /// Paths of values that nobody wrote.
    pub(super) guessed: Vec<String>,
}

/// The valid part of a document with mistakes, completed to an object, so that the rules can check it too. `None`: there is none.
pub(super) fn valid_rest(document: &Value) -> Option<ValidRest> {
    let mut document = document.clone();
    schema::prune_nulls(&mut document);
    let kind = document.get("kind")?.as_str()?.to_owned();
    let schema = schema_of(&kind)?;
    let own = own_fields(&document, schema, &mut Mistakes::default());
    let Tolerated {
        value: mut rest,
        guessed,
    } = schema::tolerate_mistakes(&own, schema, "");
    let metadata = document.get("metadata").filter(|metadata| metadata.is_object());
    let metadata = metadata.cloned().unwrap_or_else(|| json!({}));
    let mut metadata = schema::tolerate_mistakes(&metadata, schema::metadata_schema(), "metadata").value;
    let mut wrong = Mistakes::default();
    check_name(&json!({"metadata": metadata}), &mut wrong);
    if !wrong.list().is_empty() {
        metadata.as_object_mut()?.insert("name".to_owned(), json!("unnamed"));
    }
    let fields = rest.as_object_mut()?;
    fields.insert("apiVersion".to_owned(), json!(API_VERSION));
    fields.insert("kind".to_owned(), json!(kind));
    fields.insert("metadata".to_owned(), metadata);
    let object = read(&rest).ok()?;
    Some(ValidRest { object, guessed })
}

/// The schema of a kind's own fields.
pub(super) fn schema_of(kind: &str) -> Option<&'static JSONSchemaProps> {
    definition_of(kind).and_then(crds::schema_of)
}

fn definition_of(kind: &str) -> Option<&'static CustomResourceDefinition> {
    CRDS.iter().find(|crd| crd.spec.names.kind == kind)
}

/// Whether one of our kinds has this name.
#[must_use]
pub fn is_kind(name: &str) -> bool {
    definition_of(name).is_some()
}

/// Fields that every object has, which an API server knows without a schema.
pub(super) const COMMON_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The document without common fields, and without unknown ones, which are reported.
fn own_fields(document: &Value, schema: &JSONSchemaProps, mistakes: &mut Mistakes) -> Value {
    let own = schema.properties.iter().flatten().map(|(name, _)| name.as_str());
    let known: Vec<&str> = COMMON_FIELDS.into_iter().chain(own).collect();
    let mut fields = document.clone();
    if let Value::Object(fields) = &mut fields {
        fields.retain(|field, _| !COMMON_FIELDS.contains(&field.as_str()));
        for unknown in fields.keys().filter(|field| !known.contains(&field.as_str())) {
            let meant = did_you_mean(unknown, known.iter().copied());
            mistakes.add(
                unknown,
                format!("is not a field here; known are {}{meant}", known.join(", ")),
            );
        }
        fields.retain(|field, _| known.contains(&field.as_str()));
    }
    fields
}

/// Checks the name, because names of entries contain it. A name that the API server is to generate is not known yet.
fn check_name(document: &Value, mistakes: &mut Mistakes) {
    let text = |field: &str| document.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
    match (text("name"), text("generateName")) {
        // A name of another type is reported as such.
        (None, None) if document.pointer("/metadata/name").is_none() => {
            mistakes.add("metadata.name", "is missing; write what this object is to be called");
        }
        (Some(name), _) if !is_dns_subdomain(name) => {
            let problem = format!(
                "{} is no name; use lower-case letters, digits, '-' and '.'",
                quote(name)
            );
            mistakes.add("metadata.name", problem);
        }
        _ => {}
    }
}

/// A document that matches the schema may still have an invalid field, if the field has no type there ([`ctrlmesh_manager_api`],
/// `schemas`).
fn decode_object<T: DeserializeOwned>(document: Value) -> Result<Box<T>, Mistakes> {
    serde_path_to_error::deserialize(document)
        .map(Box::new)
        .map_err(|error| {
            let mut mistakes = Mistakes::default();
            mistakes.add(error.path().to_string(), error.inner().to_string());
            mistakes
        })
}
