//! The properties on random inputs that look like real ones: a smoke test for any compiler.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn request_info_is_same_in_other_spellings(
        method in "GET|POST|DELETE|PUT|HEAD|PURGE",
        path in "(/|%2[fF]|api|apis|v1|namespaces|watch|proxy|status|pods|p|%70|%ff|%|\\.|;){0,12}|/api/v1/(namespaces/n/|namespaces//|nodes/)?(pods(/p(/proxy(/|//|\\.\\.?|\\\\|%2[eE]|%2f|%5C|%25|2f|2e|p){0,12})?)?/?)?",
        query in "(\\?(watch|limit|fieldSelector|labelSelector|=|%3D|metadata\\.name|&|x|0|;|%){0,10})?",
    ) {
        crate::request_info(format!("{method}\n/{path}{query}").as_bytes());
    }

    #[test]
    fn printed_selector_is_same_when_read_again(
        text in "([abx1]|in|notin|[=!<>(),\\\\ /.\\x00]|==|!=|\\n|a=1|metadata\\.name){0,16}",
    ) {
        crate::selector(text.as_bytes());
    }

    #[test]
    fn query_rewrite_changes_only_its_key(text in "[ab]?\n[ab =&;%]{0,4}\n([ab=&;+%]|%61|%zz){0,20}") {
        crate::query_rewrite(text.as_bytes());
    }

    #[test]
    fn renamed_text_is_read_again(
        choice in any::<u8>(),
        text in "([{}\\[\\]:,\"\\\\ \n-]|\"lock\"|lock|\"metadata\":\\{\"name\":\"lock\"\\}|\"items\":|metadata:|name:|\"kind\":\"Status\"|\"object\":){0,16}",
    ) {
        crate::rename(&[&[choice], text.as_bytes()].concat());
    }

    #[test]
    fn renamed_object_is_read_again(
        choice in any::<u8>(),
        rest in "(,\"[a-z]{1,4}\":(1|\"lock\"|\\[\\]))?",
        after in "[ \n}]{0,2}",
    ) {
        crate::rename(&[&[choice], format!("{{\"metadata\":{{\"name\":\"lock\"{rest}}}{rest}}}{after}").as_bytes()].concat());
    }

    #[test]
    fn renamed_protobuf_is_read_again(
        fields in prop::collection::vec((1_u8..6, prop::collection::vec(any::<u8>(), 0..6)), 0..5),
    ) {
        let body = fields.iter().fold(b"\x0a\x06\x0a\x04lock".to_vec(), |mut body, (number, bytes)| {
            body.extend([number << 3 | 2, bytes.len() as u8]);
            body.extend(bytes);
            body
        });
        let unknown = [&[0x12, body.len() as u8], &*body].concat();
        crate::rename(&[&[4], &*unknown].concat());
        crate::rename(&[&[4], &*body].concat());
    }

    #[test]
    fn json_is_bound_to_one_uid(
        choice in 0_u8..6,
        members in vec(
            "\"(metadata|met\\\\u0061data|Metadata|preconditions|deleteOptions|spec)\":(null|1|\\{(\"preconditions\":\\{\\}|\"(uid|\\\\u0075id|UID|name)\":(\"u-1\"|\"u-2\"|\"\"|null|7)(,\"(uid|labels)\":(\\{\"a\":1e3\\}|\"\"))?)?\\})",
            0..4,
        ),
    ) {
        let body = format!("{{{}}}", members.join(", "));
        crate::object_uid(&[&[choice], body.as_bytes()].concat());
        crate::object_uid(&[&[choice], format!("[{body}]").as_bytes()].concat());
    }

    #[test]
    fn yaml_is_bound_to_one_uid(
        lines in vec(
            "kind: A|metadata:|metadata: &m|  name: w|  name: \"w\" # c|  uid: u-1|  uid: u-2|  \"\\\\u0075id\": u-2|  <<: \\{uid: u-2\\}|  labels: \\{a: 0o7\\}|  labels: \\*m|spec: \\*m|spec: \\{on: no\\}|---|# \u{2028}  uid: u-2|metadata: \\{name: w\\}",
            0..6,
        ),
        end in "(\n|\r\n)?",
    ) {
        let body = lines.join("\n") + &end;
        crate::object_uid(&[&[5], body.as_bytes()].concat());
        crate::object_uid(&[&[5], format!("metadata:\n  name: w\n{body}").as_bytes()].concat());
    }

    #[test]
    fn protobuf_is_bound_to_one_uid(
        choice in 6_u8..10,
        messages in vec((1_u8..4, vec((1_u8..6, "u-1|u-2|[a-c]{0,2}"), 0..3)), 0..4),
        others in vec((1_u8..5, vec(any::<u8>(), 0..4)), 0..3),
    ) {
        let message = |(number, fields): &(u8, Vec<(u8, String)>)| {
            let fields: Vec<_> = fields.iter().map(|(number, text)| (*number, text.clone().into_bytes())).collect();
            (*number, encoded_fields(&fields))
        };
        let object: Vec<_> = messages.iter().map(message).collect();
        let object = encoded_fields(&object);
        for nested in [object.clone(), encoded_fields(&[(2, object)])] {
            let unknown = [encoded_fields(&others), encoded_fields(&[(2, nested)])].concat();
            crate::object_uid(&[&[choice], &*unknown].concat());
        }
    }

    #[test]
    fn destination_has_one_spelling(
        method in "GET|CONNECT|OPTIONS",
        target in "(/p|\\*|(https?://)?(b@)?(127\\.1|127\\.0x1|0x7f|2130706433|0177\\.0\\.0\\.1|\\[::ffff:127\\.0\\.0\\.1\\]|\\[::1\\]|a\\.B|localhost|([aA1-2.:]|0x[0-9a-f]{0,2}|%31|-|_){1,8})\\.{0,2}(:(0|[0-9]{0,6}))?(/p)?)",
        endpoint in "(https?://(b@)?(127\\.1|127\\.0x1|0x7f|2130706433|0177\\.0\\.0\\.1|\\[::ffff:127\\.0\\.0\\.1\\]|\\[::1\\]|a\\.B|localhost|([aA1-2.:]|0x[0-9a-f]{0,2}|%31|-|_){1,8})\\.{0,2}(:(0|[0-9]{0,6}))?(/p)?)?",
    ) {
        crate::destination(format!("{method}\n{target}\n{endpoint}").as_bytes());
    }

    #[test]
    fn accepted_chain_document_is_same_when_read_again(
        settings in "([{}\\[\\]:,'\"\n &*!|>#-]|a|: |\\\\u0000|1e400|0x1|-1|0\\.1|true|null|~|<<|\\x7f|😀){0,12}",
        number in any::<f64>(),
    ) {
        let version = "chain.ctrlmesh.kusionstack.io/v1";
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let entry = format!("\"name\":\"a\",\"plugin\":\"{digest}\",\"settings\":{{\"x\":[{settings}],\"y\":{number:?}}}");
        let json = format!("{{\"apiVersion\":\"{version}\",\"namespace\":\"a\",\"generation\":1,\"entries\":[{{{entry}}}]}}");
        crate::chain_document(json.as_bytes());
        let entry = format!("- name: a\n  plugin: {digest}\n  settings: {{x: [{settings}], y: {number:?}}}\n");
        let yaml = format!("apiVersion: {version}\nnamespace: a\ngeneration: 1\nentries:\n{entry}");
        crate::chain_document(yaml.as_bytes());
    }
}

