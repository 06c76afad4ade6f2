//! `ctrlmesh lint`: finds mistakes in custom resources and chains before an API server rejects them or a sidecar refuses them.
//! `--fix` fixes those that need no decision.
//!
//! | module | holds |
//! |---|---|
//! | `sources` | the files that are read |
//! | `fix`, `edit` | `--fix`: from a mistake to a change in the text |
//! | `chain` | chain documents, as a sidecar reads them |
//! | `report` | what is printed of each object |
//! | `object` | the objects of a document or a `List` |
//! | `tree` | a text as a tree of positions |

mod chain;
mod edit;
mod fix;
mod object;
mod report;
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
use ctrlmesh_manager_planner::{BuiltIn, Findings, LabelKeys};
use serde_json::Value;

use self::object::{Object, api_group, is_list, objects_in, text_field, value_of, value_of_last};
use self::report::{FixReport, LintFindings, LintedObject, Scope, print_report};
use self::sources::{SourceFile, is_standard_input, read_source, source_files};
use self::tree::{Document, Node};
use crate::args::LintArgs;
use crate::error::Error;
use crate::print;

/// The beginning of an action in a template of Helm or Go.
const TEMPLATE: &str = "{{";

pub(crate) fn run(args: &LintArgs) -> Result<ExitCode, Error> {
    if args.fix && args.paths().any(is_standard_input) {
        return Err(Error::FixStandardInput);
    }
    let keys = args.label_keys();
    keys.check(["--label-shard-hash", "--label-namespace", "--label-mesh-control"])
        .map_err(|(flag, problem)| Error::LabelKey { flag, problem })?;
    let (mut judged, mut fixed) = (Vec::new(), Vec::new());
    let (mut texts, mut shards) = (Vec::new(), Vec::new());
    for source in args.paths().flat_map(source_files) {
        let (file, found) = match source {
            Ok(file) => (file, Ok(())),
            Err((path, error)) => (SourceFile::named(&path), Err(error)),
        };
        let read = found.and_then(|()| read_source(&file.path)).and_then(|text| {
            if args.fix {
                fix_file(&file.path, text, &keys, &mut fixed)
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
            Err(error) => judged.push(LintedObject::without_object(&file.path, None, file_problem(&error))),
        }
    }
    print_report(&judged, args.fix.then_some(&fixed[..]), args.output.format)?;
    Ok(if judged.iter().all(LintedObject::is_accepted) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The error without the path of the file, which precedes it.
fn file_problem(error: &Error) -> String {
    match error {
        Error::File { action, source, .. } => format!("cannot {action} it: {}", print::io_text(source)),
        error => print::with_causes(error),
    }
}

/// Makes all changes of a file that can be made automatically, and writes it; returns its text.
fn fix_file(file: &Path, text: String, keys: &LabelKeys, fixed: &mut Vec<FixReport>) -> Result<String, Error> {
    let (fixed_text, done) = fix::fix_text(&text, keys);
    if fixed_text != text {
        std::fs::write(file, &fixed_text).map_err(Error::file("write", file))?;
    }
    fixed.extend(done.into_iter().map(|done| FixReport {
        file: file.to_owned(),
        object: done.object,
        change: done.change,
        is_made: done.is_made,
    }));
    Ok(fixed_text)
}

#[derive(Debug)]
struct KnownObjects {
    /// Objects that were judged: file and line, by kind, namespace and name.
    judged: HashMap<[String; 3], (PathBuf, usize)>,
    /// ShardingConfigs of all files, including those not checked yet.
    shards: ShardIndex,
}

/// Leaves out invalid ShardingConfigs, whose mistakes are reported with their own document.
fn valid_sharding_configs(text: &str) -> Vec<ShardingConfig> {
    let documents = tree::parse_documents(text);
    let values = documents.iter().filter_map(|document| value_of(text, document).ok());
    let of_value = |value: &Value| -> Vec<ShardingConfig> {
        let read = objects_in(value)
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

/// A document as it was read.
struct ReadDocument<'d> {
    written: &'d str,
    /// Line and message of the error if it is unreadable.
    content: Result<(&'d Node, Value, Vec<Mistake>), (usize, String)>,
}

fn read_document<'d>(text: &'d str, document: &'d Document) -> ReadDocument<'d> {
    let read = |root| match value_of(text, document) {
        Ok(value) => Ok((root, value, Vec::new())),
        Err(error) => {
            let (value, twice) = value_of_last(text, document, root).ok_or(error)?;
            Ok((root, value, twice))
        }
    };
    ReadDocument {
        written: text.get(document.range.clone()).unwrap_or_default(),
        content: document.root.as_ref().map_err(Clone::clone).and_then(read),
    }
}

/// Whether a file of a folder has something for lint. Other files lie beside manifests: values of charts and their templates,
/// settings of other programs.
fn has_objects(text: &str, documents: &[ReadDocument<'_>]) -> bool {
    let is_unreadable = |document: &ReadDocument<'_>| document.content.is_err();
    if documents.iter().any(is_unreadable) && text.contains(TEMPLATE) {
        return false;
    }
    documents.iter().any(|document| match &document.content {
        Ok((_, value, _)) => {
            let (version, kind) = (text_field(value, "apiVersion"), text_field(value, "kind"));
            let is_ours = api_group(version) == api_group(API_VERSION) || is_kind(kind);
            (!version.is_empty() && !kind.is_empty()) || is_ours || chain::is_certainly_chain(value)
        }
        // A syntax error must not hide an object.
        Err(_) => text.contains(api_group(API_VERSION)),
    })
}

fn lint_text(source: &SourceFile, text: &str, known: &mut KnownObjects) -> Vec<LintedObject> {
    let file = source.path.as_path();
    let documents = tree::parse_documents(text);
    // Between two `---` there may be nothing but a comment.
    let is_null = |root: &Node| root.is_null(text);
    let documents = documents
        .iter()
        .filter(|document| !document.root.as_ref().is_ok_and(is_null));
    let documents: Vec<_> = documents.map(|document| read_document(text, document)).collect();
    if !source.is_named && !has_objects(text, &documents) {
        return vec![LintedObject::skipped(file)];
    }
    let mut judged = Vec::new();
    for document in &documents {
        let (root, value, twice) = match &document.content {
            Ok(read) => read,
            Err((line, problem)) => {
                let message = format!("cannot be read as YAML or JSON: {problem}");
                judged.push(LintedObject::without_object(file, Some(*line), message));
                continue;
            }
        };
        if chain::is_chain(value) {
            let is_alone = documents.len() == 1;
            let written = if is_alone { text } else { document.written };
            let findings = chain::lint_chain(written, value, is_alone);
            let namespace = match text_field(value, "namespace") {
                "" => "?",
                namespace => namespace,
            };
            let name = format!("chain of {namespace}");
            judged.push(LintedObject::from_findings(file, name, root, &findings));
            continue;
        }
        let objects = objects_in(value);
        if objects.is_empty() && is_list(value) {
            let (name, findings) = ("empty List".to_owned(), LintFindings::default());
            judged.push(LintedObject::from_findings(file, name, root, &findings));
        }
        for object in objects {
            let node = root.node_at(&object.path).unwrap_or(root);
            judged.push(lint_object(file, &object, node, twice, known));
        }
    }
    if judged.is_empty() {
        let message = "the file has no object".to_owned();
        judged.push(LintedObject::without_object(file, None, message));
    }
    judged
}

/// Objects of other API groups are counted but not checked. `twice`: duplicate fields in the text.
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
    let mut not_checked = Mistakes::default();
    let mut findings = if is_foreign {
        let message = format!("is {version}; only objects of {API_VERSION} and chains are checked");
        not_checked.add("apiVersion", message);
        Findings::default()
    } else {
        validate_with(document, known.shards.keys())
    };
    for Mistake { path, problem } in twice {
        findings.mistakes.add(path, problem);
    }
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
    let scope = if is_foreign { Scope::Foreign } else { Scope::Checked };
    LintedObject::from_findings(file, object.display_name(), node, &findings).with_scope(scope)
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
            if BuiltIn::named_by(plugin).is_some() {
                continue;
            }
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
