//! The cases file of `plugin test`: read completely, with all mistakes reported, before the plugin is called.

use std::path::Path;

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::error::quote;
use ctrlmesh_contract::suggest::did_you_mean;
use ctrlmesh_proxy::harness::{self, Request};
use ctrlmesh_wire::RequestInfo;
use ctrlmesh_wire::objects::ObjectMetadata;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use serde_json::{Map, Value};

use super::objects;
use crate::error::Error;

/// Expected when the plugin's subscription does not match the request.
pub(super) const NOT_ASKED: &str = "not asked";

/// The possible expectations. Those that end with a blank are followed by a status code.
const EXPECTED: [&str; 7] = ["proceed", "edit", "refuse ", "answer ", "reset", "fault", NOT_ASKED];

#[derive(Debug, Default)]
pub(super) struct Cases {
    /// As in the chain.
    pub(super) settings: Map<String, Value>,
    /// Empty if there are only settings.
    pub(super) requests: Vec<Case>,
}

/// A request and the expected verdict.
#[derive(Debug)]
pub(super) struct Case {
    /// As written: `DELETE /api/v1/namespaces/a/pods/b`.
    pub(super) name: String,
    pub(super) request: Request,
    /// `proceed`, `edit`, `refuse 403`, `answer 200`, `reset`, `fault` or `not asked`.
    pub(super) expect: String,
    /// The objects of the API server's response; empty if it is not about objects.
    pub(super) objects: Vec<ObjectMetadata<'static>>,
    /// The names of those that the client gets: `web` or `a/web`. `None`: any.
    pub(super) keeps: Option<Vec<String>>,
}

/// Fails with every mistake in the file.
pub(super) fn read_cases(path: &Path) -> Result<Cases, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    parse_cases(&text).map_err(|problem| Error::Cases {
        path: path.to_owned(),
        problem,
    })
}

fn parse_cases(text: &str) -> Result<Cases, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    let document: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| format!("is no YAML: {}", ctrlmesh_contract::yaml::error_text(&error)))?;
    let Value::Object(mut fields) = document else {
        return Err("is no mapping; write settings and requests".to_owned());
    };
    let mut mistakes = Mistakes::default();
    let has_settings = fields.get("settings").is_some_and(|settings| !settings.is_null());
    let settings = match fields.remove("settings") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(settings)) => settings,
        Some(_) => {
            mistakes.add("settings", "is no mapping; write the plugin's settings as in a chain");
            Map::new()
        }
    };
    let requests = match fields.remove("requests") {
        Some(Value::Array(items)) if !items.is_empty() => items,
        // Settings alone show whether a sidecar would run the plugin with them.
        None if has_settings => Vec::new(),
        Some(value) if !value.is_null() && !value.is_array() => {
            mistakes.add(
                "requests",
                "is no list; write a list of {request: GET /api/v1/pods, expect: proceed}",
            );
            Vec::new()
        }
        _ => {
            let problem = "names no request, so nothing would be tested; write {request: GET /api/v1/pods, expect: proceed}, or only \
                           settings to see whether a sidecar would run the plugin with them";
            mistakes.add("requests", problem);
            Vec::new()
        }
    };
    report_unknown_fields(&fields, "", &["settings", "requests"], &mut mistakes);
    let cases = requests.into_iter().enumerate();
    let cases: Vec<Case> = cases
        .filter_map(|(index, value)| parse_case(value, &format!("requests[{index}]"), &mut mistakes))
        .collect();
    match mistakes.list() {
        [] => Ok(Cases {
            settings,
            requests: cases,
        }),
        _ => Err(format!("has {mistakes}")),
    }
}

fn report_unknown_fields(fields: &Map<String, Value>, path: &str, known: &[&str], mistakes: &mut Mistakes) {
    for name in fields.keys() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let meant = did_you_mean(name, known.iter().copied());
        mistakes.add(
            path,
            format!("is not a field here; known are {}{meant}", known.join(", ")),
        );
    }
}

/// Returns `None` only after adding a mistake.
fn parse_case(value: Value, path: &str, mistakes: &mut Mistakes) -> Option<Case> {
    let Value::Object(mut fields) = value else {
        mistakes.add(
            path,
            "is no mapping; write {request: GET /api/v1/pods, expect: proceed}",
        );
        return None;
    };
    let name = required_text(&mut fields, "request", "GET /api/v1/pods", path, mistakes);
    let expect = required_text(&mut fields, "expect", "proceed", path, mistakes);
    let headers = match fields.remove("headers") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(headers)) => headers,
        Some(_) => {
            mistakes.add(
                format!("{path}.headers"),
                "is no mapping; write {Accept: application/json}",
            );
            Map::new()
        }
    };
    let objects = parse_objects(&mut fields, path, mistakes);
    let keeps = parse_keeps(&mut fields, path, mistakes);
    let known = ["request", "headers", "expect", "objects", "keeps"];
    report_unknown_fields(&fields, path, &known, mistakes);
    let request = name
        .as_deref()
        .and_then(|name| note_mistake(parse_request(name), &format!("{path}.request"), mistakes));
    let request = headers.into_iter().fold(request, |request, (name, value)| {
        let header = note_mistake(parse_header(&name, &value), &format!("{path}.headers.{name}"), mistakes)?;
        Some(request?.header(&name, &header))
    });
    let expect = expect.and_then(|expect| note_mistake(parse_expected(expect), &format!("{path}.expect"), mistakes));
    Some(Case {
        name: name?,
        request: request?,
        expect: expect?,
        objects,
        keeps,
    })
}

