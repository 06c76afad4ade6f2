//! The reads that are made consistent, and how.

use ctrlmesh_sdk::testing::{Bench, TestRequest};
use ctrlmesh_sdk::{RequestAction, RequestEdit, Verb};

use crate::plugin::ShardSelector;

fn edits_with_consistent_reads(consistent_reads: &str, req: &TestRequest) -> Vec<RequestEdit> {
    let settings = format!(
        r#"{{"limits": [{{"relateResources": [{{"apiGroups": [""], "resources": ["pods"]}}],
            "selector": {{"matchLabels": {{"shard": "a"}}}}}}], "consistentReads": {consistent_reads}}}"#
    );
    match Bench::<ShardSelector>::new(&settings).unwrap().on_request(req).action {
        RequestAction::Proceed(edits) => edits,
        other => panic!("{other:?}"),
    }
}

fn request_with(verb: Verb, query: &str) -> TestRequest {
    let fields = query.split('&').filter_map(|field| field.split_once('='));
    fields.fold(TestRequest::api(verb, "", "pods"), |req, (name, value)| {
        req.query_field(name, value)
    })
}

/// The names of removed parameters, without the selector that each of these requests gets.
fn removed_parameters(verb: Verb, query: &str) -> Vec<String> {
    let req = request_with(verb, query);
    let plain = vec![RequestEdit::and_label_selector("shard=a")];
    for off in ["false", "null"] {
        assert_eq!(edits_with_consistent_reads(off, &req), plain, "{query}");
    }
    assert_eq!(
        edits_with_consistent_reads("true", &req.clone().recheck()),
        edits_with_consistent_reads("true", &req),
        "{query}"
    );
    let edits = edits_with_consistent_reads("true", &req);
    assert_eq!(edits[..1], plain, "{query}");
    edits[1..]
        .iter()
        .map(|edit| match edit {
            RequestEdit::RemoveQuery(name) => name.clone(),
            other => panic!("{query}: {other:?}"),
        })
        .collect()
}

const BOTH: [&str; 2] = ["resourceVersion", "resourceVersionMatch"];
const VERSION: [&str; 1] = ["resourceVersion"];
const NEITHER: [&str; 0] = [];

#[test]
fn list_is_made_consistent_when_it_allows_an_older_state() {
    for query in [
        "resourceVersion=0",
        "resourceVersion=00",
        "resourceVersion=0&limit=500",
        "resourceVersion=77",
        "resourceVersion=77&resourceVersionMatch=",
        "resourceVersion=77&resourceVersionMatch=NotOlderThan",
        "resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=500",
        "resourceVersion=77&continue=",
        // Not a version of this API server: its meaning there is unknown.
        "resourceVersion=2026-01-01",
    ] {
        assert_eq!(removed_parameters(Verb::List, query), BOTH, "{query}");
    }
    for query in [
        "",
        "resourceVersion=",
        "resourceVersion=&resourceVersion=77",
        "resourceVersion=77&resourceVersionMatch=Exact",
        "resourceVersion=77&resourceVersionMatch=Nonsense",
        "continue=abc&limit=500",
        "resourceVersion=0&continue=abc",
    ] {
        assert_eq!(removed_parameters(Verb::List, query), NEITHER, "{query}");
    }
}

#[test]
fn watch_is_made_consistent_when_it_begins_with_a_list() {
    for query in [
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=77",
        "sendInitialEvents=&resourceVersionMatch=NotOlderThan&resourceVersion=0",
        "resourceVersion=0",
        "resourceVersion=00",
    ] {
        assert_eq!(removed_parameters(Verb::Watch, query), VERSION, "{query}");
    }
    for query in [
        "",
        "resourceVersion=77",
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0",
        "sendInitialEvents=FALSE&resourceVersionMatch=NotOlderThan&resourceVersion=77",
    ] {
        assert_eq!(removed_parameters(Verb::Watch, query), NEITHER, "{query}");
    }
}

#[test]
fn collection_delete_keeps_its_resource_version() {
    assert_eq!(removed_parameters(Verb::Deletecollection, "resourceVersion=0"), NEITHER);
}

#[test]
fn unlimited_resources_are_read_as_the_client_asks() {
    let nodes = TestRequest::list("", "nodes").query_field("resourceVersion", "0");
    assert_eq!(edits_with_consistent_reads("true", &nodes), []);
}
