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

use ctrlmesh_contract::Mistakes;
use ctrlmesh_manager::api::API_VERSION;
use ctrlmesh_manager::validate::is_kind;
use ctrlmesh_manager::{Findings, validate};
use serde::Serialize;
use serde_json::Value;

use self::object::{Object, objects, text, value_of};
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
    let (mut judged, mut fixed, mut known) = (Vec::new(), Vec::new(), Known::default());
    for file in &args.files {
        let read = read(file).and_then(|text| {
            if args.fix {
                mend(file, text, &mut fixed)
            } else {
                Ok(text)
            }
        });
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
fn mend(file: &Path, text: String, fixed: &mut Vec<Fixed>) -> Result<String, Error> {
    let (mended, done) = fix::fix(&text);
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

/// Objects that were judged: file and line, by kind, namespace and name.
#[derive(Debug, Default)]
struct Known(HashMap<[String; 3], (PathBuf, usize)>);

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
        let root = document.root.as_ref().map_err(Clone::clone);
        let (root, value) = match root.and_then(|root| Ok((root, value_of(text, document)?))) {
            Ok(read) => read,
            Err((line, problem)) => {
                let message = format!("{} is neither YAML nor JSON: {problem}", file.display());
                judged.push(Judged::nothing(file, Some(line), message));
                continue;
            }
        };
        if chain::is_chain(&value) {
            let written = text.get(document.range.clone()).unwrap_or_default();
            let findings = chain::judge(written, documents.len() == 1);
            let name = format!("chain of {}", object::text(&value, "namespace"));
            judged.push(Judged::of(file, name, root, &findings));
            continue;
        }
        for object in objects(&value) {
            let node = root.at(&object.path).unwrap_or(root);
            judged.push(judge(file, &object, node, known));
        }
    }
    if judged.is_empty() {
        judged.push(Judged::nothing(file, None, "there is no object in it".to_owned()));
    }
    judged
}

/// Objects of others lie among ours: they are named, and left alone.
fn judge(file: &Path, object: &Object<'_>, node: &Node, known: &mut Known) -> Judged {
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
        validate(document)
    };
    if !is_foreign {
        known.check(file, node, document, &mut findings);
    }
    Judged::of(file, object.name(), node, &findings)
}

impl Known {
    /// An object of a name that another one has: of two in one file kubectl keeps the last; files may be about different clusters.
    fn check(&mut self, file: &Path, node: &Node, document: &Value, findings: &mut Findings) {
        let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let key = ["/kind", "/metadata/namespace", "/metadata/name"].map(|pointer| text(pointer).to_owned());
        let [kind, _, name] = &key;
        if name.is_empty() {
            return;
        }
        match self.0.get(&key) {
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
                self.0.insert(key, (file.to_owned(), node.line));
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
    found.collect()
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
