//! The requests that are about the lock.

use ctrlmesh_sdk::Verb;
use ctrlmesh_sdk::testing::TestRequest;

use crate::lock::Lock;

fn test_lock() -> Lock {
    Lock::new("operator", "shard-0", "operators").unwrap()
}

fn request_for(verb: Verb, group: &str, resource: &str, name: &str) -> TestRequest {
    TestRequest::api(verb, group, resource)
        .namespace("operators")
        .name(name)
}

#[test]
fn named_requests_and_creates_are_about_the_lock() {
    const LEASES: &str = "coordination.k8s.io";
    for (verb, group, resource, name, expected) in [
        (Verb::Get, LEASES, "leases", "operator", true),
        (Verb::Update, LEASES, "leases", "operator", true),
        (Verb::Patch, LEASES, "leases", "operator", true),
        (Verb::Delete, LEASES, "leases", "operator", true),
        (Verb::List, LEASES, "leases", "operator", true),
        (Verb::Watch, LEASES, "leases", "operator", true),
        (Verb::Create, LEASES, "leases", "", true),
        (Verb::Get, "", "configmaps", "operator", true),
        (Verb::Create, "", "configmaps", "", true),
        (Verb::Update, "", "endpoints", "operator", true),
        (Verb::Create, "", "events", "", true),
        (Verb::Create, "events.k8s.io", "events", "", true),
        (Verb::Get, LEASES, "leases", "operator2", false),
        // The name in the body: left alone, so that it can be inspected.
        (Verb::Get, LEASES, "leases", "operator---shard-0", false),
        (Verb::List, LEASES, "leases", "", false),
        (Verb::Watch, LEASES, "leases", "", false),
        (Verb::Deletecollection, LEASES, "leases", "", false),
        (Verb::Get, LEASES, "configmaps", "operator", false),
        (Verb::Get, "", "leases", "operator", false),
        (Verb::Get, "", "secrets", "operator", false),
        (Verb::Create, "", "pods", "", false),
        (Verb::Patch, "", "events", "operator.17ab", false),
        (Verb::Create, "apps", "events", "", false),
    ] {
        let request = request_for(verb, group, resource, name);
        assert_eq!(test_lock().is_about_lock(&request), expected, "{request:?}");
    }
}

#[test]
fn other_namespaces_and_subresources_are_not_about_the_lock() {
    let lease = || request_for(Verb::Get, "coordination.k8s.io", "leases", "operator");
    assert!(test_lock().is_about_lock(&lease()));
    assert!(!test_lock().is_about_lock(&lease().namespace("elsewhere")));
    assert!(!test_lock().is_about_lock(&lease().namespace("")));
    assert!(!test_lock().is_about_lock(&lease().subresource("status")));
}

#[test]
fn invalid_object_names_are_refused() {
    let long = "a".repeat(250);
    for (name, shard, namespace, path, hint) in [
        ("", "a", "ns", "leaderElectionName: ", "not the name of an object"),
        ("Operator", "a", "ns", "leaderElectionName: ", "lower-case"),
        ("operator*", "a", "ns", "leaderElectionName: ", "not the name"),
        ("operator", "a/b", "ns", "shard: ", "not the name"),
        ("operator", "", "ns", "shard: ", "not the name"),
        ("operator", &long, "ns", "shard: ", "at most 253"),
        ("operator", "a", "", "leaderElectionName: ", "namespace is not known"),
    ] {
        let error = Lock::new(name, shard, namespace).unwrap_err().to_string();
        assert!(
            error.starts_with(path) && error.contains(hint),
            "{name:?} {shard:?}: {error}"
        );
    }
}
