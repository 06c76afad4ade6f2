//! The fields that are left out of kept objects, as paths of keys.

use std::collections::BTreeMap;

use crate::WatchEncoding;

/// Most paths of fields that are dropped.
pub const MAX_DROPPED_PATHS: usize = 16;

/// Most keys of a path.
pub const MAX_DROPPED_PATH_KEYS: usize = 8;

/// Longest path, in bytes. The longest key of an annotation takes 317 of them.
pub const MAX_DROPPED_PATH_BYTES: usize = 1024;

/// The fields that a filter leaves out of the objects that it keeps.
///
/// A path has the keys of maps: `metadata.managedFields`, `spec.template`, or
/// `metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]`. The first key, and a key behind a dot,
/// has letters, digits, `-` and `_`. A key in `["` and `"]` has any characters but quotes, backslashes and control
/// characters. Keys are compared by their exact case. No path leads into an array: nothing is left out there.
///
/// Of metadata only `managedFields`, `labels` and `annotations`, and single labels and annotations, can be dropped, and
/// `apiVersion` and `kind` cannot be, because clients do not work without them. Metadata are decided on before fields
/// are dropped. Bookmarks, errors and what stands for a hidden event pass as they are.
///
/// A client that writes a whole object back (PUT) removes what it did not get. Only `managedFields` are safe: the API
/// server keeps those of the stored object if there are none (apimachinery
/// `pkg/util/managedfields/internal/fieldmanager.go`, `Update`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DroppedFields {
    keys: DroppedKeys,
}

impl DroppedFields {
    /// Reads paths. A path within another one adds nothing.
    ///
    /// # Errors
    /// When there are more or longer paths than allowed, or a path is malformed or leads to a field that clients need.
    pub fn parse<'p>(paths: impl IntoIterator<Item = &'p str>) -> Result<Self, DroppedFieldsError> {
        let mut keys = DroppedKeys::default();
        for (index, path) in paths.into_iter().enumerate() {
            if index == MAX_DROPPED_PATHS {
                return Err(DroppedFieldsError::TooManyPaths);
            }
            keys.insert(&droppable_keys(path)?);
        }
        Ok(Self { keys })
    }

    /// The fields that either of both drops. Callers bound how many paths they unite: a sidecar allows 64 in a verdict and
    /// has verdicts of at most 64 entries for a request, so 4096 paths.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        self.keys.merge(&other.keys);
        self
    }

    /// Whether no field is dropped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether all fields can be dropped from bodies of this encoding. In protobuf only those of metadata can be: other
    /// fields have different numbers in each kind. A filter of protobuf with others fails with
    /// [`FilterError::UndroppableFields`](super::FilterError::UndroppableFields).
    #[must_use]
    pub fn supports(&self, encoding: WatchEncoding) -> bool {
        match encoding {
            WatchEncoding::Json | WatchEncoding::Cbor => true,
            WatchEncoding::Protobuf => self.is_empty() || self.metadata_keys().is_some(),
        }
    }

    /// The keys in objects.
    pub(super) const fn object_keys(&self) -> &DroppedKeys {
        &self.keys
    }

    /// The keys in metadata, if fields are dropped and all of them are there.
    pub(super) fn metadata_keys(&self) -> Option<&DroppedKeys> {
        match self.keys.get("metadata") {
            Some(DroppedValue::Parts(keys)) if self.keys.values.len() == 1 => Some(keys),
            _ => None,
        }
    }
}

/// The keys of a map whose values are left out, or have parts that are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DroppedKeys {
    values: BTreeMap<String, DroppedValue>,
}

/// The part of a value that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DroppedValue {
    /// The value itself with its key.
    Whole,
    /// Entries of the map that the value is.
    Parts(DroppedKeys),
}

