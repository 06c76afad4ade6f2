//! Copies an object without the parts that its schema does not allow, so that rules can check the rest.

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::suggest::closest_word;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Map, Value, json};

use super::check;
use super::check::{allowed_values, quoted_field_path};

/// At least one of these texts is valid in any text field of our schemas.
const TEXTS: [&str; 3] = ["1s", "0", "oci://a.example/a:1"];

/// A copy that the schema allows.
#[derive(Debug, Default, PartialEq)]
pub struct Tolerated {
    pub value: Value,
    /// Paths of values that nobody wrote, because the author's intention can't be known.
    pub guessed: Vec<String>,
}

/// Makes the copy. Unknown fields, and optional fields of another type, are left out. A word that almost matches an allowed one is
/// replaced by it. Any other invalid or missing value is replaced by an allowed one. Recursion is bounded by the schema's depth.
pub fn tolerate_mistakes(value: &Value, schema: &JSONSchemaProps, path: &str) -> Tolerated {
    let mut copy = Copy::default();
    let value = copy.value(value, schema, path);
    Tolerated {
        value,
        guessed: copy.guessed,
    }
}

/// Whether a value has the schema's type.
pub fn has_type(value: &Value, schema: &JSONSchemaProps) -> bool {
    match schema.type_.as_deref() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    }
}

#[derive(Default)]
struct Copy {
    guessed: Vec<String>,
}

impl Copy {
    fn value(&mut self, value: &Value, schema: &JSONSchemaProps, path: &str) -> Value {
        match (schema.type_.as_deref(), value) {
            (Some("object"), Value::Object(fields)) => Value::Object(self.tolerate_object(fields, schema, path)),
            (Some("array"), Value::Array(items)) => Value::Array(self.tolerate_array(items, schema, path)),
            (Some("string"), Value::String(text)) => self.text(text, schema, path),
            _ if is_valid(value, schema) => value.clone(),
            _ => self.guess(schema, path),
        }
    }

    fn tolerate_object(
        &mut self,
        fields: &Map<String, Value>,
        schema: &JSONSchemaProps,
        path: &str,
    ) -> Map<String, Value> {
        if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
            return fields.clone();
        }
        let required = schema.required.as_deref().unwrap_or_default();
        let mut kept = Map::new();
        for (name, value) in fields {
            let known = schema.properties.as_ref().and_then(|known| known.get(name));
            let path = quoted_field_path(path, name);
            match (known, &schema.additional_properties, &schema.properties) {
                (Some(schema), ..) if required.contains(name) || has_type(value, schema) => {
                    kept.insert(name.clone(), self.value(value, schema, &path));
                }
                (None, Some(JSONSchemaPropsOrBool::Schema(schema)), _) if has_type(value, schema) => {
                    kept.insert(name.clone(), self.value(value, schema, &path));
                }
                (None, None, None) => {
                    kept.insert(name.clone(), value.clone());
                }
                _ => {}
            }
        }
        for name in required {
            if !kept.contains_key(name) {
                let known = schema.properties.as_ref().and_then(|known| known.get(name));
                let value = known.map_or(Value::Null, |schema| self.guess(schema, &quoted_field_path(path, name)));
                kept.insert(name.clone(), value);
            }
        }
        kept
    }

    fn tolerate_array(&mut self, items: &[Value], schema: &JSONSchemaProps, path: &str) -> Vec<Value> {
        let Some(JSONSchemaPropsOrArray::Schema(of_item)) = &schema.items else {
            return items.to_vec();
        };
        let count = |bound: Option<i64>| bound.and_then(|bound| usize::try_from(bound).ok());
        let most = count(schema.max_items).unwrap_or(usize::MAX);
        let allowed = items.iter().take(most).enumerate();
        let mut copy: Vec<Value> = allowed
            .map(|(index, item)| self.value(item, of_item, &format!("{path}[{index}]")))
            .collect();
        while copy.len() < count(schema.min_items).unwrap_or_default() {
            copy.push(self.guess(of_item, path));
        }
        for key in schema.x_kubernetes_list_map_keys.iter().flatten() {
            make_keys_distinct(&mut copy, key);
        }
        copy
    }

    fn text(&mut self, text: &str, schema: &JSONSchemaProps, path: &str) -> Value {
        if is_valid(&json!(text), schema) {
            return json!(text);
        }
        match closest_word(text, allowed_values(schema)) {
            Some(word) => json!(word),
            None => self.guess(schema, path),
        }
    }

    fn guess(&mut self, schema: &JSONSchemaProps, path: &str) -> Value {
        self.guessed.push(path.to_owned());
        some_value(schema)
    }
}

