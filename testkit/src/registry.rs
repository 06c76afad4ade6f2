//! An OCI registry over real TCP, in memory, that can be told to misbehave.
//!
//! It serves what the distribution specification calls pulling: `/v2/`, manifests and blobs by `GET` and `HEAD`, and the token
//! endpoint that a `Bearer` challenge names. It has two ports, plaintext and TLS. What it holds is put in by the program that
//! runs it: there is no pushing over HTTP, no listing, no deleting (404).
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use ctrlmesh_testkit::registry::{Mishap, On, Registry};
//!
//! let registry = Registry::start().await?;
//! let manifest = registry.put_component("you/plugin", "1.0", b"\0asm...");
//! registry.misbehave(On::Manifest, Mishap::Status { code: 429, retry_after: Some("1".into()) }).times(1);
//! let image = format!("oci://{}/you/plugin:1.0", registry.host()); // hand it to the client under test
//! assert_eq!(registry.count("/v2/you/plugin/manifests/1.0"), 0);
//! registry.stop().await;
//! # drop((manifest, image)); Ok::<_, ctrlmesh_testkit::Error>(()) }).unwrap();
//! ```

mod content;
mod login;
mod mishap;
mod serve;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use content::{SIGNATURE_ANNOTATION, SIGNATURE_TYPE, WASM_CONFIG_TYPE, WASM_LAYER_TYPE, digest, payload};
pub use login::Login;
pub use mishap::{Mishap, On, Planned};

use self::content::Content;
use self::mishap::Plan;
use crate::Error;
use crate::tls::Identity;

/// One request, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// HTTP method.
    pub method: String,
    /// Path and query, undecoded.
    pub target: String,
    /// `Host`.
    pub host: String,
    /// `Authorization`; empty: none.
    pub authorization: String,
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    content: Mutex<Content>,
    login: Mutex<Login>,
    plan: Plan,
    requests: Mutex<Vec<Request>>,
}

/// A running registry.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    tls_address: SocketAddr,
    identity: Identity,
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    ended: CancellationToken,
    tasks: TaskTracker,
    _guard: DropGuard,
}

impl Registry {
    /// An empty registry on two ports of 127.0.0.1.
    ///
    /// # Errors
    /// A port or the certificate.
    pub async fn start() -> Result<Self, Error> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (plain, tls) = (bind(any).await?, bind(any).await?);
        let registry = Self {
            address: address_of(&plain)?,
            tls_address: address_of(&tls)?,
            identity: Identity::new(any.ip())?,
            shared: Arc::new(Shared {
                content: Mutex::default(),
                login: Mutex::default(),
                plan: Plan::default(),
                requests: Mutex::default(),
            }),
            running: Mutex::default(),
        };
        registry.run(plain, tls)?;
        Ok(registry)
    }

    fn run(&self, plain: TcpListener, tls: TcpListener) -> Result<(), Error> {
        let (ended, tasks) = (CancellationToken::new(), TaskTracker::new());
        let acceptor = TlsAcceptor::from(self.identity.server_config(&["http/1.1"])?);
        for (listener, acceptor) in [(plain, None), (tls, Some(acceptor))] {
            tasks.spawn(serve::accept(
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
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(())
    }

    /// Goes down: ports are closed, connections cut, tasks awaited. What it holds stays.
    pub async fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            running.ended.cancel();
            running.tasks.close();
            running.tasks.wait().await;
        }
    }

    /// Comes back on the same ports.
    ///
    /// # Errors
    /// [`Error::State`] if it is not down; [`Error::Listen`] if a port is taken.
    pub async fn restart(&self) -> Result<(), Error> {
        if self.running.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Err(Error::State("running: stop it first"));
        }
        self.run(bind(self.address).await?, bind(self.tls_address).await?)
    }

    /// `127.0.0.1` and the plaintext port.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// `127.0.0.1` and the TLS port.
    #[must_use]
    pub fn tls_host(&self) -> String {
        self.tls_address.to_string()
    }

    /// The CA that signed the certificate of the TLS port; the certificate names 127.0.0.1 and localhost.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.identity.ca_pem
    }

    /// Stores a blob. Answers with its digest.
    pub fn put_blob(&self, repository: &str, bytes: &[u8]) -> String {
        self.content().put_blob(repository, bytes)
    }

    /// Stores a manifest under its digest and, unless it is empty, a tag, which moves. Answers with the digest.
    pub fn put_manifest(&self, repository: &str, tag: &str, manifest: &serde_json::Value) -> String {
        self.content().put_manifest(repository, tag, manifest)
    }

    /// Stores a WebAssembly component in the layout of CNCF TAG-Runtime, as `wkg oci push` does. Answers with the digest of the
    /// manifest.
    pub fn put_component(&self, repository: &str, tag: &str, wasm: &[u8]) -> String {
        self.content().put_component(repository, tag, wasm)
    }

    /// Stores a signature over a [`payload`], where `cosign sign --key` does. `signature` is base64.
    pub fn put_signature(&self, repository: &str, manifest: &str, payload: &[u8], signature: &str) {
        self.content().put_signature(repository, manifest, payload, signature);
    }

    /// Who may pull from now on.
    pub fn require(&self, login: Login) {
        *self.shared.login.lock().unwrap_or_else(PoisonError::into_inner) = login;
    }

    /// Plans a mishap for every request of a kind, until [`Registry::behave`] or as often as [`Planned::times`] says. The first
    /// that is planned comes first.
    pub fn misbehave(&self, on: On, mishap: Mishap) -> Planned {
        self.shared.plan.add(on, mishap)
    }

    /// Forgets all planned mishaps.
    pub fn behave(&self) {
        self.shared.plan.clear();
    }

    /// Every request so far, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How many requests so far had a target that starts so.
    #[must_use]
    pub fn count(&self, target: &str) -> usize {
        let requests = self.requests();
        requests
            .iter()
            .filter(|request| request.target.starts_with(target))
            .count()
    }

    fn content(&self) -> std::sync::MutexGuard<'_, Content> {
        self.shared.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|source| Error::Listen {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        source,
    })
}