/// The objects that were read; adds a mistake for each other one.
fn parse_objects(fields: &mut Map<String, Value>, path: &str, mistakes: &mut Mistakes) -> Vec<ObjectMetadata<'static>> {
    let values = match fields.remove("objects") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) if values.len() <= objects::MAX_OBJECTS => values,
        Some(_) => {
            let problem = format!(
                "is no list of at most {} objects; write the metadata of each like {{namespace: a, name: web}}",
                objects::MAX_OBJECTS
            );
            mistakes.add(format!("{path}.objects"), problem);
            Vec::new()
        }
    };
    let objects = values.into_iter().enumerate().filter_map(|(index, value)| {
        let path = format!("{path}.objects[{index}]");
        note_mistake(objects::parse_object(value), &path, mistakes)
    });
    objects.collect()
}

fn parse_keeps(fields: &mut Map<String, Value>, path: &str, mistakes: &mut Mistakes) -> Option<Vec<String>> {
    let value = fields.remove("keeps").filter(|value| !value.is_null())?;
    let names: Result<Vec<String>, _> = serde_json::from_value(value);
    let problem = "is no list of names; write it like [a/web]";
    names.map_err(|_| mistakes.add(format!("{path}.keeps"), problem)).ok()
}

fn note_mistake<T>(result: Result<T, String>, path: &str, mistakes: &mut Mistakes) -> Option<T> {
    result.map_err(|problem| mistakes.add(path, problem)).ok()
}

fn required_text(
    fields: &mut Map<String, Value>,
    name: &str,
    example: &str,
    path: &str,
    mistakes: &mut Mistakes,
) -> Option<String> {
    let problem = match fields.remove(name) {
        Some(Value::String(text)) => return Some(text),
        None | Some(Value::Null) => format!("is missing; write it like {example}"),
        Some(_) => format!("is no text; write it like {example}"),
    };
    mistakes.add(format!("{path}.{name}"), problem);
    None
}

fn parse_request(line: &str) -> Result<Request, String> {
    let wrong = |problem: &str| format!("{} {problem}; write it like GET /api/v1/pods", quote(line));
    let (method, target) = line.split_once(' ').ok_or_else(|| wrong("has no path"))?;
    let method: Method = method.parse().map_err(|_| wrong("begins with no HTTP method"))?;
    let upper = method.as_str().to_ascii_uppercase();
    if upper != method.as_str() {
        return Err(wrong(&format!(
            "has a method in lower case, which no API server knows; write {upper}"
        )));
    }
    let uri: Uri = target
        .parse()
        .map_err(|_| wrong("has a path that no client can send"))?;
    // A sidecar refuses these before it asks a plugin.
    let info = RequestInfo::parse(method.as_str(), uri.path(), uri.query());
    let info = info.map_err(|error| wrong(&error.to_string()))?;
    let checked = info.check_path(uri.path());
    checked.map_err(|error| wrong(&format!("is refused by a sidecar before it asks a plugin: {error}")))?;
    Ok(harness::request(method, target))
}

fn parse_header(name: &str, value: &Value) -> Result<String, String> {
    let Value::String(value) = value else {
        return Err("is no text; write it in quotes".to_owned());
    };
    let can_be_sent = name.parse::<HeaderName>().is_ok() && HeaderValue::from_str(value).is_ok();
    if can_be_sent {
        Ok(value.clone())
    } else {
        Err("can't be sent as a header; write letters and hyphens as its name, and one line as its value".to_owned())
    }
}

