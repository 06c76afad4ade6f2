//! ONE REQUEST, TOP TO BOTTOM: parse, match, call the plugins, edit, send, call the plugins again, respond.
//!
//! A request that no plugin wants stays in this file: no plugin is called, and nothing is allocated for plugins. `filtered` serves the
//! others.

use std::cell::Cell;
use std::rc::Rc;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::request::Parts;
use http::{Request, Uri};

use super::early_response::{ServeResult, sidecar_response};
use super::exchange::Exchange;
use super::headers::{FoundFields, OwnFields};
use super::upgrade::{self, Offered};
use super::worker::Worker;
use super::{MAX_URI, headers, selection};
use crate::connection::{Connection, IncomingBody, target_size};
use crate::observe::Class;
use crate::observe::record::Record;
use crate::respond::{Accept, Reply};
use crate::stream::body::{ClientBody, RequestBody};

pub(crate) async fn handle(
    worker: Rc<Worker>,
    connection: Rc<Connection>,
    request: Request<IncomingBody>,
) -> ServeResult {
    let (mut parts, mut incoming) = request.into_parts();
    let sent = std::mem::take(&mut parts.uri);
    let class = Class::Api(Verb::NonResource);
    let record = Record::new(&worker.shared.metrics, class, parts.method.clone(), sent);
    let (method, sent) = (record.method().as_str(), record.uri());
    let target = worker.parsed_targets.borrow().read(method, sent);
    if let Ok(target) = &target {
        record.set_verb(target.info().verb);
    }
    let fields = FoundFields::new(&parts.headers);
    let held = record.set_guard(connection.begin_request(), target_size(sent) + fields.bytes);
    let held = held.and_then(|()| incoming.hold(&connection));
    let read = held.map_err(|error| Reply::over_bound(error, true)).and_then(|()| {
        check_head(&parts, sent, &fields)?;
        let target = target.as_ref().map_err(bad_request)?;
        let cleaned = target.check_path().map_err(bad_request)?;
        let upgrade = fields.strip_hop_by_hop(&mut parts.headers).map_err(bad_request)?;
        Ok((target, upgrade, cleaned.map(|path| with_path(sent, path)).transpose()?))
    });
    let refused = |reply, parts: &Parts| Ok(sidecar_response(&record, &Accept::from_headers(&parts.headers), reply));
    let (target, upgrade, cleaned) = match read {
        Ok(read) => read,
        Err(reply) => return refused(reply, &parts),
    };
    // Boxed, because hardly any target is cleaned.
    let cleaned_info = match &cleaned {
        None => None,
        Some(uri) => match RequestInfo::parse(method, uri.path(), uri.query()) {
            Ok(info) => Some(Box::new(info)),
            Err(error) => return refused(bad_request(error), &parts),
        },
    };
    let (info, uri) = match (&cleaned_info, &cleaned) {
        (Some(info), Some(uri)) => (&**info, uri),
        _ => (target.info(), sent),
    };
    if cleaned.is_none() {
        worker.parsed_targets.borrow_mut().remember(target);
    }
    let upgrade = upgrade.filter(|_| info.may_upgrade());
    let exchange = Exchange {
        worker: &worker,
        connection,
        info,
        remembered: target.remembered(),
        uri,
        record: &record,
        upgrade,
        uses_sidecar_credentials: Cell::new(false),
    };
    match selection::select_plugins(&exchange, &mut parts) {
        // Boxed, so that the future of an unfiltered request stays small.
        Some(filtered) => Box::pin(filtered.serve(&exchange, parts, incoming)).await,
        None => send_unfiltered(&exchange, parts, fields.own, incoming).await,
    }
}

/// Serves a request that no plugin wants: it is sent unchanged, with credentials if it has none.
async fn send_unfiltered(
    exchange: &Exchange<'_>,
    mut parts: Parts,
    own: OwnFields,
    incoming: IncomingBody,
) -> ServeResult {
    exchange.add_credentials(&mut parts.headers, own);
    if exchange.upgrade.is_some() {
        let body = RequestBody::new(incoming, exchange.record);
        return Ok(
            match Box::pin(upgrade::send_upgrade(exchange, parts, body, exchange.uri)).await {
                Offered::Switched(switched) => upgrade::switch_protocols(exchange, switched, None),
                Offered::Ordinary(response) => ClientBody::upstream(response, exchange.record),
                Offered::Failed(response) => response,
            },
        );
    }
    let body = RequestBody::new(incoming, exchange.record);
    let accept = Accept::from_headers(&parts.headers);
    // Nothing was waited for since the request arrived.
    let sent = exchange.record.start();
    match exchange.send(parts.headers, exchange.uri, body, sent).await {
        Ok(response) => Ok(ClientBody::upstream(response, exchange.record)),
        Err(error) => Ok(exchange.failure_response(&error, &accept)),
    }
}

fn check_head(parts: &Parts, uri: &Uri, fields: &FoundFields) -> Result<(), Reply> {
    if uri.authority().is_some() && uri.scheme().is_none() {
        return Err(Reply::bad_request("the request target is a host and not a path"));
    }
    if uri
        .path_and_query()
        .is_some_and(|target| target.as_str().len() > MAX_URI)
    {
        return Err(Reply::uri_too_long(MAX_URI));
    }
    // HTTP/2 bounds only their bytes.
    if parts.headers.len() > headers::MAX_FIELDS {
        return Err(Reply::too_many_fields(headers::MAX_FIELDS));
    }
    fields.check_host(parts.version).map_err(bad_request)
}

fn bad_request(error: impl std::fmt::Display) -> Reply {
    Reply::bad_request(error.to_string())
}

/// The URI with another path and the same query.
fn with_path(uri: &Uri, path: String) -> Result<Uri, Reply> {
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    target.parse().map_err(bad_request)
}
