//! The fields of a `drop-fields` edit: a plugin's paths, and what was parsed of them. Copies share both.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use ctrlmesh_wire::objects::{DroppedFields, DroppedFieldsError};

/// Estimated memory of a key of a path, in bytes: a node of a `BTreeMap` has room for eleven keys and values.
const KEY_BYTES: usize = 640;

/// Fields that a client does not get of the objects of a list or watch. They are equal if their paths are, in any order.
#[derive(Debug, Clone)]
pub struct PluginDroppedFields(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Sorted, each once.
    paths: Box<[String]>,
    fields: DroppedFields,
}

impl PluginDroppedFields {
    /// Parses the paths.
    ///
    /// # Errors
    /// There are too many, or one is malformed, too long, or leads to a field that clients need.
    pub fn parse(mut paths: Vec<String>) -> Result<Self, DroppedFieldsError> {
        let fields = DroppedFields::parse(paths.iter().map(String::as_str))?;
        paths.sort_unstable();
        paths.dedup();
        let paths = paths.into_boxed_slice();
        Ok(Self(Rc::new(Shared { paths, fields })))
    }

    /// The paths, sorted.
    #[must_use]
    pub fn paths(&self) -> &[String] {
        &self.0.paths
    }

    pub(crate) fn fields(&self) -> &DroppedFields {
        &self.0.fields
    }

    /// Estimated memory.
    pub(crate) fn bytes(&self) -> usize {
        let bytes_of = |path: &String| {
            let marks = path.bytes().filter(|byte| matches!(byte, b'.' | b'['));
            size_of_val(path) + 2 * path.len() + (marks.count() + 1) * KEY_BYTES
        };
        size_of::<Shared>() + self.paths().iter().map(bytes_of).sum::<usize>()
    }
}

impl PartialEq for PluginDroppedFields {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || self.paths() == other.paths()
    }
}

impl Eq for PluginDroppedFields {}

impl Hash for PluginDroppedFields {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.paths().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(paths: &[&str]) -> PluginDroppedFields {
        PluginDroppedFields::parse(paths.iter().map(|&path| path.to_owned()).collect()).unwrap()
    }

    #[test]
    fn order_and_repetition_of_paths_make_no_difference() {
        assert_eq!(dropped(&["a", "b.c", "a"]), dropped(&["b.c", "a"]));
        assert_ne!(dropped(&["a", "b.c"]), dropped(&["a", "b.d"]));
        assert_ne!(dropped(&["a"]), dropped(&["a", "b"]));
    }

    #[test]
    fn longer_paths_count_as_more_memory() {
        let key = "k".repeat(100);
        let one = dropped(&[&key]);
        assert!(one.bytes() > 200);
        assert!(dropped(&[&format!("{key}.{key}"), "x"]).bytes() > 2 * one.bytes());
    }
}
