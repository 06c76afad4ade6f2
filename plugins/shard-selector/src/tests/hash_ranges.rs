//! Limits with hash ranges: which objects are kept of which resources.

use ctrlmesh_sdk::testing::{Bench, TestRequest};
use ctrlmesh_sdk::{
    HashKey, HashRange, HashRanges, ObjectPredicate, ObjectRefusal, PredicateNode, RequestAction, RequestEdit,
    RequestVerdict, Reuse, Verb,
};

use crate::plugin::ShardSelector;

/// Widgets by their owners, but no other resource of their group.
const SETTINGS: &str = r#"{
    "limits": [{
        "relateResources": [{"apiGroups": ["example.com"], "resources": ["*"]}],
        "exceptResources": [{"apiGroups": ["example.com"], "resources": ["classes"]}],
        "hashRanges": {"key": "owner", "ranges": ["0-255", "512"]}
    }]
}"#;

fn bench(settings: &str) -> Bench<ShardSelector> {
    Bench::new(settings).unwrap()
}

fn edits_for(settings: &str, request: &TestRequest) -> Vec<RequestEdit> {
    let mut bench = bench(settings);
    assert!(bench.wakes(request), "{request:?}");
    match bench.on_request(request).action {
        RequestAction::Proceed(edits) => edits,
        other => panic!("{request:?} got {other:?}"),
    }
}

fn kept(key: HashKey, ranges: &[(u64, Option<u64>)]) -> ObjectPredicate {
    let ranges = ranges.iter().map(|(start, end)| HashRange {
        start: *start,
        end: *end,
    });
    ObjectPredicate::hash_ranges(key, ranges)
}

#[test]
fn reads_keep_the_objects_of_the_ranges() {
    let ranges = [(0, Some(1 << 62)), (1 << 63, Some((1 << 63) + (1 << 54)))];
    let expected = [RequestEdit::keep_objects(kept(HashKey::ControllerUid, &ranges))];
    for verb in [Verb::List, Verb::Watch] {
        let request = TestRequest::api(verb, "example.com", "widgets").namespace("team");
        assert_eq!(edits_for(SETTINGS, &request), expected, "{verb:?}");
    }
    let verdict = bench(SETTINGS).on_request(&TestRequest::list("example.com", "widgets"));
    assert_eq!(verdict.reuse, Reuse::WhileUnchanged);
}

