//! Whether an open watch may continue under a new chain.

use std::rc::Rc;
use std::sync::Arc;

use arc_swap::Guard;
use ctrlmesh_wire::{ParsedQuery, RequestInfo};
use tokio::time::{Instant, sleep_until};

use super::exchange::Exchange;
use super::{earlier_lock, edit};
use crate::chain::phases::{Attributed, EditError, Plugins, shaping_entries};
use crate::chain::{EntryId, Kind, MatchQuery};
use crate::controller_state::list_views::Position;
use crate::plugin::verdict::RequestEdit;
use crate::stream::watch::{SameView, WatchStart, Watching};

/// The reaction of an open watch to a new chain: it calls that chain's plugins for their edits, without effects, and ends if the chain
/// would show it another view.
pub(super) fn watch_reaction(
    exchange: &Exchange<'_>,
    plugins: &Rc<Plugins>,
    start: WatchStart,
    edits: Vec<Attributed>,
    again: Option<Instant>,
    position: Option<Position>,
) -> Watching {
    let worker = Rc::clone(exchange.worker);
    let view = Rc::clone(&plugins.view);
    let plugins = Rc::clone(plugins);
    let owners: Vec<EntryId> = shaping_entries(&edits).collect();
    let before: Vec<RequestEdit> = view_of(edits);
    let recheck = Box::new(move || {
        worker.shared.metrics.rechecks.inc();
        let (snapshot, in_flight_guard) = worker.begin_request(Kind::Watch);
        let snapshot = Guard::into_inner(snapshot);
        let matched = snapshot.matching_entries(&MatchQuery::new(&view, &view.headers.borrow()));
        let plugins = Plugins::new(snapshot, matched, Rc::clone(&view), Rc::clone(&worker.instances));
        let mut edits = possible_edits(&plugins, plugins.recheck()?)?;
        let again = earlier_lock::hide_objects(&worker, &plugins, &mut edits);
        (view_of(edits) == before).then_some(SameView { in_flight_guard, again })
    });
    let metrics = Arc::clone(&exchange.worker.shared.metrics);
    let on_expired = Rc::new(move || {
        metrics.watches_expired.inc();
        plugins.expired(owners.iter().copied());
    });
    Watching {
        start,
        recheck,
        again: again.map(|at| Box::pin(sleep_until(at))),
        on_expired,
        position,
    }
}

/// Leaves out the edits of entries whose edits are impossible, as `prepare` did when the watch began. Returns `None` if such an entry fails
/// closed.
fn possible_edits(plugins: &Plugins, mut edits: Vec<Attributed>) -> Option<Vec<Attributed>> {
    let view = &plugins.view;
    let Ok(info) = RequestInfo::parse(view.method.as_str(), view.uri.path(), view.uri.query()) else {
        return Some(edits);
    };
    let query = ParsedQuery::new(view.uri.query().unwrap_or_default());
    while let Err(EditError::Plugin { entry, .. }) = edit::apply(&info, &view.uri, &query, &edits) {
        if plugins.fails_closed(entry) {
            return None;
        }
        edits.retain(|(owner, _)| *owner != entry);
    }
    Some(edits)
}

fn view_of(edits: Vec<Attributed>) -> Vec<RequestEdit> {
    edits
        .into_iter()
        .map(|(_, edit)| edit)
        .filter(RequestEdit::shapes_view)
        .collect()
}