impl DroppedKeys {
    /// The part that is left out of the value of this key; `None` if the value is kept as it is.
    pub(super) fn get(&self, key: &str) -> Option<&DroppedValue> {
        self.values.get(key)
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn merge(&mut self, other: &Self) {
        for (key, value) in &other.values {
            match (self.values.get_mut(key), value) {
                (None, _) => {
                    self.values.insert(key.clone(), value.clone());
                }
                (Some(DroppedValue::Whole), _) => {}
                (Some(DroppedValue::Parts(keys)), DroppedValue::Parts(others)) => keys.merge(others),
                (Some(whole), DroppedValue::Whole) => *whole = DroppedValue::Whole,
            }
        }
    }

    fn insert(&mut self, path: &[&str]) {
        let Some((&key, behind)) = path.split_first() else {
            return;
        };
        let new_value = || DroppedValue::Parts(Self::default());
        let value = self.values.entry(key.to_owned()).or_insert_with(new_value);
        match value {
            DroppedValue::Parts(_) if behind.is_empty() => *value = DroppedValue::Whole,
            DroppedValue::Parts(keys) => keys.insert(behind),
            DroppedValue::Whole => {}
        }
    }
}

/// The keys of a path that leads to no field that clients need.
fn droppable_keys(path: &str) -> Result<Vec<&str>, DroppedFieldsError> {
    if path.len() > MAX_DROPPED_PATH_BYTES {
        return Err(DroppedFieldsError::TooLong { bytes: path.len() });
    }
    let keys = path_keys(path)?;
    let is_droppable = match *keys {
        ["metadata", "managedFields" | "labels" | "annotations"] => true,
        ["metadata", "labels" | "annotations", _] => true,
        ["apiVersion" | "kind" | "metadata", ..] => false,
        _ => true,
    };
    if is_droppable {
        Ok(keys)
    } else {
        Err(DroppedFieldsError::Undroppable { path: path.to_owned() })
    }
}

fn path_keys(path: &str) -> Result<Vec<&str>, DroppedFieldsError> {
    let mut keys = Vec::new();
    let mut rest = path;
    while keys.is_empty() || !rest.is_empty() {
        if keys.len() == MAX_DROPPED_PATH_KEYS {
            return Err(DroppedFieldsError::TooDeep { path: path.to_owned() });
        }
        let (key, behind) = split_key(rest, keys.is_empty()).map_err(|problem| DroppedFieldsError::Malformed {
            path: path.to_owned(),
            problem,
            position: path.len() - rest.len(),
        })?;
        keys.push(key);
        rest = behind;
    }
    Ok(keys)
}

/// Splits a key off, with the dot or the brackets that mark it.
fn split_key(rest: &str, is_first: bool) -> Result<(&str, &str), &'static str> {
    if let Some(quoted) = rest.strip_prefix("[\"").filter(|_| !is_first) {
        let (key, behind) = quoted
            .split_once("\"]")
            .ok_or("a key in brackets does not end with `\"]`")?;
        let is_refused = |letter: char| matches!(letter, '"' | '\\') || letter.is_control();
        return if key.is_empty() || key.contains(is_refused) {
            Err("a key in brackets is empty, or has a quote, a backslash or a control character")
        } else {
            Ok((key, behind))
        };
    }
    let plain = match rest.strip_prefix('.') {
        Some(behind) if !is_first => behind,
        None if is_first => rest,
        _ => return Err("each key but the first one needs a dot before it, or `[\"` and `\"]` around it"),
    };
    let is_end = |letter: char| !letter.is_ascii_alphanumeric() && !matches!(letter, '-' | '_');
    let length = plain.find(is_end).unwrap_or(plain.len());
    match plain.split_at_checked(length) {
        Some((key, behind)) if !key.is_empty() => Ok((key, behind)),
        _ => Err("a key is missing"),
    }
}

/// Why paths of fields were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DroppedFieldsError {
    /// There are more than [`MAX_DROPPED_PATHS`].
    #[error("more than {MAX_DROPPED_PATHS} paths of fields; drop fewer, or a field that holds several of them")]
    TooManyPaths,
    /// A path is longer than [`MAX_DROPPED_PATH_BYTES`].
    #[error("a path of fields has {bytes} bytes; at most {MAX_DROPPED_PATH_BYTES} are allowed")]
    TooLong {
        /// Length of the path, in bytes.
        bytes: usize,
    },
    /// A path has more than [`MAX_DROPPED_PATH_KEYS`].
    #[error("path {path:?} has more than {MAX_DROPPED_PATH_KEYS} keys; drop a field that is further out")]
    TooDeep {
        /// The refused path.
        path: String,
    },
    /// A path is no sequence of keys.
    #[error("invalid path {path:?}: {problem} (at byte {position})")]
    Malformed {
        /// The refused path.
        path: String,
        /// The reason why it is invalid.
        problem: &'static str,
        /// Number of bytes before the key that is wrong.
        position: usize,
    },
    /// A path leads to a field that clients need.
    #[error(
        "path {path:?} cannot be dropped: clients need apiVersion, kind and metadata; of metadata, drop managedFields, \
         labels or annotations, or a single label or annotation"
    )]
    Undroppable {
        /// The refused path.
        path: String,
    },
}

#[cfg(test)]
mod tests;
