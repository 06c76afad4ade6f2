//! The server as seen by the program that runs it: built, started, stopped, restarted. It owns every task that it starts.

mod builder;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::activity::Activity;
use crate::connection::serve_connection;
use crate::faults::Faults;
use crate::lock::lock_unpoisoned;
use crate::requests::RequestLog;
use crate::shared::Shared;
use crate::store::Store;
use crate::tls::Identity;
use crate::{Error, WAIT_DEADLINE};

pub use builder::Builder;

/// Pause after a failed accept: file descriptors are exhausted, and retrying at once would not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long and how often a restart tries to bind its ports: another socket may hold one for a moment.
const REBIND_DEADLINE: Duration = Duration::from_secs(5);
const REBIND_PAUSE: Duration = Duration::from_millis(20);

async fn bind_listener(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })
}

fn local_address(listener: &TcpListener, ip: IpAddr) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|source| Error::Listen {
        address: SocketAddr::new(ip, 0),
        source,
    })
}

#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    tls_address: SocketAddr,
    identity: Identity,
    tls_config: Arc<ServerConfig>,
    token: Option<String>,
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

/// The tasks of a running server. Dropping this ends them without waiting.
#[derive(Debug)]
struct Running {
    ended: CancellationToken,
    tasks: TaskTracker,
    _guard: DropGuard,
}

impl ApiServer {
    /// Configures a server; the defaults of `ApiServer::builder().start().await` are good for most tests.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn spawn_listeners(&self, plain: TcpListener, tls: TcpListener) {
        let (ended, tasks) = (CancellationToken::new(), TaskTracker::new());
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls_config));
        for (listener, acceptor) in [(plain, None), (tls, Some(acceptor))] {
            tasks.spawn(accept_connections(
                listener,
                acceptor,
                Arc::clone(&self.shared),
                tasks.clone(),
                ended.clone(),
            ));
        }
        let running = Running {
            _guard: ended.clone().drop_guard(),
            ended,
            tasks,
        };
        *lock_unpoisoned(&self.running) = Some(running);
    }

    /// The plaintext port: HTTP/1.1 and HTTP/2 with prior knowledge.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn tls_address(&self) -> SocketAddr {
        self.tls_address
    }

    /// `http://` and the plaintext address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `https://` and the TLS address.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("https://{}", self.tls_address)
    }

    /// The CA that signed the certificate of the TLS port.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.identity.ca_pem
    }

    /// A kubeconfig for the TLS port, as YAML.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        self.identity.kubeconfig(self.tls_address, true, self.token.as_deref())
    }

    /// A kubeconfig for the plaintext port, as YAML.
    #[must_use]
    pub fn plain_kubeconfig(&self) -> String {
        self.identity.kubeconfig(self.address, false, self.token.as_deref())
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    #[must_use]
    pub fn requests(&self) -> &RequestLog {
        &self.shared.requests
    }

    /// Current connections, requests and watches.
    #[must_use]
    pub fn activity(&self) -> Activity {
        self.shared.gauges.current_activity()
    }

    /// Waits until `condition` holds for the current activity.
    ///
    /// # Errors
    /// [`Error::Deadline`] after [`WAIT_DEADLINE`].
    pub async fn wait_until(&self, condition: impl FnMut(&Activity) -> bool) -> Result<Activity, Error> {
        self.shared.gauges.wait_until(WAIT_DEADLINE, condition).await
    }

    /// Sends a bookmark on each open watch that allows bookmarks.
    pub fn send_bookmarks(&self) {
        self.shared.signals.send_modify(|signals| signals.bookmark += 1);
    }

    /// Ends all open watches as if their timeout had passed: the body ends without an error.
    pub fn end_watches(&self) {
        self.shared.signals.send_modify(|signals| signals.end += 1);
    }

    /// Ends all open watches with an `ERROR` event, 410 Expired.
    pub fn expire_watches(&self) {
        self.shared.signals.send_modify(|signals| signals.expire += 1);
    }

    /// Stops the server, as the first half of an outage: closes the ports, cuts connections, waits for tasks. The store stays. Stopping a
    /// stopped server does nothing.
    pub async fn stop(&self) {
        let running = lock_unpoisoned(&self.running).take();
        if let Some(running) = running {
            running.ended.cancel();
            running.tasks.close();
            running.tasks.wait().await;
        }
    }

    /// Starts again on the same ports with the same store, certificates and faults.
    ///
    /// # Errors
    /// [`Error::State`] if the server is running; [`Error::Listen`] if a port is taken and stays so for five seconds.
    pub async fn restart(&self) -> Result<(), Error> {
        if lock_unpoisoned(&self.running).is_some() {
            return Err(Error::State("running: stop it first"));
        }
        let (plain, tls) = (
            rebind_listener(self.address).await?,
            rebind_listener(self.tls_address).await?,
        );
        self.spawn_listeners(plain, tls);
        Ok(())
    }
}

async fn rebind_listener(address: SocketAddr) -> Result<TcpListener, Error> {
    let deadline = tokio::time::Instant::now() + REBIND_DEADLINE;
    loop {
        match bind_listener(address).await {
            Err(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(REBIND_PAUSE).await,
            done => return done,
        }
    }
}

async fn accept_connections(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    ended: CancellationToken,
) {
    while let Some(accepted) = ended.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let (shared, tasks, ended) = (Arc::clone(&shared), tasks.clone(), ended.clone());
                tasks
                    .clone()
                    .spawn(serve_connection(stream, acceptor.clone(), shared, tasks, ended));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
