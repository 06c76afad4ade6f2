//! Whether the lease is held for certain: the lease manager reports that this process leads, and a renewal was seen lately.
//!
//! Renewals are observed in the client: a response of the API server that names this process as the holder. The lease manager
//! reports a loss only when it has read so, which never happens on a dead connection.

use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Method, Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, Service};

pub(super) struct LeaseState {
    is_leader: watch::Receiver<bool>,
    /// When the last renewal began.
    renewed: watch::Receiver<Option<Instant>>,
    /// Time for which a renewal is relied on.
    lasts: Duration,
}

impl LeaseState {
    pub(super) fn new(
        is_leader: watch::Receiver<bool>,
        renewed: watch::Receiver<Option<Instant>>,
        lasts: Duration,
    ) -> Self {
        Self {
            is_leader,
            renewed,
            lasts,
        }
    }

    /// Until when the lease is held, if it is held now.
    fn held_until(&self) -> Option<Instant> {
        let until = (*self.renewed.borrow()).map(|began| began + self.lasts)?;
        (*self.is_leader.borrow() && Instant::now() < until).then_some(until)
    }

    /// Waits until the lease is held. `false`: it is not renewed any more.
    pub(super) async fn wait_until_held(&mut self) -> bool {
        while self.held_until().is_none() {
            if !self.wait_for_change().await {
                return false;
            }
        }
        true
    }

    /// Waits until the lease is not held.
    pub(super) async fn wait_until_lost(&mut self) {
        while let Some(until) = self.held_until() {
            tokio::select! {
                goes_on = self.wait_for_change() => if !goes_on { return },
                () = sleep_until(until) => {
                    tracing::warn!("lease was not renewed in time; another manager may take over");
                }
            }
        }
    }

    async fn wait_for_change(&mut self) -> bool {
        tokio::select! {
            changed = self.is_leader.changed() => changed.is_ok(),
            changed = self.renewed.changed() => changed.is_ok(),
        }
    }
}

/// A client that reports when it began to write a Lease that, as the API server answers, this process holds.
pub(super) fn with_lease_witness(client: &Client, identity: &str, renewed: watch::Sender<Option<Instant>>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let witness = LeaseWitness {
        client: client.clone(),
        identity: identity.into(),
        renewed,
    };
    Client::new(witness, namespace)
}

#[derive(Clone)]
struct LeaseWitness {
    client: Client,
    identity: Arc<str>,
    renewed: watch::Sender<Option<Instant>>,
}

impl LeaseWitness {
    async fn send(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (began, is_write) = (Instant::now(), request.method() == Method::PATCH);
        let response = self.client.send(request).await?;
        if !is_write || !response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = body.collect_bytes().await?;
        let lease = serde_json::from_slice::<Lease>(&body).ok();
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        if holder.as_deref() == Some(&*self.identity) {
            self.renewed.send_replace(Some(began));
        }
        Ok(Response::from_parts(head, Body::from(body)))
    }
}

impl Service<Request<Body>> for LeaseWitness {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