/// A message of these fields, each with a number and its content.
fn encoded_fields(fields: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let encoded = fields.iter().flat_map(|(number, content)| {
        let length = u8::try_from(content.len()).expect("short contents");
        assert!(length < 128, "a length of one byte");
        [&[number << 3 | 2, length], &**content].concat()
    });
    encoded.collect()
}

/// An encoding of the filters as the first byte of their inputs, and a body.
type GoldenBody = (u8, Vec<u8>);

static GOLDEN_LISTS: LazyLock<Vec<GoldenBody>> = LazyLock::new(|| golden_bodies("list"));
static GOLDEN_WATCHES: LazyLock<Vec<GoldenBody>> = LazyLock::new(|| golden_bodies("watch"));

const ENCODINGS: [&str; 3] = ["json", "protobuf", "cbor"];

/// Number of inputs for each golden body: they differ in chunks, fields and decisions.
const CHOICES: u8 = 4;

fn golden_bodies(kind: &str) -> Vec<GoldenBody> {
    let lines = include_str!("../../tests/golden/filtered_lists.jsonl").lines();
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let text = |field: &str| line[field].as_str().expect("a text").to_owned();
        let encoding = (0..).zip(ENCODINGS).find(|(_, name)| *name == text("encoding"));
        let (encoding, _) = encoding.expect("a known encoding");
        let body = STANDARD.decode(text("body")).expect("base64");
        (text("kind") == kind).then_some((encoding, body))
    };
    // A body occurs in several lines, which differ in what is kept.
    let bodies: BTreeSet<GoldenBody> = lines.filter_map(read).collect();
    bodies.into_iter().collect()
}

