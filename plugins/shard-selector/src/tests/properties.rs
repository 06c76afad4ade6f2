//! Properties of any settings, checked against the selector parser of the host and the semantics of `metav1.LabelSelector`.

use std::collections::BTreeMap;

use ctrlmesh_sdk::testing::{Bench, TestRequest};
use ctrlmesh_sdk::{RequestAction, RequestEdit, Verb};
use proptest::prelude::*;

use crate::plugin::ShardSelector;
use crate::selector::requirements_of;
use crate::settings::{Expression, LabelSelector};

/// Few keys and values, so that they collide.
fn any_key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "in", "notin", "x.io/a"]).prop_map(str::to_owned)
}

fn any_value() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "0", "1", "in", "A.b_c-d"]).prop_map(str::to_owned)
}

fn any_expression() -> impl Strategy<Value = Expression> {
    let set = (
        prop::sample::select(vec!["In", "NotIn"]),
        prop::collection::vec(any_value(), 1..4),
    );
    let bare = (prop::sample::select(vec!["Exists", "DoesNotExist"]), Just(Vec::new()));
    let operator = prop_oneof![set, bare];
    (any_key(), operator).prop_map(|(key, (operator, values))| Expression {
        key,
        operator: operator.to_owned(),
        values: Some(values),
    })
}

fn any_selector() -> impl Strategy<Value = LabelSelector> {
    let labels = prop::collection::btree_map(any_key(), any_value(), 0..3);
    (labels, prop::collection::vec(any_expression(), 0..4)).prop_map(|(labels, expressions)| LabelSelector {
        match_labels: Some(labels),
        match_expressions: Some(expressions),
    })
}

/// The semantics of the structured form (`metav1.LabelSelector`: all requirements must hold).
fn selects_labels(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let by_label = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let by_expression = selector.match_expressions.iter().flatten().all(|expression| {
        let values = expression.values.as_deref().unwrap_or_default();
        let label = labels.get(&expression.key);
        match expression.operator.as_str() {
            "In" => label.is_some_and(|label| values.contains(label)),
            "NotIn" => !label.is_some_and(|label| values.contains(label)),
            "Exists" => label.is_some(),
            _ => label.is_none(),
        }
    });
    by_label && by_expression
}

proptest! {
    #[test]
    fn selector_text_matches_same_labels_as_its_structure(
        selector in any_selector(),
        labels in prop::collection::btree_map(any_key(), any_value(), 0..5),
    ) {
        let text = requirements_of(&selector).unwrap().into_iter().collect::<Vec<_>>().join(",");
        let parsed = ctrlmesh_wire::LabelSelector::parse(&text).unwrap();
        let lookup = |key: &str| labels.get(key).map(String::as_str);
        prop_assert_eq!(parsed.matches(&lookup), selects_labels(&selector, &labels), "{}", text);
    }

    #[test]
    fn accepted_text_is_always_a_selector(key in "[a-zA-Z0-9/._=,!() -]{0,12}|\\PC{0,6}", value in "[a-z=,!() ._-]{0,6}|\\PC{0,4}") {
        let expression = Expression { key: key.clone(), operator: "In".to_owned(), values: Some(vec![value.clone()]) };
        let selector = LabelSelector {
            match_labels: Some(BTreeMap::from([(key.clone(), value.clone())])),
            match_expressions: Some(vec![expression]),
        };
        match requirements_of(&selector) {
            Ok(texts) => {
                let text = texts.into_iter().collect::<Vec<_>>().join(",");
                let parsed = ctrlmesh_wire::LabelSelector::parse(&text);
                let parsed = parsed.map_err(|error| TestCaseError::fail(format!("{text:?}: {error}")))?;
                prop_assert_eq!(parsed.requirements.len(), 2);
                prop_assert!(parsed.requirements.iter().all(|it| it.key == key && it.values == [value.clone()]));
            }
            // Upstream's parser refuses the same texts.
            Err(_) => {
                let mine = ctrlmesh_wire::Requirement::new(key, ctrlmesh_wire::Operator::In, vec![value]);
                prop_assert!(mine.is_err());
            }
        }
    }

    #[test]
    fn plugin_wakes_exactly_for_what_it_edits(
        verb in prop::sample::select(vec![Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Update, Verb::Patch,
            Verb::Delete, Verb::Deletecollection, Verb::Proxy, Verb::NonResource]),
        group in prop::sample::select(vec!["", "apps", "coordination.k8s.io", "events.k8s.io"]),
        resource in prop::sample::select(vec!["pods", "leases", "configmaps", "endpoints", "events", "deployments"]),
        namespace in prop::sample::select(vec!["", "operators", "team"]),
        name in prop::sample::select(vec!["", "operator", "operator---a", "other"]),
        subresource in prop::sample::select(vec!["", "status"]),
        groups in prop::sample::select(vec![r#"[]"#, r#"["*"]"#, r#"["", "apps"]"#]),
        resources in prop::sample::select(vec![r#"[]"#, r#"["*"]"#, r#"["pods", "leases"]"#]),
    ) {
        let settings = format!(
            r#"{{"limits": [{{"relateResources": [{{"apiGroups": {groups}, "resources": {resources}}}],
                "selector": {{"matchLabels": {{"shard": "a"}}}}}}], "leaderElectionName": "operator", "shard": "a"}}"#
        );
        let mut bench = Bench::<ShardSelector>::new(&settings).unwrap();
        let req = TestRequest::api(verb, group, resource).namespace(namespace).name(name).subresource(subresource);
        let RequestAction::Proceed(edits) = bench.on_request(&req).action else {
            return Err(TestCaseError::fail("not let through"));
        };
        prop_assert_eq!(bench.wakes(&req), !edits.is_empty(), "{:?}", edits);
        let is_collection = matches!(verb, Verb::List | Verb::Watch | Verb::Deletecollection);
        for edit in edits {
            match edit {
                RequestEdit::AndLabelSelector(_) => prop_assert!(is_collection && subresource.is_empty()),
                RequestEdit::RenameObject(_) => prop_assert_eq!(namespace, "operators"),
                other => return Err(TestCaseError::fail(format!("{other:?}"))),
            }
        }
    }
}
