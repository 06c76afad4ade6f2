use super::*;

fn read(text: &str) -> Result<SelectedKinds, ConfigError> {
    SelectedKinds::read(&[(CONFIG_KEY.to_owned(), text.to_owned())].into())
}

fn api_resource(kind: &str, name: &str, namespaced: bool, verbs: &[&str]) -> APIResource {
    APIResource {
        kind: kind.to_owned(),
        name: name.to_owned(),
        namespaced,
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..APIResource::default()
    }
}

const USUAL: &[&str] = &["create", "get", "list", "patch", "update", "watch"];

fn core_resources() -> Vec<APIResource> {
    vec![
        api_resource("Pod", "pods", true, USUAL),
        api_resource("Pod", "pods/status", true, USUAL),
        api_resource("Endpoints", "endpoints", true, USUAL),
        api_resource("Event", "events", true, USUAL),
        api_resource("Node", "nodes", false, USUAL),
        api_resource("Binding", "bindings", true, &["create"]),
    ]
}

fn selected_plurals(desired: &SelectedKinds, group_version: &str) -> Vec<String> {
    let (selected, _) = desired.select_resources(group_version, &core_resources());
    selected.into_iter().map(|selected| selected.plural).collect()
}

#[test]
fn kinds_are_named_or_all() {
    let cases: [(&str, &[&str]); 5] = [
        ("[Pod]", &["pods"]),
        ("['*']", &["endpoints", "pods"]),
        ("['*', Pod, Event]", &["endpoints", "events", "pods"]),
        ("[Pod, Pod]", &["pods"]),
        ("[]", &[]),
    ];
    for (kinds, plural) in cases {
        let desired = read(&format!("groupVersionKinds: {{v1: {kinds}}}")).unwrap();
        assert_eq!(selected_plurals(&desired, "v1"), plural, "{kinds}");
    }
}

#[test]
fn endpoint_is_accepted_for_endpoints() {
    assert_eq!(
        selected_plurals(&read("groupVersionKinds: {v1: [Endpoint]}").unwrap(), "v1"),
        ["endpoints"]
    );
    let elsewhere = read("groupVersionKinds: {example.com/v1: [Endpoint]}").unwrap();
    let (selected, _) =
        elsewhere.select_resources("example.com/v1", &[api_resource("Endpoint", "endpoints", true, USUAL)]);
    assert_eq!(selected.len(), 1);
}

#[test]
fn unlabelable_kinds_are_skipped_with_reason() {
    let desired = read("groupVersionKinds: {v1: [Node, Binding, Widget, Pod]}").unwrap();
    let (selected, left) = desired.select_resources("v1", &core_resources());
    assert_eq!(selected.len(), 1);
    let expected = [
        "v1 Node: its objects lie in no namespace",
        "v1 Binding: its objects can't be listed, watched and patched",
        "v1 Widget: the cluster has no such kind",
    ];
    assert_eq!(left, expected);
}

#[test]
fn missing_group_is_reported_only_if_configured() {
    let desired = read("groupVersionKinds: {example.com/v1: ['*']}").unwrap();
    let (selected, left) = desired.select_resources("example.com/v1", &[]);
    assert!(selected.is_empty());
    assert_eq!(left, ["example.com/v1: the cluster has no such group and version"]);
    let by_default = SelectedKinds::default();
    let (_, left) = by_default.select_resources("apps.kusionstack.io/v1alpha1", &[]);
    assert!(left.is_empty(), "most clusters have none of it: {left:?}");
}

#[test]
fn selected_resources_have_group_version_and_plural() {
    let desired = read("groupVersionKinds: {apps/v1: [Deployment]}").unwrap();
    let (selected, _) = desired.select_resources("apps/v1", &[api_resource("Deployment", "deployments", true, USUAL)]);
    let expected = ApiResource {
        group: "apps".into(),
        version: "v1".into(),
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        plural: "deployments".into(),
    };
    assert_eq!(selected, [expected]);
}

#[test]
fn our_own_kinds_are_left_alone() {
    let desired = read("groupVersionKinds: {ctrlmesh.kusionstack.io/v1alpha1: ['*'], v1: [Pod]}").unwrap();
    assert_eq!(desired.group_versions().collect::<Vec<_>>(), ["v1"]);
}

#[test]
fn configuration_errors_say_what_to_write() {
    let cases = [
        (
            "groupVersionKinds: {Apps/v1: [A]}",
            "\"Apps/v1\" is no group and version",
        ),
        ("groupVersionKinds: {a/b/c: [A]}", "\"a/b/c\" is no group and version"),
        ("groupVersionKinds: {'': [A]}", "\"\" is no group and version"),
        ("groupVersionKinds: {v1: [pods]}", "v1: \"pods\" is no kind"),
        ("groupVersionKinds: {v1: ['']}", "v1: \"\" is no kind"),
        ("groupVersionKind: {v1: [Pod]}", "groupVersionKind"),
        ("groupVersionKinds: [Pod]", "write groupVersionKinds"),
        ("]", "write groupVersionKinds"),
    ];
    for (text, message) in cases {
        let problem = read(text).unwrap_err().to_string();
        assert!(problem.contains(message), "{text}: {problem}");
    }
    assert_eq!(SelectedKinds::read(&BTreeMap::new()), Err(ConfigError::NoKey));
}
