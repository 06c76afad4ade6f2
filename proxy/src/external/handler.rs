//! One external request, top to bottom: read, match, call the plugins, edit, send, call the plugins again, respond.
//!
//! All three ways in use it; for CONNECT, `tunnel` connects instead of sending. A request that no plugin wants allocates nothing for
//! plugins.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use ctrlmesh_wire::Verb;
use http::header::HOST;
use http::request::Parts;
use http::{Request, Response, Version};
use percent_encoding::percent_decode_str;

use super::call::Call;
use super::destination::{Destination, DestinationError, ENDPOINT, proxy_form_of};
use super::{External, edit, tunnel};
use crate::chain::MatchQuery;
use crate::chain::phases::{Plugins, RequestDecision};
use crate::connection::head_size;
use crate::connection::{Connection, IncomingBody};
use crate::observe::record::Record;
use crate::observe::{Class, ProxyForm};
use crate::plugin::request_view::{ClientHeaders, Facts, RequestState, RequestView};
use crate::plugin::verdict::Traffic;
use crate::request::early_response::{ServeResult, sidecar_response};
use crate::request::exchange::user_agent;
use crate::request::headers;
use crate::request::worker::Worker;
use crate::respond::{Accept, Reply};
use crate::stream::body::{BoxBody, ClientBody, RequestBody};
use crate::stream::shape::ShapedBody;

pub(crate) async fn handle(
    worker: Rc<Worker>,
    external: Rc<External>,
    connection: Rc<Connection>,
    request: Request<IncomingBody>,
) -> ServeResult {
    let (mut parts, mut incoming) = request.into_parts();
    let accept = Accept::from_headers(&parts.headers);
    let form = proxy_form_of(&parts.method, &parts.headers);
    let read = match parts.version == Version::HTTP_11 && !parts.headers.contains_key(HOST) {
        true => Err(DestinationError::NoHost),
        false => Destination::read(form, &parts.uri, &parts.headers),
    };
    let uri = read.as_ref().map_or(&parts.uri, |destination| &destination.uri);
    let record = Record::new(
        &worker.shared.metrics,
        Class::External(form),
        parts.method.clone(),
        uri.clone(),
    );
    let held = record.set_guard(connection.begin_request(), head_size(&parts.uri, &parts.headers));
    if let Err(error) = held.and_then(|()| incoming.hold(&connection)) {
        return Ok(sidecar_response(&record, &accept, Reply::over_bound(error, true)));
    }
    if parts.headers.len() > headers::MAX_FIELDS {
        return Ok(sidecar_response(
            &record,
            &accept,
            Reply::too_many_fields(headers::MAX_FIELDS),
        ));
    }
    let destination = match read {
        Ok(destination) => destination,
        Err(error) => return Ok(sidecar_response(&record, &accept, bad_destination(&error))),
    };
    if let Err(why) = external.shared.check_name(&destination.host(), destination.target.port) {
        return Ok(sidecar_response(&record, &accept, Reply::forbidden(why)));
    }
    parts.headers.remove(ENDPOINT);
    headers::strip_forwarded(&mut parts.headers);
    let call = Call {
        worker,
        external,
        connection,
        destination,
        record,
        accept,
    };
    match call.matching_plugins(&mut parts) {
        Some(plugins) => Box::pin(call.send_filtered(&plugins, parts, incoming)).await,
        None => call.send_unfiltered(parts, incoming).await,
    }
}

/// The response to a request without a clear destination.
fn bad_destination(error: &DestinationError) -> Reply {
    match error {
        DestinationError::TooLong { limit } => Reply::uri_too_long(*limit),
        DestinationError::OddAddress { .. } => Reply::forbidden(error.to_string()),
        _ => Reply::bad_request(error.to_string()),
    }
}

impl Call {
    /// The plugins that want this request. If there are any, the header fields move into their view.
    fn matching_plugins(&self, parts: &mut Parts) -> Option<Rc<Plugins>> {
        let snapshot = self.worker.shared.chain.load();
        let matched = snapshot.matching_entries(&MatchQuery {
            traffic: Traffic::External,
            verb: Verb::NonResource,
            group: "",
            resource: "",
            subresource: "",
            namespace: "",
            name: "",
            path: &self.path(),
            host: &self.destination.host(),
            user_agent: user_agent(&parts.headers),
        });
        if matched.is_empty() {
            return None;
        }
        let view = Rc::new(self.request_view(parts));
        let plugins = Rc::new(Plugins::new(
            snapshot.clone(),
            matched,
            view,
            Rc::clone(&self.worker.instances),
        ));
        self.record.set_plugins(Rc::clone(&plugins));
        Some(plugins)
    }

    /// Decoded; otherwise a rule for `/admin` would not match `/%61dmin`. Empty for CONNECT.
    fn path(&self) -> Cow<'_, str> {
        percent_decode_str(self.destination.uri.path()).decode_utf8_lossy()
    }

    fn request_view(&self, parts: &mut Parts) -> RequestView {
        RequestView {
            traffic: Traffic::External,
            facts: Rc::new(Facts::without_resource()),
            method: parts.method.clone(),
            uri: self.destination.uri.clone(),
            host: self.destination.host().into(),
            port: self.destination.target.port,
            is_leader_lock: Cell::new(false),
            headers: ClientHeaders::new(std::mem::take(&mut parts.headers)),
            state: RequestState::default(),
        }
    }

    async fn send_unfiltered(&self, parts: Parts, incoming: IncomingBody) -> ServeResult {
        if self.destination.form == ProxyForm::Connect {
            return Box::pin(tunnel::open_tunnel(self, parts, None)).await;
        }
        let body = RequestBody::new(incoming, &self.record);
        match self.send(parts.method, parts.headers, None, body).await {
            Ok(response) => Ok(ClientBody::upstream(response, &self.record)),
            Err(reply) => Ok(self.sidecar_response(reply)),
        }
    }

    async fn send_filtered(&self, plugins: &Plugins, mut parts: Parts, incoming: IncomingBody) -> ServeResult {
        let mut edits = match plugins.on_request().await {
            RequestDecision::Proceed(edits) => edits,
            RequestDecision::Stop(stop) => return self.stop(stop).await,
        };
        let applied = plugins.apply_edits(&mut edits, |edits| edit::apply(&self.destination.uri, edits));
        let target = match applied {
            Ok(target) => target,
            Err(reply) => return Ok(self.sidecar_response(reply)),
        };
        parts.headers = plugins.headers_to_send(&edits);
        parts.headers.remove(ENDPOINT);
        if self.destination.form == ProxyForm::Connect {
            return tunnel::open_tunnel(self, parts, Some(plugins)).await;
        }
        let body = RequestBody::new(incoming, &self.record);
        let response = match self.send(parts.method, parts.headers, target, body).await {
            Ok(response) => response,
            Err(reply) => return Ok(self.sidecar_response(reply)),
        };
        let (mut head, body) = response.into_parts();
        let shapes = match plugins.edit_response(&mut head, &self.connection).await {
            Ok(shapes) => shapes,
            Err(stop) => return self.stop(stop).await,
        };
        if shapes.is_empty() {
            return Ok(ClientBody::upstream(Response::from_parts(head, body), &self.record));
        }
        let shaped = shapes.into_iter().fold(Box::pin(body) as BoxBody, |body, shape| {
            Box::pin(ShapedBody::new(body, shape, None, Rc::clone(&self.connection)))
        });
        Ok(ClientBody::boxed(head, shaped, &self.record))
    }
}
