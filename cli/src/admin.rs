//! Client for the admin port of a sidecar. The callers interpret the responses.

use std::net::SocketAddr;
use std::time::Duration;

use ctrlmesh_manager_uninstall::connection_text;
use http::{Request, Uri};
use kube::{Client, Config};

use crate::error::Error;

/// Deadline of one response. The admin port answers from memory.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(5);

/// A client for a port of a sidecar: plain HTTP, without credentials.
pub(crate) fn sidecar_client(address: SocketAddr) -> Result<Client, Error> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(address.to_string())
        .path_and_query("/")
        .build();
    let uri = uri.map_err(|error| Error::client("the address of a sidecar")(kube::Error::HttpError(error)))?;
    Client::try_from(Config::new(uri)).map_err(Error::client("a client of a sidecar"))
}

#[derive(Clone)]
pub(crate) struct Admin {
    address: SocketAddr,
    client: Client,
}

impl Admin {
    /// Makes no connection yet.
    pub(crate) fn new(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self {
            address,
            client: sidecar_client(address)?,
        })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Fails unless the status code is 200.
    pub(crate) async fn get(&self, path: &'static str) -> Result<String, Error> {
        let failed = |error: kube::Error| self.request_error(path, error_text(&error));
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|error| failed(kube::Error::HttpError(error)))?;
        let response = tokio::time::timeout(RESPONSE_DEADLINE, self.client.request_text(request)).await;
        let late = || format!("it did not answer within {} s", RESPONSE_DEADLINE.as_secs());
        response.map_err(|_| self.request_error(path, late()))?.map_err(failed)
    }

    pub(crate) fn request_error(&self, path: &'static str, problem: impl Into<String>) -> Error {
        Error::Admin {
            address: self.address,
            path,
            problem: problem.into(),
        }
    }
}

/// The error in words for a person who does not know HTTP clients.
fn error_text(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("it answers {}", status.code);
    }
    if let Some(problem) = connection_text(error) {
        return problem;
    }
    match error {
        kube::Error::Service(_) | kube::Error::HyperError(_) => "the server there does not speak HTTP".to_owned(),
        error => error.to_string(),
    }
}

/// Fails if there is no response within [`RESPONSE_DEADLINE`].
pub(crate) async fn with_deadline<T>(what: String, response: impl Future<Output = T>) -> Result<T, Error> {
    let late = |_| Error::Deadline {
        what,
        after: RESPONSE_DEADLINE,
        last: "no response".to_owned(),
    };
    tokio::time::timeout(RESPONSE_DEADLINE, response).await.map_err(late)
}
