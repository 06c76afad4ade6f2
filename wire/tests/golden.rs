//! Compares with upstream's answers in `tests/golden`. `tests/golden/README.md` describes how the files are made.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken golden file fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use ctrlmesh_wire::rename::{self, Rename, WatchRenamer};
use ctrlmesh_wire::{FieldSelector, LabelSelector, Query, RequestInfo, Status, WatchEncoding, watch_error_event};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Reads a file, and hands each line to `agrees`, which says what differs. Fails with all differences at once.
fn check_lines<T: DeserializeOwned>(file: &str, at_least: usize, agrees: impl Fn(&T) -> Result<(), String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() >= at_least, "{file} has only {} lines", lines.len());
    let differences: Vec<String> = lines
        .iter()
        .filter_map(|line| {
            let value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{file}: {error}: {line}"));
            agrees(&value)
                .err()
                .map(|difference| format!("{line:.600}\n    ours: {difference:.600}"))
        })
        .collect();
    let shown = differences.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        differences.is_empty(),
        "{file}: {} of {} lines differ:\n{shown}",
        differences.len(),
        lines.len()
    );
}

fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, ours: &T, theirs: &T) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what} {ours:?}"))
    }
}

#[derive(Deserialize, Debug, PartialEq, Eq, Default)]
#[serde(default, rename_all = "camelCase")]
struct RequestInfoLine {
    method: String,
    target: String,
    error: bool,
    is_resource: bool,
    verb: String,
    prefix: String,
    group: String,
    version: String,
    namespace: String,
    resource: String,
    subresource: String,
    name: String,
    parts: Vec<String>,
    label_selector: String,
    field_selector: String,
}

#[test]
fn request_info_agrees_with_upstream() {
    check_lines("request_info.jsonl", 2500, |theirs: &RequestInfoLine| {
        let (method, target) = (theirs.method.clone(), theirs.target.clone());
        let (path, query) = theirs
            .target
            .split_once('?')
            .map_or((&*target, None), |(path, query)| (path, Some(query)));
        let ours = match RequestInfo::parse(&theirs.method, path, query) {
            Err(_) => RequestInfoLine {
                error: true,
                ..Default::default()
            },
            Ok(info) => RequestInfoLine {
                error: false,
                is_resource: info.is_resource_request,
                verb: info.verb_str().into_owned(),
                parts: info.path_parts().map(str::to_owned).collect(),
                prefix: info.api_prefix.into_owned(),
                group: info.group.into_owned(),
                version: info.version.into_owned(),
                namespace: info.namespace.into_owned(),
                resource: info.resource.into_owned(),
                subresource: info.subresource.into_owned(),
                name: info.name.into_owned(),
                label_selector: info.label_selector.unwrap_or_default().into_owned(),
                field_selector: info.field_selector.unwrap_or_default().into_owned(),
                ..Default::default()
            },
        };
        expect_equal(
            "request info",
            &RequestInfoLine {
                method,
                target: target.clone(),
                ..ours
            },
            theirs,
        )
    });
}

#[derive(Deserialize)]
struct SelectorLine {
    r#in: String,
    #[serde(default)]
    error: bool,
    #[serde(default)]
    out: String,
    #[serde(default)]
    and: String,
    #[serde(default)]
    matches: String,
    exact: Option<String>,
}

/// The sample objects of `tests/golden/selectors.go`.
fn sample_objects() -> [BTreeMap<&'static str, &'static str>; 4] {
    [
        BTreeMap::new(),
        BTreeMap::from([("a", "1"), ("b", "x")]),
        BTreeMap::from([("a", "5"), ("x.io/b", ""), ("in", "notin")]),
        BTreeMap::from([
            ("a", ""),
            ("b", "y"),
            ("metadata.name", "x"),
            ("metadata.namespace", "n1"),
        ]),
    ]
}

/// The selector that `tests/golden/selectors.go` adds to each.
const SHARD: &str = "a!=2,x.io/shard in (b,a)";

fn matching_digits(takes: impl Fn(&BTreeMap<&'static str, &'static str>) -> bool) -> String {
    sample_objects()
        .iter()
        .map(|sample| if takes(sample) { '1' } else { '0' })
        .collect()
}

