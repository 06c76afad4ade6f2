//! What is known of one request while it lives; counted, logged and told to `on-complete` when its last part is dropped.
//!
//! Guarantees: recorded once, however the request ends: answered, refused, cancelled, client gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::{Method, Uri};
use tokio::time::Instant;

use crate::chain::Ticket;
use crate::external::Way;
use crate::metrics::Metrics;
use crate::phases::Plugins;
use crate::upstream::Upstream;
use crate::verdict::{Failure, Outcome};

/// What a request counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// To the API server.
    Api(Verb),
    /// To anywhere else.
    External(Way),
}

/// One request.
pub(crate) struct Record {
    metrics: std::sync::Arc<Metrics>,
    start: Instant,
    class: Class,
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
    /// Of a request that may change objects: it counts as under way until it is answered.
    write: RefCell<Option<Ticket>>,
    is_sent: Cell<bool>,
    /// Of a list: it counts as under way as long as this lives.
    list: RefCell<Option<Ticket>>,
    /// Connections that the response comes over, if nobody else keeps them.
    upstream_kept: RefCell<Option<Rc<Upstream>>>,
}

impl Record {
    pub(crate) fn new(metrics: &std::sync::Arc<Metrics>, class: Class, method: Method, uri: Uri) -> Rc<Self> {
        metrics.request_began(class);
        Rc::new(Self {
            metrics: std::sync::Arc::clone(metrics),
            start: Instant::now(),
            class,
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
            write: RefCell::default(),
            is_sent: Cell::default(),
            list: RefCell::default(),
            upstream_kept: RefCell::default(),
        })
    }

    /// These plugins want the request.
    pub(crate) fn set_plugins(&self, plugins: Rc<Plugins>) {
        *self.plugins.borrow_mut() = Some(plugins);
    }

    /// The request may change objects.
    pub(crate) fn set_write(&self, ticket: Ticket) {
        *self.write.borrow_mut() = Some(ticket);
    }

    /// The answer shows what the request's chain lets it see.
    pub(crate) fn set_list(&self, ticket: Ticket) {
        *self.list.borrow_mut() = Some(ticket);
    }

    /// From here on the API server may be carrying it out.
    pub(crate) fn sent(&self) {
        self.is_sent.set(true);
    }

    /// The API server is done with it, or has never seen it.
    pub(crate) fn settle(&self) {
        self.write.take();
    }

    /// Keeps a server's connections as long as the request lives.
    pub(crate) fn keep(&self, upstream: Rc<Upstream>) {
        *self.upstream_kept.borrow_mut() = Some(upstream);
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
        match self.class {
            Class::Api(verb) => self.log_api(verb, outcome),
            Class::External(way) => self.log_external(way, outcome),
        }
    }

    fn log_external(&self, way: Way, outcome: &Outcome) {
        tracing::debug!(
            target: "access",
            method = %self.method,
            way = way.as_str(),
            host = self.uri.host().unwrap_or_default(),
            port = self.uri.port_u16(),
            path = self.uri.path(),
            status = outcome.status,
            upstream_status = outcome.upstream_status,
            failure = ?outcome.failure,
            duration_us = micros(outcome.duration),
            upstream_us = micros(outcome.upstream),
            request_bytes = outcome.request_bytes,
            response_bytes = outcome.response_bytes,
            "external request"
        );
    }

    fn log_api(&self, verb: Verb, outcome: &Outcome) {
        let info = RequestInfo::parse(self.method.as_str(), self.uri.path(), self.uri.query()).ok();
        let text = |of: fn(&RequestInfo<'_>) -> String| info.as_ref().map(of).unwrap_or_default();
        tracing::debug!(
            target: "access",
            method = %self.method,
            path = self.uri.path(),
            verb = %verb,
            group = text(|info| info.group.to_string()),
            resource = text(|info| info.resource.to_string()),
            subresource = text(|info| info.subresource.to_string()),
            namespace = text(|info| info.namespace.to_string()),
            name = text(|info| info.name.to_string()),
            status = outcome.status,
            upstream_status = outcome.upstream_status,
            failure = ?outcome.failure,
            duration_us = micros(outcome.duration),
            upstream_us = micros(outcome.upstream),
            request_bytes = outcome.request_bytes,
            response_bytes = outcome.response_bytes,
            "request"
        );
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(ticket) = self.write.take().filter(|_| self.is_sent.get()) {
            ticket.lost();
        }
        let outcome = self.outcome();
        self.metrics.request_ended(
            self.class,
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
