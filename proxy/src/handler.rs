//! ONE REQUEST, TOP TO BOTTOM (DESIGN §3): parse, match, ask the plugins, edit, send, ask again, answer.
//!
//! A request that no plugin wants takes the short way through this file: no allocation for plugins, no call of one.

use std::cell::Cell;
use std::rc::Rc;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::header::{HOST, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use tokio::time::Instant;

use crate::body::{ClientBody, RequestBody};
use crate::chain::{Kind, MatchQuery};
use crate::connection::{Connection, IncomingBody};
use crate::ending::{self, Answer, answer};
use crate::fate::Fate;
use crate::guarded::Guarded;
use crate::headers;
use crate::hidden;
use crate::phases::Stop;
use crate::record::{Class, Record};
use crate::request_memory::head_size;
use crate::respond::{Accept, Reply};
use crate::upgrade::{self, Offered};
use crate::upstream::{HeadTimeout, SendError, UpstreamBody};
use crate::verdict::Traffic;
use crate::watch::Begun;
use crate::worker::Worker;

/// What is parsed at most. The API server's Go library takes 1 MiB of headers; selectors of thousands of values fit here.
pub(crate) const MAX_URI: usize = 32 << 10;

/// Sent when the client has no name of its own.
pub(crate) const OWN_USER_AGENT: &str = concat!("ctrlmesh-proxy/", env!("CARGO_PKG_VERSION"));

/// A request whose head is read.
pub(crate) struct Exchange<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) connection: Rc<Connection>,
    pub(crate) info: RequestInfo<'a>,
    pub(crate) uri: &'a Uri,
    pub(crate) record: Rc<Record>,
    /// The protocol that the client wants to upgrade to.
    pub(crate) upgrade: Option<HeaderValue>,
    /// The sidecar's own credentials were lent to it.
    pub(crate) is_lent: Cell<bool>,
}

/// Serves one request.
pub(crate) async fn handle(worker: Rc<Worker>, connection: Rc<Connection>, request: Request<IncomingBody>) -> Answer {
    let (mut parts, mut incoming) = request.into_parts();
    let sent = std::mem::take(&mut parts.uri);
    let method = parts.method.clone();
    let parsed = RequestInfo::parse(method.as_str(), sent.path(), sent.query());
    let verb = parsed.as_ref().map_or(Verb::NonResource, |info| info.verb);
    let record = Record::new(&worker.metrics, Class::Api(verb), method.clone(), sent.clone());
    let held = record.set_place(connection.begin_request(), head_size(&sent, &parts.headers));
    let held = held.and_then(|()| incoming.hold(&connection));
    let read = held.map_err(|error| Reply::over_bound(error, true)).and_then(|()| {
        check(&parts, &sent)?;
        let info = parsed.map_err(bad_request)?;
        info.check_path(sent.path()).map_err(bad_request)?;
        let upgrade = headers::strip(&mut parts.headers).map_err(bad_request)?;
        let cleaned = info.path_without_empty_namespace();
        Ok((info, upgrade, cleaned.map(|path| with_path(&sent, path)).transpose()?))
    });
    let refused = |reply, parts: &Parts| Ok(answer(&record, &Accept::of(&parts.headers), reply));
    let (info, upgrade, cleaned) = match read {
        Ok(read) => read,
        Err(reply) => return refused(reply, &parts),
    };
    let (info, uri) = match &cleaned {
        None => (info, &sent),
        Some(uri) => match RequestInfo::parse(method.as_str(), uri.path(), uri.query()) {
            Ok(info) => (info, uri),
            Err(error) => return refused(bad_request(error), &parts),
        },
    };
    let upgrade = upgrade.filter(|_| info.may_upgrade());
    let exchange = Exchange {
        worker: &worker,
        connection,
        info,
        uri,
        record,
        upgrade,
        is_lent: Cell::new(false),
    };
    match exchange.matched(&parts) {
        // The long way is boxed, so that the short way's future stays small.
        Some(guarded) => Box::pin(guarded.serve(exchange, parts, incoming)).await,
        None => exchange.pass(parts, incoming).await,
    }
}

/// Whether it is one of those that who waits for a shard to be given up waits for. Streams (exec, port-forward, proxies) go on
/// for hours, and change no object.
fn may_change_objects(info: &RequestInfo<'_>) -> bool {
    let is_write = matches!(
        info.verb,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection
    );
    is_write && !info.is_long_running()
}

fn check(parts: &Parts, uri: &Uri) -> Result<(), Reply> {
    if uri.authority().is_some() && uri.scheme().is_none() {
        return Err(Reply::bad_request("the request target is a host and not a path"));
    }
    if uri
        .path_and_query()
        .is_some_and(|target| target.as_str().len() > MAX_URI)
    {
        return Err(Reply::uri_too_long(MAX_URI));
    }
    headers::check_host(parts).map_err(bad_request)
}

fn bad_request(error: impl std::fmt::Display) -> Reply {
    Reply::bad_request(error.to_string())
}

/// The same query behind another path.
fn with_path(uri: &Uri, path: String) -> Result<Uri, Reply> {
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    target.parse().map_err(bad_request)
}

