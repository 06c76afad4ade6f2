//! Texts of errors of the Kubernetes client, without the repetition in their `Debug` form.

use std::error::Error;

use ctrlmesh_manager_api::status::response_text;
use kube::runtime::watcher;

/// The text of an error for people.
pub(crate) fn error_text(error: &(dyn Error + 'static)) -> String {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return response_text(status);
    }
    match error.downcast_ref() {
        Some(watcher::Error::InitialListFailed(cause)) => format!("the list failed: {}", error_text(cause)),
        Some(watcher::Error::WatchStartFailed(cause)) => format!("the watch did not begin: {}", error_text(cause)),
        Some(watcher::Error::WatchFailed(cause)) => format!("the watch broke off: {}", error_text(cause)),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn api_server_error_is_printed_once() {
        let refused = || {
            kube::Error::Api(Box::new(
                Status::failure("404 page not found\n", "NotFound").with_code(404),
            ))
        };
        assert!(refused().to_string().contains("Status {"), "this is no longer needed");
        assert_eq!(error_text(&refused()), "404 page not found (HTTP 404)");
        assert_eq!(
            error_text(&watcher::Error::InitialListFailed(refused())),
            "the list failed: 404 page not found (HTTP 404)"
        );
        assert_eq!(
            crate::cluster::Error::Api(refused()).to_string(),
            "the API server: 404 page not found (HTTP 404)"
        );
    }
}
