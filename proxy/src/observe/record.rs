//! The record of one request: counted, logged and reported to `on-complete` when the last part of the exchange is dropped.
//!
//! Guarantees: each request is recorded once, however it ends: answered, refused, cancelled, or because the client is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode, Uri, response};
use tokio::time::Instant;

use super::class::{Class, ProxyForm};
use super::metrics::Metrics;
use crate::chain::InFlightGuard;
use crate::chain::phases::Plugins;
use crate::connection::{Connection, OverBound, RequestGuard, UnsentCounter};
use crate::plugin::verdict::{Failure, Outcome, microseconds};
use crate::upstream::write_outcome::WriteOutcome;
use crate::upstream::{ReplayRoom, Upstream};

pub(crate) struct Record {
    metrics: std::sync::Arc<Metrics>,
    start: Instant,
    class: Cell<Class>,
    method: Method,
    uri: Uri,
    status: Cell<u16>,
    upstream_status: Cell<u16>,
    failure: Cell<Option<Failure>>,
    upstream: Cell<Duration>,
    request_bytes: Cell<u64>,
    response_bytes: Cell<u64>,
    /// Whether the response body was sent to its end.
    complete: Cell<bool>,
    plugins: RefCell<Option<Rc<Plugins>>>,
    /// Guard of a request that may change objects: it counts as in flight until its outcome is known.
    write: RefCell<Option<InFlightGuard>>,
    sent: Cell<Option<Instant>>,
    /// Guard of a list: it counts as in flight while the record lives.
    list: RefCell<Option<InFlightGuard>>,
    /// Keeps the connections alive over which the response arrives.
    upstream_kept: RefCell<Option<Rc<Upstream>>>,
    /// The request's share of the client's connection.
    guard: RefCell<Option<RequestGuard>>,
}

impl Record {
    pub(crate) fn new(metrics: &std::sync::Arc<Metrics>, class: Class, method: Method, uri: Uri) -> Rc<Self> {
        let start = Instant::now();
        metrics.request_began(class, start);
        Rc::new(Self {
            metrics: std::sync::Arc::clone(metrics),
            start,
            class: Cell::new(class),
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
            sent: Cell::default(),
            list: RefCell::default(),
            upstream_kept: RefCell::default(),
            guard: RefCell::default(),
        })
    }

    /// The client's method.
    pub(crate) fn method(&self) -> &Method {
        &self.method
    }

    /// The target as the client sent it.
    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Sets the verb of a request to the API server.
    pub(crate) fn set_verb(&self, verb: Verb) {
        self.class.set(Class::Api(verb));
    }

    /// When the request's head was read.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Sets the plugins that want the request.
    pub(crate) fn set_plugins(&self, plugins: Rc<Plugins>) {
        *self.plugins.borrow_mut() = Some(plugins);
    }

    /// Sets the guard of a request that may change objects.
    pub(crate) fn set_write(&self, in_flight_guard: InFlightGuard) {
        *self.write.borrow_mut() = Some(in_flight_guard);
    }

    /// Sets the guard of a list, whose response depends on the chain of the request.
    pub(crate) fn set_list(&self, in_flight_guard: InFlightGuard) {
        *self.list.borrow_mut() = Some(in_flight_guard);
    }

    /// Notes that the request is sent now; from here on the API server may be carrying it out.
    pub(crate) fn mark_sent(&self, now: Instant) {
        self.sent.set(Some(now));
    }

    /// Notes the outcome of a write at the API server. The first call counts.
    pub(crate) fn record_outcome(&self, outcome: WriteOutcome) {
        let Some(in_flight_guard) = self.write.take() else {
            return;
        };
        let given_up = self.sent.get().and_then(|sent| outcome.given_up(sent, Instant::now()));
        if let Some(given_up) = given_up {
            in_flight_guard.give_up(given_up);
        }
    }

    /// Keeps a server's connections alive as long as the request.
    pub(crate) fn keep_upstream(&self, upstream: Rc<Upstream>) {
        *self.upstream_kept.borrow_mut() = Some(upstream);
    }

