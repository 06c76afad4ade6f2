use super::*;

fn parse(path: &str) -> Result<DroppedFields, DroppedFieldsError> {
    DroppedFields::parse([path])
}

#[test]
fn paths_have_plain_and_quoted_keys() {
    let last_applied = "kubectl.kubernetes.io/last-applied-configuration";
    let quoted = format!("metadata.annotations[\"{last_applied}\"]");
    let cases: [(&str, &[&str]); 7] = [
        ("status", &["status"]),
        ("metadata.managedFields", &["metadata", "managedFields"]),
        ("spec.template.spec", &["spec", "template", "spec"]),
        (&quoted, &["metadata", "annotations", last_applied]),
        ("data[\"a.b\"].c[\"d]e\"]", &["data", "a.b", "c", "d]e"]),
        ("data[\"\u{e4} [.\"]", &["data", "\u{e4} [."]),
        ("x-1._y", &["x-1", "_y"]),
    ];
    for (path, keys) in cases {
        assert_eq!(droppable_keys(path).as_deref(), Ok(keys), "{path}");
    }
}

#[test]
fn malformed_paths_are_refused_with_their_mistake() {
    let cases = [
        ("", 0, "missing"),
        (".status", 0, "dot before"),
        ("[\"status\"]", 0, "missing"),
        ("status.", 6, "missing"),
        ("spec..template", 4, "missing"),
        ("spec/template", 4, "dot before"),
        ("spec[0]", 4, "dot before"),
        ("spec[*]", 4, "dot before"),
        ("spec.a b", 6, "dot before"),
        ("data[\"a\"]b", 9, "dot before"),
        ("data[\"a", 4, "does not end"),
        ("data[\"\"]", 4, "empty"),
        ("data[\"a\\\"]", 4, "backslash"),
        ("data[\"a\"b\"]", 4, "quote"),
        ("data[\"\n\"]", 4, "control"),
        ("st\u{e4}tus", 2, "dot before"),
    ];
    for (path, expected_position, expected_problem) in cases {
        let Err(DroppedFieldsError::Malformed { problem, position, .. }) = parse(path) else {
            panic!("{path:?} is read");
        };
        assert_eq!(position, expected_position, "{path:?}");
        assert!(problem.contains(expected_problem), "{path:?}: {problem}");
    }
}

#[test]
fn fields_that_clients_need_cannot_be_dropped() {
    let needed = [
        "apiVersion",
        "kind",
        "kind.x",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.resourceVersion",
        "metadata[\"name\"]",
        "metadata.generation",
        "metadata.creationTimestamp",
        "metadata.deletionTimestamp",
        "metadata.finalizers",
        "metadata.ownerReferences",
        "metadata.managedFields.manager",
        "metadata.labels.app.x",
    ];
    for path in needed {
        let refused = DroppedFieldsError::Undroppable { path: path.to_owned() };
        assert_eq!(parse(path), Err(refused), "{path}");
    }
    for path in [
        "metadata.managedFields",
        "metadata.labels",
        "metadata.labels.app",
        "spec.metadata.name",
        "Kind",
    ] {
        assert!(parse(path).is_ok(), "{path}");
    }
}

#[test]
fn paths_are_bounded() {
    let numbered: Vec<String> = (0..=MAX_DROPPED_PATHS).map(|number| format!("f{number}")).collect();
    let all = numbered.iter().map(String::as_str);
    assert!(DroppedFields::parse(all.clone().take(MAX_DROPPED_PATHS)).is_ok());
    assert_eq!(DroppedFields::parse(all), Err(DroppedFieldsError::TooManyPaths));
    let deep = ["a"; MAX_DROPPED_PATH_KEYS].join(".");
    assert!(parse(&deep).is_ok());
    assert!(matches!(
        parse(&format!("{deep}.a")),
        Err(DroppedFieldsError::TooDeep { .. })
    ));
    let long = "a".repeat(MAX_DROPPED_PATH_BYTES);
    assert!(parse(&long).is_ok());
    let bytes = MAX_DROPPED_PATH_BYTES + 1;
    assert_eq!(parse(&format!("{long}a")), Err(DroppedFieldsError::TooLong { bytes }));
}

#[test]
fn path_within_another_one_adds_nothing() {
    let whole = parse("spec.template");
    for paths in [
        ["spec.template", "spec.template.spec"],
        ["spec.template.spec", "spec.template"],
        ["spec.template", "spec[\"template\"]"],
    ] {
        assert_eq!(DroppedFields::parse(paths), whole, "{paths:?}");
    }
    let both = DroppedFields::parse(["spec.a", "spec.b"]).unwrap();
    assert_eq!(DroppedFields::parse(["spec.b", "spec.a"]), Ok(both));
}

#[test]
fn only_fields_of_metadata_can_be_dropped_in_protobuf() {
    let cases: [(&[&str], bool); 6] = [
        (&[], true),
        (&["metadata.managedFields"], true),
        (
            &["metadata.managedFields", "metadata.labels", "metadata.annotations.a"],
            true,
        ),
        (&["status"], false),
        (&["metadata.managedFields", "status"], false),
        (&["spec.metadata.managedFields"], false),
    ];
    for (paths, expected) in cases {
        let dropped = DroppedFields::parse(paths.iter().copied()).unwrap();
        assert_eq!(dropped.is_empty(), paths.is_empty());
        assert_eq!(dropped.supports(WatchEncoding::Protobuf), expected, "{paths:?}");
        assert!(dropped.supports(WatchEncoding::Json) && dropped.supports(WatchEncoding::Cbor));
    }
}

#[test]
fn union_drops_what_either_drops() {
    let parse = |paths: &[&str]| DroppedFields::parse(paths.iter().copied()).unwrap();
    let cases: [(&[&str], &[&str], &[&str]); 5] = [
        (&[], &["status"], &["status"]),
        (&["status"], &["spec.template"], &["status", "spec.template"]),
        (
            &["spec.template"],
            &["spec.replicas"],
            &["spec.template", "spec.replicas"],
        ),
        (&["spec"], &["spec.replicas"], &["spec"]),
        (
            &["spec.replicas", "spec.template.spec"],
            &["spec.template"],
            &["spec.replicas", "spec.template"],
        ),
    ];
    for (some, others, both) in cases {
        assert_eq!(
            parse(some).union(&parse(others)),
            parse(both),
            "{some:?} and {others:?}"
        );
        assert_eq!(
            parse(others).union(&parse(some)),
            parse(both),
            "{others:?} and {some:?}"
        );
    }
}
