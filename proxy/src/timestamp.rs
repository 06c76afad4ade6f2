//! Formats times for `/status`.

use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;

/// RFC 3339, to the second, as Kubernetes writes times.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let timestamp = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok());
    timestamp.unwrap_or_default().to_string()
}
