//! Asks sidecars for their status: bounded in number at a time, in time and in size.

use std::collections::BTreeMap;
use std::time::Duration;

use ctrlmesh_contract::status::Status;
use futures_util::{StreamExt as _, stream};

use super::fleet::{Answer, Sidecar};

/// Sidecars that are asked at a time.
const CONCURRENCY: usize = 64;
/// For the whole of one answer. A sidecar that takes longer is asked again.
const DEADLINE: Duration = Duration::from_secs(2);
/// Largest status: 64 entries with 64 reports of 4 KiB would be more, but nobody could read that.
const MAX_STATUS_BYTES: usize = 4 * 1024 * 1024;

/// Asks.
#[derive(Clone, Debug)]
pub(super) struct Poller {
    http: reqwest::Client,
    port: u16,
}

impl Poller {
    pub(super) fn new(port: u16) -> reqwest::Result<Self> {
        // Sidecars are in the cluster: no proxy is between, and an address of a pod may be another's in a minute.
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(DEADLINE)
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(Duration::from_secs(30))
            .build()?;
        Ok(Self { http, port })
    }

    /// What each of them says, by pod.
    pub(super) async fn ask(&self, sidecars: &[Sidecar]) -> BTreeMap<String, Answer> {
        let mut answers = Vec::new();
        for sidecar in sidecars {
            answers.push(self.answer(sidecar));
        }
        stream::iter(answers).buffer_unordered(CONCURRENCY).collect().await
    }

    async fn answer(&self, sidecar: &Sidecar) -> (String, Answer) {
        let answer = match self.status(sidecar).await {
            Ok(status) => Answer::Status(Box::new(status)),
            Err(problem) => Answer::None(problem),
        };
        (sidecar.pod.clone(), answer)
    }

    async fn status(&self, sidecar: &Sidecar) -> Result<Status, String> {
        let ip = sidecar.ip.as_deref().ok_or("the pod has no address yet")?;
        let host = if ip.contains(':') {
            format!("[{ip}]")
        } else {
            ip.to_owned()
        };
        let url = format!("http://{host}:{}/status", self.port);
        let answer = self.http.get(&url).send().await.map_err(|error| told(&error))?;
        if !answer.status().is_success() {
            return Err(format!("{url} answers {}", answer.status()));
        }
        let mut body = Vec::new();
        let mut chunks = answer;
        while let Some(chunk) = chunks.chunk().await.map_err(|error| told(&error))? {
            if body.len() + chunk.len() > MAX_STATUS_BYTES {
                return Err(format!("{url} answers with more than {MAX_STATUS_BYTES} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        let status: Status = serde_json::from_slice(&body).map_err(|error| format!("{url} is no status: {error}"))?;
        if status.pod.name.is_empty() || status.pod.name == sidecar.pod {
            Ok(status)
        } else {
            Err(format!("{ip} is the address of pod {} now", status.pod.name))
        }
    }
}

fn told(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "does not answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    format!("can't be reached: {cause}")
}
