//! What is known of one request while it lives; counted, logged and told to `on-complete` when its last part is dropped.
//!
//! Guarantees: recorded once, however the request ends: answered, refused, cancelled, client gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::{Method, Uri};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::phases::Plugins;
use crate::verdict::{Failure, Outcome};

/// One request.
pub(crate) struct Record {
    metrics: std::sync::Arc<Metrics>,
    start: Instant,
    verb: Verb,
    method: Method,
    uri: Uri,
    status: Cell<u16>,
    upstream_status: Cell<u16>,
    failure: Cell<Option<Failure>>,
    upstream: Cell<Duration>,
    request_bytes: Cell<u64>,
    response_bytes: Cell<u64>,
    /// The response body was sent to its end.
    complete: Cell<bool>,
    plugins: RefCell<Option<Rc<Plugins>>>,
}

impl Record {
    pub(crate) fn new(metrics: &std::sync::Arc<Metrics>, verb: Verb, method: Method, uri: Uri) -> Rc<Self> {
        metrics.in_flight.inc();
        Rc::new(Self {
            metrics: std::sync::Arc::clone(metrics),
            start: Instant::now(),
            verb,
            method,
            uri,
            status: Cell::default(),
            upstream_status: Cell::default(),
            failure: Cell::default(),
            upstream: Cell::default(),
            request_bytes: Cell::default(),
            response_bytes: Cell::default(),
            complete: Cell::default(),
            plugins: RefCell::default(),
        })
    }

    /// These plugins want the request.
    pub(crate) fn set_plugins(&self, plugins: Rc<Plugins>) {
        *self.plugins.borrow_mut() = Some(plugins);
    }

    pub(crate) fn set_status(&self, status: u16) {
        self.status.set(status);
    }

    pub(crate) fn set_upstream(&self, status: u16, waited: Duration) {
        self.upstream_status.set(status);
        self.upstream.set(waited);
    }

    /// The first failure is the one that counts.
    pub(crate) fn fail(&self, failure: Failure) {
        if self.failure.get().is_none() {
            self.failure.set(Some(failure));
        }
    }

    pub(crate) fn add_request_bytes(&self, bytes: usize) {
        self.request_bytes.set(self.request_bytes.get() + bytes as u64);
    }

    pub(crate) fn add_response_bytes(&self, bytes: usize) {
        self.response_bytes.set(self.response_bytes.get() + bytes as u64);
    }

    pub(crate) fn completed(&self) {
        self.complete.set(true);
    }

    fn outcome(&self) -> Outcome {
        let gone = (!self.complete.get()).then_some(Failure::ClientGone);
        Outcome {
            status: self.status.get(),
            upstream_status: self.upstream_status.get(),
            failure: self.failure.get().or(gone),
            duration: self.start.elapsed(),
            upstream: self.upstream.get(),
            request_bytes: self.request_bytes.get(),
            response_bytes: self.response_bytes.get(),
        }
    }

    fn log(&self, outcome: &Outcome) {
        if !tracing::enabled!(target: "access", tracing::Level::DEBUG) {
            return;
        }
        let info = RequestInfo::parse(self.method.as_str(), self.uri.path(), self.uri.query()).ok();
        let text = |of: fn(&RequestInfo<'_>) -> String| info.as_ref().map(of).unwrap_or_default();
        tracing::debug!(
            target: "access",
            method = %self.method,
            path = self.uri.path(),
            verb = %self.verb,
            group = text(|info| info.group.to_string()),
            resource = text(|info| info.resource.to_string()),
            subresource = text(|info| info.subresource.to_string()),
            namespace = text(|info| info.namespace.to_string()),
            name = text(|info| info.name.to_string()),
            status = outcome.status,
            upstream_status = outcome.upstream_status,
            failure = ?outcome.failure,
            duration_us = u64::try_from(outcome.duration.as_micros()).unwrap_or(u64::MAX),
            upstream_us = u64::try_from(outcome.upstream.as_micros()).unwrap_or(u64::MAX),
            request_bytes = outcome.request_bytes,
            response_bytes = outcome.response_bytes,
            "request"
        );
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let outcome = self.outcome();
        self.metrics.in_flight.dec();
        self.metrics.request_ended(
            self.verb,
            outcome.status,
            outcome.duration.as_secs_f64(),
            outcome.failure,
        );
        self.log(&outcome);
        if let Some(plugins) = self.plugins.borrow_mut().take() {
            plugins.on_complete(&outcome);
        }
    }
}