/// Checks that a plugin can give this verdict.
fn parse_expected(text: String) -> Result<String, String> {
    let is_it = |known: &&str| match known.strip_suffix(' ') {
        Some(_) => text
            .strip_prefix(*known)
            .is_some_and(|code| code.len() == 3 && StatusCode::from_bytes(code.as_bytes()).is_ok()),
        None => text == **known,
    };
    if EXPECTED.iter().any(is_it) {
        return Ok(text);
    }
    let word = text.split_once(' ').map_or(&*text, |(word, _)| word);
    let words = EXPECTED.iter().map(|known| known.trim_end());
    let meant = if words.clone().any(|known| known == word) {
        String::new()
    } else {
        did_you_mean(word, words)
    };
    Err(format!(
        "is {}; write proceed, edit, refuse 403, answer 200 (or another status code), reset, fault or {NOT_ASKED}{meant}",
        quote(&text)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_file_is_read() {
        let cases = parse_cases(
            "settings: {a: 1}\nrequests:\n- {request: GET /api/v1/pods?limit=1, headers: {Accept: text/plain}, expect: proceed}\n- request: \
             DELETE /api/v1/namespaces/a/pods/b\n  expect: refuse 403\n",
        )
        .unwrap();
        assert_eq!(cases.settings.len(), 1);
        let names: Vec<_> = cases.requests.iter().map(|case| (&*case.name, &*case.expect)).collect();
        assert_eq!(
            names,
            [
                ("GET /api/v1/pods?limit=1", "proceed"),
                ("DELETE /api/v1/namespaces/a/pods/b", "refuse 403")
            ]
        );
        for word in ["edit", "answer 200", "reset", "fault", "not asked"] {
            assert_eq!(parse_expected(word.to_owned()).as_deref(), Ok(word));
        }
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let problem = parse_cases(
            "setings: {}\nrequests:\n- {request: GET /api/v1/pods, expct: proceed}\n- {request: nonsense, expect: refus 403, header: {}}\n\
             - {request: GET /api/v1/pods, expect: refuse 43, headers: {'a b': c, d: 1}}\n- text\n",
        )
        .unwrap_err();
        assert!(problem.starts_with("has 10 mistakes: "), "{problem}");
        for part in [
            "setings: is not a field here; known are settings, requests; did you mean settings?",
            "requests[0].expect: is missing; write it like proceed",
            "requests[0].expct: is not a field here; known are request, headers, expect, objects, keeps; did you mean expect?",
            "requests[1].header: is not a field here; known are request, headers, expect, objects, keeps; did you mean headers?",
            "requests[1].request: \"nonsense\" has no path; write it like GET /api/v1/pods",
            "requests[1].expect: is \"refus 403\"; write proceed, edit, refuse 403, answer 200 (or another status code), reset, fault or not \
             asked; did you mean refuse?",
            "requests[2].headers.a b: can't be sent as a header",
            "requests[2].headers.d: is no text; write it in quotes",
            "requests[2].expect: is \"refuse 43\"",
            "requests[3]: is no mapping",
        ] {
            assert!(problem.contains(part), "{part} is missing in {problem}");
        }
    }

    #[test]
    fn objects_and_those_that_are_kept_are_read() {
        let cases = parse_cases(
            "requests:\n- request: GET /api/v1/pods\n  expect: edit\n  objects: [{namespace: a, name: x}, {name: z}]\n  keeps: [a/x]\n\
             - {request: GET /api/v1/pods, expect: edit}\n",
        );
        let cases = cases.unwrap().requests;
        assert_eq!(
            (cases[0].objects.len(), &cases[0].keeps),
            (2, &Some(vec!["a/x".to_owned()]))
        );
        assert_eq!((cases[1].objects.len(), &cases[1].keeps), (0, &None));
        let problem = parse_cases(
            "requests:\n- {request: GET /api, expect: edit, objects: [{name: x}, {nam: z}], keeps: x}\n\
             - {request: GET /api, expect: edit, objects: 7}\n",
        );
        let problem = problem.unwrap_err();
        assert!(problem.starts_with("has 3 mistakes: "), "{problem}");
        for part in [
            "requests[0].objects[1]: is no metadata of an object: unknown field `nam`",
            "requests[0].keeps: is no list of names",
            "requests[1].objects: is no list of at most 256 objects",
        ] {
            assert!(problem.contains(part), "{part} is missing in {problem}");
        }
    }

    #[test]
    fn settings_alone_are_read() {
        for text in ["settings: {a: 1}", "settings: {}"] {
            assert!(parse_cases(text).unwrap().requests.is_empty(), "{text}");
        }
    }

    #[test]
    fn request_that_no_plugin_would_get_is_a_mistake() {
        for (request, says) in [
            (
                "DELETE /api/v1/namespaces/../prod-eu/pods/web",
                "is refused by a sidecar before it asks a plugin: the path holds a dot segment",
            ),
            ("GET /api/v1//pods", "is refused by a sidecar before it asks a plugin: "),
            (
                "delete /api/v1/namespaces/a/pods/b",
                "has a method in lower case, which no API server knows; write DELETE",
            ),
        ] {
            let problem = parse_cases(&format!("requests: [{{request: {request}, expect: proceed}}]")).unwrap_err();
            assert!(
                problem.starts_with("has a mistake: requests[0].request: ") && problem.contains(says),
                "{problem}"
            );
        }
    }

    #[test]
    fn cases_file_is_refused_without_requests_or_settings() {
        for text in [
            "{}",
            "requests: []",
            "requests:\n",
            "settings: {a: 1}\nrequests: []",
            "settings:\n",
        ] {
            let problem = parse_cases(text).unwrap_err();
            assert!(
                problem.starts_with("has a mistake: requests: names no request"),
                "{text}: {problem}"
            );
        }
        for (text, says) in [
            ("requests: 7", "requests: is no list"),
            ("[]", "is no mapping"),
            (
                "settings: []\nrequests: [{request: GET /api, expect: edit}]",
                "settings: is no mapping",
            ),
            ("requests: [\n", "is no YAML: "),
        ] {
            let problem = parse_cases(text).unwrap_err();
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
