//! I1, I2.

use ctrlmesh_sdk::testing::TestRequest;
use ctrlmesh_sdk::{Details, Refusal, Verb};

use super::kit::{api, discovery, fault, refusal};

#[test]
fn i1_token_has_expired() {
    let expected = Refusal::new(401, "Unauthorized").reason("Unauthorized");
    assert_eq!(refusal(&mut fault(r#""unauthorized""#), &api(Verb::Watch)), expected);
    assert_eq!(refusal(&mut fault(r#""unauthorized""#), &discovery("/apis")), expected);
}

#[test]
fn i2_rights_are_revoked_in_the_words_of_the_authorizer() {
    let mut bench = fault(r#"{"forbidden": {"user": "system:serviceaccount:team:operator"}}"#);
    let told = refusal(&mut bench, &api(Verb::Update));
    let message = "deployments.apps \"web\" is forbidden: User \"system:serviceaccount:team:operator\" cannot update resource \
                   \"deployments\" in API group \"apps\" in the namespace \"team\"";
    let details = Details::new("apps", "deployments", "web");
    assert_eq!(told, Refusal::new(403, message).reason("Forbidden").details(details));
    let nodes = TestRequest::list("", "nodes").subresource("status");
    assert_eq!(
        refusal(&mut bench, &nodes).message,
        "nodes is forbidden: User \"system:serviceaccount:team:operator\" cannot list resource \"nodes/status\" in API group \
         \"\" at the cluster scope"
    );
    assert_eq!(
        refusal(&mut bench, &discovery("/apis")).message,
        "forbidden: User \"system:serviceaccount:team:operator\" cannot get path \"/apis\""
    );
}

#[test]
fn i2_user_is_the_default_account_of_the_pod_if_none_is_named() {
    let told = refusal(&mut fault(r#""forbidden""#), &api(Verb::List));
    assert!(
        told.message
            .contains("User \"system:serviceaccount:operators:default\""),
        "{}",
        told.message
    );
    // The authorizer does not read bodies: a create has no name.
    let told = refusal(&mut fault(r#""forbidden""#), &api(Verb::Create));
    assert!(
        told.message.starts_with("deployments.apps is forbidden: "),
        "{}",
        told.message
    );
}
