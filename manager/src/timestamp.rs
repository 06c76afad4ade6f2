//! Times as the API server writes them.

use k8s_openapi::jiff::Timestamp;

/// The time that it is.
pub(crate) fn now() -> String {
    text(Timestamp::now())
}

/// RFC 3339 in seconds, as `metav1.Time` marshals (`staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/time.go`).
pub(crate) fn text(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
