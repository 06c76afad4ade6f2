//! The cluster in use, by the names that people know, and the time that its API server has for an answer.

use std::fmt;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::{Instant, timeout_at};

use crate::error::{ANSWER_DEADLINE, Error};
use crate::{Plan, list_defined, sharding_config_resource};

/// Pause before a request is repeated that an API server was not ready for.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The cluster in use, and the names by which people know it.
pub struct Cluster {
    pub(crate) client: Client,
    /// `None`: the credentials are a pod's service account.
    pub(crate) context: Option<String>,
    pub(crate) server: String,
}

impl Cluster {
    /// The cluster of the environment: KUBECONFIG, or a pod's service account. Sends nothing yet.
    ///
    /// # Errors
    /// There is no configuration of a cluster.
    pub async fn infer() -> Result<Self, Error> {
        // Fails only if there is a provider already; then that one is used.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut config = Config::infer().await.map_err(Error::Config)?;
        // kube would repeat requests for minutes; [`answer_of`] does for seconds, and keeps the answer.
        config.default_retry = false;
        Ok(Self {
            context: context_of(&config).await,
            server: config.cluster_url.to_string(),
            client: Client::try_from(config)?,
        })
    }

    /// Counts the objects that [`crate::run`] would delete. `None`: nothing is installed, because the cluster has no definition of
    /// ShardingConfigs.
    ///
    /// # Errors
    /// The API server refuses the request, or does not answer.
    pub async fn plan(&self) -> Result<Option<Plan>, Error> {
        self.count().await.map_err(|error| self.named(error))
    }

    async fn count(&self) -> Result<Option<Plan>, Error> {
        if let Some(configs) = list_defined(&self.client, &sharding_config_resource()).await? {
            return Ok(Some(Plan::from_configs(&configs)));
        }
        // Any web server may answer 404, but only an API server has this endpoint.
        answer_of(async || self.client.apiserver_version().await).await?;
        Ok(None)
    }

    /// The error with the names of the cluster, if it is about the way to it.
    pub(crate) fn named(&self, error: Error) -> Error {
        match error {
            Error::Api(error) => Error::Request {
                server: self.server.clone(),
                context: self.context_text(),
                error: Box::new(error),
            },
            Error::NoAnswer => Error::Silent {
                server: self.server.clone(),
                context: self.context_text(),
            },
            error => error,
        }
    }

    /// The message before the first request.
    #[must_use]
    pub fn searching_text(&self) -> String {
        format!("{self}: looking for ShardingConfigs")
    }

    /// The message for a cluster without a definition.
    #[must_use]
    pub fn not_installed_text(&self) -> String {
        format!(
            "{self}: nothing is installed; this cluster has no definition of ShardingConfigs, so there is none to delete"
        )
    }

    fn context_text(&self) -> String {
        match &self.context {
            Some(context) => format!("context {context}"),
            None => "no context (account of this pod)".to_owned(),
        }
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, server {}", self.context_text(), self.server)
    }
}

/// The answer to a request, or an error after [`ANSWER_DEADLINE`]. An API server that is not ready is asked again until then: it answers
/// so after definitions have changed, for example.
pub(crate) async fn answer_of<T>(request: impl AsyncFn() -> Result<T, kube::Error>) -> Result<T, Error> {
    let started_at = Instant::now();
    loop {
        let answer = timeout_at(started_at + ANSWER_DEADLINE, request()).await;
        match answer.map_err(|_| Error::NoAnswer)? {
            Err(kube::Error::Api(status))
                if matches!(status.code, 429 | 503 | 504) && started_at.elapsed() + RETRY_PAUSE < ANSWER_DEADLINE =>
            {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            answer => return Ok(answer?),
        }
    }
}

/// The current context, if this configuration comes from it.
async fn context_of(config: &Config) -> Option<String> {
    let kubeconfig = Kubeconfig::read().ok()?;
    let context = kubeconfig.current_context.clone()?;
    let options = KubeConfigOptions::default();
    let own = Config::from_custom_kubeconfig(kubeconfig, &options).await.ok()?;
    (own.cluster_url == config.cluster_url).then_some(context)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kube::core::Status;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn server_that_does_not_answer_is_an_error_within_seconds() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}/", listener.local_addr().unwrap());
        let cluster = Cluster {
            client: Client::try_from(Config::new(server.parse().unwrap())).unwrap(),
            context: Some("x".to_owned()),
            server: server.clone(),
        };
        // The connection is accepted and kept open.
        let accepted = tokio::spawn(async move { listener.accept().await });
        let started_at = tokio::time::Instant::now();
        let error = cluster.plan().await.unwrap_err().to_string();
        assert_eq!(
            error,
            format!("the API server at {server} (context x) did not answer within 10 s")
        );
        assert!(started_at.elapsed() < Duration::from_secs(20));
        drop(accepted);
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_repeated_while_api_server_is_not_ready() {
        let requests = Cell::new(0);
        let not_ready = |code| {
            let status = Status::failure("storage is (re)initializing", "TooManyRequests").with_code(code);
            kube::Error::Api(Box::new(status))
        };
        let ready_at_third = async || {
            requests.set(requests.get() + 1);
            if requests.get() < 3 {
                Err(not_ready(429))
            } else {
                Ok(())
            }
        };
        answer_of(ready_at_third).await.unwrap();
        let error = answer_of(async || Err::<(), _>(not_ready(503))).await.unwrap_err();
        assert!(matches!(error, Error::Api(_)), "the last answer counts: {error}");
        requests.set(0);
        let forbidden = async || {
            requests.set(requests.get() + 1);
            Err::<(), _>(not_ready(403))
        };
        assert!(answer_of(forbidden).await.is_err());
        assert_eq!(requests.get(), 1);
    }
}
