//! `ctrlmesh plugin test`: the verdicts of a plugin on requests, in the engine that a sidecar uses. Nothing is sent anywhere.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use ctrlmesh_proxy::chain::{MatchQuery, Matcher};
use ctrlmesh_proxy::harness::{Harness, HarnessError};
use ctrlmesh_proxy::plugin::verdict::{ObjectRefusal, RequestAction, RequestEdit, RequestVerdict};
use ctrlmesh_proxy::wasm::{self, Fault, Level};
use ctrlmesh_wire::objects::{HashKey, NameSet, Predicate};
use serde_json::Value;

use super::cases::{self, Case, Cases, NOT_ASKED};
use super::objects;
use crate::args::TestArgs;
use crate::error::Error;
use crate::print;

/// A plugin's verdict: the word that is compared, and details for people.
struct PluginAnswer {
    word: String,
    more: String,
    /// The names of the objects that the client gets; `None` if there are none to decide on.
    kept: Option<Vec<String>>,
}

/// Exits 1 if a sidecar would refuse the plugin, or if a verdict differs from the expected one.
pub(crate) fn run(args: &TestArgs) -> Result<ExitCode, Error> {
    let bytes = std::fs::read(&args.file).map_err(Error::file("read", &args.file))?;
    let Cases { settings, requests } = match &args.cases {
        Some(path) => cases::read_cases(path)?,
        None => Cases::default(),
    };
    let loaded = Harness::new(&bytes, &Value::Object(settings).to_string());
    let mut plugin = loaded.map_err(|error| match error {
        // The sidecar's message names a digest, which is no help with a wrong file.
        HarnessError::Load(wasm::Error::NotWasm { .. } | wasm::Error::Empty) => Error::NotWasm(args.file.clone()),
        // Settings change nothing for a plugin that cannot even be loaded.
        HarnessError::Start(_) if args.cases.is_none() => Error::PluginWithoutSettings(error),
        error => Error::Plugin(error),
    })?;
    let mut failed = 0;
    for case in &requests {
        let said = ask_plugin(&mut plugin, case);
        let is_good = said.word == case.expect && has_kept_expected(case, &said);
        failed += u32::from(!is_good);
        print::line(&case_line(case, &said, is_good));
    }
    for line in plugin.log() {
        print::line(&format!("log   {}: {}", level_name(line.level), line.message));
    }
    print::line(&match (requests.len(), failed) {
        (0, _) => "a sidecar would run it; name requests in the file of --cases to see what it says to them".to_owned(),
        (all, 0) => format!("all {all} requests got what is expected"),
        (all, failed) => format!("{failed} of {all} requests got something else than is expected"),
    });
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

const fn level_name(level: Level) -> &'static str {
    match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    }
}

/// A duration in Go's notation, as in plugin settings: `250ms`, `2s`.
fn format_time(time: Duration) -> String {
    match time.as_millis() {
        millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
        millis => format!("{millis}ms"),
    }
}

fn has_kept_expected(case: &Case, said: &PluginAnswer) -> bool {
    let Some(keeps) = &case.keeps else { return true };
    said.kept.as_ref() == Some(keeps)
}

fn ask_plugin(plugin: &mut Harness, case: &Case) -> PluginAnswer {
    let subscription = plugin.subscription();
    // One view for both calls, as in a sidecar: it has the plugin's note.
    let view = Rc::new(case.request.view());
    let is_matched = Matcher::new(subscription).matches(&MatchQuery::new(&view, &view.headers.borrow()));
    if !(subscription.phases.request && is_matched) {
        return PluginAnswer {
            word: NOT_ASKED.to_owned(),
            more: "no match rule of its subscription matches".to_owned(),
            kept: None,
        };
    }
    let verdict = match plugin.request_with(&view) {
        Ok(verdict) => verdict,
        Err(fault) => return describe_fault(&fault),
    };
    let mut answer = describe_verdict(&verdict);
    if !case.objects.is_empty() {
        match objects::kept_names(plugin, &view, &verdict, &case.objects) {
            Ok(kept) => answer.kept = kept,
            Err(fault) => return describe_fault(&fault),
        }
    }
    answer
}

fn describe_fault(fault: &Fault) -> PluginAnswer {
    PluginAnswer {
        word: "fault".to_owned(),
        more: fault.to_string(),
        kept: None,
    }
}

