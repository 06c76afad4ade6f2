//! Findings of a validation: mistakes, which refuse an object, and warnings.

use ctrlmesh_contract::{Mistake, Mistakes};
use serde_json::Value;

use crate::built_in::BuiltIn;

/// What was found in an object. Paths are those of its fields: `spec.limits[0].selector`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Reasons to refuse it.
    pub mistakes: Mistakes,
    /// Legal, and probably not meant.
    pub warnings: Mistakes,
}

impl Findings {
    /// Whether nothing speaks against it.
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

    /// Asks a plugin about a part of an object, so that the mistakes of all parts are told. `path_of` turns a path in the
    /// settings into one of the object; the settings themselves are "".
    pub(super) fn ask(&mut self, plugin: BuiltIn, settings: &Value, namespace: &str, path_of: &dyn Fn(&str) -> String) {
        if let Err(Mistake { path, problem }) = plugin.check(settings, namespace) {
            self.mistakes.add(path_of(&path), problem);
        }
    }

    /// Asks about the whole, if no part has a mistake: only then warnings make sense, and are told.
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
                    self.warnings.add("spec", warning);
                }
            }
            Err(Mistake { path, problem }) => self.mistakes.add(path_of(&path), problem),
        }
    }
}

/// `rateLimitings[0].bucket` as the bucket of another element: what is asked about one by one has its index again.
pub(super) fn at_index(path: &str, list: &str, index: usize) -> String {
    let rest = path.strip_prefix(&format!("{list}[0]")).unwrap_or_default();
    format!("{list}[{index}]{rest}")
}
