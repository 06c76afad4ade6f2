//! One request to the API server whose head was read, with the operations that all ways of serving it share: add credentials, send, record
//! the response.

use std::cell::Cell;
use std::rc::Rc;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri, Version};
use tokio::time::Instant;

use super::early_response::{self, ServeResult, sidecar_response};
use super::headers::OwnFields;
use super::parsed_targets::ParsedTarget;
use super::worker::Worker;
use super::{headers, hidden_objects};
use crate::chain::phases::Stop;
use crate::chain::{MatchQuery, Matched, Snapshot};
use crate::connection::Connection;
use crate::observe::record::Record;
use crate::plugin::request_view::{Facts, header_text};
use crate::plugin::verdict::Traffic;
use crate::respond::{Accept, Reply};
use crate::stream::body::{ClientBody, RequestBody};
use crate::upstream::write_outcome::WriteOutcome;
use crate::upstream::{HeadTimeout, RequestHead, SendError, UpstreamBody};

/// Sent when the client has no user agent of its own.
pub(crate) const OWN_USER_AGENT: &str = concat!("ctrlmesh-proxy/", env!("CARGO_PKG_VERSION"));

/// A request whose head was read.
pub(crate) struct Exchange<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) connection: Rc<Connection>,
    pub(crate) info: &'a RequestInfo<'a>,
    /// Set if the target was remembered.
    pub(super) remembered: Option<&'a ParsedTarget>,
    pub(crate) uri: &'a Uri,
    pub(crate) record: &'a Rc<Record>,
    /// The protocol that the client wants to upgrade to.
    pub(crate) upgrade: Option<HeaderValue>,
    /// Whether the request carries the sidecar's own credentials.
    pub(crate) uses_sidecar_credentials: Cell<bool>,
}

impl Exchange<'_> {
    /// The entries that want the request, in any phase.
    pub(super) fn matching_entries(&self, snapshot: &Snapshot, user_agent: &str) -> Matched {
        let find = || snapshot.matching_entries(&self.query(user_agent));
        match self.remembered {
            Some(target) => target.matching_entries(snapshot.id, user_agent, find),
            None => find(),
        }
    }

    /// The facts for plugins.
    pub(super) fn facts(&self) -> Rc<Facts> {
        match self.remembered {
            Some(target) => Rc::clone(target.facts()),
            None => Rc::new(Facts::new(self.info)),
        }
    }

    /// The properties that the chain's entries are matched against. Only the user agent is not from the target.
    fn query<'q>(&'q self, user_agent: &'q str) -> MatchQuery<'q> {
        MatchQuery {
            traffic: Traffic::Api,
            verb: self.info.verb,
            group: &self.info.group,
            resource: &self.info.resource,
            subresource: &self.info.subresource,
            namespace: &self.info.namespace,
            name: &self.info.name,
            path: self.uri.path(),
            host: self.worker.host(),
            user_agent,
        }
    }

    /// Adds the sidecar's credentials and user agent if the client sent none of its own. `own` is about these fields.
    pub(super) fn add_credentials(&self, headers: &mut HeaderMap, own: OwnFields) {
        if !own.has_credentials {
            self.uses_sidecar_credentials.set(true);
            self.worker.credentials().apply(headers);
        }
        if !own.has_user_agent {
            headers.insert(USER_AGENT, HeaderValue::from_static(OWN_USER_AGENT));
        }
    }

    /// Sends the request upstream. Hop-by-hop fields are removed from the response's head. `sent` is the current time.
    pub(crate) async fn send(
        &self,
        headers: HeaderMap,
        uri: &Uri,
        body: RequestBody,
        sent: Instant,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let head = RequestHead {
            method: self.record.method().clone(),
            path: uri.path_and_query().cloned(),
            headers,
            head_timeout: self.info.is_long_running().then_some(HeadTimeout(None)),
        };
        self.record.mark_sent(sent);
        let upstream = self.worker.upstream(self.uses_sidecar_credentials.get());
        let sending = upstream.send_head(head, body, Some(self.record.clone()), sent);
        let result = sending.await;
        self.record.record_outcome(WriteOutcome::from_result(&result));
        let mut response = result?;
        headers::strip_response(response.headers_mut());
        // The client's protocol version is independent of the API server's.
        *response.version_mut() = Version::default();
        self.record_response(response.status(), sent);
        Ok(response)
    }

    /// Records a response head.
    pub(crate) fn record_response(&self, status: StatusCode, sent: Instant) {
        if status == StatusCode::UNAUTHORIZED && self.uses_sidecar_credentials.get() {
            self.worker.credentials().refresh_now();
        }
        if hidden_objects::is_already_exists(self.info.verb, &self.info.subresource, status) {
            hidden_objects::count_hidden_create(self.worker, self.info, self.uri);
        }
        self.record.set_upstream(status.as_u16(), sent.elapsed());
        self.record.set_status(status.as_u16());
    }

    /// The response to a request that could not be sent.
    pub(crate) fn failure_response(&self, error: &SendError, accept: &Accept) -> Response<ClientBody> {
        tracing::debug!(%error, path = self.uri.path(), "request failed");
        let repeatable = matches!(self.info.verb, Verb::Get | Verb::List | Verb::Watch);
        sidecar_response(
            self.record,
            accept,
            Reply::upstream_failed(error, "the API server", repeatable),
        )
    }

    /// Ends the exchange in the way that a plugin asked for.
    pub(crate) async fn stop(&self, stop: Stop, accept: &Accept) -> ServeResult {
        early_response::end_exchange(&self.connection, self.record, stop, accept).await
    }
}

/// The client's user agent; empty if it is not text.
pub(crate) fn user_agent(headers: &HeaderMap) -> &str {
    headers.get(USER_AGENT).and_then(header_text).unwrap_or_default()
}