#[test]
fn last_range_reaches_to_the_end_of_hashes() {
    let settings = SETTINGS.replace(r#""0-255", "512""#, r#""1023""#);
    let request = TestRequest::list("example.com", "widgets");
    let expected = [RequestEdit::keep_objects(kept(
        HashKey::ControllerUid,
        &[(1023 << 54, None)],
    ))];
    assert_eq!(edits_for(&settings, &request), expected);
}

#[test]
fn no_ranges_keep_no_object() {
    let settings = SETTINGS.replace(r#""0-255", "512""#, "");
    let request = TestRequest::list("example.com", "widgets");
    let expected = [RequestEdit::keep_objects(kept(HashKey::ControllerUid, &[]))];
    assert_eq!(edits_for(&settings, &request), expected);
}

#[test]
fn keys_name_the_field_that_is_hashed() {
    for (key, expected) in [
        ("uid", HashKey::Uid),
        ("namespace", HashKey::Namespace),
        (
            "label(example.com/tenant)",
            HashKey::Label("example.com/tenant".to_owned()),
        ),
    ] {
        let settings = SETTINGS.replace("owner", key);
        let edits = edits_for(&settings, &TestRequest::list("example.com", "widgets"));
        let [RequestEdit::KeepObjects(nodes)] = &edits[..] else {
            panic!("{key}: {edits:?}")
        };
        let [PredicateNode::HashRanges(HashRanges { key: hashed, .. })] = &nodes[..] else {
            panic!("{key}: {nodes:?}")
        };
        assert_eq!(*hashed, expected);
    }
}

#[test]
fn excepted_resources_and_objects_by_name_are_left_alone() {
    let mut bench = bench(SETTINGS);
    for request in [
        TestRequest::list("example.com", "classes"),
        TestRequest::api(Verb::Deletecollection, "example.com", "classes"),
        TestRequest::get("example.com", "widgets", "w"),
        TestRequest::list("", "pods"),
    ] {
        assert_eq!(
            bench.on_request(&request),
            RequestVerdict::proceed().reusable(),
            "{request:?}"
        );
    }
}

/// Requests that write an object of this resource, and the resource's subresources.
fn writes(group: &str, resource: &str) -> Vec<TestRequest> {
    let of = |verb| TestRequest::api(verb, group, resource).namespace("team").name("w");
    let mut writes: Vec<_> = [Verb::Update, Verb::Patch, Verb::Delete].into_iter().map(of).collect();
    writes.push(of(Verb::Update).subresource("status"));
    writes.push(of(Verb::Patch).subresource("scale"));
    writes.push(of(Verb::Create).subresource("eviction"));
    writes
}

#[test]
fn writes_of_objects_outside_of_the_ranges_are_refused() {
    let ranges = [(0, Some(1 << 62)), (1 << 63, Some((1 << 63) + (1 << 54)))];
    let own = kept(HashKey::ControllerUid, &ranges);
    let expected = [RequestEdit::require_object_match(own, ObjectRefusal::Conflict)];
    for request in writes("example.com", "widgets") {
        assert_eq!(edits_for(SETTINGS, &request), expected, "{request:?}");
        assert_eq!(bench(SETTINGS).on_request(&request).reuse, Reuse::WhileUnchanged);
    }
}

#[test]
fn tunnels_into_pods_are_writes_by_whatever_method() {
    let pods = r#"{"namedGets": "Pass", "limits": [{"hashRanges": {"key": "uid", "ranges": ["0-511"]}}]}"#;
    let own = kept(HashKey::Uid, &[(0, Some(1 << 63))]);
    let expected = [RequestEdit::require_object_match(own, ObjectRefusal::Conflict)];
    let get = |subresource| TestRequest::get("", "pods", "p").subresource(subresource);
    for subresource in ["attach", "exec", "portforward"] {
        for named_gets in ["Pass", "NotFound"] {
            let settings = pods.replace("Pass", named_gets);
            assert_eq!(edits_for(&settings, &get(subresource)), expected, "{named_gets}");
        }
        assert!(!bench(SETTINGS).wakes(&get(subresource)));
    }
    assert!(!bench(pods).wakes(&get("log")));
}

#[test]
fn verdict_on_a_write_reads_no_name() {
    let request = TestRequest::api(Verb::Patch, "example.com", "widgets").name("w");
    bench(SETTINGS).on_request(&request);
    let reads = request.take_reads();
    assert!(!reads.contains(&"name"), "{reads:?}");
}

#[test]
fn writes_that_no_range_leaves_out_pass() {
    let all = SETTINGS.replace(r#""0-255", "512""#, r#""0-1023""#);
    let labels = r#"{"limits": [{"selector": {"matchLabels": {"a": "b"}}}]}"#;
    let proceed = RequestVerdict::proceed().reusable();
    for (settings, group, resource) in [
        (&*all, "example.com", "widgets"),
        (labels, "example.com", "widgets"),
        (SETTINGS, "example.com", "classes"),
        (SETTINGS, "", "pods"),
    ] {
        for request in writes(group, resource) {
            assert_eq!(bench(settings).on_request(&request), proceed, "{settings} {request:?}");
        }
    }
    let create = TestRequest::api(Verb::Create, "example.com", "widgets").namespace("team");
    assert_eq!(bench(SETTINGS).on_request(&create), proceed);
}

#[test]
fn events_are_written_by_every_shard_unless_a_limit_names_them() {
    let core = |resources: &str| {
        let relate = format!(r#"[{{"apiGroups": ["", "events.k8s.io"], "resources": ["{resources}"]}}]"#);
        format!(r#"{{"limits": [{{"relateResources": {relate}, "hashRanges": {{"key": "uid", "ranges": ["7"]}}}}]}}"#)
    };
    for group in ["", "events.k8s.io"] {
        for request in writes(group, "events") {
            let verdict = bench(&core("*")).on_request(&request);
            assert_eq!(verdict, RequestVerdict::proceed().reusable(), "{request:?}");
            assert_eq!(edits_for(&core("events"), &request).len(), 1, "{request:?}");
        }
    }
    for request in writes("", "pods") {
        assert_eq!(edits_for(&core("*"), &request).len(), 1, "{request:?}");
    }
}

#[test]
fn shard_writes_no_object_of_a_resource_that_it_is_shown_nothing_of() {
    let nothing =
        r#"{"matchExpressions": [{"key": "k", "operator": "Exists"}, {"key": "k", "operator": "DoesNotExist"}]}"#;
    let clusters = r#"[{"apiGroups": ["example.com"], "resources": ["clusters"]}]"#;
    let singletons = format!(r#"{{"relateResources": {clusters}, "selector": {nothing}}}"#);
    let settings = SETTINGS
        .replace("\"classes\"", "\"clusters\"")
        .replace("}]\n}", &format!("}}, {singletons}]\n}}"));
    let none = ObjectPredicate::any([]);
    let expected = [RequestEdit::require_object_match(none, ObjectRefusal::Conflict)];
    for request in writes("example.com", "clusters") {
        assert_eq!(edits_for(&settings, &request), expected, "{request:?}");
    }
    let labels_alone = format!(r#"{{"limits": [{singletons}]}}"#);
    for request in writes("example.com", "clusters") {
        let verdict = bench(&labels_alone).on_request(&request);
        assert_eq!(verdict, RequestVerdict::proceed().reusable(), "{request:?}");
    }
}

/// As the manager hides all objects of a shard that has not begun, and of pods that leave their shard.
#[test]
fn hidden_shard_writes_no_object_of_divided_kinds() {
    let nothing =
        r#"{"matchExpressions": [{"key": "k", "operator": "Exists"}, {"key": "k", "operator": "DoesNotExist"}]}"#;
    let hidden = SETTINGS
        .replace(r#""0-255", "512""#, "")
        .replace(r#""hashRanges""#, &format!(r#""selector": {nothing}, "hashRanges""#));
    let left = hidden.replace("}]\n}", &format!("}}, {{\"selector\": {nothing}}}]\n}}"));
    let expected = [RequestEdit::require_object_match(
        ObjectPredicate::any([]),
        ObjectRefusal::Conflict,
    )];
    for settings in [hidden, left] {
        for request in writes("example.com", "widgets") {
            assert_eq!(edits_for(&settings, &request), expected, "{settings} {request:?}");
        }
        for (group, resource) in [("example.com", "classes"), ("coordination.k8s.io", "leases")] {
            for request in writes(group, resource) {
                let verdict = bench(&settings).on_request(&request);
                assert_eq!(verdict, RequestVerdict::proceed().reusable(), "{request:?}");
            }
        }
    }
}

#[test]
fn gets_by_name_are_refused_as_the_setting_says() {
    let get = || TestRequest::get("example.com", "widgets", "w").namespace("team");
    let with = |value: &str| SETTINGS.replacen('{', &format!(r#"{{"namedGets": "{value}","#), 1);
    for settings in [SETTINGS.to_owned(), with("Pass")] {
        assert!(!bench(&settings).wakes(&get()), "{settings}");
    }
    for (value, refusal) in [
        ("NotFound", ObjectRefusal::NotFound),
        ("Forbidden", ObjectRefusal::Forbidden),
    ] {
        let edits = edits_for(&with(value), &get());
        assert!(
            matches!(&edits[..], [RequestEdit::RequireObjectMatch(required)] if required.refusal == refusal),
            "{value}: {edits:?}"
        );
        let classes = TestRequest::get("example.com", "classes", "c");
        let verdict = bench(&with(value)).on_request(&classes);
        assert_eq!(verdict, RequestVerdict::proceed().reusable());
    }
    let error = Bench::<ShardSelector>::new(&with("Hide")).err().unwrap();
    assert!(error.contains("unknown variant `Hide`"), "{error}");
}

#[test]
fn deletion_of_a_divided_collection_keeps_the_objects_of_the_shard_alone() {
    let request = |verb| TestRequest::api(verb, "example.com", "widgets");
    for ranges in [
        r#""0-1022""#,
        r#""1-1023""#,
        r#""0-511", "513-1023""#,
        "",
        r#""0-1023"]}}, {"hashRanges": {"key": "uid", "ranges": ["0-511""#,
    ] {
        let settings = SETTINGS.replace(r#""0-255", "512""#, ranges);
        let edits = edits_for(&settings, &request(Verb::Deletecollection));
        assert!(
            matches!(&edits[..], [RequestEdit::KeepObjects(_)]),
            "{ranges}: {edits:?}"
        );
        assert_eq!(edits, edits_for(&settings, &request(Verb::List)), "{ranges}");
    }
}

#[test]
fn shard_that_shows_nothing_deletes_nothing() {
    let settings = r#"{"limits": [{
        "selector": {"matchExpressions": [{"key": "x", "operator": "Exists"}, {"key": "x", "operator": "DoesNotExist"}]},
        "hashRanges": {"key": "uid", "ranges": []}
    }]}"#;
    let request = TestRequest::api(Verb::Deletecollection, "example.com", "widgets");
    let edits = edits_for(settings, &request);
    let [RequestEdit::AndLabelSelector(selector), RequestEdit::KeepObjects(_)] = &edits[..] else {
        panic!("{edits:?}")
    };
    assert!(selector.contains("!x"), "{selector}");
}

#[test]
fn deletion_of_a_whole_collection_passes_with_a_selector_that_hides_nothing() {
    let request = TestRequest::api(Verb::Deletecollection, "example.com", "widgets");
    let all_objects = [RequestEdit::and_label_selector("!ctrlmesh.kusionstack.io/nothing")];
    for ranges in [r#""0-1023""#, r#""600-1023", "0-100", "7", "50-599""#] {
        let settings = SETTINGS.replace(r#""0-255", "512""#, ranges);
        assert_eq!(edits_for(&settings, &request), all_objects, "{ranges}");
    }
    let settings = r#"{"limits": [{"selector": {"matchLabels": {"a": "b"}}, "hashRanges": {"key": "uid", "ranges": ["0-1023"]}}]}"#;
    assert_eq!(edits_for(settings, &request), [RequestEdit::and_label_selector("a=b")]);
}

#[test]
fn selectors_and_ranges_of_all_limits_hold_together() {
    let settings = r#"{
        "limits": [
            {"selector": {"matchLabels": {"a": "b"}}, "hashRanges": {"key": "uid", "ranges": ["0-1022"]}},
            {"hashRanges": {"key": "namespace", "ranges": ["0-511"]}}
        ],
        "consistentReads": true
    }"#;
    let request = TestRequest::list("", "pods").query_field("resourceVersion", "7");
    let both = kept(HashKey::Uid, &[(0, Some(1023 << 54))]).and(kept(HashKey::Namespace, &[(0, Some(1 << 63))]));
    assert_eq!(
        edits_for(settings, &request),
        [
            RequestEdit::and_label_selector("a=b"),
            RequestEdit::keep_objects(both),
            RequestEdit::remove_query("resourceVersion"),
            RequestEdit::remove_query("resourceVersionMatch"),
        ]
    );
}

#[test]
fn all_ranges_are_a_predicate_too() {
    let settings = SETTINGS.replace(r#""0-255", "512""#, r#""0-1023""#);
    let request = TestRequest::list("example.com", "widgets");
    let expected = [RequestEdit::keep_objects(kept(HashKey::ControllerUid, &[(0, None)]))];
    assert_eq!(edits_for(&settings, &request), expected);
}

#[test]
fn invalid_hash_ranges_are_refused_by_field() {
    let many = format!(r#"["{}"]"#, vec!["1"; 1025].join(r#"", ""#));
    for (hash, expected) in [
        (
            r#"{"key": "name", "ranges": []}"#,
            "limits[0].hashRanges.key: unknown key \"name\", use uid, namespace, owner or label(<key of a label>)",
        ),
        (
            r#"{"key": "label(a b)", "ranges": []}"#,
            "limits[0].hashRanges.key: \"a b\" is no label key",
        ),
        (r#"{"key": "uid"}"#, "limits[0].hashRanges: missing field `ranges`"),
        (
            r#"{"key": "uid", "ranges": ["0", "5-1024"]}"#,
            "limits[0].hashRanges.ranges[1]: \"5-1024\" is no range",
        ),
        (
            r#"{"key": "uid", "ranges": ["6-5"]}"#,
            "limits[0].hashRanges.ranges[0]: \"6-5\" is no range",
        ),
        (
            r#"{"key": "uid", "ranges": ["+5"]}"#,
            "limits[0].hashRanges.ranges[0]: \"+5\" is no range",
        ),
        (
            &format!(r#"{{"key": "uid", "ranges": {many}}}"#),
            "limits[0].hashRanges.ranges: up to here there are 1025 ranges",
        ),
    ] {
        let error = Bench::<ShardSelector>::new(&format!(r#"{{"limits": [{{"hashRanges": {hash}}}]}}"#))
            .err()
            .unwrap_or_else(|| panic!("{hash} was accepted"));
        assert!(error.starts_with(expected), "{error}");
    }
    let exception = r#"{"limits": [{"exceptResources": [{"apiGroups": [""], "resources": ["pods/status"]}], "hashRanges": {"key": "uid", "ranges": []}}]}"#;
    let error = Bench::<ShardSelector>::new(exception).err().unwrap();
    assert!(
        error.starts_with("limits[0].exceptResources[0].resources[0]: "),
        "{error}"
    );
}
