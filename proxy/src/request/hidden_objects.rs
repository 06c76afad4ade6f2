//! Counts creates of objects that already exist but that a shard hides from the controller. The controller never finds them and creates
//! them again and again; the metric explains why it loops on "already exists".
//!
//! Any other response costs one comparison.

use std::cell::Cell;
use std::rc::Rc;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::{Method, StatusCode, Uri};

use crate::chain::MatchQuery;
use crate::chain::phases::Plugins;
use crate::plugin::request_view::{ClientHeaders, Facts, RequestState, RequestView};
use crate::plugin::verdict::{RequestEdit, Traffic};
use crate::request::worker::Worker;

/// Whether the response means that the object already exists: for a create, 409 has no other common reason.
pub(crate) fn is_already_exists(verb: Verb, subresource: &str, status: StatusCode) -> bool {
    status == StatusCode::CONFLICT && verb == Verb::Create && subresource.is_empty()
}

/// Counts a create whose object exists, for each entry that filters lists of this kind in that namespace.
pub(crate) fn count_hidden_create(worker: &Worker, info: &RequestInfo<'_>, uri: &Uri) {
    let snapshot = worker.shared.chain.current();
    let view = list_of(worker, info, uri);
    let matched = snapshot.matching_entries(&MatchQuery::new(&view, &view.headers.borrow()));
    if matched.is_empty() {
        return;
    }
    let instances = Rc::clone(&worker.instances);
    let plugins = Plugins::new(std::sync::Arc::clone(&snapshot), matched, Rc::new(view), instances);
    let edits = plugins.recheck().unwrap_or_default();
    for entry in snapshot.entries() {
        let narrows = |edit: &RequestEdit| {
            matches!(
                edit,
                RequestEdit::AndLabelSelector(_)
                    | RequestEdit::AndFieldSelector(_)
                    | RequestEdit::KeepObjects(_)
                    | RequestEdit::AskAboutObjects(_)
            )
        };
        if edits.iter().any(|(owner, edit)| *owner == entry.id && narrows(edit)) {
            worker.shared.metrics.create_of_existing(&entry.name);
        }
    }
}

/// A list request for the created object's kind and namespace.
fn list_of(worker: &Worker, info: &RequestInfo<'_>, uri: &Uri) -> RequestView {
    let facts = Facts {
        verb: Verb::List,
        subresource: String::new(),
        name: String::new(),
        ..Facts::new(info)
    };
    RequestView {
        traffic: Traffic::Api,
        facts: Rc::new(facts),
        method: Method::GET,
        uri: uri.clone(),
        host: Rc::clone(worker.host()),
        port: worker.port(),
        is_leader_lock: Cell::new(false),
        headers: ClientHeaders::default(),
        state: RequestState::default(),
    }
}
