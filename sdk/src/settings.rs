//! From the JSON text of an entry's settings to a struct, with errors that name the field: what a person who wrote YAML
//! needs to find the mistake.

use std::fmt;

use serde::de::DeserializeOwned;

/// Turns the JSON text of the settings into `T`. Empty text and `null` count as `{}`, so that a chain entry may leave its
/// settings out.
///
/// # Errors
///
/// [`Invalid`], naming the path of the field: `limits[2].selector: missing field …`.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Invalid> {
    let value = match text.trim() {
        "" | "null" => serde_json::Value::Object(serde_json::Map::new()),
        text => serde_json::from_str(text).map_err(|error| Invalid::new(format!("settings are not JSON: {error}")))?,
    };
    if !value.is_object() {
        return Err(Invalid::new(
            "settings are named fields ({...} in JSON), not a list or a single value",
        ));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        Invalid {
            path: if path == "." { String::new() } else { path },
            message: error.into_inner().to_string(),
        }
    })
}

/// Settings of a plugin that has none: refuses any field.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

/// A setting that is wrong: where, and what to write instead.
///
/// For checks that come after parsing. Each level of the settings adds its part of the path on the way out:
///
/// ```
/// use ctrlmesh_sdk::settings::Invalid;
///
/// let error = Invalid::new("a percentage is 0 to 100").field("percent").index(2).field("rules");
/// assert_eq!(error.to_string(), "rules[2].percent: a percentage is 0 to 100");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    path: String,
    message: String,
}

impl Invalid {
    /// The message alone; say what to write instead.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            message: message.into(),
        }
    }

    /// Adds the name of a field to the path.
    #[must_use]
    pub fn field(mut self, name: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("{name}{dot}{}", self.path);
        self
    }

    /// Adds an index to the path.
    #[must_use]
    pub fn index(mut self, index: usize) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("[{index}]{dot}{}", self.path);
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

impl std::error::Error for Invalid {}

impl From<Invalid> for String {
    fn from(error: Invalid) -> Self {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        #[serde(default)]
        rules: Vec<Rule>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    #[expect(dead_code, reason = "only parsed")]
    struct Rule {
        percent: u8,
        kind: Kind,
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        Delay,
        Abort,
    }

    #[test]
    fn error_names_the_path_of_the_field() {
        for (text, expected) in [
            (
                r#"{"rules": [{"percent": 1, "kind": "Delay"}, {"percent": 300, "kind": "Abort"}]}"#,
                "rules[1].percent: invalid value: integer `300`, expected u8",
            ),
            (
                r#"{"rules": [{"percent": 1, "kind": "Dealy"}]}"#,
                "rules[0].kind: unknown variant `Dealy`, expected `Delay` or `Abort`",
            ),
            (r#"{"rules": [{"percent": 1}]}"#, "rules[0]: missing field `kind`"),
            (
                r#"{"rules": [{"percent": 1, "kind": "Delay", "knd": 1}]}"#,
                "rules[0].knd: unknown field `knd`, expected `percent` or `kind`",
            ),
            (r#"{"rulez": []}"#, "rulez: unknown field `rulez`, expected `rules`"),
            (
                "[]",
                "settings are named fields ({...} in JSON), not a list or a single value",
            ),
            (
                "{",
                "settings are not JSON: EOF while parsing an object at line 1 column 1",
            ),
        ] {
            let error = parse::<Settings>(text).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn missing_settings_are_empty_settings() {
        for text in ["", " null ", "{}", "null"] {
            assert!(
                parse::<Settings>(text).is_ok_and(|settings| settings.rules.is_empty()),
                "{text:?}"
            );
            assert!(parse::<NoSettings>(text).is_ok(), "{text:?}");
        }
        assert!(parse::<NoSettings>(r#"{"a": 1}"#).is_err());
    }

    #[test]
    fn error_path_grows_outwards() {
        let error = Invalid::new("wrong")
            .field("operator")
            .index(0)
            .field("matchExpressions")
            .index(2)
            .field("limits");
        assert_eq!(error.to_string(), "limits[2].matchExpressions[0].operator: wrong");
        assert_eq!(Invalid::new("wrong").index(1).index(2).to_string(), "[2][1]: wrong");
    }
}
