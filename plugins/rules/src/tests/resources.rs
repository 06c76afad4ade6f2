use ctrlmesh_sdk::Verb;
use ctrlmesh_sdk::testing::{Bench, TestRequest};

use super::{Probe, is_match, resource_bench};

/// The form `*/foo` from the CRD's comment, and a plain name, which must not match a subresource.
#[test]
fn cb_03_subresources_are_named_with_a_slash() {
    for (resources, itself, status, scale_of_another) in [
        (r#"["pods"]"#, true, false, false),
        (r#"["pods/status"]"#, false, true, false),
        (r#"["pods/*"]"#, false, true, false),
        (r#"["*/scale"]"#, false, false, true),
        (r#"["*/*"]"#, true, true, true),
        (r#"["*"]"#, true, true, true),
        (r#"["pods", "pods/status"]"#, true, true, false),
        (r#"["pods", "*/scale"]"#, true, false, true),
        (r#"["po*"]"#, true, false, false),
        (r#"["pods/sta*"]"#, false, true, false),
        (r#"[]"#, false, false, false),
    ] {
        let mut bench = resource_bench(r#"["*"]"#, resources, r#"["*"]"#, r#"["*"]"#);
        let pod = TestRequest::api(Verb::Update, "", "pods").namespace("a").name("p");
        assert_eq!(is_match(&mut bench, &pod), itself, "{resources}");
        let pod_status = pod.clone().subresource("status");
        assert_eq!(is_match(&mut bench, &pod_status), status, "{resources}");
        let scale = TestRequest::api(Verb::Update, "apps", "deployments")
            .name("d")
            .subresource("scale");
        assert_eq!(is_match(&mut bench, &scale), scale_of_another, "{resources}");
    }
}

#[test]
fn rule_matches_when_all_its_lists_match() {
    let mut bench = resource_bench(
        r#"["apps"]"#,
        r#"["deployments"]"#,
        r#"["update", "patch"]"#,
        r#"["team-*", ""]"#,
    );
    let update = |namespace: &str| TestRequest::api(Verb::Update, "apps", "deployments").namespace(namespace);
    assert!(is_match(&mut bench, &update("team-a")));
    assert!(is_match(&mut bench, &update("")));
    assert!(!is_match(&mut bench, &update("other")));
    assert!(!is_match(
        &mut bench,
        &TestRequest::get("apps", "deployments", "d").namespace("team-a")
    ));
    assert!(!is_match(
        &mut bench,
        &TestRequest::api(Verb::Update, "", "deployments").namespace("team-a")
    ));
    assert!(!is_match(
        &mut bench,
        &TestRequest::api(Verb::Update, "apps", "daemonsets").namespace("team-a")
    ));
    assert!(!is_match(&mut bench, &TestRequest::external("PUT", "deployments", "/")));
}

#[test]
fn names_are_optional_and_never_match_a_create() {
    let settings = r#"{"resourceRules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"], "namespaces": ["*"], "names": ["web-*"]}]}"#;
    let mut bench = Bench::<Probe>::new(settings).unwrap();
    assert!(is_match(&mut bench, &TestRequest::get("", "pods", "web-1")));
    assert!(!is_match(&mut bench, &TestRequest::get("", "pods", "db-1")));
    assert!(!is_match(&mut bench, &TestRequest::api(Verb::Create, "", "pods")));
}

#[test]
fn absent_lists_match_everything_where_the_crd_says_so() {
    let mut bench = Bench::<Probe>::new(r#"{"resourceRules": [{"verbs": []}], "absentIsAll": true}"#).unwrap();
    assert!(is_match(
        &mut bench,
        &TestRequest::watch("apps", "deployments").namespace("a")
    ));
    assert!(is_match(
        &mut bench,
        &TestRequest::api(Verb::Patch, "", "pods").subresource("status")
    ));
    assert!(!is_match(
        &mut bench,
        &TestRequest::api(Verb::NonResource, "", "").with_path("/healthz")
    ));
    assert!(!bench.wakes(&TestRequest::api(Verb::NonResource, "", "").with_path("/healthz")));
}

#[test]
fn empty_list_matches_nothing_where_lists_are_required() {
    for index in 0..4 {
        let mut lists = [r#"["*"]"#; 4];
        lists[index] = "[]";
        let [groups, resources, verbs, namespaces] = lists;
        let mut bench = resource_bench(groups, resources, verbs, namespaces);
        assert!(!is_match(&mut bench, &TestRequest::list("", "pods")), "{lists:?}");
        assert!(
            bench.subscription.rules.is_empty() && bench.plugin.0.is_empty(),
            "{lists:?}"
        );
    }
}

#[test]
fn leader_lock_is_matched_only_by_its_resource() {
    let lease = TestRequest::api(Verb::Update, "coordination.k8s.io", "leases").name("operator");
    let lock = TestRequest::api(Verb::Update, "", "configmaps")
        .name("operator")
        .leader_lock();
    let plain = TestRequest::api(Verb::Update, "", "configmaps").name("operator");
    for (resources, hits_lease, hits_lock, hits_plain) in [
        (r#"["*"]"#, false, false, true),
        (r#"["*/*"]"#, false, false, true),
        (r#"["leas*", "config*"]"#, false, false, true),
        (r#"["leases"]"#, true, false, false),
        (r#"["*", "leases"]"#, false, false, true),
        (r#"["configmaps"]"#, false, true, true),
        (r#"["leas*", "leases", "configmaps"]"#, true, true, true),
    ] {
        let mut bench = resource_bench(r#"["*"]"#, resources, r#"["*"]"#, r#"["*"]"#);
        assert_eq!(is_match(&mut bench, &lease), hits_lease, "{resources}");
        assert_eq!(is_match(&mut bench, &lock), hits_lock, "{resources}");
        assert_eq!(is_match(&mut bench, &plain), hits_plain, "{resources}");
        let rules = &bench.plugin.0;
        assert_eq!(
            (rules.names_lock(&lease), rules.names_lock(&lock)),
            (hits_lease, hits_lock)
        );
        assert!(!rules.names_lock(&plain));
    }
}

#[test]
fn non_resource_paths_have_their_own_rules() {
    let settings = r#"{"nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/apis/*"]}]}"#;
    let mut bench = Bench::<Probe>::new(settings).unwrap();
    let path = |path: &str| TestRequest::api(Verb::NonResource, "", "").with_path(path);
    assert!(is_match(&mut bench, &path("/healthz")));
    assert!(is_match(&mut bench, &path("/apis/metrics.k8s.io/v1")));
    assert!(!is_match(&mut bench, &path("/apis")));
    assert!(!is_match(&mut bench, &path("/metrics")));
    assert!(!is_match(
        &mut bench,
        &TestRequest::list("apps", "deployments").with_path("/apis/apps/v1/deployments")
    ));
    let settings = settings.replace("\"get\"", "\"post\"");
    assert!(!is_match(
        &mut Bench::<Probe>::new(&settings).unwrap(),
        &path("/healthz")
    ));
}
