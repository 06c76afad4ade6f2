//! `ctrlmesh lint`: finds mistakes in custom resources and chains before an API server or a sidecar rejects them. `--fix` fixes those
//! that need no decision.

mod chain;
mod edit;
mod fix;
mod object;
mod sources;
mod tree;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ctrlmesh_contract::names::labels::IGNORE_VALIDATE;
use ctrlmesh_contract::{Mistake, Mistakes};
use ctrlmesh_manager_api::{API_VERSION, ShardingConfig};
use ctrlmesh_manager_planner::overlap::ShardIndex;
use ctrlmesh_manager_planner::validate::{self as rules, is_kind, unlocked_beside, unlocked_warning, validate_with};
use ctrlmesh_manager_planner::{Findings, LabelKeys};
use serde::Serialize;
use serde_json::Value;

use self::object::{Object, api_group, objects, text_field, value_of, value_of_last};
use self::sources::{is_standard_input, source_files};
use self::tree::Node;
use crate::args::{LintArgs, Output};
use crate::error::Error;
use crate::print;

/// The result for one object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LintedObject {
    file: PathBuf,
    /// Kind, namespace and name, as far as the object has them.
    object: String,
    /// Line of its first field.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// The object is rejected if there are any.
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Parts of which nobody can say here whether they are right.
    not_checked: Vec<Problem>,
}

/// What was found in an object or a chain.
#[derive(Debug, Default)]
struct LintFindings {
    mistakes: Mistakes,
    warnings: Mistakes,
    /// Parts that were not checked, with the reason.
    not_checked: Mistakes,
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
struct FixReport {
    file: PathBuf,
    object: String,
    change: String,
    /// `false` if the change does not fit the text as it is written.
    is_made: bool,
}

#[derive(Debug, Serialize)]
struct Report<'r> {
    fixed: &'r [FixReport],
    objects: &'r [LintedObject],
}

