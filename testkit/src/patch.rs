//! The patch formats: parses a body, and applies it to an object. [`crate::apply`] does server-side apply.

use serde_json::Value;

use crate::refusal::Refusal;

/// Accepted media types, for the 415 that names them.
const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml, \
                        application/strategic-merge-patch+json (maps only)";

#[derive(Debug)]
pub(crate) enum Patch {
    /// JSON patch, RFC 6902.
    Json(json_patch::Patch),
    /// Merge patch, RFC 7396.
    Merge(Value),
    Apply(Value),
}

impl Patch {
    /// Parses a patch. `content_type` may have parameters.
    ///
    /// A strategic merge patch is accepted if it means the same as a merge patch: it has no directive (`$patch`,
    /// `$setElementOrder/..`) and no list. Merging lists by key needs the kind's schema, which the server lacks: 415.
    pub(crate) fn parse(content_type: &str, body: &[u8]) -> Result<Self, Refusal> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        let undecodable =
            |error: &dyn std::fmt::Display| Refusal::bad_request(format!("error decoding patch: {error}"));
        match media_type {
            "application/json-patch+json" => serde_json::from_slice(body)
                .map(Self::Json)
                .map_err(|error| undecodable(&error)),
            "application/merge-patch+json" => parse_object(body).map(Self::Merge),
            "application/strategic-merge-patch+json" => {
                let patch = parse_object(body)?;
                if !is_plain_merge(&patch) {
                    let problem = "a strategic merge patch with lists or directives needs a schema, which the testkit \
                                   API server does not have; send a merge patch, JSON patch or server-side apply";
                    return Err(Refusal::unsupported(problem));
                }
                Ok(Self::Merge(patch))
            }
            "application/apply-patch+yaml" => {
                let text = std::str::from_utf8(body).map_err(|error| undecodable(&error))?;
                // JSON first: clients send it, and numbers keep their exact form.
                let config = match serde_json::from_str(text) {
                    Ok(config) => config,
                    Err(_) => serde_saphyr::from_str(text).map_err(|error| undecodable(&error))?,
                };
                Ok(Self::Apply(config))
            }
            _ => {
                let problem = format!("the body of the request was in an unknown format - accepted: {ACCEPTED}");
                Err(Refusal::unsupported(problem))
            }
        }
    }

    /// Returns the patched object. `Apply` is handled elsewhere and changes nothing here.
    pub(crate) fn apply_to(&self, object: &Value) -> Result<Value, Refusal> {
        let mut patched = object.clone();
        match self {
            Self::Json(patch) => json_patch::patch(&mut patched, patch).map_err(|error| {
                let code = http::StatusCode::UNPROCESSABLE_ENTITY;
                Refusal::new(
                    code,
                    "Invalid",
                    format!("the server rejected our request due to an error in our request: {error}"),
                )
            })?,
            Self::Merge(patch) => json_patch::merge(&mut patched, patch),
            Self::Apply(_) => {}
        }
        Ok(patched)
    }
}

fn parse_object(body: &[u8]) -> Result<Value, Refusal> {
    match serde_json::from_slice(body) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(Refusal::bad_request("error decoding patch: a JSON object is required")),
        Err(error) => Err(Refusal::bad_request(format!("error decoding patch: {error}"))),
    }
}

fn is_plain_merge(patch: &Value) -> bool {
    match patch {
        Value::Object(fields) => fields
            .iter()
            .all(|(field, value)| !field.starts_with('$') && is_plain_merge(value)),
        Value::Array(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategic_merge_patch_is_accepted_only_when_it_equals_merge_patch() {
        let parse = |body: &str| Patch::parse("application/strategic-merge-patch+json", body.as_bytes());
        assert!(matches!(parse(r#"{"data":{"a":"1","b":null}}"#), Ok(Patch::Merge(_))));
        for refused in [
            r#"{"spec":{"containers":[]}}"#,
            r#"{"data":{"$patch":"replace"}}"#,
            r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["x"]}}"#,
        ] {
            assert_eq!(parse(refused).expect_err(refused).0.code, 415, "{refused}");
        }
    }

    #[test]
    fn apply_body_may_be_yaml() {
        let patch = Patch::parse("application/apply-patch+yaml", b"kind: ConfigMap\ndata:\n  a: '1'\n");
        assert!(matches!(patch, Ok(Patch::Apply(config)) if config["data"]["a"] == "1"));
    }

    #[test]
    fn other_media_types_are_rejected_with_415() {
        for media_type in ["application/json", "application/apply-patch+cbor", ""] {
            assert_eq!(
                Patch::parse(media_type, b"{}").expect_err(media_type).0.code,
                415,
                "{media_type}"
            );
        }
    }
}
