//! Asks one sidecar for its status: bounded in time and in size, and sure whose answer it is.

use std::time::Duration;

use ctrlmesh_contract::status::Status;

use super::fleet::{Report, Sidecar};

/// For the whole of one answer. A sidecar that takes longer is asked again.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);
/// Largest status. 64 entries take some 30 KiB; the rest is for what plugins show of themselves.
pub(super) const MAX_STATUS_BYTES: usize = 256 * 1024;

/// Asks.
#[derive(Clone, Debug)]
pub(super) struct StatusClient {
    http: reqwest::Client,
    port: u16,
}

impl StatusClient {
    pub(super) fn new(port: u16) -> reqwest::Result<Self> {
        // Sidecars are in the cluster: no proxy is between, and an address of a pod may be another's in a minute.
        let http = reqwest::Client::builder()
            .no_proxy()
            // Nothing is asked by TLS: an image need not have authorities.
            .tls_certs_only([])
            .timeout(DEADLINE)
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(Duration::from_secs(30))
            .build()?;
        Ok(Self { http, port })
    }

    /// What it says, or why it says nothing.
    pub(super) async fn fetch(&self, namespace: &str, sidecar: &Sidecar) -> Report {
        match self.status(namespace, sidecar).await {
            Ok(status) => Report::Status(Box::new(status)),
            Err(problem) => Report::Unavailable(problem),
        }
    }

    async fn status(&self, namespace: &str, sidecar: &Sidecar) -> Result<Status, String> {
        let ip = sidecar.ip.as_deref().ok_or(NO_ADDRESS)?;
        let host = if ip.contains(':') {
            format!("[{ip}]")
        } else {
            ip.to_owned()
        };
        let url = format!("http://{host}:{}/status", self.port);
        let answer = self
            .http
            .get(&url)
            .send()
            .await
            .map_err(|error| connection_error(&error))?;
        if !answer.status().is_success() {
            return Err(format!("{url} answers {}", answer.status()));
        }
        let mut body = Vec::new();
        let mut chunks = answer;
        while let Some(chunk) = chunks.chunk().await.map_err(|error| connection_error(&error))? {
            if body.len() + chunk.len() > MAX_STATUS_BYTES {
                return Err(format!("{url} answers with more than {MAX_STATUS_BYTES} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        let status: Status = serde_json::from_slice(&body).map_err(|error| format!("{url} is no status: {error}"))?;
        let pod = &status.pod;
        if (pod.namespace.as_str(), pod.name.as_str()) == (namespace, sidecar.pod.as_str()) {
            Ok(status)
        } else {
            Err(format!(
                "{ip} answers as pod {:?} of namespace {:?}; has its sidecar POD_NAME and POD_NAMESPACE?",
                pod.name, pod.namespace
            ))
        }
    }
}

/// Of a pod that has none.
pub(super) const NO_ADDRESS: &str = "the pod has no address yet";

fn connection_error(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "does not answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    format!("can't be reached: {cause}")
}
