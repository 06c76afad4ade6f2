//! Asks the admin port of a sidecar. What the answers mean is the caller's.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use http::{Request, Uri};
use kube::{Client, Config};

use crate::error::Error;

/// One answer. The admin port answers from memory.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// A client of a sidecar's port, plain HTTP. It sends no credentials.
pub(crate) fn client(address: SocketAddr) -> Result<Client, Error> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(address.to_string())
        .path_and_query("/")
        .build();
    let uri = uri.map_err(|error| Error::client("the address of a sidecar")(kube::Error::HttpError(error)))?;
    Client::try_from(Config::new(uri)).map_err(Error::client("a client of a sidecar"))
}

/// The admin port of a sidecar.
#[derive(Clone)]
pub(crate) struct Admin {
    address: SocketAddr,
    client: Client,
}

impl Admin {
    /// The admin port at `address`. Nothing is asked yet.
    pub(crate) fn new(address: SocketAddr) -> Result<Self, Error> {
        Ok(Self {
            address,
            client: client(address)?,
        })
    }

    /// Where it is.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The body of a 200 answer.
    pub(crate) async fn get(&self, path: &'static str) -> Result<String, Error> {
        let failed = |error: kube::Error| self.failed(path, problem(&error));
        let request = Request::get(path).body(Vec::new());
        let request = request.map_err(|error| failed(kube::Error::HttpError(error)))?;
        let what = format!("{} answers {path}", self.address);
        within(what, self.client.request_text(request)).await?.map_err(failed)
    }

    /// Why `path` can't be had.
    pub(crate) fn failed(&self, path: &'static str, problem: impl Into<String>) -> Error {
        Error::Admin {
            address: self.address,
            path,
            problem: problem.into(),
        }
    }
}

/// What went wrong, for somebody who knows nothing of clients.
fn problem(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("the answer is {}", status.code);
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                ErrorKind::ConnectionRefused => "nothing listens there".to_owned(),
                ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => "the connection was closed".to_owned(),
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "no way leads there from here".to_owned(),
                _ => error.to_string(),
            };
        }
        cause = error.source();
    }
    match error {
        kube::Error::Service(_) | kube::Error::HyperError(_) => "what listens there does not speak HTTP".to_owned(),
        error => error.to_string(),
    }
}

/// Gives an answer as long as it may take.
pub(crate) async fn within<T>(what: String, answer: impl Future<Output = T>) -> Result<T, Error> {
    let late = |_| Error::Deadline {
        what,
        after: ANSWER_DEADLINE,
        last: "no answer".to_owned(),
    };
    tokio::time::timeout(ANSWER_DEADLINE, answer).await.map_err(late)
}
