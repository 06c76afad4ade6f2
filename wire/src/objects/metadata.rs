//! The fields of an object's metadata that decide whether it is kept.

use std::borrow::Cow;

/// Keys with their values.
pub type TextPairs<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// The metadata of one object. A field that was not asked for ([`MetadataFields`]) is empty, as is one that the object
/// does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectMetadata<'a> {
    /// `metadata.namespace`
    pub namespace: Cow<'a, str>,
    /// `metadata.name`
    pub name: Cow<'a, str>,
    /// `metadata.uid`
    pub uid: Cow<'a, str>,
    /// `metadata.resourceVersion`
    pub resource_version: Cow<'a, str>,
    /// `metadata.labels`, in the order of the object.
    pub labels: TextPairs<'a>,
    /// `metadata.annotations`, in the order of the object.
    pub annotations: TextPairs<'a>,
    /// The entry of `metadata.ownerReferences` with `controller: true`; the first one, as in apimachinery
    /// (`pkg/apis/meta/v1/controller_ref.go`, `GetControllerOfNoCopy`).
    pub controller: Option<Controller<'a>>,
}

impl ObjectMetadata<'_> {
    /// The value of a label. If a key occurs twice, the last one wins, as in upstream's decoders of JSON and protobuf.
    /// CBOR with such a key is not read.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        let mut labels = self.labels.iter().rev();
        labels.find(|(known, _)| known == key).map(|(_, value)| value.as_ref())
    }

    /// The value of an annotation, in the same way.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let mut annotations = self.annotations.iter().rev();
        annotations
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_ref())
    }
}

/// The owner that controls an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controller<'a> {
    /// `apiVersion`
    pub api_version: Cow<'a, str>,
    /// `kind`
    pub kind: Cow<'a, str>,
    /// `name`
    pub name: Cow<'a, str>,
    /// `uid`
    pub uid: Cow<'a, str>,
}

/// The fields of metadata that are read. Reading an object stops once these were seen, where its encoding allows that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of metadata")]
pub struct MetadataFields {
    /// `metadata.namespace`
    pub namespace: bool,
    /// `metadata.name`
    pub name: bool,
    /// `metadata.uid`
    pub uid: bool,
    /// `metadata.resourceVersion`
    pub resource_version: bool,
    /// `metadata.labels`
    pub labels: bool,
    /// `metadata.annotations`
    pub annotations: bool,
    /// The controller in `metadata.ownerReferences`.
    pub controller: bool,
}

impl MetadataFields {
    /// Every field is read.
    pub const ALL: Self = Self {
        namespace: true,
        name: true,
        uid: true,
        resource_version: true,
        labels: true,
        annotations: true,
        controller: true,
    };

    /// The fields that either of the two reads.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self {
            namespace: self.namespace || other.namespace,
            name: self.name || other.name,
            uid: self.uid || other.uid,
            resource_version: self.resource_version || other.resource_version,
            labels: self.labels || other.labels,
            annotations: self.annotations || other.annotations,
            controller: self.controller || other.controller,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_value_of_a_key_counts() {
        let pairs = || {
            vec![
                ("a".into(), "1".into()),
                ("b".into(), "2".into()),
                ("a".into(), "3".into()),
            ]
        };
        let object = ObjectMetadata {
            labels: pairs(),
            ..ObjectMetadata::default()
        };
        assert_eq!((object.label("a"), object.label("c")), (Some("3"), None));
        assert_eq!(object.annotation("a"), None);
        let object = ObjectMetadata {
            annotations: pairs(),
            ..ObjectMetadata::default()
        };
        assert_eq!((object.annotation("a"), object.annotation("b")), (Some("3"), Some("2")));
        assert_eq!(object.label("a"), None);
    }
}
