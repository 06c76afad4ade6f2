//! Fields of stored documents, whether or not they are valid objects.

use serde_json::Value;

/// The text at a JSON pointer; empty if there is none.
#[must_use]
pub fn text_at<'a>(document: &'a Value, pointer: &str) -> &'a str {
    document.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_field_and_other_type_are_empty_text() {
        let document = json!({ "metadata": { "name": "a", "generation": 1 } });
        let texts = ["/metadata/name", "/metadata/generation", "/metadata/uid"].map(|at| text_at(&document, at));
        assert_eq!(texts, ["a", "", ""]);
    }
}
