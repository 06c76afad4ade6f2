//! Corrects misspelt fields, and numbers where the schema has text.

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::suggest::closest_word;
use ctrlmesh_manager_api::schema;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value, json};

use super::{Change, Fix, Path, Step};
use crate::validate::read::{COMMON_FIELDS, schema_of};

pub(super) fn fix_schema(document: &Value, kind: &str) -> Option<Fix> {
    let spec = schema_of(kind)?.properties.as_ref()?.get("spec")?;
    let parts = [("metadata", schema::metadata_schema()), ("spec", spec)];
    let of_part =
        |(field, schema): (&str, &JSONSchemaProps)| fix_part(document.get(field)?, schema, &Path::from_fields(field));
    fix_top_level(document, &parts).or_else(|| parts.into_iter().find_map(of_part))
}

/// A misspelt field of the object itself.
fn fix_top_level(document: &Value, parts: &[(&str, &JSONSchemaProps); 2]) -> Option<Fix> {
    let fields = document.as_object()?;
    let unknown =
        |name: &&String| !COMMON_FIELDS.contains(&name.as_str()) && !["spec", "status"].contains(&name.as_str());
    fields.keys().filter(unknown).find_map(|name| {
        let free = parts.iter().filter(|(field, _)| !fields.contains_key(*field));
        let meant = closest_word(name, free.map(|(field, _)| *field))?;
        fields
            .get(name)?
            .is_object()
            .then(|| Fix::new(Path::default().key(name), Change::Rename(meant.to_owned())))
    })
}

/// The first change in a part of a document. Recursion is bounded by the schema's depth.
fn fix_part(value: &Value, schema: &JSONSchemaProps, path: &Path) -> Option<Fix> {
    match (schema.type_.as_deref(), value) {
        (Some("object"), Value::Object(fields)) => fix_object(fields, schema, path),
        (Some("array"), Value::Array(items)) => {
            let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items else {
                return None;
            };
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| fix_part(item, schema, &path.with_step(Step::Index(index))))
        }
        (Some("string"), Value::Number(_) | Value::Bool(_)) => {
            let text = value.to_string();
            // In quotes it would still be invalid: only the author knows the unit or word.
            let is_text = !schema::is_duration(&path.to_string()) && is_allowed(&text, schema);
            is_text.then(|| Fix::new(path.clone(), Change::Text(text)))
        }
        (Some("string"), Value::String(text)) => {
            let allowed = schema.enum_.iter().flatten().filter_map(|JSON(value)| value.as_str());
            let other_case = |word: &&str| word.eq_ignore_ascii_case(text) && word != text;
            let word = allowed
                .clone()
                .find(other_case)
                .filter(|_| !allowed.clone().any(|it| it == text))?;
            Some(Fix::new(path.clone(), Change::Text(word.to_owned())))
        }
        _ => None,
    }
}

fn is_allowed(text: &str, schema: &JSONSchemaProps) -> bool {
    let mut mistakes = Mistakes::default();
    schema::check(&json!(text), schema, "", &mut mistakes);
    mistakes.list().is_empty()
}

fn fix_object(fields: &Map<String, Value>, schema: &JSONSchemaProps, path: &Path) -> Option<Fix> {
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
        return None;
    }
    fields.iter().find_map(|(name, value)| {
        let path = path.key(name);
        match (&schema.properties, &schema.additional_properties) {
            (Some(known), _) if known.contains_key(name) => fix_part(value, known.get(name)?, &path),
            (_, Some(JSONSchemaPropsOrBool::Schema(schema))) => fix_part(value, schema, &path),
            (Some(known), _) => {
                let free = known.keys().map(String::as_str).filter(|it| !fields.contains_key(*it));
                let meant = closest_word(name, free)?;
                schema::has_type(value, known.get(meant)?).then(|| Fix::new(path, Change::Rename(meant.to_owned())))
            }
            (None, _) => None,
        }
    })
}