fn describe_verdict(RequestVerdict { delay, action, .. }: &RequestVerdict) -> PluginAnswer {
    let (word, mut more) = match action {
        RequestAction::Proceed(edits) if edits.is_empty() => ("proceed".to_owned(), String::new()),
        RequestAction::Proceed(edits) => {
            let edits: Vec<String> = edits.iter().map(describe_edit).collect();
            ("edit".to_owned(), edits.join(", "))
        }
        RequestAction::Refuse(refusal) => (format!("refuse {}", refusal.code), refusal.message.clone()),
        RequestAction::Answer(answer) => (
            format!("answer {}", answer.code),
            format!("{} bytes", answer.body.len()),
        ),
        RequestAction::Reset(_) => ("reset".to_owned(), String::new()),
        RequestAction::RefuseConnections(time) => (
            "reset".to_owned(),
            format!("no connections for {}", self::format_time(*time)),
        ),
    };
    if *delay > Duration::ZERO {
        let between = if more.is_empty() { "" } else { ", " };
        more = format!("after {}{between}{more}", format_time(*delay));
    }
    PluginAnswer { word, more, kept: None }
}

fn describe_edit(edit: &RequestEdit) -> String {
    match edit {
        RequestEdit::AndLabelSelector(selector) => format!("label selector {selector}"),
        RequestEdit::AndFieldSelector(selector) => format!("field selector {selector}"),
        RequestEdit::SetQuery(name, value) => format!("query {name}={value}"),
        RequestEdit::RemoveQuery(name) => format!("no query {name}"),
        RequestEdit::SetHeader(name, value) => format!("header {name}: {}", String::from_utf8_lossy(value.as_bytes())),
        RequestEdit::RemoveHeader(name) => format!("no header {name}"),
        RequestEdit::RenameObject { from, to } => format!("{from} is {to}"),
        RequestEdit::KeepObjects(predicate) => format!("only objects of {}", describe_predicate(predicate.predicate())),
        RequestEdit::DropFields(dropped) => format!("without {}", dropped.paths().join(" and ")),
        RequestEdit::AskAboutObjects(question) => {
            let keys: Vec<&str> = question.annotations().collect();
            if keys.is_empty() {
                "objects that it keeps".to_owned()
            } else {
                format!("objects that it keeps by {}", keys.join(" and "))
            }
        }
        RequestEdit::RequireObjectMatch(predicate, refusal) => {
            let otherwise = match refusal {
                ObjectRefusal::Conflict => "conflict",
                ObjectRefusal::NotFound => "not-found",
                ObjectRefusal::Forbidden => "forbidden",
            };
            format!(
                "only an object of {}, otherwise {otherwise}",
                describe_predicate(predicate.predicate())
            )
        }
    }
}

/// In the words of the contract. The depth of a predicate is bounded.
fn describe_predicate(predicate: &Predicate) -> String {
    match predicate {
        Predicate::Namespaces(set) => format!("namespaces({})", describe_names(set)),
        Predicate::Names(set) => format!("names({})", describe_names(set)),
        Predicate::Labels(selector) => format!("labels({selector})"),
        Predicate::HashRanges { key, ranges } => {
            let ranges: Vec<String> = ranges.iter().map(|range| format!("[{range}]")).collect();
            format!("hash-ranges({}: {})", describe_hash_key(key), ranges.join(", "))
        }
        Predicate::All(predicates) => format!("all({})", describe_predicates(predicates)),
        Predicate::Any(predicates) => format!("any({})", describe_predicates(predicates)),
        Predicate::Not(predicate) => format!("negation({})", describe_predicate(predicate)),
    }
}

fn describe_predicates(predicates: &[Predicate]) -> String {
    let predicates: Vec<String> = predicates.iter().map(describe_predicate).collect();
    predicates.join(", ")
}

/// Exact names in quotes, prefixes with `*` and patterns between slashes.
fn describe_names(set: &NameSet) -> String {
    let mut names: Vec<String> = set.names().map(|name| format!("{name:?}")).collect();
    names.sort_unstable();
    names.extend(set.prefixes().map(|prefix| format!("{prefix:?}*")));
    names.extend(set.patterns().iter().map(|pattern| format!("/{pattern}/")));
    names.join(", ")
}

fn describe_hash_key(key: &HashKey) -> String {
    match key {
        HashKey::Uid => "uid".to_owned(),
        HashKey::Namespace => "namespace".to_owned(),
        HashKey::ControllerUid => "controller-uid".to_owned(),
        HashKey::Label(label) => format!("label {label}"),
    }
}

fn case_line(case: &Case, said: &PluginAnswer, is_good: bool) -> String {
    let PluginAnswer { word, more, kept } = said;
    let mut more = if more.is_empty() {
        String::new()
    } else {
        format!(": {more}")
    };
    if let Some(kept) = kept {
        more = format!("{more}; keeps {}", name_list(kept));
    }
    if is_good {
        return format!("ok    {}: {word}{more}", case.name);
    }
    let keeps = case.keeps.as_ref();
    let keeps = keeps.map(|keeps| format!(" that keeps {}", name_list(keeps)));
    format!(
        "FAIL  {}: expected {}{}, but it says {word}{more}",
        case.name,
        case.expect,
        keeps.unwrap_or_default()
    )
}

