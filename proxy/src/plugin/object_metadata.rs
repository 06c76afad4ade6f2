//! Objects of a response, as a plugin is asked about them (WIT `on-objects`), and the edit that asks.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use ctrlmesh_wire::objects::{MetadataFields, ObjectMetadata};

/// Estimated memory of an object in a plugin besides its texts and pairs.
const OBJECT_BYTES: usize = 128;

/// Estimated memory of a label or an annotation in a plugin besides its texts.
const PAIR_BYTES: usize = 32;

/// The edit with which a plugin asks about the objects of a response (WIT `ask-about-objects`). Copies share the keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectQuestion {
    /// Keys of the annotations that the plugin needs, sorted, each once.
    annotations: Rc<[String]>,
    /// The number of the entry that decides. Two entries may decide differently, so a view depends on it.
    asked_entry: Option<u64>,
}

impl ObjectQuestion {
    /// A question for which these annotations are needed.
    #[must_use]
    pub fn new(mut annotations: Vec<String>) -> Self {
        annotations.sort_unstable();
        annotations.dedup();
        Self {
            annotations: annotations.into(),
            asked_entry: None,
        }
    }

    /// Keys of the annotations that the plugin needs, sorted, each once.
    pub fn annotations(&self) -> impl Iterator<Item = &str> {
        self.annotations.iter().map(String::as_str)
    }

    /// The same question to the entry with this number.
    pub(crate) fn asked_of(&self, entry: u64) -> Self {
        Self {
            annotations: Rc::clone(&self.annotations),
            asked_entry: Some(entry),
        }
    }

    /// The question that needs the annotations of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if self.annotations == other.annotations || other.annotations.is_empty() {
            return self.clone();
        }
        let annotations = self.annotations().chain(other.annotations()).map(str::to_owned);
        Self {
            asked_entry: self.asked_entry,
            ..Self::new(annotations.collect())
        }
    }

    /// The metadata that the plugin is told.
    pub(crate) fn fields(&self) -> MetadataFields {
        MetadataFields {
            annotations: !self.annotations.is_empty(),
            ..MetadataFields::ALL
        }
    }

    /// The metadata of an object, with the annotations that the plugin has asked for.
    #[must_use]
    pub fn metadata_of(&self, object: &ObjectMetadata<'_>) -> PluginObjectMetadata {
        self.told_metadata_of(object).to_plugin_metadata()
    }

    /// The same, borrowed from the object. Of an annotation that occurs twice, the last value counts.
    pub(crate) fn told_metadata_of<'o>(&self, object: &'o ObjectMetadata<'o>) -> ToldMetadata<'o> {
        let mut annotations: Vec<Option<(&'o str, &'o str)>> = vec![None; self.annotations.len()];
        // An object can have very many annotations, so they are gone through once and not for each key.
        for (key, value) in &object.annotations {
            let place = self.annotations.binary_search_by(|asked| asked.as_str().cmp(key));
            if let Ok(place) = place
                && let Some(found) = annotations.get_mut(place)
            {
                *found = Some((key.as_ref(), value.as_ref()));
            }
        }
        ToldMetadata {
            object,
            annotations: annotations.into_iter().flatten().collect(),
        }
    }

    /// Estimated memory.
    pub(crate) fn bytes(&self) -> usize {
        let keys = self.annotations.iter().map(|key| size_of_val(key) + key.len());
        keys.sum()
    }
}

/// What a plugin is told about an object.
pub(crate) struct ToldMetadata<'o> {
    object: &'o ObjectMetadata<'o>,
    /// Those that were asked for, sorted by key, each key once.
    annotations: Vec<(&'o str, &'o str)>,
}

impl ToldMetadata<'_> {
    /// Labels and annotations. A label that occurs twice counts twice.
    pub(crate) fn pair_count(&self) -> usize {
        self.object.labels.len() + self.annotations.len()
    }

    /// Estimated memory in the plugin, in bytes: that of all texts, of the pairs and of the object.
    pub(crate) fn bytes(&self) -> usize {
        let object = self.object;
        let labels = object.labels.iter().map(|(key, value)| key.len() + value.len());
        let annotations = self.annotations.iter().map(|(key, value)| key.len() + value.len());
        let own = [&object.namespace, &object.name, &object.uid, &object.resource_version];
        let of_controller = object.controller.iter().flat_map(|controller| {
            [
                &controller.api_version,
                &controller.kind,
                &controller.name,
                &controller.uid,
            ]
        });
        let names = own.into_iter().chain(of_controller).map(|text| text.len());
        let texts: usize = labels.chain(annotations).chain(names).sum();
        OBJECT_BYTES + PAIR_BYTES * self.pair_count() + texts
    }

    pub(crate) fn to_plugin_metadata(&self) -> PluginObjectMetadata {
        let object = self.object;
        let annotations = self.annotations.iter();
        let annotations = annotations.map(|&(key, value)| (key.to_owned(), value.to_owned()));
        PluginObjectMetadata {
            namespace: object.namespace.to_string(),
            name: object.name.to_string(),
            uid: object.uid.to_string(),
            resource_version: object.resource_version.to_string(),
            labels: sorted_pairs(&object.labels),
            annotations: annotations.collect(),
            controller: object.controller.as_ref().map(|controller| PluginObjectController {
                api_version: controller.api_version.to_string(),
                kind: controller.kind.to_string(),
                name: controller.name.to_string(),
                uid: controller.uid.to_string(),
            }),
        }
    }
}

