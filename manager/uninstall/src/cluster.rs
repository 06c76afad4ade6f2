//! The cluster in use, by the names that people know.

use std::fmt;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::error::Error;
use crate::plan::Plan;
use crate::requests::{list_defined, response_of, sharding_config_resource};

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
        // kube would repeat requests for minutes; [`response_of`] does for seconds, and keeps the response.
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
        self.count().await.map_err(|error| self.with_cluster_names(error))
    }

    async fn count(&self) -> Result<Option<Plan>, Error> {
        if let Some(configs) = list_defined(&self.client, &sharding_config_resource()).await? {
            return Ok(Some(Plan::from_configs(&configs)));
        }
        // Any web server may answer 404, but only an API server has this endpoint.
        response_of(async || self.client.apiserver_version().await).await?;
        Ok(None)
    }

    /// The error with the names of the cluster, if it is about the way to it.
    pub(crate) fn with_cluster_names(&self, error: Error) -> Error {
        match error {
            Error::Api(error) => Error::Request {
                server: self.server.clone(),
                context: self.context_text(),
                error: Box::new(error),
            },
            Error::NoResponse => Error::Silent {
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
    use std::time::Duration;

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
}