/// Any value that a schema allows. Recursion is bounded by the schema's depth.
fn some_value(schema: &JSONSchemaProps) -> Value {
    match schema.type_.as_deref() {
        Some("object") => {
            let of = |name: &String| schema.properties.as_ref()?.get(name).map(some_value);
            let required = schema.required.iter().flatten();
            let fields = required.filter_map(|name| Some((name.clone(), of(name)?)));
            Value::Object(fields.collect())
        }
        Some("array") => match &schema.items {
            Some(JSONSchemaPropsOrArray::Schema(item)) => (0..schema.min_items.unwrap_or_default())
                .map(|_| some_value(item))
                .collect(),
            _ => json!([]),
        },
        Some("integer") => {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "bounds of our schemas are whole and small"
            )]
            let number = 1.0_f64
                .max(schema.minimum.unwrap_or(1.0))
                .min(schema.maximum.unwrap_or(f64::MAX)) as i64;
            json!(number)
        }
        Some("boolean") => json!(false),
        _ => {
            let mut texts = allowed_values(schema).chain(TEXTS);
            json!(texts.find(|text| is_valid(&json!(text), schema)).unwrap_or_default())
        }
    }
}

/// Makes elements with equal keys distinct. The key is a text.
fn make_keys_distinct(items: &mut [Value], key: &str) {
    let mut seen: Vec<String> = Vec::new();
    for (index, item) in items.iter_mut().enumerate() {
        let Some(Value::String(name)) = item.get_mut(key) else {
            continue;
        };
        if seen.contains(name) {
            *name = format!("{name}-{index}");
        }
        seen.push(name.clone());
    }
}

fn is_valid(value: &Value, schema: &JSONSchemaProps) -> bool {
    let mut mistakes = Mistakes::default();
    check(value, schema, "", &mut mistakes);
    mistakes.list().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> JSONSchemaProps {
        let item = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "minLength": 1}, "x": {"type": "integer"},
        }});
        let schema = json!({"type": "object", "required": ["name", "image"], "properties": {
            "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
            "image": {"type": "string", "pattern": "^oci://.+"},
            "word": {"type": "string", "enum": ["first", "second"]},
            "number": {"type": "integer", "minimum": 3, "maximum": 5},
            "list": {"type": "array", "maxItems": 3, "x-kubernetes-list-map-keys": ["name"], "items": item},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "texts": {"type": "object", "additionalProperties": {"type": "string"}},
        }});
        serde_json::from_value(schema).unwrap()
    }

    /// The copy of an object with these fields, and the guessed paths.
    fn copy(fields: &Value) -> (Value, Vec<String>) {
        let mut value = json!({"name": "a", "image": "oci://a"});
        value
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let Tolerated { mut value, guessed } = tolerate_mistakes(&value, &schema(), "spec");
        let mut mistakes = Mistakes::default();
        check(&value, &schema(), "spec", &mut mistakes);
        assert!(mistakes.list().is_empty(), "{mistakes}");
        for (name, good) in [("name", "a"), ("image", "oci://a")] {
            if value[name] == good {
                value.as_object_mut().unwrap().remove(name);
            }
        }
        (value, guessed)
    }

    #[test]
    fn disallowed_fields_are_left_out_and_rest_stays() {
        let wrong = json!({
            "unknown": {}, "number": "text", "free": {"any": 1}, "texts": {"a": "b", "c": 1},
            "list": [{"name": "a", "x": 1, "y": 2}, {"name": "b", "x": "text"}],
        });
        let expected = json!({"free": {"any": 1}, "texts": {"a": "b"}, "list": [{"name": "a", "x": 1}, {"name": "b"}]});
        assert_eq!(copy(&wrong), (expected.clone(), Vec::new()));
        assert_eq!(copy(&expected).0, expected);
    }

    #[test]
    fn near_word_is_replaced_and_any_other_is_guess() {
        assert_eq!(copy(&json!({"word": "secnd"})), (json!({"word": "second"}), Vec::new()));
        let guessed = vec!["spec.word".to_owned()];
        assert_eq!(copy(&json!({"word": "other"})), (json!({"word": "first"}), guessed));
    }

    #[test]
    fn invalid_required_fields_and_elements_are_guessed() {
        let wrong = json!({
            "name": 7, "image": "a", "number": 9, "list": [{"x": 1}, "text", {"name": "1s"}, {"name": "d"}],
        });
        let expected = json!({
            "name": "1s", "image": "oci://a.example/a:1", "number": 3,
            "list": [{"name": "1s", "x": 1}, {"name": "1s-1"}, {"name": "1s-2"}],
        });
        let guessed = [
            "spec.image",
            "spec.list[0].name",
            "spec.list[1]",
            "spec.name",
            "spec.number",
        ];
        assert_eq!(copy(&wrong), (expected, guessed.map(str::to_owned).to_vec()));
        let Tolerated { value, guessed } = tolerate_mistakes(&json!({}), &schema(), "spec");
        assert_eq!(value, json!({"name": "1s", "image": "oci://a.example/a:1"}));
        assert_eq!(guessed, ["spec.name", "spec.image"]);
    }
}
