//! From a document to an object.

use std::sync::LazyLock;

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::selector::is_subdomain;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube::api::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::{API_VERSION, CircuitBreaker, FaultInjection, ManagerState, ShardingConfig};
use crate::suggest::did_you_mean;
use crate::{crds, schema};

/// One custom resource.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Object {
    ShardingConfig(Box<ShardingConfig>),
    CircuitBreaker(Box<CircuitBreaker>),
    FaultInjection(Box<FaultInjection>),
    ManagerState(Box<ManagerState>),
}

impl Object {
    /// Its metadata.
    #[must_use]
    pub const fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::ShardingConfig(object) => &object.metadata,
            Self::CircuitBreaker(object) => &object.metadata,
            Self::FaultInjection(object) => &object.metadata,
            Self::ManagerState(object) => &object.metadata,
        }
    }

    pub(super) fn has_label(&self, label: &str) -> bool {
        self.metadata()
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(label))
    }
}

/// Made once: a schema is some hundred allocations.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(crds::all);

/// Reads a document of one of our kinds. Whoever watches objects should read them so, one by one: an object from before its
/// schema must not keep the others from being seen.
///
/// # Errors
/// Every field that its schema does not allow.
pub fn read(document: &Value) -> Result<Object, Mistakes> {
    let mut mistakes = Mistakes::default();
    let mut document = document.clone();
    schema::prune_nulls(&mut document);
    let kind = document
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let Some(schema) = schema_of(&kind) else {
        let kinds: Vec<&str> = CRDS.iter().map(|crd| crd.spec.names.kind.as_str()).collect();
        let problem = format!(
            "{} is no kind of {API_VERSION}; known are {}{}",
            quote(&kind),
            kinds.join(", "),
            did_you_mean(&kind, kinds.iter().copied())
        );
        mistakes.add("kind", problem);
        return Err(mistakes);
    };
    let version = document.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if version != API_VERSION {
        mistakes.add("apiVersion", format!("is {}; write {API_VERSION}", quote(version)));
    }
    schema::check(&own_fields(&document), schema, "", &mut mistakes);
    name(&document, &mut mistakes);
    if !mistakes.list().is_empty() {
        return Err(mistakes);
    }
    match kind.as_str() {
        "ShardingConfig" => decode(document).map(Object::ShardingConfig),
        "CircuitBreaker" => decode(document).map(Object::CircuitBreaker),
        "FaultInjection" => decode(document).map(Object::FaultInjection),
        _ => decode(document).map(Object::ManagerState),
    }
}

/// As much of a document as makes an object where [`read`] finds mistakes: for the rules, which would have more to say. `None`: nothing does.
pub(super) fn rest(document: &Value) -> Option<Object> {
    let mut document = document.clone();
    schema::prune_nulls(&mut document);
    let kind = document.get("kind")?.as_str()?.to_owned();
    let mut rest = schema::tolerated(&own_fields(&document), schema_of(&kind)?);
    let fields = rest.as_object_mut()?;
    let metadata = document.get("metadata").and_then(Value::as_object);
    let mut metadata = metadata.cloned().unwrap_or_default();
    let mut wrong = Mistakes::default();
    name(&document, &mut wrong);
    if !wrong.list().is_empty() {
        metadata.insert("name".to_owned(), json!("unnamed"));
    }
    fields.insert("apiVersion".to_owned(), json!(API_VERSION));
    fields.insert("kind".to_owned(), json!(kind));
    fields.insert("metadata".to_owned(), Value::Object(metadata));
    read(&rest).ok()
}

/// The schema of a kind's own fields.
pub(super) fn schema_of(kind: &str) -> Option<&'static JSONSchemaProps> {
    crd(kind).and_then(crds::schema_of)
}

fn crd(kind: &str) -> Option<&'static CustomResourceDefinition> {
    CRDS.iter().find(|crd| crd.spec.names.kind == kind)
}

/// Whether one of our kinds has this name.
#[must_use]
pub fn is_kind(name: &str) -> bool {
    crd(name).is_some()
}

/// Without what every object has, which an API server knows without a schema.
fn own_fields(document: &Value) -> Value {
    let mut fields = document.clone();
    if let Value::Object(fields) = &mut fields {
        fields.retain(|field, _| !["apiVersion", "kind", "metadata"].contains(&field.as_str()));
    }
    fields
}

/// Entries of chains have the name in theirs. One that the API server is to make up is not there yet.
fn name(document: &Value, mistakes: &mut Mistakes) {
    let text = |field: &str| document.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
    match (text("name"), text("generateName")) {
        (None, None) => mistakes.add("metadata.name", "is missing; write it"),
        (Some(name), _) if !is_subdomain(name) => {
            let problem = format!(
                "{} is no name; use lower-case letters, digits, '-' and '.'",
                quote(name)
            );
            mistakes.add("metadata.name", problem);
        }
        _ => {}
    }
}

/// What the schema let through can still have a field that has no type there ([`crate::api`], `schemas`).
fn decode<T: DeserializeOwned>(document: Value) -> Result<Box<T>, Mistakes> {
    serde_path_to_error::deserialize(document)
        .map(Box::new)
        .map_err(|error| {
            let mut mistakes = Mistakes::default();
            mistakes.add(error.path().to_string(), error.inner().to_string());
            mistakes
        })
}
