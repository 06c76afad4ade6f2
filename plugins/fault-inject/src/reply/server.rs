//! Responses of a server that is overloaded, shuts down, or misses one of its parts. Plain text where upstream calls Go's `http.Error`:
//! `text/plain; charset=utf-8`, `X-Content-Type-Options: nosniff`, and a line break at the end.

use ctrlmesh_sdk::{Answer, Details, Refusal, Request};

use super::RenderedReply;

/// UIDs of a priority level and a flow schema, which a real server sends and client-go logs. The values are recognizable in a log.
const PRIORITY_LEVEL_UID: &str = "c7a1e5b2-0000-4000-8000-000000000001";
const FLOW_SCHEMA_UID: &str = "c7a1e5b2-0000-4000-8000-000000000002";

/// `http.Error` of Go's `net/http`.
fn http_error(code: u16, text: &str) -> Answer {
    Answer::text(code, format!("{text}\n")).header("x-content-type-options", "nosniff")
}

/// `tooManyRequests` with the headers of `setResponseHeaders` (k8s.io/apiserver
/// `pkg/server/filters/priority-and-fairness.go`).
pub(crate) fn throttled(retry_after: u32) -> Answer {
    http_error(429, "Too many requests, please try again later.")
        .header("retry-after", retry_after.to_string())
        .header("x-kubernetes-pf-prioritylevel-uid", PRIORITY_LEVEL_UID)
        .header("x-kubernetes-pf-flowschema-uid", FLOW_SCHEMA_UID)
}

/// `WithRetryAfter` after the shutdown delay (k8s.io/apiserver `pkg/server/filters/with_retry_after.go`).
pub(crate) fn shutting_down() -> Answer {
    http_error(429, "The apiserver is shutting down, please try again later.")
        .header("retry-after", "5")
        .close_connection()
}

/// Paths that `with_retry_after.go` serves until the end.
pub(crate) const EXEMPT_FROM_SHUTDOWN: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];

/// An APIService that is not available (k8s.io/kube-aggregator `pkg/apiserver/handler_proxy.go`).
pub(crate) fn unavailable() -> Answer {
    http_error(503, "service unavailable")
}

/// Discovery: 404 as Go's `http.NotFound`, 503 as the aggregator, 500 as `responsewriters.InternalError` (k8s.io/apiserver
/// `pkg/endpoints/handlers/responsewriters/errors.go`).
pub(crate) fn discovery_failure(code: u16, req: &dyn Request) -> RenderedReply {
    match code {
        404 => http_error(404, "404 page not found").into(),
        503 => unavailable().into(),
        500 => http_error(500, &internal_server_error(&req.path())).into(),
        code => internal_error(&format!("discovery answered {code}")).into(),
    }
}

fn internal_server_error(path: &str) -> String {
    // The server quotes characters that a browser could read as HTML.
    let path = path.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    format!("Internal Server Error: {path:?}: the server could not complete the request")
}

/// `NewTimeoutError` of a request that took too long (k8s.io/apiserver `pkg/server/filters/timeout.go`): no `Retry-After`.
pub(crate) fn timeout() -> Refusal {
    Refusal::new(504, "Timeout: request did not complete within the allotted timeout")
        .reason("Timeout")
        // Present, but empty.
        .details(Details::new("", "", ""))
}

/// `NewInternalError`.
pub(crate) fn internal_error(cause: &str) -> Refusal {
    let details = Details::new("", "", "").cause("", cause, "");
    Refusal::new(500, format!("Internal error occurred: {cause}"))
        .reason("InternalError")
        .details(details)
}