/// Sorted by key. Of a key that occurs twice, the last value counts, as in the decoders of clients.
fn sorted_pairs(pairs: &[(Cow<'_, str>, Cow<'_, str>)]) -> Vec<(String, String)> {
    let pairs = pairs.iter().map(|(key, value)| (&**key, &**value));
    let pairs: BTreeMap<&str, &str> = pairs.collect();
    let pairs = pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
    pairs.collect()
}

/// Metadata of an object in a question to a plugin (WIT `object-metadata`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginObjectMetadata {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// Sorted by key, each key once.
    pub labels: Vec<(String, String)>,
    /// Those that were asked for, sorted by key, each key once.
    pub annotations: Vec<(String, String)>,
    pub controller: Option<PluginObjectController>,
}

/// The owner that controls an object (WIT `object-controller`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginObjectController {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::objects::{Controller, TextPairs};

    use super::*;

    fn question(annotations: &[&str]) -> ObjectQuestion {
        ObjectQuestion::new(annotations.iter().map(|&key| key.to_owned()).collect())
    }

    fn pairs(pairs: &[(&'static str, &'static str)]) -> TextPairs<'static> {
        let pairs = pairs.iter().map(|&(key, value)| (key.into(), value.into()));
        pairs.collect()
    }

    fn texts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
        pairs.collect()
    }

    #[test]
    fn plugin_is_told_each_label_once_and_only_annotations_that_it_asks_for() {
        let object = ObjectMetadata {
            namespace: "a".into(),
            name: "x".into(),
            uid: "u".into(),
            resource_version: "7".into(),
            labels: pairs(&[("b", "1"), ("a", "2"), ("b", "3")]),
            annotations: pairs(&[("large", "secret"), ("team", "t1"), ("team", "t2")]),
            controller: Some(Controller {
                api_version: "apps/v1".into(),
                kind: "ReplicaSet".into(),
                name: "r".into(),
                uid: "v".into(),
            }),
        };
        let question = question(&["team", "missing"]);
        let told = PluginObjectMetadata {
            namespace: "a".to_owned(),
            name: "x".to_owned(),
            uid: "u".to_owned(),
            resource_version: "7".to_owned(),
            labels: texts(&[("a", "2"), ("b", "3")]),
            annotations: texts(&[("team", "t2")]),
            controller: Some(PluginObjectController {
                api_version: "apps/v1".to_owned(),
                kind: "ReplicaSet".to_owned(),
                name: "r".to_owned(),
                uid: "v".to_owned(),
            }),
        };
        assert_eq!(question.metadata_of(&object), told);
    }

    #[test]
    fn all_that_a_plugin_is_told_about_an_object_counts_as_its_bytes() {
        let told_bytes = |object: &ObjectMetadata<'_>| {
            let question = question(&["team", "missing"]);
            let told = question.told_metadata_of(object);
            (told.pair_count(), told.bytes())
        };
        let mut object = ObjectMetadata {
            namespace: "a".into(),
            name: "xx".into(),
            uid: "uuu".into(),
            resource_version: "7777".into(),
            ..ObjectMetadata::default()
        };
        assert_eq!(told_bytes(&object), (0, 128 + 10));
        object.labels = pairs(&[("abc", ""), ("b", "1")]);
        assert_eq!(told_bytes(&object), (2, 128 + 10 + 2 * 32 + 5));
        object.labels.clear();
        object.annotations = pairs(&[("large", "secret"), ("team", "t1"), ("team", "t")]);
        assert_eq!(told_bytes(&object), (1, 128 + 10 + 32 + 5));
        object.annotations.clear();
        object.controller = Some(Controller {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: "name".into(),
            uid: "u".into(),
        });
        assert_eq!(told_bytes(&object), (0, 128 + 10 + 10));
    }

    #[test]
    fn annotations_are_told_in_the_order_of_their_keys() {
        let object = ObjectMetadata {
            annotations: pairs(&[("c", "3"), ("b", "0"), ("d", "4"), ("a", "1"), ("b", "2")]),
            ..ObjectMetadata::default()
        };
        let told = question(&["d", "b", "a", "e"]).metadata_of(&object);
        assert_eq!(told.annotations, texts(&[("a", "1"), ("b", "2"), ("d", "4")]));
        assert!(question(&[]).metadata_of(&object).annotations.is_empty());
    }

    #[test]
    fn annotations_are_read_only_if_they_are_asked_for() {
        assert_eq!(question(&["a"]).fields(), MetadataFields::ALL);
        assert!(!question(&[]).fields().annotations);
        assert!(question(&[]).fields().labels && question(&[]).fields().controller);
    }

    #[test]
    fn questions_of_one_verdict_become_one() {
        let all = question(&["b", "a"]).union(&question(&["c", "a"]));
        assert_eq!(all, question(&["a", "b", "c"]));
        assert_eq!(
            question(&["a"]).asked_of(1).union(&question(&["b"]).asked_of(1)),
            question(&["a", "b"]).asked_of(1)
        );
    }

    #[test]
    fn view_depends_on_the_entry_that_answers() {
        assert_eq!(question(&["a", "a"]).asked_of(1), question(&["a"]).asked_of(1));
        assert_ne!(question(&["a"]).asked_of(1), question(&["a"]).asked_of(2));
        assert_ne!(question(&["a"]).asked_of(1), question(&["b"]).asked_of(1));
    }
}
