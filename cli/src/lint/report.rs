//! Prints the findings: a finding per line, and one line for all that it does not check; or JSON.

use std::path::{Path, PathBuf};

use ctrlmesh_contract::{Mistake, Mistakes};
use serde::Serialize;

use super::tree::Node;
use crate::args::Output;
use crate::error::Error;
use crate::print;

/// Maximum of objects and files that the last lines name.
const MAX_EXAMPLES: usize = 3;

/// The result for one object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LintedObject {
    file: PathBuf,
    /// Kind, namespace and name, as far as the object has them.
    object: String,
    /// Line of its first field.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The object is refused if there are any.
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Parts of which nobody can say here whether they are right.
    not_checked: Vec<Problem>,
    #[serde(skip)]
    scope: Scope,
}

/// Whether lint has rules for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    Checked,
    /// An object of another API group.
    Foreign,
    /// A file of a folder without an object of Kubernetes.
    NoObject,
}

/// Findings in an object or a chain.
#[derive(Debug, Default)]
pub(super) struct LintFindings {
    pub(super) mistakes: Mistakes,
    pub(super) warnings: Mistakes,
    /// Parts that were not checked, with the reason.
    pub(super) not_checked: Mistakes,
}

#[derive(Debug, Serialize)]
struct Problem {
    /// Path of the field: `spec.limits[0].selector`.
    path: String,
    /// Line of the field, or of its parent if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    message: String,
}

/// A change by `--fix`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FixReport {
    pub(super) file: PathBuf,
    pub(super) object: String,
    pub(super) change: String,
    /// `false` if the change does not fit the text as it is written.
    pub(super) is_made: bool,
}

#[derive(Debug, Serialize)]
struct Report<'r> {
    fixed: &'r [FixReport],
    objects: &'r [LintedObject],
}

/// Prints all results. `fixed`: `None` without `--fix`.
pub(super) fn print_report(objects: &[LintedObject], fixed: Option<&[FixReport]>, output: Output) -> Result<(), Error> {
    match (output, fixed) {
        // Without --fix, the output is a plain list of objects.
        (Output::Json, None) => print::line(&serde_json::to_string_pretty(objects)?),
        (Output::Json, Some(fixed)) => print::line(&serde_json::to_string_pretty(&Report { fixed, objects })?),
        (Output::Text, fixed) => {
            let fixed = fixed.into_iter().flatten().map(FixReport::report_line);
            let found = objects.iter().flat_map(LintedObject::report_lines);
            // A line break in a name must not make a line of its own.
            let lines = fixed.chain(found).chain(unchecked_lines(objects));
            lines.for_each(|line| print::line(&line.replace('\n', "\\n")));
        }
    }
    Ok(())
}

/// One line for all objects of other API groups, and one for all files without objects.
fn unchecked_lines(objects: &[LintedObject]) -> Vec<String> {
    let of_scope = |scope: Scope| objects.iter().filter(move |object| object.is_only(scope));
    let foreign: Vec<String> = of_scope(Scope::Foreign).map(|it| it.object.clone()).collect();
    let skipped: Vec<String> = of_scope(Scope::NoObject)
        .map(|it| it.file.display().to_string())
        .collect();
    let line = |names: &[String], one: &str, many: &str| {
        let what = if names.len() == 1 { one } else { many };
        let examples: Vec<&str> = names.iter().take(MAX_EXAMPLES).map(String::as_str).collect();
        let more = if names.len() > examples.len() { ", …" } else { "" };
        (!names.is_empty()).then(|| format!("not checked: {} {what}: {}{more}", names.len(), examples.join(", ")))
    };
    let foreign = line(&foreign, "object of another API group", "objects of other API groups");
    let skipped = line(
        &skipped,
        "file without an object of Kubernetes",
        "files without an object of Kubernetes",
    );
    foreign.into_iter().chain(skipped).collect()
}

impl FixReport {
    fn report_line(&self) -> String {
        let file = self.file.display();
        let done = if self.is_made { "fixed" } else { "not fixed" };
        format!("{file}: {}: {done}: {}", self.object, self.change)
    }
}

impl LintedObject {
    pub(super) fn from_findings(file: &Path, object: String, node: &Node, findings: &LintFindings) -> Self {
        Self {
            file: file.to_owned(),
            object,
            line: Some(node.line),
            errors: problems_in(&findings.mistakes, node),
            warnings: problems_in(&findings.warnings, node),
            not_checked: problems_in(&findings.not_checked, node),
            scope: Scope::Checked,
        }
    }

    /// The result for a file or document without an object.
    pub(super) fn without_object(file: &Path, line: Option<usize>, message: String) -> Self {
        let path = String::new();
        Self {
            errors: vec![Problem { path, line, message }],
            not_checked: Vec::new(),
            line,
            scope: Scope::Checked,
            ..Self::skipped(file)
        }
    }

    /// The result for a file of a folder that has nothing to check.
    pub(super) fn skipped(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            object: String::new(),
            line: None,
            errors: Vec::new(),
            warnings: Vec::new(),
            not_checked: vec![Problem {
                path: String::new(),
                line: None,
                message: "the file has no object of Kubernetes".to_owned(),
            }],
            scope: Scope::NoObject,
        }
    }

    pub(super) fn with_scope(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    pub(super) fn is_accepted(&self) -> bool {
        self.errors.is_empty()
    }

    /// Whether the object is only counted, because it has this scope and no finding.
    fn is_only(&self, scope: Scope) -> bool {
        self.scope == scope && self.errors.is_empty() && self.warnings.is_empty()
    }

    /// The findings in the order of their lines; nothing for an object that is only counted.
    fn report_lines(&self) -> Vec<String> {
        if self.is_only(Scope::Foreign) || self.is_only(Scope::NoObject) {
            return Vec::new();
        }
        let file = self.file.display().to_string();
        let about = |line: Option<usize>| {
            let place = line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"));
            match self.object.as_str() {
                "" => place,
                object => format!("{place}: {object}"),
            }
        };
        let line = |what: &str, found: &Problem| {
            let text = match found.path.as_str() {
                "" => format!("{}: {what}{}", about(found.line), found.message),
                path => format!("{}: {what}{path}: {}", about(found.line), found.message),
            };
            (found.line.unwrap_or(usize::MAX), text)
        };
        let errors = self.errors.iter().map(|found| line("", found));
        let warnings = self.warnings.iter().map(|found| line("warning: ", found));
        let not_checked = self.not_checked.iter().map(|found| line("not checked: ", found));
        let mut lines: Vec<(usize, String)> = errors.chain(warnings).chain(not_checked).collect();
        if lines.is_empty() {
            return vec![format!("{}: ok", about(None))];
        }
        lines.sort_by_key(|(line, _)| *line);
        lines.into_iter().map(|(_, text)| text).collect()
    }
}

fn problems_in(mistakes: &Mistakes, node: &Node) -> Vec<Problem> {
    let all = mistakes.list().iter();
    let found = all.map(|mistake: &Mistake| Problem {
        path: mistake.path.clone(),
        line: Some(node.line_of(&mistake.path)),
        message: mistake.problem.clone(),
    });
    let untold = (mistakes.omitted_count() > 0).then(|| Problem {
        path: String::new(),
        line: None,
        message: format!("and {} more; fix some of these to see them", mistakes.omitted_count()),
    });
    found.chain(untold).collect()
}
