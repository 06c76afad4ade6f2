//! Selects the requests that plugins see, and the chain for each: the only decision that every request pays for.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::request::Parts;

use super::exchange::{Exchange, user_agent};
use super::filtered::FilteredRequest;
use crate::chain::phases::Plugins;
use crate::chain::{Kind, Matched, Snapshot};
use crate::plugin::request_view::{ClientHeaders, RequestState, RequestView};
use crate::plugin::verdict::Traffic;
use crate::stream::watch::WatchStart;

/// The plugins that want this request, or may want its watch when the chain changes. The header fields move into their view. `None` lets
/// the request pass unfiltered.
pub(super) fn select_plugins(exchange: &Exchange<'_>, parts: &mut Parts) -> Option<FilteredRequest> {
    let worker = exchange.worker;
    let (snapshot, watch_start) = match exchange.info.verb {
        Verb::Watch => {
            // The subscription comes first, so that a chain that comes into force from here on is not missed.
            let listener = worker.notifier.listen();
            let (snapshot, in_flight_guard) = worker.begin_request(Kind::Watch);
            (
                snapshot,
                Some(WatchStart {
                    listener,
                    in_flight_guard,
                }),
            )
        }
        Verb::List => {
            let (snapshot, in_flight_guard) = worker.begin_request(Kind::List);
            exchange.record.set_list(in_flight_guard);
            (snapshot, None)
        }
        _ if may_change_objects(exchange.info) => {
            let (snapshot, in_flight_guard) = worker.begin_request(Kind::Write);
            exchange.record.set_write(in_flight_guard);
            (snapshot, None)
        }
        _ => (worker.shared.chain.load(), None),
    };
    let user_agent = user_agent(&parts.headers);
    let matched = exchange.matching_entries(&snapshot, user_agent);
    if matched.is_empty() && !must_be_filtered(exchange) {
        return None;
    }
    let is_lock = worker.shared.leader_locks.is_lock(exchange.info, user_agent);
    let plugins = plugins_of(exchange, parts, is_lock, snapshot.clone(), matched);
    Some(FilteredRequest::new(plugins, watch_start))
}

/// Watches are filtered even if no plugin wants them now, because a new chain may, and draining ends them. Lists are filtered once any view
/// was shaped, because from then on every list notes its view.
fn must_be_filtered(exchange: &Exchange<'_>) -> bool {
    match exchange.info.verb {
        Verb::Watch => true,
        Verb::List => exchange.worker.shared.list_views.is_used(),
        _ => false,
    }
}

/// Whether the request counts as a write in flight, which the hand-over of a shard waits for. Streams (exec, port-forward, proxies) go on
/// for hours and change no object.
fn may_change_objects(info: &RequestInfo<'_>) -> bool {
    let is_write = matches!(
        info.verb,
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection
    );
    is_write && !info.is_long_running()
}

fn plugins_of(
    exchange: &Exchange<'_>,
    parts: &mut Parts,
    is_lock: bool,
    snapshot: Arc<Snapshot>,
    matched: Matched,
) -> Rc<Plugins> {
    let worker = exchange.worker;
    let view = RequestView {
        traffic: Traffic::Api,
        facts: exchange.facts(),
        method: parts.method.clone(),
        uri: exchange.uri.clone(),
        host: Rc::clone(worker.host()),
        port: worker.port(),
        is_leader_lock: Cell::new(is_lock),
        headers: ClientHeaders::new(std::mem::take(&mut parts.headers)),
        state: RequestState::default(),
    };
    let plugins = Plugins::new(snapshot, matched, Rc::new(view), Rc::clone(&worker.instances));
    let plugins = Rc::new(plugins);
    exchange.record.set_plugins(Rc::clone(&plugins));
    plugins
}
