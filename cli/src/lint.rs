//! `ctrlmesh lint`: what is wrong with custom resources and chains, before an API server or a sidecar says so. `--fix` mends what can be
//! mended without a person.

mod chain;
mod edit;
mod fix;
mod object;
mod tree;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ctrlmesh_contract::{Mistake, Mistakes};
use ctrlmesh_manager::api::{API_VERSION, ShardingConfig};
use ctrlmesh_manager::validate::{self as rules, is_kind, unlocked_beside, unlocked_warning, validate_with};
use ctrlmesh_manager::{Findings, LabelKeys};
use serde::Serialize;
use serde_json::Value;

use self::object::{Object, objects, text, value_of, value_of_last};
use self::tree::Node;
use crate::args::{LintArgs, Output};
use crate::error::Error;
use crate::print;

/// As kubectl has it.
const STANDARD_INPUT: &str = "-";

/// What was found in one object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Judged {
    file: PathBuf,
    /// Kind, and namespace and name, as far as it has them.
    object: String,
    /// Its first line.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// It is refused if there are any.
    errors: Vec<Found>,
    warnings: Vec<Found>,
}

/// Something that was found.
#[derive(Debug, Serialize)]
struct Found {
    /// Of the field: `spec.limits[0].selector`.
    path: String,
    /// Of the field, or of what it should be in.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    message: String,
}

/// What `--fix` did.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fixed {
    file: PathBuf,
    object: String,
    change: String,
    /// `false`: it can't be made in the text as it is written.
    is_made: bool,
}

/// Everything, as JSON.
#[derive(Debug, Serialize)]
struct Report<'r> {
    fixed: &'r [Fixed],
    objects: &'r [Judged],
}

