//! `ctrlmesh plugin test`: what the bytes of a plugin say to requests, in the engine that a sidecar uses. Nothing is sent anywhere.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ctrlmesh_proxy::chain::Matcher;
use ctrlmesh_proxy::harness::{self, Harness, Request};
use ctrlmesh_proxy::verdict::{RequestAction, RequestEdit, RequestVerdict};
use ctrlmesh_wire::RequestInfo;
use http::{HeaderName, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::args::TestArgs;
use crate::error::Error;
use crate::print;

/// What is expected of a plugin that is not asked.
const NOT_ASKED: &str = "not asked";

/// A file of cases.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Cases {
    /// As in the chain.
    #[serde(default)]
    settings: Map<String, Value>,
    #[serde(default)]
    requests: Vec<Case>,
}

/// A request, and what the plugin should say.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    /// `DELETE /api/v1/namespaces/a/pods/b`.
    request: String,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    /// `proceed`, `edit`, `refuse 403`, `answer 200`, `reset`, `fault` or `not asked`.
    expect: String,
}

/// What a plugin said, in the word that is compared and in a sentence.
struct Said {
    word: String,
    more: String,
}

/// Tests a file. Exits 1 if a sidecar would not run it, or if it says something else than is expected.
pub(crate) fn run(args: &TestArgs) -> Result<ExitCode, Error> {
    let cases = match &args.cases {
        Some(path) => read(path)?,
        None => Cases::default(),
    };
    let settings = Value::Object(cases.settings).to_string();
    let wasm = std::fs::read(&args.file).map_err(Error::file("read", &args.file))?;
    let mut plugin = Harness::new(&wasm, &settings)?;
    let mut failed = 0;
    for case in &cases.requests {
        let request = request(case).map_err(|problem| Error::Cases {
            path: args.cases.clone().unwrap_or_default(),
            problem,
        })?;
        let said = ask(&mut plugin, &request);
        let is_good = said.word == case.expect;
        failed += u32::from(!is_good);
        print::line(&told(case, &said, is_good));
    }
    for line in plugin.log() {
        print::line(&format!("log   {:?}: {}", line.level, line.message));
    }
    print::line(&match (cases.requests.len(), failed) {
        (0, _) => "a sidecar would run it; name requests with --cases to see what it says to them".to_owned(),
        (all, 0) => format!("all {all} requests got what is expected"),
        (all, failed) => format!("{failed} of {all} requests got something else than is expected"),
    });
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read(path: &Path) -> Result<Cases, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(&text, options).map_err(|error| Error::Cases {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

/// The request of a case; or why it is none.
fn request(case: &Case) -> Result<Request, String> {
    let wrong = |problem: &str| format!("request {:?} {problem}", case.request);
    let (method, target) = case
        .request
        .split_once(' ')
        .ok_or_else(|| wrong("has no path; write it like GET /api/v1/pods"))?;
    let method: Method = method.parse().map_err(|_| wrong("begins with no HTTP method"))?;
    let uri: Uri = target
        .parse()
        .map_err(|error| wrong(&format!("has no path: {error}")))?;
    RequestInfo::parse(method.as_str(), uri.path(), uri.query()).map_err(|error| wrong(&error.to_string()))?;
    let mut request = harness::request(method, target);
    for (name, value) in &case.headers {
        let is_header = name.parse::<HeaderName>().is_ok() && HeaderValue::from_str(value).is_ok();
        if !is_header {
            return Err(wrong(&format!("has a header that can't be sent: {name}")));
        }
        request = request.header(name, value);
    }
    Ok(request)
}

fn ask(plugin: &mut Harness, request: &Request) -> Said {
    let subscription = plugin.subscription();
    let is_asked = subscription.phases.request && Matcher::new(subscription).matches(&request.view().query());
    if !is_asked {
        return Said {
            word: NOT_ASKED.to_owned(),
            more: "no rule of its subscription matches".to_owned(),
        };
    }
    match plugin.request(request) {
        Ok(verdict) => said(&verdict),
        Err(fault) => Said {
            word: "fault".to_owned(),
            more: fault.to_string(),
        },
    }
}

fn said(RequestVerdict { delay, action }: &RequestVerdict) -> Said {
    let (word, mut more) = match action {
        RequestAction::Proceed(edits) if edits.is_empty() => ("proceed".to_owned(), String::new()),
        RequestAction::Proceed(edits) => {
            let edits: Vec<String> = edits.iter().map(edit).collect();
            ("edit".to_owned(), edits.join(", "))
        }
        RequestAction::Refuse(refusal) => (format!("refuse {}", refusal.code), refusal.message.clone()),
        RequestAction::Answer(answer) => (
            format!("answer {}", answer.code),
            format!("{} bytes", answer.body.len()),
        ),
        RequestAction::Reset(_) => ("reset".to_owned(), String::new()),
        RequestAction::RefuseConnections(time) => ("reset".to_owned(), format!("no connections for {time:?}")),
    };
    if *delay > Duration::ZERO {
        more = format!("after {delay:?}{}{more}", if more.is_empty() { "" } else { ", " });
    }
    Said { word, more }
}

fn edit(edit: &RequestEdit) -> String {
    match edit {
        RequestEdit::AndLabelSelector(selector) => format!("label selector {selector}"),
        RequestEdit::AndFieldSelector(selector) => format!("field selector {selector}"),
        RequestEdit::SetQuery(name, value) => format!("query {name}={value}"),
        RequestEdit::RemoveQuery(name) => format!("no query {name}"),
        RequestEdit::SetHeader(name, value) => format!("header {name}: {}", String::from_utf8_lossy(value.as_bytes())),
        RequestEdit::RemoveHeader(name) => format!("no header {name}"),
        RequestEdit::RenameObject { from, to } => format!("{from} is {to}"),
    }
}

fn told(case: &Case, said: &Said, is_good: bool) -> String {
    let Said { word, more } = said;
    let more = if more.is_empty() {
        String::new()
    } else {
        format!(": {more}")
    };
    if is_good {
        format!("ok    {}: {word}{more}", case.request)
    } else {
        format!(
            "FAIL  {}: expected {}, but it says {word}{more}",
            case.request, case.expect
        )
    }
}