pub(crate) fn run(args: &LintArgs) -> Result<ExitCode, Error> {
    if args.fix && args.paths().any(is_standard_input) {
        return Err(Error::FixStandardInput);
    }
    let keys = args.label_keys();
    let mut shards = Vec::new();
    let (mut judged, mut fixed) = (Vec::new(), Vec::new());
    let mut texts = Vec::new();
    for source in args.paths().flat_map(source_files) {
        let (file, found) = match source {
            Ok(file) => (file, Ok(())),
            Err((path, error)) => (path, Err(error)),
        };
        let read = found.and_then(|()| read_source(&file)).and_then(|text| {
            if args.fix {
                fix_file(&file, text, &keys, &mut fixed)
            } else {
                Ok(text)
            }
        });
        shards.extend(read.iter().flat_map(|text| valid_sharding_configs(text)));
        texts.push((file, read));
    }
    let mut known = KnownObjects {
        judged: HashMap::new(),
        shards: ShardIndex::new(shards, keys),
    };
    for (file, read) in texts {
        match read {
            Ok(text) => judged.extend(lint_text(&file, &text, &mut known)),
            // An unreadable file is a finding, so that the others are still checked.
            Err(error) => judged.push(LintedObject::without_object(&file, None, print::with_causes(&error))),
        }
    }
    match args.output {
        // Without --fix, the output is a plain list of objects.
        Output::Json if !args.fix => print::line(&serde_json::to_string_pretty(&judged)?),
        Output::Json => {
            let (fixed, objects) = (&fixed[..], &judged[..]);
            print::line(&serde_json::to_string_pretty(&Report { fixed, objects })?);
        }
        Output::Text => {
            fixed.iter().for_each(|fixed| print::line(&fixed.report_line()));
            judged.iter().flat_map(report_lines).for_each(|line| print::line(&line));
        }
    }
    let is_accepted = judged.iter().all(|judged| judged.errors.is_empty());
    Ok(if is_accepted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read_source(file: &Path) -> Result<String, Error> {
    let text = if is_standard_input(file) {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(Error::file("read", file))
}

/// Writes a file with everything mended that can be; returns its text.
fn fix_file(file: &Path, text: String, keys: &LabelKeys, fixed: &mut Vec<FixReport>) -> Result<String, Error> {
    let (mended, done) = fix::fix_text(&text, keys);
    if mended != text {
        std::fs::write(file, &mended).map_err(Error::file("write", file))?;
    }
    fixed.extend(done.into_iter().map(|done| FixReport {
        file: file.to_owned(),
        object: done.object,
        change: done.change,
        is_made: done.is_made,
    }));
    Ok(mended)
}

impl FixReport {
    fn report_line(&self) -> String {
        let file = self.file.display();
        let done = if self.is_made { "fixed" } else { "not fixed" };
        format!("{file}: {}: {done}: {}", self.object, self.change)
    }
}

/// What is known of all files.
#[derive(Debug)]
struct KnownObjects {
    /// Objects that were judged: file and line, by kind, namespace and name.
    judged: HashMap<[String; 3], (PathBuf, usize)>,
    /// ShardingConfigs of all files, including those not checked yet.
    shards: ShardIndex,
}

/// The valid ShardingConfigs of a text.
fn valid_sharding_configs(text: &str) -> Vec<ShardingConfig> {
    let documents = tree::parse_documents(text);
    let values = documents.iter().filter_map(|document| value_of(text, document).ok());
    let of_value = |value: &Value| -> Vec<ShardingConfig> {
        let read = objects(value)
            .into_iter()
            .filter_map(|object| rules::read(object.value).ok());
        let configs = read.filter_map(|object| match object {
            rules::Object::ShardingConfig(config) => Some(*config),
            _ => None,
        });
        configs.collect()
    };
    values.flat_map(|value| of_value(&value)).collect()
}

fn lint_text(file: &Path, text: &str, known: &mut KnownObjects) -> Vec<LintedObject> {
    let documents = tree::parse_documents(text);
    // Between two `---` there may be nothing but a comment.
    let is_nothing = |root: &Node| root.is_nothing(text);
    let documents: Vec<_> = documents
        .iter()
        .filter(|document| !document.root.as_ref().is_ok_and(is_nothing))
        .collect();
    let mut judged = Vec::new();
    for document in &documents {
        let read = |root| match value_of(text, document) {
            Ok(value) => Ok((root, value, Vec::new())),
            Err(error) => {
                let (value, twice) = value_of_last(text, document, root).ok_or(error)?;
                Ok((root, value, twice))
            }
        };
        let (root, value, twice) = match document.root.as_ref().map_err(Clone::clone).and_then(read) {
            Ok(read) => read,
            Err((line, problem)) => {
                let message = format!("{} is neither YAML nor JSON: {problem}", file.display());
                judged.push(LintedObject::without_object(file, Some(line), message));
                continue;
            }
        };
        if chain::is_chain(&value) {
            let written = text.get(document.range.clone()).unwrap_or_default();
            let findings = chain::lint_chain(written, &value, documents.len() == 1);
            let name = format!("chain of {}", object::text_field(&value, "namespace"));
            judged.push(LintedObject::from_findings(file, name, root, &findings));
            continue;
        }
        for object in objects(&value) {
            let node = root.node_at(&object.path).unwrap_or(root);
            judged.push(lint_object(file, &object, node, &twice, known));
        }
    }
    if judged.is_empty() {
        judged.push(LintedObject::without_object(
            file,
            None,
            "the file has no object".to_owned(),
        ));
    }
    judged
}

/// Objects of other API groups are reported but not checked. `twice`: duplicate fields in the text.
fn lint_object(
    file: &Path,
    object: &Object<'_>,
    node: &Node,
    twice: &[Mistake],
    known: &mut KnownObjects,
) -> LintedObject {
    let document = object.value;
    let version = text_field(document, "apiVersion");
    // An object with the name of one of our kinds is meant to be ours, whatever its group.
    let has_our_name = || is_kind(text_field(document, "kind"));
    let is_foreign = !version.is_empty() && api_group(version) != api_group(API_VERSION) && !has_our_name();
    let mut findings = if is_foreign {
        let mut findings = Findings::default();
        let message = format!("is {version}; only objects of {API_VERSION} are checked");
        findings.warnings.add("apiVersion", message);
        findings
    } else {
        validate_with(document, known.shards.keys())
    };
    for Mistake { path, problem } in twice {
        findings.mistakes.add(path, problem);
    }
    let mut not_checked = Mistakes::default();
    if !is_foreign {
        rules::check_metadata_fields(document, &mut findings);
        known.check_duplicate_name(file, node, document, &mut findings);
        if let Ok(object) = rules::read(document) {
            known.warn_across_objects(&object, &mut findings);
            not_checked = unchecked_parts(&object);
        }
    }
    let Findings { mistakes, warnings } = findings;
    let findings = LintFindings {
        mistakes,
        warnings,
        not_checked,
    };
    LintedObject::from_findings(file, object.display_name(), node, &findings)
}

/// Parts of an object that need a registry, or that its author has excepted from the rules.
fn unchecked_parts(object: &rules::Object) -> Mistakes {
    let mut parts = Mistakes::default();
    if object.has_label(IGNORE_VALIDATE) {
        let problem = format!(
            "label {IGNORE_VALIDATE} excepts this object from all rules but the schema; remove it to check the object"
        );
        parts.add("metadata.labels", problem);
    }
    if let rules::Object::ShardingConfig(config) = object {
        for (index, plugin) in config.spec.plugins.iter().enumerate() {
            let problem = format!(
                "the image {} is not pulled, and only the plugin itself can check its settings: use `ctrlmesh plugin test FILE --cases CASES`",
                plugin.image
            );
            parts.add(format!("spec.plugins[{index}]"), problem);
        }
    }
    parts
}

impl KnownObjects {
    /// Warns about conflicts with other objects, and about settings that had no effect in KusionStack.
    fn warn_across_objects(&self, object: &rules::Object, findings: &mut Findings) {
        rules::warn_of_new(object, findings);
        if let rules::Object::ShardingConfig(config) = object {
            for warning in self.shards.shared(config) {
                findings.warnings.add(warning.path, warning.problem);
            }
            let namespace = config.metadata.namespace.as_deref();
            let beside = unlocked_beside(config, self.shards.of_namespace(namespace));
            if !beside.is_empty() {
                let warning = unlocked_warning(Some(&beside));
                findings.warnings.add(warning.path, warning.problem);
            }
        }
    }

    /// Reports a duplicate name: kubectl keeps the last of two in one file; files may be for different clusters.
    fn check_duplicate_name(&mut self, file: &Path, node: &Node, document: &Value, findings: &mut Findings) {
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let key = ["/kind", "/metadata/namespace", "/metadata/name"].map(|pointer| text(pointer).to_owned());
        let [kind, _, name] = &key;
        if name.is_empty() {
            return;
        }
        match self.judged.get(&key) {
            // The same file was named twice.
            Some((other, line)) if other == file && *line == node.line => {}
            Some((other, line)) if other == file => {
                let problem = format!(
                    "is also the name of the {kind} on line {line}; of two, an API server keeps the one that is applied last: write another \
                     name, or remove one"
                );
                findings.mistakes.add("metadata.name", problem);
            }
            Some((other, line)) => {
                let problem = format!(
                    "is also the name of the {kind} in {}, line {line}; applied to one cluster, only the last is kept",
                    other.display()
                );
                findings.warnings.add("metadata.name", problem);
            }
            None => {
                self.judged.insert(key, (file.to_owned(), node.line));
            }
        }
    }
}

impl LintedObject {
    fn from_findings(file: &Path, object: String, node: &Node, findings: &LintFindings) -> Self {
        Self {
            file: file.to_owned(),
            object,
            line: Some(node.line),
            errors: problems_in(&findings.mistakes, node),
            warnings: problems_in(&findings.warnings, node),
            not_checked: problems_in(&findings.not_checked, node),
        }
    }

    /// The result for a file or document without an object.
    fn without_object(file: &Path, line: Option<usize>, message: String) -> Self {
        let path = String::new();
        Self {
            file: file.to_owned(),
            object: String::new(),
            line,
            errors: vec![Problem { path, line, message }],
            warnings: Vec::new(),
            not_checked: Vec::new(),
        }
    }
}

fn problems_in(mistakes: &Mistakes, node: &Node) -> Vec<Problem> {
    let all = mistakes.list().iter();
    let found = all.map(|mistake| Problem {
        path: mistake.path.clone(),
        line: Some(node.line_of(&mistake.path)),
        message: mistake.problem.clone(),
    });
    let untold = (mistakes.untold() > 0).then(|| Problem {
        path: String::new(),
        line: None,
        message: format!("and {} more; fix some of these to see them", mistakes.untold()),
    });
    found.chain(untold).collect()
}

fn report_lines(judged: &LintedObject) -> Vec<String> {
    let file = judged.file.display().to_string();
    let about = |line: Option<usize>| {
        let place = line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"));
        match judged.object.as_str() {
            "" => place,
            object => format!("{place}: {object}"),
        }
    };
    if judged.errors.is_empty() && judged.warnings.is_empty() && judged.not_checked.is_empty() {
        return vec![format!("{}: ok", about(None))];
    }
    let line = |what: &str, found: &Problem| match found.path.as_str() {
        "" => format!("{}: {what}{}", about(found.line), found.message),
        path => format!("{}: {what}{path}: {}", about(found.line), found.message),
    };
    let errors = judged.errors.iter().map(|found| line("", found));
    let warnings = judged.warnings.iter().map(|found| line("warning: ", found));
    let not_checked = judged.not_checked.iter().map(|found| line("not checked: ", found));
    errors.chain(warnings).chain(not_checked).collect()
}
