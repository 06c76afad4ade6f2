use super::*;

const HASH: &str = "ctrlmesh.kusionstack.io/shard-hash";
const NAMESPACE: &str = "ctrlmesh.kusionstack.io/namespace";
const CONTROL: &str = "ctrlmesh.kusionstack.io/control";

type Labels = [(&'static str, &'static str)];
type Expected = [(&'static str, Option<&'static str>)];

fn meta(name: &str, labels: &[(&str, &str)]) -> ObjectMeta {
    let labels: BTreeMap<String, String> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: (!labels.is_empty()).then_some(labels),
        ..ObjectMeta::default()
    }
}

fn list_changes(changes: Option<Changes>) -> Vec<(String, Option<String>)> {
    let changes = changes.map(|changes| changes.0).unwrap_or_default();
    changes.into_iter().collect()
}

fn expected_changes(changes: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
    let mut changes: Vec<_> = changes
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)))
        .collect();
    changes.sort();
    changes
}

const ALL: [(&str, Option<&str>); 3] = [(HASH, Some("29")), (NAMESPACE, Some("test-0")), (CONTROL, Some("true"))];
const LABELLED: [(&str, &str); 3] = [(HASH, "29"), (NAMESPACE, "test-0"), (CONTROL, "true")];

#[test]
fn managed_namespace_gets_bucket_name_and_control_label() {
    let cases: &[(&Labels, &Expected)] = &[
        (&[], &ALL),
        (&[("team", "a")], &ALL),
        (&[(CONTROL, "true")], &ALL[..2]),
        (&LABELLED, &[]),
        (
            &[(HASH, "3"), (NAMESPACE, "other"), (CONTROL, "true")],
            &[(HASH, Some("29")), (NAMESPACE, Some("test-0"))],
        ),
        (&[(HASH, "29"), (NAMESPACE, "test-0")], &[(CONTROL, Some("true"))]),
    ];
    for (labels, changes) in cases {
        let found = patch_for_namespace(&meta("test-0", labels), &LabelKeys::default());
        assert_eq!(list_changes(found), expected_changes(changes), "{labels:?}");
    }
}

#[test]
fn opted_out_namespace_loses_labels_and_keeps_opt_out() {
    for word in ["false", "", "True"] {
        let labels = [(HASH, "29"), (NAMESPACE, "test-0"), (CONTROL, word), ("team", "a")];
        let found = patch_for_namespace(&meta("test-0", &labels), &LabelKeys::default());
        assert_eq!(
            list_changes(found),
            expected_changes(&[(HASH, None), (NAMESPACE, None)]),
            "{word}"
        );
        let rest = [(CONTROL, word), ("team", "a")];
        assert_eq!(patch_for_namespace(&meta("test-0", &rest), &LabelKeys::default()), None);
    }
}

#[test]
fn namespaces_of_kubernetes_are_managed_only_on_request() {
    let keys = LabelKeys::default();
    for name in EXCEPTED {
        assert_eq!(patch_for_namespace(&meta(name, &[]), &keys), None, "{name}");
        let asked = meta(name, &[(CONTROL, "true")]);
        assert_eq!(list_changes(patch_for_namespace(&asked, &keys)).len(), 2, "{name}");
        assert!(patch_for_object(&meta("a", &[]), &asked, &keys).is_some(), "{name}");
        assert_eq!(
            patch_for_object(&meta("a", &[]), &meta(name, &[]), &keys),
            None,
            "{name}"
        );
    }
}

#[test]
fn namespace_without_name_is_not_labelled() {
    assert_eq!(patch_for_namespace(&ObjectMeta::default(), &LabelKeys::default()), None);
}

#[test]
fn object_labels_follow_namespace() {
    let keys = LabelKeys::default();
    let cases: &[(&Labels, &Labels, &Expected)] = &[
        (&LABELLED, &[("app", "x")], &ALL),
        // The namespace is not labelled yet.
        (&[], &[], &ALL),
        (&LABELLED, &LABELLED, &[]),
        // It was copied from another namespace.
        (
            &LABELLED,
            &[(HASH, "1"), (NAMESPACE, "other"), (CONTROL, "true")],
            &ALL[..2],
        ),
        (
            &LABELLED,
            &[(HASH, "29"), (NAMESPACE, "test-0"), (CONTROL, "false")],
            &ALL[2..],
        ),
        (
            &[(CONTROL, "false")],
            &LABELLED,
            &[(HASH, None), (NAMESPACE, None), (CONTROL, None)],
        ),
        (&[(CONTROL, "false")], &[("app", "x")], &[]),
    ];
    for (namespace, labels, changes) in cases {
        let found = patch_for_object(&meta("a", labels), &meta("test-0", namespace), &keys);
        assert_eq!(
            list_changes(found),
            expected_changes(changes),
            "{namespace:?} {labels:?}"
        );
    }
}

#[test]
fn label_keys_can_be_changed() {
    let keys = LabelKeys {
        shard_hash: "example.com/bucket".into(),
        namespace: "example.com/in".into(),
        control: "example.com/managed".into(),
    };
    let opted_out = meta("test-0", &[("example.com/managed", "no"), (CONTROL, "true")]);
    let object = meta("a", &[("example.com/bucket", "29"), (HASH, "29")]);
    let found = patch_for_object(&object, &opted_out, &keys);
    assert_eq!(list_changes(found), expected_changes(&[("example.com/bucket", None)]));
    let changes = list_changes(patch_for_namespace(&meta("test-0", &[]), &keys));
    let expected = [
        ("example.com/bucket", Some("29")),
        ("example.com/in", Some("test-0")),
        ("example.com/managed", Some("true")),
    ];
    assert_eq!(changes, expected_changes(&expected));
}

/// Both forms of a patch do the same, and nothing is left to do after either.
#[test]
fn json_patch_and_merge_patch_agree() {
    let keys = LabelKeys::default();
    let (managed, opted_out) = (meta("test-0", &[]), meta("test-0", &[(CONTROL, "false")]));
    let objects: [&[(&str, &str)]; 4] = [&[], &[("app", "x")], &LABELLED, &[(HASH, "3"), ("app", "x")]];
    for namespace in [&managed, &opted_out] {
        for labels in objects {
            let object = meta("a", labels);
            let Some(changes) = patch_for_object(&object, namespace, &keys) else {
                continue;
            };
            let before = json!({ "metadata": serde_json::to_value(&object).unwrap() });
            let (mut merged, mut patched) = (before.clone(), before);
            json_patch::merge(&mut merged, &changes.merge_patch());
            let operations: json_patch::Patch =
                serde_json::from_value(Value::from(changes.json_patch(&object))).unwrap();
            json_patch::patch(&mut patched, &operations).unwrap();
            assert_eq!(merged, patched, "{labels:?}");
            let after: ObjectMeta = serde_json::from_value(merged["metadata"].clone()).unwrap();
            assert_eq!(patch_for_object(&after, namespace, &keys), None, "{labels:?}");
        }
    }
}