/// Judges every object of every file.
pub(crate) fn run(args: &LintArgs) -> Result<ExitCode, Error> {
    if args.fix && args.files.iter().any(|file| file == Path::new(STANDARD_INPUT)) {
        return Err(Error::FixStandardInput);
    }
    let mut known = Known {
        keys: args.label_keys(),
        ..Known::default()
    };
    let (mut judged, mut fixed) = (Vec::new(), Vec::new());
    let mut texts = Vec::new();
    for file in &args.files {
        let read = read(file).and_then(|text| {
            if args.fix {
                mend(file, text, &known.keys, &mut fixed)
            } else {
                Ok(text)
            }
        });
        known.shards.extend(read.iter().flat_map(|text| shards(text)));
        texts.push((file, read));
    }
    for (file, read) in texts {
        match read {
            Ok(text) => judged.extend(judge_text(file, &text, &mut known)),
            // A file that can't be read is a finding, so that the others are judged.
            Err(error) => judged.push(Judged::nothing(file, None, print::with_causes(&error))),
        }
    }
    match args.output {
        // Without --fix as ever: a list of objects.
        Output::Json if !args.fix => print::line(&serde_json::to_string_pretty(&judged)?),
        Output::Json => {
            let (fixed, objects) = (&fixed[..], &judged[..]);
            print::line(&serde_json::to_string_pretty(&Report { fixed, objects })?);
        }
        Output::Text => {
            fixed.iter().for_each(|fixed| print::line(&fixed.line()));
            judged.iter().flat_map(lines).for_each(|line| print::line(&line));
        }
    }
    let is_accepted = judged.iter().all(|judged| judged.errors.is_empty());
    Ok(if is_accepted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read(file: &Path) -> Result<String, Error> {
    let text = if file == Path::new(STANDARD_INPUT) {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(Error::file("read", file))
}

/// Writes a file with everything mended that can be; returns its text.
fn mend(file: &Path, text: String, keys: &LabelKeys, fixed: &mut Vec<Fixed>) -> Result<String, Error> {
    let (mended, done) = fix::fix(&text, keys);
    if mended != text {
        std::fs::write(file, &mended).map_err(Error::file("write", file))?;
    }
    fixed.extend(done.into_iter().map(|done| Fixed {
        file: file.to_owned(),
        object: done.object,
        change: done.change,
        is_made: done.is_made,
    }));
    Ok(mended)
}

impl Fixed {
    fn line(&self) -> String {
        let file = self.file.display();
        let done = if self.is_made { "fixed" } else { "not fixed" };
        format!("{file}: {}: {done}: {}", self.object, self.change)
    }
}

/// What is known of all files.
#[derive(Debug, Default)]
struct Known {
    /// Of the manager that they are for.
    keys: LabelKeys,
    /// Objects that were judged: file and line, by kind, namespace and name.
    judged: HashMap<[String; 3], (PathBuf, usize)>,
    /// ShardingConfigs, also of files that were not judged yet.
    shards: Vec<ShardingConfig>,
}

/// The ShardingConfigs of a text that make sense.
fn shards(text: &str) -> Vec<ShardingConfig> {
    let documents = tree::documents(text);
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

fn judge_text(file: &Path, text: &str, known: &mut Known) -> Vec<Judged> {
    let documents = tree::documents(text);
    // Between two lines of `---` there may be nothing but a comment.
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
                judged.push(Judged::nothing(file, Some(line), message));
                continue;
            }
        };
        if chain::is_chain(&value) {
            let written = text.get(document.range.clone()).unwrap_or_default();
            let findings = chain::judge(written, &value, documents.len() == 1);
            let name = format!("chain of {}", object::text(&value, "namespace"));
            judged.push(Judged::of(file, name, root, &findings));
            continue;
        }
        for object in objects(&value) {
            let node = root.at(&object.path).unwrap_or(root);
            judged.push(judge(file, &object, node, &twice, known));
        }
    }
    if judged.is_empty() {
        judged.push(Judged::nothing(file, None, "there is no object in it".to_owned()));
    }
    judged
}

/// Objects of others lie among ours: they are named, and left alone. `twice`: fields that the text has twice.
fn judge(file: &Path, object: &Object<'_>, node: &Node, twice: &[Mistake], known: &mut Known) -> Judged {
    let document = object.value;
    let version = text(document, "apiVersion");
    let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
    // Whoever writes the name of one of our kinds means ours, whatever the group.
    let has_our_name = || is_kind(text(document, "kind"));
    let is_foreign = !version.is_empty() && group(version) != group(API_VERSION) && !has_our_name();
    let mut findings = if is_foreign {
        let mut findings = Findings::default();
        let message = format!("is {version}; only objects of {API_VERSION} are judged");
        findings.warnings.add("apiVersion", message);
        findings
    } else {
        validate_with(document, &known.keys)
    };
    for Mistake { path, problem } in twice {
        findings.mistakes.add(path, problem);
    }
    if !is_foreign {
        rules::check_metadata_fields(document, &mut findings);
        known.check(file, node, document, &mut findings);
        known.warn(document, &mut findings);
    }
    Judged::of(file, object.name(), node, &findings)
}

impl Known {
    /// Warns of what follows from other objects, and of what a file does here that it did not do elsewhere.
    fn warn(&self, document: &Value, findings: &mut Findings) {
        let Ok(object) = rules::read(document) else { return };
        rules::warn_of_file(&object, findings);
        if let rules::Object::ShardingConfig(config) = &object {
            let beside = unlocked_beside(config, &self.shards);
            if !beside.is_empty() {
                let warning = unlocked_warning(Some(&beside));
                findings.warnings.add(warning.path, warning.problem);
            }
        }
    }

    /// An object of a name that another one has: of two in one file kubectl keeps the last; files may be about different clusters.
    fn check(&mut self, file: &Path, node: &Node, document: &Value, findings: &mut Findings) {
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let key = ["/kind", "/metadata/namespace", "/metadata/name"].map(|pointer| text(pointer).to_owned());
        let [kind, _, name] = &key;
        if name.is_empty() {
            return;
        }
        match self.judged.get(&key) {
            // A file that is named twice.
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

impl Judged {
    fn of(file: &Path, object: String, node: &Node, findings: &Findings) -> Self {
        Self {
            file: file.to_owned(),
            object,
            line: Some(node.line),
            errors: found(&findings.mistakes, node),
            warnings: found(&findings.warnings, node),
        }
    }

    /// A file or document without an object.
    fn nothing(file: &Path, line: Option<usize>, message: String) -> Self {
        let path = String::new();
        Self {
            file: file.to_owned(),
            object: String::new(),
            line,
            errors: vec![Found { path, line, message }],
            warnings: Vec::new(),
        }
    }
}

fn found(mistakes: &Mistakes, node: &Node) -> Vec<Found> {
    let all = mistakes.list().iter();
    let found = all.map(|mistake| Found {
        path: mistake.path.clone(),
        line: Some(node.line_of(&mistake.path)),
        message: mistake.problem.clone(),
    });
    let untold = (mistakes.untold() > 0).then(|| Found {
        path: String::new(),
        line: None,
        message: format!(
            "and {} more; they are told when some of these are mended",
            mistakes.untold()
        ),
    });
    found.chain(untold).collect()
}

fn lines(judged: &Judged) -> Vec<String> {
    let file = judged.file.display().to_string();
    let about = |line: Option<usize>| {
        let place = line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"));
        match judged.object.as_str() {
            "" => place,
            object => format!("{place}: {object}"),
        }
    };
    if judged.errors.is_empty() && judged.warnings.is_empty() {
        return vec![format!("{}: ok", about(None))];
    }
    let line = |what: &str, found: &Found| match found.path.as_str() {
        "" => format!("{}: {what}{}", about(found.line), found.message),
        path => format!("{}: {what}{path}: {}", about(found.line), found.message),
    };
    let errors = judged.errors.iter().map(|found| line("", found));
    let warnings = judged.warnings.iter().map(|found| line("warning: ", found));
    errors.chain(warnings).collect()
}
