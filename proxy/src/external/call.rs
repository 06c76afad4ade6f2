//! One external request whose head was read, with the operations that all ways of serving it share: send it, and respond without the
//! target.

use std::rc::Rc;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use tokio::time::Instant;

use super::External;
use super::destination::Destination;
use crate::chain::phases::Stop;
use crate::connection::Connection;
use crate::observe::record::Record;
use crate::request::early_response::{self, ServeResult, sidecar_response};
use crate::request::headers;
use crate::request::worker::Worker;
use crate::respond::{Accept, Reply};
use crate::stream::body::{ClientBody, RequestBody};
use crate::upstream::{SendError, Target, Upstream, UpstreamBody};

/// A request whose head was read.
pub(super) struct Call {
    pub(super) worker: Rc<Worker>,
    pub(super) external: Rc<External>,
    pub(super) connection: Rc<Connection>,
    pub(super) destination: Destination,
    pub(super) record: Rc<Record>,
    pub(super) accept: Accept,
}

impl Call {
    /// Sends to the target. Hop-by-hop fields are removed from the response's head.
    pub(super) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        target: Option<PathAndQuery>,
        body: RequestBody,
    ) -> Result<Response<UpstreamBody>, Reply> {
        let upstream = self.upstream()?;
        self.record.keep_upstream(Rc::clone(&upstream));
        let is_repeatable = matches!(method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        *request.uri_mut() = target.map_or_else(|| self.destination.uri.clone(), Uri::from);
        let sent = Instant::now();
        let sending = upstream.send_within(request, Some(self.record.clone())).await;
        let mut response = sending.map_err(|error| self.failure_reply(&error, is_repeatable))?;
        headers::strip_forwarded(response.headers_mut());
        // The client's protocol version is independent of the target's.
        *response.version_mut() = Version::default();
        let status = response.status().as_u16();
        self.record.set_upstream(status, sent.elapsed());
        self.record.set_status(status);
        Ok(response)
    }

    fn upstream(&self) -> Result<Rc<Upstream>, Reply> {
        let target_key = &self.destination.target;
        let shared = &self.external.shared;
        self.external.targets.get(target_key, || {
            let trust = Some(&shared.trust).filter(|_| target_key.is_tls);
            let target = Target::external(&target_key.name, target_key.port, trust, Arc::clone(&shared.gate))
                .map_err(|error| Reply::bad_request(error.to_string()))?;
            Ok(Upstream::new(target, self.external.limits.clone()))
        })
    }

    /// The reply to a request that could not be sent.
    pub(super) fn failure_reply(&self, error: &SendError, is_repeatable: bool) -> Reply {
        let server = format!("{}:{}", self.destination.host(), self.destination.target.port);
        tracing::debug!(%error, target = server, "external request failed");
        Reply::upstream_failed(error, &server, is_repeatable)
    }

    pub(super) fn sidecar_response(&self, reply: Reply) -> Response<ClientBody> {
        sidecar_response(&self.record, &self.accept, reply)
    }

    pub(super) async fn stop(&self, stop: Stop) -> ServeResult {
        early_response::end_exchange(&self.connection, &self.record, stop, &self.accept).await
    }
}
