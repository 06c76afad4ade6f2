//! Checks and completes an object before it is stored: kind, name and namespace. Only metadata is checked, because the server has no
//! schemas.

use serde_json::{Map, Value};

use crate::managed;
use crate::object::{metadata, metadata_text, set_metadata};
use crate::refusal::Refusal;
use crate::resource::Resource;

/// Longest name of an object (a DNS-1123 subdomain).
const MAX_NAME: usize = 253;

/// Checks an object from a client and fills in what may be missing: kind, apiVersion and namespace.
pub(crate) fn admit_object(resource: &Resource, namespace: &str, object: &mut Value) -> Result<(), Refusal> {
    let Some(fields) = object.as_object_mut() else {
        return Err(Refusal::bad_request("the body must be a JSON object"));
    };
    expect_or_fill(fields, "apiVersion", &resource.api_version())?;
    expect_or_fill(fields, "kind", &resource.kind)?;
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else {
        return Err(Refusal::bad_request("metadata must be an object"));
    };
    // Like `omitempty` of upstream's types: an empty map or list counts as missing.
    metadata.retain(|_, value| match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    });
    for field in ["name", "generateName", "namespace", "uid", "resourceVersion"] {
        if metadata.get(field).is_some_and(|value| !value.is_string()) {
            return Err(Refusal::bad_request(format!("metadata.{field} must be a string")));
        }
    }
    for field in ["labels", "annotations"] {
        check_string_map(metadata, field)?;
    }
    check_finalizers(metadata)?;
    set_namespace(resource, namespace, object)
}

fn expect_or_fill(object: &mut Map<String, Value>, field: &str, expected: &str) -> Result<(), Refusal> {
    match object.get(field).and_then(Value::as_str) {
        None | Some("") => {
            object.insert(field.into(), expected.into());
            Ok(())
        }
        Some(found) if found == expected => Ok(()),
        Some(found) => {
            let problem = format!("{field} in the data ({found}) does not match the one of the path ({expected})");
            Err(Refusal::bad_request(problem))
        }
    }
}

fn check_string_map(metadata: &Map<String, Value>, field: &str) -> Result<(), Refusal> {
    let wrong = match metadata.get(field) {
        None => false,
        Some(Value::Object(pairs)) => pairs.values().any(|value| !value.is_string()),
        Some(_) => true,
    };
    if wrong {
        Err(Refusal::bad_request(format!(
            "metadata.{field} must map strings to strings"
        )))
    } else {
        Ok(())
    }
}

fn check_finalizers(metadata: &Map<String, Value>) -> Result<(), Refusal> {
    let wrong = match metadata.get("finalizers") {
        None => false,
        Some(Value::Array(finalizers)) => finalizers.iter().any(|finalizer| !finalizer.is_string()),
        Some(_) => true,
    };
    if wrong {
        Err(Refusal::bad_request("metadata.finalizers must be a list of strings"))
    } else {
        Ok(())
    }
}

/// Sets the namespace of the path, or rejects an object that names another one.
fn set_namespace(resource: &Resource, namespace: &str, object: &mut Value) -> Result<(), Refusal> {
    let named = metadata_text(object, "namespace");
    if !resource.namespaced {
        if !named.is_empty() {
            let problem = "the namespace must be empty: the resource is not namespaced";
            return Err(Refusal::invalid(
                resource,
                metadata_text(object, "name"),
                "metadata.namespace",
                problem,
            ));
        }
        return Ok(());
    }
    if !named.is_empty() && named != namespace {
        let problem = format!(
            "the namespace of the provided object does not match the namespace sent on the request ({named} != {namespace})"
        );
        return Err(Refusal::bad_request(problem));
    }
    set_metadata(object, "namespace", namespace.into());
    Ok(())
}

/// Rejects a body whose name is not that of the path.
pub(crate) fn expect_name(name: &str, object: &mut Value) -> Result<(), Refusal> {
    let found = metadata_text(object, "name");
    if !found.is_empty() && found != name {
        let problem = format!("the name of the object ({found}) does not match the name on the URL ({name})");
        return Err(Refusal::bad_request(problem));
    }
    set_metadata(object, "name", name.into());
    Ok(())
}

/// Rejects a name that is no DNS-1123 subdomain (or label, for a namespace).
pub(crate) fn check_name(resource: &Resource, object: &Value) -> Result<(), Refusal> {
    let name = metadata_text(object, "name");
    if name.is_empty() {
        let problem = "Required value: name or generateName is required";
        return Err(Refusal::invalid(resource, name, "metadata.name", problem));
    }
    let is_label = |label: &str| {
        let alphanumeric = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = label.as_bytes();
        alphanumeric(bytes.first())
            && alphanumeric(bytes.last())
            && bytes
                .iter()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
    };
    let dots_allowed = resource.plural != "namespaces";
    if name.len() > MAX_NAME || !name.split('.').all(is_label) || (!dots_allowed && name.contains('.')) {
        let problem = format!("Invalid value: \"{name}\": a lowercase RFC 1123 subdomain is required");
        return Err(Refusal::invalid(resource, name, "metadata.name", &problem));
    }
    Ok(())
}

/// Whether two objects differ outside of metadata and, if `but_status`, status: then `generation` is raised.
pub(crate) fn spec_differs(old: &Value, new: &Value, but_status: bool) -> bool {
    let relevant = |(field, _): &(&String, &Value)| *field != "metadata" && !(but_status && *field == "status");
    let fields = |value: &Value| -> Vec<(String, Value)> {
        let object = value.as_object().into_iter().flatten();
        object
            .filter(relevant)
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect()
    };
    fields(old) != fields(new)
}

/// Whether two objects are equal except for the resource version and the times in managed fields. A change of a field's owner is a
/// change.
pub(crate) fn is_unchanged(old: &Value, new: &Value) -> bool {
    let kept = |metadata: &Map<String, Value>| -> Vec<(String, Value)> {
        let bookkeeping = ["resourceVersion", "managedFields"];
        let kept = metadata
            .iter()
            .filter(|(field, _)| !bookkeeping.contains(&field.as_str()));
        kept.map(|(field, value)| (field.clone(), value.clone())).collect()
    };
    let owners = |object: &Value| -> Vec<_> {
        managed::read_owners(object)
            .into_iter()
            .map(|owner| (owner.manager, owner.fields))
            .collect()
    };
    metadata(old).map(kept) == metadata(new).map(kept) && !spec_differs(old, new, false) && owners(old) == owners(new)
}
