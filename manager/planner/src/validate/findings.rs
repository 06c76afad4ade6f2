//! Findings of a validation: mistakes, which refuse an object, and warnings.

use ctrlmesh_contract::{Mistake, Mistakes};
use serde_json::Value;

use crate::built_in::BuiltIn;

/// Findings of an object. Paths are those of its fields: `spec.limits[0].selector`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Reasons to refuse the object.
    pub mistakes: Mistakes,
    /// Valid, but probably not intended.
    pub warnings: Mistakes,
}

impl Findings {
    /// Whether there are no mistakes.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.mistakes.list().is_empty()
    }

    pub(super) fn refuse(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.mistakes.add(path, problem);
    }

    pub(super) fn warn(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.warnings.add(path, problem);
    }

    /// Lets a plugin check a part of an object, so that the mistakes of all parts are reported. `path_of` converts a path in the
    /// settings into a path of the object; the settings themselves have path "".
    pub(super) fn check_with_plugin(
        &mut self,
        plugin: BuiltIn,
        settings: &Value,
        namespace: &str,
        path_of: &dyn Fn(&str) -> String,
    ) {
        if let Err(Mistake { path, problem }) = plugin.check(settings, namespace) {
            self.mistakes.add(path_of(&path), problem);
        }
    }

    /// Lets a plugin check the whole object if no part has a mistake. Only then are warnings reported, because otherwise they may
    /// be wrong.
    pub(super) fn ask_whole(
        &mut self,
        plugin: BuiltIn,
        settings: &Value,
        namespace: &str,
        path_of: &dyn Fn(&str) -> String,
    ) {
        match plugin.check(settings, namespace) {
            Ok(warnings) => {
                for warning in warnings {
                    match warning.split_once(": ").filter(|(path, _)| is_path_of_element(path)) {
                        Some((path, problem)) => self.warnings.add(path_of(path), problem),
                        None => self.warnings.add("spec", warning),
                    }
                }
            }
            Err(Mistake { path, problem }) => self.mistakes.add(path_of(&path), problem),
        }
    }
}

/// Whether a text is the path of a list's element in settings, such as `httpFault[1]`.
fn is_path_of_element(text: &str) -> bool {
    let index = text.strip_suffix(']').and_then(|text| text.split_once('['));
    index.is_some_and(|(list, index)| {
        list.chars().all(|char| char.is_ascii_alphanumeric()) && index.parse::<usize>().is_ok()
    })
}

/// Replaces the index in a path like `rateLimitings[0].bucket`: elements that were checked one by one get their own index back.
pub(super) fn at_index(path: &str, list: &str, index: usize) -> String {
    let rest = path.strip_prefix(&format!("{list}[0]")).unwrap_or_default();
    format!("{list}[{index}]{rest}")
}
