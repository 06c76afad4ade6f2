//! Objects of a response, as `on-objects` gets them. Their fields are defined in `wit/types.wit`; the constructors are for tests.

use crate::{ObjectController, ObjectMetadata};

impl ObjectMetadata {
    /// An object with this namespace (empty: cluster-scoped) and name. Its UID and resource version follow from them.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        let (namespace, name) = (namespace.into(), name.into());
        Self {
            uid: format!("uid-of-{namespace}-{name}"),
            resource_version: "1".to_owned(),
            labels: Vec::new(),
            annotations: Vec::new(),
            controller: None,
            namespace,
            name,
        }
    }

    /// Sets a label, and replaces an earlier value of this key.
    #[must_use]
    pub fn with_label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        set_pair(&mut self.labels, key.into(), value.into());
        self
    }

    /// Sets an annotation, and replaces an earlier value of this key.
    #[must_use]
    pub fn with_annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        set_pair(&mut self.annotations, key.into(), value.into());
        self
    }

    /// Sets the owner that controls the object.
    #[must_use]
    pub fn with_controller(mut self, controller: ObjectController) -> Self {
        self.controller = Some(controller);
        self
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        value_of(&self.labels, key)
    }

    /// The value of an annotation. Of these a plugin gets only the ones that its verdict asks for
    /// ([`RequestEdit::ask_about_objects`](crate::RequestEdit::ask_about_objects)).
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        value_of(&self.annotations, key)
    }
}

impl ObjectController {
    /// The controller with this API version, kind, name and UID.
    pub fn new(
        api_version: impl Into<String>,
        kind: impl Into<String>,
        name: impl Into<String>,
        uid: impl Into<String>,
    ) -> Self {
        Self {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

/// Pairs are sorted by key, and have each key once.
fn set_pair(pairs: &mut Vec<(String, String)>, key: String, value: String) {
    match pairs.binary_search_by(|(known, _)| known.cmp(&key)) {
        Ok(at) => {
            if let Some((_, known)) = pairs.get_mut(at) {
                *known = value;
            }
        }
        Err(at) => pairs.insert(at, (key, value)),
    }
}

fn value_of<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    let at = pairs.binary_search_by(|(known, _)| known.as_str().cmp(key)).ok()?;
    pairs.get(at).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted_and_have_each_key_once() {
        let object = ObjectMetadata::new("a", "x")
            .with_label("m", "1")
            .with_label("b", "2")
            .with_label("z", "3")
            .with_label("b", "4")
            .with_annotation("n", "5");
        let keys: Vec<&str> = object.labels.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["b", "m", "z"]);
        let values = ["b", "m", "z", "n", ""].map(|key| object.label(key));
        assert_eq!(values, [Some("4"), Some("1"), Some("3"), None, None]);
        assert_eq!((object.annotation("n"), object.annotation("b")), (Some("5"), None));
    }

    #[test]
    fn objects_of_other_names_have_other_uids() {
        let object = ObjectMetadata::new("a", "x");
        assert_eq!((object.namespace.as_str(), object.name.as_str()), ("a", "x"));
        assert_ne!(object.uid, ObjectMetadata::new("b", "x").uid);
        assert_eq!(object.controller, None);
        let controller = ObjectController::new("apps/v1", "ReplicaSet", "r", "u");
        assert_eq!(object.with_controller(controller.clone()).controller, Some(controller));
    }
}
