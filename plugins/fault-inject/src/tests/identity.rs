//! Faults I1 and I2: authentication and authorization.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Details, Refusal, Verb};

use super::support::{api_request, bench_with_fault, discovery_request, expect_refusal};

#[test]
fn i1_token_has_expired() {
    let expected = Refusal::new(401, "Unauthorized").reason("Unauthorized");
    assert_eq!(
        expect_refusal(&mut bench_with_fault(r#""unauthorized""#), &api_request(Verb::Watch)),
        expected
    );
    assert_eq!(
        expect_refusal(&mut bench_with_fault(r#""unauthorized""#), &discovery_request("/apis")),
        expected
    );
}

#[test]
fn i2_forbidden_is_worded_like_the_authorizer() {
    let mut bench = bench_with_fault(r#"{"forbidden": {"user": "system:serviceaccount:team:operator"}}"#);
    let refusal = expect_refusal(&mut bench, &api_request(Verb::Update));
    let message = "deployments.apps \"web\" is forbidden: User \"system:serviceaccount:team:operator\" cannot update resource \
                   \"deployments\" in API group \"apps\" in the namespace \"team\"";
    let details = Details::new("apps", "deployments", "web");
    assert_eq!(refusal, Refusal::new(403, message).reason("Forbidden").details(details));
    let nodes = TestRequest::list("", "nodes").subresource("status");
    assert_eq!(
        expect_refusal(&mut bench, &nodes).message,
        "nodes is forbidden: User \"system:serviceaccount:team:operator\" cannot list resource \"nodes/status\" in API group \
         \"\" at the cluster scope"
    );
    assert_eq!(
        expect_refusal(&mut bench, &discovery_request("/apis")).message,
        "forbidden: User \"system:serviceaccount:team:operator\" cannot get path \"/apis\""
    );
}

#[test]
fn i2_user_defaults_to_the_service_account_of_the_pod() {
    let refusal = expect_refusal(&mut bench_with_fault(r#""forbidden""#), &api_request(Verb::List));
    assert!(
        refusal
            .message
            .contains("User \"system:serviceaccount:operators:default\""),
        "{}",
        refusal.message
    );
    // The authorizer does not read bodies: a create has no name.
    let refusal = expect_refusal(&mut bench_with_fault(r#""forbidden""#), &api_request(Verb::Create));
    assert!(
        refusal.message.starts_with("deployments.apps is forbidden: "),
        "{}",
        refusal.message
    );
}
