//! Responses to writes. Constructors: k8s.io/apimachinery `pkg/api/errors/errors.go`. Their use: k8s.io/apiserver
//! `pkg/storage/errors/storage.go` and `pkg/registry/generic/registry/store.go`.

use ctrlmesh_sdk::{Details, Facts, Refusal, Request, Verb};

use super::{UNKNOWN, group_resource, object_details, qualified_resource, shown_name};
use crate::draw::verb_name;

/// `OptimisticLockErrorMsg` (`pkg/registry/generic/registry/store.go`).
pub(crate) const OPTIMISTIC_LOCK: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// `NewConflict` with the message of the optimistic lock.
pub(crate) fn conflict(facts: &Facts) -> Refusal {
    let message = format!(
        "Operation cannot be fulfilled on {} {:?}: {OPTIMISTIC_LOCK}",
        qualified_resource(facts),
        shown_name(facts)
    );
    Refusal::new(409, message)
        .reason("Conflict")
        .details(object_details(facts))
}

/// `NewAlreadyExists`.
pub(crate) fn already_exists(facts: &Facts) -> Refusal {
    let message = format!("{} {:?} already exists", qualified_resource(facts), shown_name(facts));
    Refusal::new(409, message)
        .reason("AlreadyExists")
        .details(object_details(facts))
}

/// `NewServerTimeout`: `storage.go` uses it, with 2 seconds, if etcd is unreachable; the write may have been executed. `details.name` is
/// the operation, not the object.
pub(crate) fn server_timeout(req: &dyn Request, seconds: u32) -> Refusal {
    // As `Interpret…Error` names it (`pkg/storage/errors/storage.go`): a patch is stored as an update, a collection is deleted object by
    // object.
    let operation = match req.verb() {
        Verb::Patch => "update",
        Verb::Deletecollection => "delete",
        verb => verb_name(verb),
    };
    let (group, resource) = (req.group(), req.resource());
    let message = format!(
        "The {operation} operation against {} could not be completed at this time, please try again.",
        group_resource(group, resource)
    );
    Refusal::new(500, message)
        .reason("ServerTimeout")
        .retry_after(seconds)
        .details(Details::new(group, resource, operation))
}

/// An error of the etcd client that no `Interpret…Error` knows: `ErrorToAPIStatus` gives it 500 and no reason
/// (`pkg/endpoints/handlers/responsewriters/status.go`); the text is etcd's `ErrTimeout` (`server/etcdserver/errors`).
pub(crate) fn store_timeout() -> Refusal {
    Refusal::new(500, "etcdserver: request timed out").reason(UNKNOWN)
}