    /// Sets the request's share of the connection, which is not idle as long as the request lives, and reserves memory for its head.
    ///
    /// # Errors
    /// There is no memory for the head.
    pub(crate) fn set_guard(&self, guard: RequestGuard, head: usize) -> Result<(), OverBound> {
        self.guard.borrow_mut().insert(guard).hold_head(head)
    }

    /// Reserves memory for a part of a body until the request is over.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), OverBound> {
        self.guard.borrow().as_ref().map_or(Ok(()), |guard| guard.hold(bytes))
    }

    /// Counts the bytes that the response gives to its connection; `None` if they need not be counted.
    pub(crate) fn unsent_counter(&self) -> Option<UnsentCounter> {
        Some(self.request_memory()?.unsent_counter())
    }

    /// The connection, which counts the memory of its requests.
    fn request_memory(&self) -> Option<Rc<Connection>> {
        self.guard.borrow().as_ref().map(RequestGuard::connection)
    }

    /// Marks bytes of a body as about to be sent, so that the next reservation can reuse them.
    pub(crate) fn release_for_reuse(&self, bytes: usize) {
        if let Some(guard) = &*self.guard.borrow() {
            guard.release_for_reuse(bytes);
        }
    }

    /// Whether the request may be sent again regardless of its outcome.
    pub(crate) fn is_repeatable(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    pub(crate) fn set_status(&self, status: u16) {
        self.status.set(status);
    }

    pub(crate) fn set_upstream(&self, status: u16, waited: Duration) {
        self.upstream_status.set(status);
        self.upstream.set(waited);
    }

    /// Length of the response body, as far as the head gives it (RFC 9110 §8.6, §6.4.1).
    pub(crate) fn response_length(&self, head: &response::Parts) -> Option<u64> {
        let is_bodiless = matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if self.method == Method::HEAD || is_bodiless {
            return Some(0);
        }
        head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// Notes a failure. The first one counts.
    pub(crate) fn record_failure(&self, failure: Failure) {
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

    pub(crate) fn mark_completed(&self) {
        self.complete.set(true);
    }

    fn outcome(&self, end: Instant) -> Outcome {
        let gone = (!self.complete.get()).then_some(Failure::ClientGone);
        Outcome {
            status: self.status.get(),
            upstream_status: self.upstream_status.get(),
            failure: self.failure.get().or(gone),
            duration: end.saturating_duration_since(self.start),
            upstream: self.upstream.get(),
            request_bytes: self.request_bytes.get(),
            response_bytes: self.response_bytes.get(),
        }
    }

    fn log(&self, outcome: &Outcome, plugins: Option<&Plugins>) {
        if !tracing::enabled!(target: "access", tracing::Level::DEBUG) {
            return;
        }
        let touched = plugins.map(Plugins::describe).unwrap_or_default();
        match self.class.get() {
            Class::Api(verb) => self.log_api(verb, outcome, &touched),
            Class::External(form) => self.log_external(form, outcome, &touched),
        }
    }

    fn log_external(&self, form: ProxyForm, outcome: &Outcome, touched: &str) {
        tracing::debug!(
            target: "access",
            method = %self.method,
            way = form.as_str(),
            host = self.uri.host().unwrap_or_default(),
            port = self.uri.port_u16(),
            path = self.uri.path(),
            status = outcome.status,
            upstream_status = outcome.upstream_status,
            failure = outcome.failure.map_or("", Failure::as_str),
            touched,
            duration_us = microseconds(outcome.duration),
            upstream_us = microseconds(outcome.upstream),
            request_bytes = outcome.request_bytes,
            response_bytes = outcome.response_bytes,
            "external request"
        );
    }

    fn log_api(&self, verb: Verb, outcome: &Outcome, touched: &str) {
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
            failure = outcome.failure.map_or("", Failure::as_str),
            touched,
            duration_us = microseconds(outcome.duration),
            upstream_us = microseconds(outcome.upstream),
            request_bytes = outcome.request_bytes,
            response_bytes = outcome.response_bytes,
            "request"
        );
    }
}

impl ReplayRoom for Record {
    fn take(&self, bytes: usize) -> bool {
        self.request_memory()
            .is_none_or(|connection| connection.take_dispensable(bytes))
    }

    fn give_back(&self, bytes: usize) {
        if let Some(connection) = self.request_memory() {
            connection.give_back(bytes);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Without an outcome so far, the client gave up waiting for the response.
        self.record_outcome(WriteOutcome::GivenUp);
        let end = Instant::now();
        let outcome = self.outcome(end);
        if let Some(guard) = self.guard.get_mut() {
            guard.set_end(end);
        }
        self.metrics.request_ended(
            self.class.get(),
            end,
            outcome.status,
            outcome.duration.as_secs_f64(),
            outcome.failure,
        );
        let plugins = self.plugins.borrow_mut().take();
        self.log(&outcome, plugins.as_deref());
        if let Some(plugins) = plugins {
            plugins.note_touched(&self.metrics.touched, outcome.status, end);
            plugins.on_complete(&outcome, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::in_flight::{InFlightCounts, UNSETTLED_TIME};
    use crate::chain::{Counter, Kind};
    use std::sync::Arc;

    /// Numbers of writes in flight: while the record of a write that ends with `end` lives, after that, and after
    /// `later`.
    async fn writes_in_flight(end: impl FnOnce(&Record), later: Duration) -> [u64; 3] {
        let (in_flight_counts, metrics) = (InFlightCounts::new(), Metrics::new(Metrics::registry()));
        let class = Class::Api(Verb::Delete);
        let record = Record::new(&metrics, class, Method::DELETE, Uri::from_static("/api/v1/pods/p"));
        record.set_write(Counter::new(0).count(&in_flight_counts, Kind::Write));
        end(&record);
        let writes = |in_flight_counts: &Arc<InFlightCounts>| in_flight_counts.sum().writes;
        let alive = writes(&in_flight_counts);
        drop(record);
        let gone = writes(&in_flight_counts);
        tokio::time::advance(later).await;
        [alive, gone, writes(&in_flight_counts)]
    }

    #[tokio::test(start_paused = true)]
    async fn write_counts_as_long_as_it_may_be_carried_out() {
        let (just_before, a_moment) = (UNSETTLED_TIME - Duration::from_millis(1), Duration::from_millis(1));
        let nothing = |_: &Record| {};
        let mark_sent = |record: &Record| record.mark_sent(Instant::now());
        assert_eq!(
            writes_in_flight(nothing, a_moment).await,
            [1, 0, 0],
            "it was never sent"
        );
        let over = |record: &Record| {
            mark_sent(record);
            record.record_outcome(WriteOutcome::Finished);
        };
        assert_eq!(writes_in_flight(over, a_moment).await, [0, 0, 0]);
        assert_eq!(
            writes_in_flight(mark_sent, just_before).await,
            [1, 1, 1],
            "its client went away"
        );
        assert_eq!(writes_in_flight(mark_sent, UNSETTLED_TIME).await, [1, 1, 0]);
        for (outcome, until) in [
            (WriteOutcome::GivenUp, UNSETTLED_TIME),
            (WriteOutcome::CutOff, Duration::from_secs(60) + UNSETTLED_TIME),
        ] {
            let end = |record: &Record| {
                mark_sent(record);
                record.record_outcome(outcome);
            };
            assert_eq!(writes_in_flight(end, until - a_moment).await, [1, 1, 1], "{outcome:?}");
            assert_eq!(writes_in_flight(end, until).await, [1, 1, 0], "{outcome:?}");
        }
    }

    #[test]
    fn response_length_is_derived_from_head() {
        let length = |method: Method, status: u16, length: Option<&str>| {
            let metrics = Metrics::new(Metrics::registry());
            let record = Record::new(&metrics, Class::Api(Verb::Get), method, Uri::from_static("/"));
            let mut response = http::Response::builder().status(status);
            if let Some(length) = length {
                response = response.header(CONTENT_LENGTH, length);
            }
            record.response_length(&response.body(()).unwrap().into_parts().0)
        };
        assert_eq!(length(Method::GET, 200, Some("7")), Some(7));
        assert_eq!(length(Method::GET, 500, Some("0")), Some(0));
        assert_eq!(length(Method::GET, 200, None), None);
        for (method, status) in [(Method::HEAD, 200), (Method::GET, 304), (Method::DELETE, 204)] {
            assert_eq!(length(method, status, Some("7")), Some(0), "{status} has no body");
        }
    }
}
