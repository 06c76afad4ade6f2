//! `ctrlmesh lint`: what is wrong with custom resources, before an API server or a sidecar says so.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ctrlmesh_contract::{Mistake, Mistakes};
use ctrlmesh_manager::api::API_VERSION;
use ctrlmesh_manager::validate::is_kind;
use ctrlmesh_manager::{Findings, validate};
use serde::Serialize;
use serde_json::Value;

use crate::args::{LintArgs, Output};
use crate::error::Error;
use crate::print;

/// As kubectl has it.
const STANDARD_INPUT: &str = "-";

/// What was found in one document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    file: PathBuf,
    /// Kind, and namespace and name, as far as it has them.
    object: String,
    /// It is refused if there are any.
    errors: Vec<Found>,
    warnings: Vec<Found>,
}

/// Something that was found.
#[derive(Debug, Serialize)]
struct Found {
    /// Of the field: `spec.limits[0].selector`.
    path: String,
    message: String,
}

/// Judges every document of every file.
pub(crate) fn run(args: &LintArgs) -> Result<ExitCode, Error> {
    let mut documents = Vec::new();
    for file in &args.files {
        documents.extend(lint(file).unwrap_or_else(|error| vec![unreadable(file, &error)]));
    }
    match args.output {
        Output::Json => print::line(&serde_json::to_string_pretty(&documents)?),
        Output::Text => documents.iter().flat_map(lines).for_each(|line| print::line(&line)),
    }
    let is_accepted = documents.iter().all(|document| document.errors.is_empty());
    Ok(if is_accepted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn lint(file: &Path) -> Result<Vec<Document>, Error> {
    let text = if file == Path::new(STANDARD_INPUT) {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(Error::file("read", file))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|source| Error::NoYaml {
        path: file.to_owned(),
        source: Box::new(source),
    })?;
    // Between two lines of `---` there may be nothing but a comment.
    let documents = documents.into_iter().filter(|document| !document.is_null());
    let judged: Vec<Document> = documents
        .flat_map(items)
        .map(|document| judge(file, &document))
        .collect();
    if judged.is_empty() {
        return Ok(vec![nothing(file, "there is no object in it".to_owned())]);
    }
    Ok(judged)
}

fn text<'d>(document: &'d Value, field: &str) -> &'d str {
    document.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// What a `List` holds, as kubectl prints it; anything else is one object.
fn items(document: Value) -> Vec<Value> {
    let is_list = text(&document, "apiVersion") == "v1" && text(&document, "kind") == "List";
    match document.get("items") {
        Some(Value::Array(items)) if is_list => items.clone(),
        _ => vec![document],
    }
}

/// Objects of others lie among ours: they are named, and left alone.
fn judge(file: &Path, document: &Value) -> Document {
    let version = text(document, "apiVersion");
    let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
    // Whoever writes the name of one of our kinds means ours, whatever the group.
    let has_our_name = || is_kind(text(document, "kind"));
    let is_foreign = !version.is_empty() && group(version) != group(API_VERSION) && !has_our_name();
    let findings = if is_foreign {
        Findings::default()
    } else {
        validate(document)
    };
    let mut warnings = found(&findings.warnings);
    warnings.extend(is_foreign.then(|| Found {
        path: "apiVersion".to_owned(),
        message: format!("is {version}; only objects of {API_VERSION} are judged"),
    }));
    Document {
        file: file.to_owned(),
        object: name_of(document),
        errors: found(&findings.mistakes),
        warnings,
    }
}

/// A file that can't be read is a finding, so that the others are judged.
fn unreadable(file: &Path, error: &Error) -> Document {
    nothing(file, print::with_causes(error))
}

fn nothing(file: &Path, message: String) -> Document {
    let path = String::new();
    Document {
        file: file.to_owned(),
        object: String::new(),
        errors: vec![Found { path, message }],
        warnings: Vec::new(),
    }
}

fn found(mistakes: &Mistakes) -> Vec<Found> {
    let found = |Mistake { path, problem }: &Mistake| Found {
        path: path.clone(),
        message: problem.clone(),
    };
    mistakes.list().iter().map(found).collect()
}

fn name_of(document: &Value) -> String {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or("?");
    let kind = text("/kind");
    match document.pointer("/metadata/namespace").and_then(Value::as_str) {
        Some(namespace) => format!("{kind} {namespace}/{}", text("/metadata/name")),
        None => format!("{kind} {}", text("/metadata/name")),
    }
}

fn lines(document: &Document) -> Vec<String> {
    let about = match document.object.as_str() {
        "" => document.file.display().to_string(),
        object => format!("{}: {object}", document.file.display()),
    };
    if document.errors.is_empty() && document.warnings.is_empty() {
        return vec![format!("{about}: ok")];
    }
    let line = |what: &str, found: &Found| match found.path.as_str() {
        "" => format!("{about}: {what}{}", found.message),
        path => format!("{about}: {what}{path}: {}", found.message),
    };
    let errors = document.errors.iter().map(|found| line("", found));
    let warnings = document.warnings.iter().map(|found| line("warning: ", found));
    errors.chain(warnings).collect()
}
