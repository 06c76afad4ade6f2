//! An in-memory OCI registry over real TCP, with fault injection.
//!
//! It serves the pull part of the distribution specification: `/v2/`, manifests and blobs by `GET` and `HEAD`, and the token endpoint of a
//! `Bearer` challenge. It has two ports, plaintext and TLS. The program that runs it stores the content: pushing, listing and deleting
//! over HTTP are not supported (404).
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use ctrlmesh_testkit::registry::{AffectedRequests, Mishap, Registry};
//!
//! let registry = Registry::start().await?;
//! let manifest = registry.put_component("you/plugin", "1.0", b"\0asm...");
//! registry.plan_mishap(AffectedRequests::Manifest, Mishap::Status { code: 429, retry_after: Some("1".into()) }).times(1);
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
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use content::{SIGNATURE_ANNOTATION, SIGNATURE_TYPE, WASM_CONFIG_TYPE, WASM_LAYER_TYPE, digest, signature_payload};
pub use login::Login;
pub use mishap::{AffectedRequests, Mishap, PlannedMishap};

use self::content::Content;
use self::mishap::Plan;
use crate::Error;
use crate::lock::lock_unpoisoned;
use crate::tls::Identity;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// Path and query, undecoded.
    pub target: String,
    pub host: String,
    /// `Authorization` header; empty if missing.
    pub authorization: String,
}

/// State that all connections share.
#[derive(Debug)]
struct Shared {
    content: Mutex<Content>,
    login: Mutex<Login>,
    plan: Plan,
    requests: Mutex<Vec<Request>>,
}

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
    /// Starts an empty registry on two ports of 127.0.0.1.
    ///
    /// # Errors
    /// If a port can't be bound or the certificate can't be made.
    pub async fn start() -> Result<Self, Error> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (plain, tls) = (bind_listener(any).await?, bind_listener(any).await?);
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
        registry.spawn_listeners(plain, tls)?;
        Ok(registry)
    }

    fn spawn_listeners(&self, plain: TcpListener, tls: TcpListener) -> Result<(), Error> {
        let (ended, tasks) = (CancellationToken::new(), TaskTracker::new());
        let acceptor = TlsAcceptor::from(self.identity.server_config(&["http/1.1"])?);
        for (listener, acceptor) in [(plain, None), (tls, Some(acceptor))] {
            tasks.spawn(serve::accept_connections(
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
        Ok(())
    }

    /// Stops the registry: closes ports, cuts connections, waits for tasks. The content stays.
    pub async fn stop(&self) {
        let running = lock_unpoisoned(&self.running).take();
        if let Some(running) = running {
            running.ended.cancel();
            running.tasks.close();
            running.tasks.wait().await;
        }
    }

    /// Starts again on the same ports.
    ///
    /// # Errors
    /// [`Error::State`] if the registry is running; [`Error::Listen`] if a port is taken.
    pub async fn restart(&self) -> Result<(), Error> {
        if lock_unpoisoned(&self.running).is_some() {
            return Err(Error::State("running: stop it first"));
        }
        self.spawn_listeners(
            bind_listener(self.address).await?,
            bind_listener(self.tls_address).await?,
        )
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

    /// Stores a blob. Returns its digest.
    pub fn put_blob(&self, repository: &str, bytes: &[u8]) -> String {
        self.lock_content().put_blob(repository, bytes)
    }

    /// Stores a manifest under its digest and, unless it is empty, a tag, which moves. Returns the digest.
    pub fn put_manifest(&self, repository: &str, tag: &str, manifest: &serde_json::Value) -> String {
        self.lock_content().put_manifest(repository, tag, manifest)
    }

    /// Stores a WebAssembly component in the layout of CNCF TAG-Runtime, like `wkg oci push`. Returns the digest of the manifest.
    pub fn put_component(&self, repository: &str, tag: &str, wasm: &[u8]) -> String {
        self.lock_content().put_component(repository, tag, wasm)
    }

    /// Stores a signature over a [`signature_payload`] where `cosign sign --key` does. `signature` is base64.
    pub fn put_signature(&self, repository: &str, manifest: &str, payload: &[u8], signature: &str) {
        self.lock_content()
            .put_signature(repository, manifest, payload, signature);
    }

    /// Requires this login for pulls from now on.
    pub fn require(&self, login: Login) {
        *lock_unpoisoned(&self.shared.login) = login;
    }

    /// Plans a mishap for every request of a kind, until [`Registry::clear_mishaps`] or for [`PlannedMishap::times`] requests. Earlier plans come
    /// first.
    pub fn plan_mishap(&self, on: AffectedRequests, mishap: Mishap) -> PlannedMishap {
        self.shared.plan.add(on, mishap)
    }

    /// Removes all planned mishaps.
    pub fn clear_mishaps(&self) {
        self.shared.plan.clear();
    }

    /// Every request so far, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        lock_unpoisoned(&self.shared.requests).clone()
    }

    /// Number of requests so far whose target starts with `target`.
    #[must_use]
    pub fn count(&self, target: &str) -> usize {
        let requests = self.requests();
        requests
            .iter()
            .filter(|request| request.target.starts_with(target))
            .count()
    }

    fn lock_content(&self) -> std::sync::MutexGuard<'_, Content> {
        lock_unpoisoned(&self.shared.content)
    }
}

async fn bind_listener(address: SocketAddr) -> Result<TcpListener, Error> {
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
