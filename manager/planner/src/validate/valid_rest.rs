//! Applies the rules to a document in which the schema found mistakes, so that all mistakes are reported at once.

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::names::labels::IGNORE_VALIDATE;
use serde_json::Value;

use super::{Findings, check_object, read};
use crate::LabelKeys;

/// Adds the findings of the rules for the valid rest of the document to the schema's mistakes.
pub(super) fn check_valid_rest(document: &Value, mut mistakes: Mistakes, keys: &LabelKeys) -> Findings {
    let rest = read::valid_rest(document);
    let Some(rest) = rest.filter(|rest| !rest.object.has_label(IGNORE_VALIDATE)) else {
        return Findings {
            mistakes,
            ..Findings::default()
        };
    };
    let mut warnings = Mistakes::default();
    let found = check_object(&rest.object, keys);
    let wrong: Vec<WrongFields> = mistakes
        .list()
        .iter()
        .map(|it| WrongFields {
            path: it.path.clone(),
            is_guessed: rest.guessed.contains(&it.path),
        })
        .collect();
    let follows = |path: &str| wrong.iter().any(|wrong| wrong.leads_to(path));
    for (from, to) in [(found.mistakes, &mut mistakes), (found.warnings, &mut warnings)] {
        for it in from.list().iter().filter(|it| !follows(&it.path)) {
            to.add(it.path.clone(), it.problem.clone());
        }
    }
    Findings { mistakes, warnings }
}

/// A mistake that the schema found.
struct WrongFields {
    path: String,
    /// Rules have checked a substitute for a missing value.
    is_guessed: bool,
}

impl WrongFields {
    /// Whether a rule's finding at a path may follow from this mistake. Fields of one mapping are judged together. Deeper fields
    /// are judged by themselves, unless the mistake's value was a substitute, which may decide how they are checked.
    fn leads_to(&self, path: &str) -> bool {
        let around = parent_path(&self.path);
        let is_deeper = || {
            let rest = path.strip_prefix(around).unwrap_or_default();
            rest.trim_start_matches('.').contains('.')
        };
        is_within(path, &self.path)
            || is_within(around, path)
            || (is_within(path, around) && (self.is_guessed || !is_deeper()))
    }
}

/// The mapping or element around a field. Direct fields of `spec` and `metadata` are judged one by one, so for them it is the field
/// itself.
fn parent_path(path: &str) -> &str {
    match path.rsplit_once('.') {
        Some((around, _)) if around != "spec" && around != "metadata" => around,
        _ => path,
    }
}

/// Whether a path is the same as another, or leads to a part of it.
fn is_within(path: &str, around: &str) -> bool {
    let rest = path.strip_prefix(around);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_reported_unless_it_may_follow_from_schema_mistake() {
        for (path, is_guessed, found, follows) in [
            ("spec.rules[0].typo", false, "spec.rules[0].bucket", true),
            ("spec.rules[0].typo", false, "spec.rules[0].bucket.interval", false),
            ("spec.rules[0].typo", false, "spec.rules[0].verbs[0]", true),
            ("spec.rules[0].typo", false, "spec.rules[1].bucket", false),
            ("spec.rules[0].typo", false, "spec.rules", true),
            ("spec.rules[0].typo", false, "spec", true),
            ("spec.rules[0].typo", false, "spec.rules[0].typo.x", true),
            ("spec.rules[0].policy", true, "spec.rules[0].bucket.interval", true),
            ("spec.rules[0].policy", true, "spec.rules[1].bucket.interval", false),
            ("spec.typo", false, "spec.selector", false),
            ("spec.typo", false, "spec", true),
            ("metadata.labels", false, "metadata.name", false),
        ] {
            let wrong = WrongFields {
                path: path.to_owned(),
                is_guessed,
            };
            assert_eq!(wrong.leads_to(found), follows, "{path} {is_guessed} {found}");
        }
    }
}
