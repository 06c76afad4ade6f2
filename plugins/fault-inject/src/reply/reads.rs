//! Responses to lists and watches.

use ctrlmesh_sdk::{Details, Refusal, Request, Verb};

/// `The resourceVersion for the provided list is too old.` (k8s.io/apiserver `pkg/storage/etcd3/errors.go`).
const LIST_TOO_OLD: &str = "The resourceVersion for the provided list is too old.";
/// From the same file, for a `continue` token that has expired.
const CONTINUE_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.";
/// k8s.io/apimachinery `pkg/apis/meta/internalversion/validation/validation.go`.
const WATCH_LIST_FORBIDDEN: &str =
    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
/// Distance between requested and current version in messages.
const DISTANCE: u64 = 1_000;

fn requested_version(req: &dyn Request) -> Option<u64> {
    req.query("resourceVersion")?.parse().ok()
}

/// `NewResourceExpired`; for a watch with the text of `pkg/storage/cacher/watch_cache.go`.
pub(crate) fn too_old(req: &dyn Request) -> Refusal {
    let message = match requested_version(req).filter(|_| req.verb() == Verb::Watch) {
        Some(version) => format!(
            "too old resource version: {version} ({})",
            version.saturating_add(DISTANCE)
        ),
        None => LIST_TOO_OLD.to_owned(),
    };
    Refusal::new(410, message).reason("Expired")
}

/// `NewTooLargeResourceVersionError` (k8s.io/apiserver `pkg/storage/errors.go`), with the second that
/// `pkg/storage/cacher/watch_cache.go` gives.
pub(crate) fn too_new(req: &dyn Request) -> Refusal {
    let requested = requested_version(req).unwrap_or_default();
    let current = requested.saturating_sub(DISTANCE);
    let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
    let cause = Details::new("", "", "").cause("ResourceVersionTooLarge", "Too large resource version", "");
    Refusal::new(504, message)
        .reason("Timeout")
        .retry_after(1)
        .details(cause)
}

/// `NewResourceExpired` for a page; without a token to continue with, as the server does when the list's version is known.
pub(crate) fn page_expired() -> Refusal {
    Refusal::new(410, CONTINUE_TOO_OLD).reason("Expired")
}

/// `NewInvalid` of `ListOptions` (k8s.io/apiserver `pkg/endpoints/handlers/get.go`), as a server without WatchList answers.
pub(crate) fn no_watch_list() -> Refusal {
    let cause = format!("Forbidden: {WATCH_LIST_FORBIDDEN}");
    let message = format!("ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: {cause}");
    let details =
        Details::new("meta.k8s.io", "ListOptions", "").cause("FieldValueForbidden", cause, "sendInitialEvents");
    Refusal::new(422, message).reason("Invalid").details(details)
}

/// `NewTooManyRequests` of a watch cache that is not ready (k8s.io/apiserver `pkg/storage/cacher/cacher.go`, `ready.go`,
/// `util.go`: 1 second at first).
pub(crate) fn cache_not_ready() -> Refusal {
    Refusal::too_many_requests("storage is (re)initializing", 1).reason("TooManyRequests")
}
