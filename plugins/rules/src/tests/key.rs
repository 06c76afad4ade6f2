use ctrlmesh_sdk::testing::TestRequest;

use crate::Key;

#[test]
fn keys_separate_values_of_the_parts_that_they_name() {
    let status = TestRequest::get("apps", "deployments", "d").subresource("status");
    let pod = TestRequest::get("", "pods", "p").namespace("a").agent("operator/1");
    let external = TestRequest::external("GET", "b.com", "/x")
        .with_port(8443)
        .agent("operator/1");
    for (key, of_status, of_pod, of_external) in [
        (Key::Sidecar, "", "", ""),
        (Key::Namespace, "", "a", ""),
        (Key::Resource, "apps/deployments", "/pods", "b.com:8443"),
        (Key::Host, "", "", "b.com:8443"),
        (Key::UserAgent, "", "operator/1", "operator/1"),
    ] {
        let values = [&status, &pod, &external].map(|req| key.value(req));
        assert_eq!(values, [of_status, of_pod, of_external], "{key:?}");
    }
}

#[test]
fn long_values_are_cut_between_characters() {
    let agent = format!("{}ä", "x".repeat(255));
    assert_eq!(
        Key::UserAgent.value(&TestRequest::list("", "pods").agent(&agent)),
        "x".repeat(255)
    );
}