impl Exchange<'_> {
    /// The plugins that want this request, or its watch when the chain changes.
    fn matched(&self, parts: &Parts) -> Option<Guarded> {
        let (snapshot, begun) = match self.info.verb {
            Verb::Watch => {
                // First, so that a chain that comes into force from here on is heard.
                let listener = self.worker.signal.listen();
                let (snapshot, ticket) = self.worker.enter(Kind::Watch);
                (snapshot, Some(Begun { listener, ticket }))
            }
            Verb::List => {
                let (snapshot, ticket) = self.worker.enter(Kind::List);
                self.record.set_list(ticket);
                (snapshot, None)
            }
            _ if may_change_objects(&self.info) => {
                let (snapshot, ticket) = self.worker.enter(Kind::Write);
                self.record.set_write(ticket);
                (snapshot, None)
            }
            _ => (self.worker.chain.load(), None),
        };
        let matched = snapshot.matching(&self.query(&parts.headers));
        if matched.is_empty() && !self.needs_guard() {
            return None;
        }
        Some(Guarded::new(self, parts, snapshot.clone(), matched, begun))
    }

    /// Watches are guarded even if no plugin wants them now: a new chain may, and draining ends them. So are collections
    /// that were once shaped.
    fn needs_guard(&self) -> bool {
        match self.info.verb {
            Verb::Watch => true,
            Verb::List => self.worker.ledger.is_used(),
            _ => false,
        }
    }

    fn query<'q>(&'q self, headers: &'q HeaderMap) -> MatchQuery<'q> {
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
            user_agent: user_agent(headers),
        }
    }

    /// The short way: as it came, with credentials if it has none.
    async fn pass(&self, mut parts: Parts, incoming: IncomingBody) -> Answer {
        self.dress(&mut parts.headers);
        if self.upgrade.is_some() {
            let body = RequestBody::new(incoming, &self.record);
            return Ok(
                match Box::pin(upgrade::send(self, parts, body, self.uri.clone())).await {
                    Offered::Switched(switched) => upgrade::switch(self, switched, None),
                    Offered::Ordinary(response) => ClientBody::upstream(response, &self.record),
                    Offered::Failed(response) => response,
                },
            );
        }
        let body = RequestBody::new(incoming, &self.record);
        let accept = Accept::of(&parts.headers);
        match self.send(&parts.method, parts.headers, self.uri.clone(), body).await {
            Ok(response) => Ok(ClientBody::upstream(response, &self.record)),
            Err(error) => Ok(self.failed(&error, &accept)),
        }
    }

    /// Credentials and name, where the client has none of its own.
    pub(crate) fn dress(&self, headers: &mut HeaderMap) {
        headers.remove(HOST);
        if !headers::has_credentials(headers) {
            self.is_lent.set(true);
            self.worker.credentials().apply(headers);
        }
        if !headers.contains_key(USER_AGENT) {
            headers.insert(USER_AGENT, HeaderValue::from_static(OWN_USER_AGENT));
        }
    }

    /// Sends upstream; the response's head is clean of hop-by-hop fields.
    pub(crate) async fn send(
        &self,
        method: &Method,
        headers: HeaderMap,
        uri: Uri,
        body: RequestBody,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.headers_mut() = headers;
        *request.uri_mut() = uri;
        if self.info.is_long_running() {
            request.extensions_mut().insert(HeadTimeout(None));
        }
        let sent = Instant::now();
        self.record.sent();
        let upstream = self.worker.upstream(self.is_lent.get());
        let result = upstream.send_within(request, Some(self.record.clone())).await;
        self.record.ended(Fate::of(&result));
        let mut response = result?;
        headers::strip_response(response.headers_mut());
        // The client's protocol is its own, whatever the API server speaks.
        *response.version_mut() = Version::default();
        self.received(response.status(), sent);
        Ok(response)
    }

    /// Notes a response head.
    pub(crate) fn received(&self, status: StatusCode, sent: Instant) {
        if status == StatusCode::UNAUTHORIZED && self.is_lent.get() {
            self.worker.credentials().refresh_now();
        }
        if hidden::exists(self.info.verb, &self.info.subresource, status) {
            hidden::count(self);
        }
        self.record.set_upstream(status.as_u16(), sent.elapsed());
        self.record.set_status(status.as_u16());
    }

    /// The answer to a request that could not be sent.
    pub(crate) fn failed(&self, error: &SendError, accept: &Accept) -> Response<ClientBody> {
        tracing::debug!(%error, path = self.uri.path(), "request failed");
        let repeatable = matches!(self.info.verb, Verb::Get | Verb::List | Verb::Watch);
        answer(
            &self.record,
            accept,
            Reply::upstream(error, "the API server", repeatable),
        )
    }

    /// Ends the exchange as a plugin asked.
    pub(crate) async fn stop(&self, stop: Stop, accept: &Accept) -> Answer {
        ending::stop(&self.connection, &self.record, stop, accept).await
    }
}

/// The client's name, empty if it is not text.
pub(crate) fn user_agent(headers: &HeaderMap) -> &str {
    headers
        .get(USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}
