use ctrlmesh_sdk::testing::{Bench, TestRequest};
use ctrlmesh_sdk::{RequestAction, RequestEdit, Reuse, Verb};
use serde_json::{Value, json};

use crate::plugin::TrimObjects;

const MANAGED_FIELDS: &str = "metadata.managedFields";

fn new_bench(rules: &Value) -> Bench<TrimObjects> {
    Bench::new(&json!({ "rules": rules }).to_string()).unwrap()
}

fn pods() -> Value {
    json!([{ "apiGroups": [""], "resources": ["pods"] }])
}

/// The fields that a request's objects lose. A request that is not subscribed loses none.
fn dropped(bench: &mut Bench<TrimObjects>, req: &TestRequest) -> Vec<String> {
    if !bench.wakes(req) {
        return Vec::new();
    }
    let verdict = bench.on_request(req);
    assert_eq!(verdict.reuse, Reuse::WhileUnchanged);
    let edits = match verdict.action {
        RequestAction::Proceed(edits) => edits,
        other => panic!("{other:?}"),
    };
    let fields = edits.into_iter().flat_map(|edit| match edit {
        RequestEdit::DropFields(fields) => fields,
        other => panic!("{other:?}"),
    });
    fields.collect()
}

#[test]
fn without_rules_nothing_is_subscribed() {
    for settings in ["", "{}", r#"{"rules": []}"#] {
        let bench = Bench::<TrimObjects>::new(settings).unwrap();
        assert!(!bench.wakes(&TestRequest::list("", "pods")), "{settings}");
        assert_eq!(bench.host.logs().len(), 1, "{settings}");
    }
}

#[test]
fn lists_and_watches_of_the_resource_lose_managed_fields() {
    let mut bench = new_bench(&json!([{ "resources": pods() }]));
    for (req, expected) in [
        (TestRequest::list("", "pods"), &[MANAGED_FIELDS][..]),
        (TestRequest::watch("", "pods").namespace("a"), &[MANAGED_FIELDS]),
        (TestRequest::get("", "pods", "p"), &[]),
        (TestRequest::api(Verb::Update, "", "pods").name("p"), &[]),
        (TestRequest::api(Verb::Deletecollection, "", "pods"), &[]),
        (TestRequest::list("", "secrets"), &[]),
        (TestRequest::list("apps", "pods"), &[]),
    ] {
        assert_eq!(dropped(&mut bench, &req), expected, "{req:?}");
    }
}

#[test]
fn only_named_clients_lose_fields() {
    let mut bench = new_bench(&json!([{ "resources": pods(), "userAgents": ["manager/*", "exact"] }]));
    let list = |agent: &str| TestRequest::list("", "pods").agent(agent);
    for (agent, expected) in [
        ("manager/v1 (linux/amd64)", &[MANAGED_FIELDS][..]),
        ("exact", &[MANAGED_FIELDS]),
        ("exactly", &[]),
        ("other manager/v1", &[]),
        ("", &[]),
    ] {
        assert_eq!(dropped(&mut bench, &list(agent)), expected, "{agent}");
    }
    assert!(bench.host.logs().is_empty());
}

#[test]
fn fields_of_all_matching_rules_are_left_out() {
    let annotation = r#"metadata.annotations["a.example/b"]"#;
    let mut bench = new_bench(&json!([
        { "resources": [{ "resources": ["*"] }], "userAgents": ["*"] },
        { "resources": pods(), "fields": [annotation, "spec.containers"] },
    ]));
    let of_pods = dropped(&mut bench, &TestRequest::list("", "pods"));
    assert_eq!(of_pods, [MANAGED_FIELDS, annotation, "spec.containers"]);
    assert_eq!(dropped(&mut bench, &TestRequest::list("", "secrets")), [MANAGED_FIELDS]);
}

#[test]
fn user_agent_is_read_only_if_a_rule_needs_it() {
    let read_agent = |rules: Value| {
        let mut bench = new_bench(&rules);
        let req = TestRequest::list("", "pods").agent("a");
        bench.on_request(&req);
        req.take_reads().contains(&"user_agent")
    };
    assert!(!read_agent(json!([{ "resources": pods() }])));
    let named = json!([{ "resources": pods(), "userAgents": ["a"] }]);
    assert!(read_agent(named));
}

#[test]
fn clients_that_must_not_match_are_named_in_warnings() {
    let warnings = |rule: Value| {
        let bench = new_bench(&json!([rule]));
        let logs = bench.host.logs().into_iter();
        logs.map(|(_, message)| message).collect::<Vec<_>>()
    };
    let for_all = warnings(json!({ "resources": pods() }));
    assert_eq!(for_all.len(), 1);
    assert!(
        for_all[0].starts_with("rules[0]: is for all clients") && for_all[0].contains("Extract"),
        "{for_all:?}"
    );
    let of_spec = warnings(json!({ "resources": pods(), "userAgents": ["a"], "fields": [MANAGED_FIELDS, "spec"] }));
    assert_eq!(of_spec.len(), 1);
    assert!(
        of_spec[0].contains("drops spec,") && of_spec[0].contains("PUT"),
        "{of_spec:?}"
    );
}

#[test]
fn invalid_settings_are_refused_by_field() {
    for (rule, expected) in [
        (json!({}), "resources: missing"),
        (json!({ "resources": [] }), "resources: missing"),
        (json!({ "resources": [{ "verbs": ["list"] }] }), "resources[0].verbs: "),
        (
            json!({ "resources": [{ "resources": ["Pods"] }] }),
            "resources[0].resources[0]: ",
        ),
        (
            json!({ "resources": pods(), "userAgents": [] }),
            "userAgents: an empty list",
        ),
        (
            json!({ "resources": pods(), "userAgents": ["a", "b*c"] }),
            "userAgents[1]: ",
        ),
        (json!({ "resources": pods(), "fields": [] }), "fields: an empty list"),
        (
            json!({ "resources": pods(), "fields": ["spec", "kind"] }),
            "fields[1]: ",
        ),
        (json!({ "resources": pods(), "fields": vec!["a"; 17] }), "fields: "),
        (json!({ "resources": pods(), "names": ["a"] }), "names: unknown field"),
    ] {
        let text = json!({ "rules": [rule] }).to_string();
        let error = Bench::<TrimObjects>::new(&text).err();
        let error = error.unwrap_or_else(|| panic!("{text} was accepted"));
        assert!(
            error.starts_with(&format!("rules[0].{expected}")),
            "{text} gave {error}"
        );
    }
}

#[test]
fn rules_and_their_fields_are_bounded() {
    let rules = |count: usize, field: &str| {
        let rule = json!({ "resources": pods(), "fields": [field] });
        Bench::<TrimObjects>::new(&json!({ "rules": vec![rule; count] }).to_string()).map(drop)
    };
    assert_eq!(rules(64, "spec"), Ok(()));
    assert_eq!(
        rules(65, "spec"),
        Err("rules: 65 rules; at most 64 are allowed".to_owned())
    );
    let five = json!({ "resources": pods(), "fields": ["a", "b", "c", "d", "e"] });
    let of_five =
        |count: usize| Bench::<TrimObjects>::new(&json!({ "rules": vec![five.clone(); count] }).to_string()).map(drop);
    assert_eq!(of_five(12), Ok(()));
    let error = of_five(13).unwrap_err();
    assert!(
        error.starts_with("rules: they have 65 fields together; at most 64 are allowed"),
        "{error}"
    );
    let long = "k".repeat(1000);
    assert!(rules(32, &long).is_ok());
    let error = rules(33, &long).unwrap_err();
    assert!(error.starts_with("rules: their fields have "), "{error}");
}
