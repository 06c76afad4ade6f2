//! Responses of authentication and authorization.

use ctrlmesh_sdk::{Refusal, Request};

use super::{is_resource, object_details, qualified_resource};
use crate::draw::verb_name;

/// `NewUnauthorized("Unauthorized")` (k8s.io/apiserver `pkg/endpoints/filters/authentication.go`).
pub(crate) fn unauthorized() -> Refusal {
    Refusal::new(401, "Unauthorized").reason("Unauthorized")
}

/// `ForbiddenStatusError` and `forbiddenMessage` (k8s.io/apiserver `pkg/endpoints/handlers/responsewriters/errors.go`). The authorizer
/// runs before the body is read, so the name of a create is unknown.
pub(crate) fn forbidden(req: &dyn Request, user: &str) -> Refusal {
    let facts = req.facts();
    if !is_resource(req) {
        let path = req.path();
        let verb = req.method().to_ascii_lowercase();
        let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}");
        return Refusal::new(403, message)
            .reason("Forbidden")
            .details(object_details(facts));
    }
    let resource = match facts.subresource.as_str() {
        "" => facts.resource.clone(),
        subresource => format!("{}/{subresource}", facts.resource),
    };
    let scope = match facts.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let object = match facts.name.as_str() {
        "" => qualified_resource(facts),
        name => format!("{} {name:?}", qualified_resource(facts)),
    };
    let message = format!(
        "{object} is forbidden: User {user:?} cannot {} resource {resource:?} in API group {:?} {scope}",
        verb_name(facts.verb),
        facts.group
    );
    Refusal::new(403, message)
        .reason("Forbidden")
        .details(object_details(facts))
}
