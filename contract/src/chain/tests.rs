//! Tests of the chain document: what is read, what is refused and how that is said, and that nothing is lost in print.

use proptest::prelude::*;
use serde_json::{Map, Number, Value, json};

use super::*;
use crate::selector::{Operator, Requirement};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn yaml_document(entries: &str) -> String {
    format!("apiVersion: {CHAIN_API_VERSION}\nnamespace: demo\ngeneration: 17\nentries:\n{entries}")
}

fn refusal_text(document: impl AsRef<[u8]>) -> String {
    Chain::parse(document.as_ref())
        .expect_err("must be refused")
        .to_string()
}

#[test]
fn full_document_is_read() {
    let document = yaml_document(&format!(
        "
- name: shard-selector/operator-demo-0
  plugin: {DIGEST}
  podSelector:
    matchLabels: {{app: demo}}
    matchExpressions: [{{key: shard, operator: In, values: ['0', '1']}}]
  order: -100
  onFailure: Open
  timeoutMs: 25
  memoryMiB: 32
  settings: {{limits: [{{groups: ['*']}}], ratio: 0.5}}
  origin: {{kind: ShardingConfig, name: operator-demo-0, uid: abc, generation: 4}}
"
    ));
    let chain = Chain::parse(document.as_bytes()).unwrap();
    assert_eq!((chain.namespace.as_str(), chain.generation), ("demo", 17));
    let entry = &chain.entries[0];
    assert_eq!(entry.name, "shard-selector/operator-demo-0");
    assert_eq!(entry.plugin.to_string(), DIGEST);
    assert_eq!(entry.pod_selector.match_labels["app"], "demo");
    assert_eq!(entry.pod_selector.match_expressions[0].values, ["0", "1"]);
    assert_eq!((entry.order, entry.on_failure), (-100, FailurePolicy::Open));
    assert_eq!((entry.timeout_ms, entry.memory_mib), (25, 32));
    assert_eq!(entry.settings.json(), r#"{"limits":[{"groups":["*"]}],"ratio":0.5}"#);
    assert_eq!(
        entry.settings.hash(),
        Digest::of(entry.settings.json().as_bytes()).hex()
    );
    assert_eq!(entry.origin.as_ref().unwrap().generation, 4);
    assert_eq!(Chain::parse(chain.to_json().as_bytes()), Ok(chain));
}

#[test]
fn missing_fields_have_defaults() {
    let chain = Chain::parse(yaml_document(&format!("- {{name: a, plugin: '{DIGEST}'}}")).as_bytes()).unwrap();
    let entry = &chain.entries[0];
    assert_eq!(entry.pod_selector, LabelSelector::default());
    assert_eq!((entry.order, entry.on_failure), (0, FailurePolicy::Closed));
    assert_eq!((entry.timeout_ms, entry.memory_mib), (10, 16));
    assert_eq!((entry.settings.json(), &entry.origin), ("{}", &None));
    assert_eq!(Chain::parse(yaml_document("  []").as_bytes()).unwrap().entries, []);
}

#[test]
fn empty_documents_beside_chain_are_ignored() {
    let document = yaml_document("  []\n");
    let alone = Chain::parse(document.as_bytes());
    assert!(alone.is_ok(), "{alone:?}");
    for text in [
        format!("---\n{document}"),
        format!("{document}---\n"),
        format!("{document}...\n"),
        format!("{document}---\n# the end\n---\n"),
        format!("---\n# the beginning\n---\n{document}"),
    ] {
        assert_eq!(Chain::parse(text.as_bytes()), alone, "{text}");
    }
    let twice = format!("{document}---\n{document}");
    assert_eq!(
        Chain::parse(twice.as_bytes()),
        Err(Error::SeveralDocuments { count: 2 })
    );
    assert_eq!(
        refusal_text(format!("{twice}---\n---\na: 1\n")),
        "the file has 3 documents; write one"
    );
    let json = Chain::parse(document.as_bytes()).unwrap().to_json();
    for text in [
        format!("{json}\n---\n"),
        format!("{json}\n---"),
        format!("{json}\n...\n"),
        format!("{json}\n---\n# the end\n---\n"),
        format!("---\n{json}\n---\n"),
    ] {
        assert_eq!(Chain::parse(text.as_bytes()), alone, "{text}");
    }
    assert_eq!(
        Chain::parse(format!("{json}\n---\n{json}\n").as_bytes()),
        Err(Error::SeveralDocuments { count: 2 })
    );
    assert!(refusal_text("a: 1\n---\n".repeat(2000)).ends_with("it has too many documents; write one"));
}

#[test]
fn messages_of_refused_documents_match_snapshot() {
    let entry = |fields: &str| yaml_document(&format!("- {{name: a, plugin: '{DIGEST}', {fields}}}"));
    let documents = [
        ("not YAML", "entries: [".to_owned()),
        ("a list", "[]".to_owned()),
        ("empty", String::new()),
        (
            "another version",
            yaml_document("  []").replace(CHAIN_API_VERSION, "chain.ctrlmesh.kusionstack.io/v2"),
        ),
        ("no generation", yaml_document("  []").replace("generation: 17\n", "")),
        ("unknown field", entry("timeout: 10")),
        ("out of bounds", entry("timeoutMs: 0, memoryMiB: 4096")),
        ("unknown word", entry("onFailure: Opne")),
        ("wrong type", entry("order: high, settings: []")),
        ("digest", yaml_document("- {name: a, plugin: 'sha256:00'}")),
        (
            "name twice",
            yaml_document(&format!(
                "- {{name: a, plugin: '{DIGEST}'}}\n- {{name: a, plugin: '{DIGEST}'}}"
            )),
        ),
        (
            "selector",
            entry(
                "podSelector: {matchLabels: {UPPER.io/a: '1', b: 'c d'}, matchExpressions: [{key: a, operator: In}]}",
            ),
        ),
        ("settings hash", entry("settingsHash: 1b")),
        ("two documents", format!("{0}\n---\n{0}", yaml_document("  []"))),
    ];
    let messages = documents.map(|(problem, document)| format!("{problem}:\n{}\n", refusal_text(document)));
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn all_mistakes_are_reported_with_their_paths() {
    let document = format!(
        "
apiVersion: chain.ctrlmesh.kusionstack.io/v2
namespace: Demo
generation: 0
extra: 1
entries:
- {{name: a, plugin: '{DIGEST}', timeoutMs: 0, memoryMiB: 4096, onFailure: Opne}}
- {{name: a, plugin: '{DIGEST}', timeout: 10}}
- {{plugin: sha256:00, podSelector: {{matchExpressions: [{{key: a, operator: Is}}], matchLabels: {{b: 1}}}}}}
- text
- {{name: B, plugin: '{DIGEST}', settings: [], settingsHash: 1b, order: high}}
"
    );
    let text = refusal_text(document);
    for expected in [
        "apiVersion: is \"chain.ctrlmesh.kusionstack.io/v2\", which this release does not know; write chain.ctrlmesh.kusionstack.io/v1",
        "namespace: \"Demo\" is not a namespace",
        "generation: is 0, which means no chain at all; count from 1",
        "\"extra\": is not a field here; known are apiVersion, namespace, generation, entries",
        "entries[0].timeoutMs: is 0; write 1 to 1000 milliseconds",
        "entries[0].memoryMiB: is 4096; write 1 to 256 MiB",
        "entries[0].onFailure: is \"Opne\"; write Closed (refuse the request) or Open (skip the plugin); did you mean Open?",
        "entries[1].name: \"a\" is also the name of entries[0]; write another",
        "entries[1].\"timeout\": is not a field here; known are name, plugin, podSelector, order, onFailure, timeoutMs,",
        "memoryMiB, settings, settingsHash, origin; did you mean timeoutMs?",
        "entries[2].name: is missing; write a string",
        "entries[2].plugin: \"sha256:00\" is not a digest; write sha256: and 64",
        "entries[2].podSelector.matchExpressions[0].operator: is \"Is\"; write In, NotIn, Exists or DoesNotExist",
        "entries[2].podSelector.matchLabels.\"b\": is 1; write a string",
        "entries[3]: is \"text\"; write a mapping",
        "entries[4].name: \"B\" is not a name for an entry",
        "entries[4].settings: is a list; write a mapping",
        "entries[4].settingsHash: is \"1b\", but the settings hash to",
        "entries[4].order: is \"high\"; write a whole number",
    ] {
        assert!(text.contains(expected), "missing: {expected}\nin: {text}");
    }
    assert!(text.starts_with("the chain document has 18 mistakes: "), "{text}");
}

#[test]
fn unreadable_documents_are_refused_with_reason() {
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(90), "]".repeat(90));
    let cases: [(&[u8], &str); 16] = [
        (b"", "is empty; write apiVersion"),
        (b" \n\n", "is empty"),
        (b"# nothing\n", "document: is empty; write a mapping"),
        (b"\xff\xfe", "not UTF-8"),
        (b"\0\0\0", "not valid YAML"),
        (b"apiVersion: [", "not valid YAML"),
        (b"{\"apiVersion\": ", "not valid JSON"),
        (
            b"{namespace: a, generation: 1}",
            "at line 1 column 2; a document that begins with a brace is read as JSON: quote its keys",
        ),
        (
            b"{\"apiVersion\": \"a\", \"apiVersion\": \"b\"}",
            "duplicate key \"apiVersion\"; write each key once",
        ),
        (
            b"namespace: a\nnamespace: b\n",
            "duplicate key \"namespace\" at line 2, column 1; write each key once",
        ),
        (b"{} {}", "not valid JSON: trailing characters"),
        (b"a: 1\n---\na: 2\n", "the file has 2 documents; write one"),
        (b"a: 1\n---\n---\na: [\n", "not valid YAML"),
        (bomb.as_bytes(), "not valid YAML"),
        (b"base: {a: 1}\nx: {<<: {b: 2}}\n", "not valid YAML"),
        (deep.as_bytes(), "nested more than 64 levels deep"),
    ];
    for (document, expected) in cases {
        let text = refusal_text(document);
        assert!(
            text.contains(expected),
            "{text}\nfor {:?}",
            String::from_utf8_lossy(document)
        );
    }
    assert!(refusal_text(vec![b' '; MAX_DOCUMENT_BYTES + 1]).contains("at most 1048576 are allowed"));
}

#[test]
fn long_mistake_makes_a_short_message() {
    let key = "k".repeat(100_000);
    for document in [
        format!("{key}: 1\n{key}: 2\n"),
        format!("{{\"{key}\":1,\"{key}\":2}}"),
        format!("'{key}"),
    ] {
        let text = refusal_text(document);
        assert!(text.chars().count() < 700, "{} characters", text.chars().count());
    }
}

#[test]
fn anchor_is_refused() {
    let document = yaml_document(&format!("- {{name: &n a, plugin: '{DIGEST}'}}"));
    assert!(refusal_text(document).contains("not valid YAML"));
}

#[test]
fn entries_and_settings_are_bounded() {
    let entry = |n: usize| json!({"name": format!("e{n}"), "plugin": DIGEST});
    let document = |entries: Vec<Value>| {
        let head = json!({"apiVersion": CHAIN_API_VERSION, "namespace": "demo", "generation": 1, "entries": entries});
        head.to_string()
    };
    assert!(Chain::parse(document((0..MAX_ENTRIES).map(entry).collect()).as_bytes()).is_ok());
    let text = refusal_text(document((0..MAX_ENTRIES + 3).map(entry).collect()));
    assert!(
        text.contains("has a mistake: entries: has more than 1024 entries"),
        "{text}"
    );
    let mut large = entry(0);
    large["settings"] = json!({"text": "x".repeat(MAX_SETTINGS_BYTES)});
    let text = refusal_text(document(vec![large]));
    assert!(
        text.contains("entries[0].settings: has 262155 bytes as JSON, at most 262144"),
        "{text}"
    );
}

#[test]
fn equal_settings_have_equal_hashes_in_any_notation() {
    let settings = |text: &str| {
        let entry = format!("- {{name: a, plugin: '{DIGEST}', settings: {text}}}");
        Chain::parse(yaml_document(&entry).as_bytes()).unwrap().entries[0]
            .settings
            .clone()
    };
    assert_eq!(
        settings("{b: 1, a: [x, 'y']}"),
        settings("{\"a\": [\"x\", y], \"b\": 0x1}")
    );
    assert_ne!(settings("{a: 1}").hash(), settings("{a: '1'}").hash());
    assert_ne!(settings("{a: 1}").hash(), settings("{a: 1.0}").hash());
    // Pinned: manager and sidecar may be of different releases.
    let pinned = settings("{b: [1, -2, 0.1, 1e300, true, null], a: \"\\u0001\\n\\\"ü\"}");
    assert_eq!(
        pinned.json(),
        "{\"a\":\"\\u0001\\n\\\"ü\",\"b\":[1,-2,0.1,1e300,true,null]}"
    );
    assert_eq!(pinned.hash(), Digest::of(pinned.json().as_bytes()).hex());
    assert_eq!(
        Settings::default().hash(),
        "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    );
}

#[test]
fn matching_settings_hash_is_accepted() {
    let hash = Settings::default().hash().to_owned();
    let document = yaml_document(&format!("- {{name: a, plugin: '{DIGEST}', settingsHash: {hash}}}"));
    assert!(Chain::parse(document.as_bytes()).is_ok());
}

#[test]
fn chain_made_in_memory_is_validated() {
    let mut chain = Chain::parse(yaml_document(&format!("- {{name: a, plugin: '{DIGEST}'}}")).as_bytes()).unwrap();
    assert_eq!(chain.validate(), Ok(()));
    chain.entries[0].settings = Settings::new(json!([]));
    chain.entries[0].timeout_ms = 0;
    let text = chain.validate().unwrap_err().to_string();
    assert!(
        text.contains("entries[0].settings: is not a mapping") && text.contains("timeoutMs"),
        "{text}"
    );
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |f| Number::from_f64(f).map(Value::Number)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

prop_compose! {
    fn selector()(
        match_labels in prop::collection::btree_map("[a-z]{1,5}", "[a-z0-9]{0,5}", 0..3),
        inside in prop::collection::vec("[a-z0-9]{0,4}", 1..4),
        key in "[a-z]{1,4}/[A-Za-z0-9]{1,4}",
    ) -> LabelSelector {
        let match_expressions = vec![
            Requirement { key: key.clone(), operator: Operator::NotIn, values: inside },
            Requirement { key, operator: Operator::Exists, values: vec![] },
        ];
        LabelSelector { match_labels, match_expressions }
    }
}

prop_compose! {
    fn entry()(
        name in "[a-z]{1,8}/[a-z0-9]{1,8}",
        plugin in any::<[u8; 4]>(),
        pod_selector in selector(),
        order in any::<i32>(),
        open in any::<bool>(),
        timeout_ms in 1..=MAX_TIMEOUT_MS,
        memory_mib in 1..=MAX_MEMORY_MIB,
        settings in prop::collection::btree_map(any::<String>(), value(), 0..4),
        origin in prop::option::of(("[A-Za-z]{1,8}", "[ -~]{0,8}", any::<u64>())),
    ) -> Entry {
        Entry {
            name,
            plugin: Digest::of(&plugin),
            pod_selector,
            order,
            on_failure: if open { FailurePolicy::Open } else { FailurePolicy::Closed },
            timeout_ms,
            memory_mib,
            settings: Settings::new(Value::Object(settings.into_iter().collect())),
            origin: origin.map(|(kind, name, generation)| Origin { kind, name, uid: String::new(), generation }),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn printing_loses_nothing_and_is_stable(generation in 1..u64::MAX, list in prop::collection::vec(entry(), 0..4)) {
        let mut entries = list;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries.dedup_by(|a, b| a.name == b.name);
        let chain = Chain { namespace: "demo".to_owned(), generation, entries };
        let text = chain.to_json();
        let again = Chain::parse(text.as_bytes()).unwrap();
        prop_assert_eq!(again.to_json(), text);
        prop_assert_eq!(again, chain);
    }

    #[test]
    fn reading_never_panics(text in any::<String>(), bytes in any::<Vec<u8>>()) {
        let _ = Chain::parse(text.as_bytes());
        let _ = Chain::parse(&bytes);
        let _ = Chain::parse(yaml_document(&text).as_bytes());
    }
}