#[test]
fn label_selectors_agree_with_upstream() {
    check_lines("label_selector.jsonl", 1500, |theirs: &SelectorLine| {
        let ours = LabelSelector::parse(&theirs.r#in);
        expect_equal("error", &ours.is_err(), &theirs.error)?;
        expect_equal(
            "validation",
            &LabelSelector::validate(&theirs.r#in).is_err(),
            &theirs.error,
        )?;
        let Ok(ours) = ours else { return Ok(()) };
        expect_equal("canonical form", &ours.to_string(), &theirs.out)?;
        let mut joined = ours.clone();
        joined.narrow_by(LabelSelector::parse(SHARD).unwrap());
        expect_equal("joined form", &joined.to_string(), &theirs.and)?;
        expect_equal(
            "matches",
            &matching_digits(|sample| ours.matches(&|key: &str| sample.get(key).copied())),
            &theirs.matches,
        )
    });
}

#[test]
fn field_selectors_agree_with_upstream() {
    check_lines("field_selector.jsonl", 900, |theirs: &SelectorLine| {
        let ours = FieldSelector::parse(&theirs.r#in);
        expect_equal("error", &ours.is_err(), &theirs.error)?;
        let Ok(ours) = ours else { return Ok(()) };
        expect_equal("canonical form", &ours.to_string(), &theirs.out)?;
        expect_equal("exact", &ours.exact("metadata.name"), &theirs.exact)?;
        expect_equal(
            "matches",
            &matching_digits(|sample| ours.matches(&|key: &str| sample.get(key).copied())),
            &theirs.matches,
        )
    });
}

#[derive(Deserialize)]
struct QueryLine {
    r#in: String,
    #[serde(default)]
    dropped: bool,
    values: BTreeMap<String, Vec<String>>,
}

#[test]
fn queries_agree_with_upstream() {
    check_lines("query.jsonl", 600, |theirs: &QueryLine| {
        let query = Query::new(&theirs.r#in);
        expect_equal("bounds", &query.check(), &Ok(()))?;
        expect_equal("dropped", &query.malformed_pair().is_some(), &theirs.dropped)?;
        let mut ours: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in query.pairs() {
            ours.entry(key.into_owned()).or_default().push(value.into_owned());
        }
        expect_equal("values", &ours, &theirs.values)?;
        theirs.values.iter().try_for_each(|(key, values)| {
            expect_equal(
                "first value",
                &query.get(key).as_deref(),
                &values.first().map(String::as_str),
            )
        })
    });
}

fn decode_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BodyLine {
    name: String,
    content_type: String,
    #[serde(default)]
    is_watch: bool,
    from: String,
    to: String,
    before: String,
    after: String,
}

#[test]
fn renamed_bodies_agree_with_upstream() {
    check_lines("bodies.jsonl", 50, |line: &BodyLine| {
        let there = Rename {
            from: line.from.clone(),
            to: line.to.clone(),
        };
        let (before, after) = (decode_hex(&line.before), decode_hex(&line.after));
        let rename = |body: &[u8], rename: Rename| {
            if line.is_watch {
                let encoding = WatchEncoding::from_content_type(&line.content_type).unwrap();
                return WatchRenamer::new(encoding, rename).push(body).unwrap();
            }
            rename::body(&line.content_type, body, &rename)
                .unwrap()
                .unwrap_or_else(|| body.to_vec())
        };
        let shown = |body: &[u8]| format!("{} of {}: {}", line.content_type, line.name, body.escape_ascii());
        expect_equal("there", &shown(&rename(&before, there.clone())), &shown(&after))?;
        expect_equal("back", &shown(&rename(&after, there.reversed())), &shown(&before))
    });
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusLine {
    json: String,
    protobuf: String,
    json_event: String,
    protobuf_event: String,
    cbor_event: String,
}

#[test]
fn status_agrees_with_upstream() {
    check_lines("statuses.jsonl", 7, |line: &StatusLine| {
        let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        let status = Status::from_json(&decode_hex(&line.json)).unwrap();
        expect_equal("JSON", &json(&status.to_json()), &json(&decode_hex(&line.json)))?;
        expect_equal(
            "protobuf",
            &shown(&status.to_protobuf()),
            &shown(&decode_hex(&line.protobuf)),
        )?;
        let event = |encoding| watch_error_event(&status, encoding);
        expect_equal(
            "JSON event",
            &json(&event(WatchEncoding::Json)),
            &json(&decode_hex(&line.json_event)),
        )?;
        expect_equal(
            "protobuf event",
            &shown(&event(WatchEncoding::Protobuf)),
            &shown(&decode_hex(&line.protobuf_event)),
        )?;
        expect_equal(
            "CBOR event",
            &shown(&event(WatchEncoding::Cbor)),
            &shown(&decode_hex(&line.cbor_event)),
        )
    });
}