fn name_list(names: &[String]) -> String {
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_proxy::harness::get;
    use ctrlmesh_proxy::plugin::dropped_fields::PluginDroppedFields;
    use ctrlmesh_proxy::plugin::object_metadata::ObjectQuestion;
    use ctrlmesh_proxy::plugin::verdict::{Phases, Reuse};
    use ctrlmesh_wire::LabelSelector;
    use ctrlmesh_wire::objects::HashRange;

    use super::*;

    #[test]
    fn times_are_formatted_like_settings() {
        for (millis, printed) in [(0, "0s"), (250, "250ms"), (2000, "2s"), (1500, "1500ms")] {
            assert_eq!(format_time(Duration::from_millis(millis)), printed);
        }
        let delay = Duration::from_millis(20);
        let verdict = RequestVerdict {
            delay,
            action: RequestAction::RefuseConnections(Duration::from_secs(3)),
            reuse: Reuse::Never,
            later: Phases::ALL,
            outcomes: None,
        };
        let PluginAnswer { word, more, .. } = describe_verdict(&verdict);
        assert_eq!((&*word, &*more), ("reset", "after 20ms, no connections for 3s"));
    }

    #[test]
    fn predicates_are_described_in_words_of_contract() {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let set = NameSet::new(texts(&["b", "a", ""]), texts(&["team-"]), texts(&["x.*"])).unwrap();
        let range = HashRange::new(1 << 62, None).unwrap();
        let labels = Predicate::labels(LabelSelector::parse("a=b,c").unwrap()).unwrap();
        let ranges = Predicate::hash_ranges(HashKey::Label("k".into()), vec![range]).unwrap();
        let either = Predicate::any(vec![labels, ranges]).unwrap();
        let all = vec![Predicate::Namespaces(set), either.negate().unwrap()];
        let edit = RequestEdit::KeepObjects(Predicate::all(all).unwrap().into());
        assert_eq!(
            describe_edit(&edit),
            "only objects of all(namespaces(\"\", \"a\", \"b\", \"team-\"*, /x.*/), negation(any(labels(a=b,c), \
             hash-ranges(label k: ['0x4000000000000000', '0x10000000000000000']))))"
        );
    }

    #[test]
    fn requirement_on_an_object_is_described_with_its_refusal() {
        let labels = Predicate::labels(LabelSelector::parse("a=b").unwrap()).unwrap();
        let edit = RequestEdit::RequireObjectMatch(labels.into(), ObjectRefusal::NotFound);
        assert_eq!(
            describe_edit(&edit),
            "only an object of labels(a=b), otherwise not-found"
        );
    }

    #[test]
    fn questions_are_described_by_their_annotations() {
        let described = |keys: &[&str]| {
            let keys = keys.iter().map(|&key| key.to_owned()).collect();
            describe_edit(&RequestEdit::AskAboutObjects(ObjectQuestion::new(keys)))
        };
        assert_eq!(described(&[]), "objects that it keeps");
        assert_eq!(described(&["b", "a"]), "objects that it keeps by a and b");
    }

    #[test]
    fn line_names_objects_that_are_kept() {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let case = |keeps: Option<&[&str]>| Case {
            name: "GET /api/v1/pods".to_owned(),
            request: get("/api/v1/pods"),
            expect: "edit".to_owned(),
            objects: Vec::new(),
            keeps: keeps.map(texts),
        };
        let said = |kept: Option<&[&str]>| PluginAnswer {
            word: "edit".to_owned(),
            more: "m".to_owned(),
            kept: kept.map(texts),
        };
        for (keeps, kept, expected) in [
            (None, None, "ok    GET /api/v1/pods: edit: m"),
            (None, Some(&["a/x"][..]), "ok    GET /api/v1/pods: edit: m; keeps a/x"),
            (
                Some(&["a/x", "y"][..]),
                Some(&["a/x", "y"][..]),
                "ok    GET /api/v1/pods: edit: m; keeps a/x, y",
            ),
            (
                Some(&["y"][..]),
                Some(&[][..]),
                "FAIL  GET /api/v1/pods: expected edit that keeps y, but it says edit: m; keeps nothing",
            ),
            (
                Some(&[][..]),
                None,
                "FAIL  GET /api/v1/pods: expected edit that keeps nothing, but it says edit: m",
            ),
        ] {
            let (case, said) = (case(keeps), said(kept));
            assert_eq!(case_line(&case, &said, has_kept_expected(&case, &said)), expected);
        }
    }

    #[test]
    fn dropped_fields_are_described_by_their_paths() {
        let paths = ["metadata.managedFields", r#"metadata.labels["a/b"]"#].map(str::to_owned);
        let edit = RequestEdit::DropFields(PluginDroppedFields::parse(paths.into()).unwrap());
        assert_eq!(
            describe_edit(&edit),
            r#"without metadata.labels["a/b"] and metadata.managedFields"#
        );
    }
}