fn filter_input(encoding: u8, choice: u8, body: &[u8]) -> Vec<u8> {
    [&[encoding + 3 * (choice % 80)], body].concat()
}

/// A golden body in which some bytes are replaced by others.
fn damaged_body(body: &[u8], position: Index, removed: usize, inserted: &[u8]) -> Vec<u8> {
    let start = position.index(body.len());
    let end = body.len().min(start + removed);
    [&body[..start], inserted, &body[end..]].concat()
}

#[test]
fn golden_list_is_filtered_alike_in_any_chunks() {
    for (encoding, body) in GOLDEN_LISTS.iter() {
        for choice in 0..CHOICES {
            crate::filtered_list(&filter_input(*encoding, choice, body));
        }
    }
}

#[test]
fn golden_watch_is_filtered_alike_in_any_chunks() {
    for (encoding, body) in GOLDEN_WATCHES.iter() {
        for choice in 0..CHOICES {
            crate::filtered_watch(&filter_input(*encoding, choice, body));
        }
    }
}

proptest! {
    // Each case filters its body about a dozen times.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn damaged_list_is_filtered_alike_in_any_chunks(
        (golden, position) in any::<(Index, Index)>(),
        choice in any::<u8>(),
        removed in 0_usize..8,
        inserted in vec(any::<u8>(), 0..4),
    ) {
        let (encoding, body) = golden.get(GOLDEN_LISTS.as_slice());
        let body = damaged_body(body, position, removed, &inserted);
        crate::filtered_list(&filter_input(*encoding, choice, &body));
    }

    #[test]
    fn damaged_watch_is_filtered_alike_in_any_chunks(
        (golden, position) in any::<(Index, Index)>(),
        choice in any::<u8>(),
        removed in 0_usize..8,
        inserted in vec(any::<u8>(), 0..4),
    ) {
        let (encoding, body) = golden.get(GOLDEN_WATCHES.as_slice());
        let body = damaged_body(body, position, removed, &inserted);
        crate::filtered_watch(&filter_input(*encoding, choice, &body));
    }

    #[test]
    fn json_list_is_filtered_alike_in_any_chunks(
        choice in any::<u8>(),
        kind in "PodList|Table|Status|S\\\\u0074atus",
        array in "items|rows|other",
        metadata in vec("\"(remainingItemCount|shardInfo|remainingItem\\\\u0043ount|resourceVersion)\"[ \n]?:(7|\"7\"|null|\\{\\})", 0..5),
        objects in vec("\\{(\"object\":\\{)?\"metadata\":\\{(\"name\":\"[a-d]\")?\\}(,\"spec\":[0-9]{1,3})?[ }]?\\}", 0..5),
        separator in "[ \n]{0,2},[ \n]{0,2}",
    ) {
        let (metadata, objects) = (metadata.join(separator.as_str()), objects.join(separator.as_str()));
        let text = format!("{{\"kind\":\"{kind}\",\"metadata\":{{{metadata}}},\"{array}\":[{objects}]}}\n");
        crate::filtered_list(&filter_input(0, choice, text.as_bytes()));
    }

    #[test]
    fn json_watch_is_filtered_alike_in_any_chunks(
        choice in any::<u8>(),
        events in vec(
            "\\{\"type\":\"(ADDED|MODIFI\\\\u0045D|DELETED|BOOKMARK|ERROR)\",\"object\":\\{(\"kind\":\"(Pod|Table|Status)\",)?(\"apiVersion\":\"(v1|meta\\.k8s\\.io/v1)\",)?(\"columnDefinitions\":(null|\\[\\]|\\[1\\]),)?(\"rows\":\\[\\{\"object\":\\{\"metadata\":\\{\"name\":\"[a-d]?\"\\}\\}\\}\\],)?\"metadata\":\\{(\"name\":\"[a-d]\",)?\"resourceVersion\":\"[0-9]?\"\\}\\}\\}[ \n]{0,2}",
            0..5,
        ),
    ) {
        crate::filtered_watch(&filter_input(0, choice, events.concat().as_bytes()));
    }
}
