//! Hides a shard's objects from a controller that may still lead by the lock of another shard.
//!
//! When a running pod changes shards, its controller does not know. It believes that it leads until its renew deadline, which is earlier
//! than the end of its lease, and meanwhile another pod leads in the new shard. So lists and watches that the chain narrows show nothing
//! until the lease has ended, or until the controller leads by its new lock. Writes that pass only for some objects are refused meanwhile:
//! the controller may name an object from its queue.
//!
//! Cost: nothing for controllers that do not lead by a renamed lock; for others a call of the plugin that renames it, for each narrowed
//! list, each start of a narrowed watch, and each write of an object that an entry requires.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ctrlmesh_contract::names::labels::NO_OBJECT_KEY;
use ctrlmesh_wire::{RequestInfo, Verb};
use http::{Method, Uri};
use tokio::time::Instant;

use super::worker::Worker;
use crate::chain::EntryId;
use crate::chain::phases::{Attributed, Plugins};
use crate::controller_state::leadership::HeldLock;
use crate::plugin::request_view::{ClientHeaders, Facts, RequestState, RequestView};
use crate::plugin::verdict::{ObjectRefusal, RequestEdit, Traffic};

/// How often a watch that shows nothing checks whether the controller leads by its new lock.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Adds an edit that hides all objects, if an entry narrows what the controller sees and also gives a lock another name by which the
/// controller may still lead. Other entries may be another controller's. Returns when to check again.
pub(super) fn hide_objects(worker: &Worker, plugins: &Plugins, edits: &mut Vec<Attributed>) -> Option<Instant> {
    if !edits.iter().any(|(_, edit)| narrows_lists(edit)) {
        return None;
    }
    let held_locks = worker.shared.leadership.held_locks();
    let mut until = None;
    for held in &held_locks {
        let Some(owner) = renaming_entry(worker, plugins, held, &held_locks) else {
            continue;
        };
        if edits.iter().any(|(entry, edit)| *entry == owner && narrows_lists(edit)) {
            edits.push((
                owner,
                RequestEdit::AndLabelSelector(format!("{NO_OBJECT_KEY},!{NO_OBJECT_KEY}").into()),
            ));
            until = until.max(Some(held.until));
        }
    }
    Some(until?.min(Instant::now() + CHECK_INTERVAL))
}

/// The entry that refuses a write, because it requires an object and also gives a lock another name by which the controller may still
/// lead. `None`: none does. A get that is refused with a conflict opens a tunnel into a pod, so it is as good as a write.
pub(super) fn refusing_entry(worker: &Worker, plugins: &Plugins, edits: &[Attributed]) -> Option<EntryId> {
    let is_get = plugins.view.facts.verb == Verb::Get;
    let is_fence = |edit: &RequestEdit| match edit {
        RequestEdit::RequireObjectMatch(_, refusal) => !is_get || *refusal == ObjectRefusal::Conflict,
        _ => false,
    };
    if !edits.iter().any(|(_, edit)| is_fence(edit)) {
        return None;
    }
    let has_fence = |owner: &EntryId| edits.iter().any(|(entry, edit)| entry == owner && is_fence(edit));
    let held_locks = worker.shared.leadership.held_locks();
    let mut renaming = held_locks
        .iter()
        .filter_map(|held| renaming_entry(worker, plugins, held, &held_locks));
    renaming.find(has_fence)
}

fn narrows_lists(edit: &RequestEdit) -> bool {
    matches!(
        edit,
        RequestEdit::AndLabelSelector(_)
            | RequestEdit::AndFieldSelector(_)
            | RequestEdit::KeepObjects(_)
            | RequestEdit::AskAboutObjects(_)
    )
}

/// The entry that gives this lock another name, by which the controller does not lead.
fn renaming_entry(worker: &Worker, plugins: &Plugins, held: &HeldLock, all: &[HeldLock]) -> Option<EntryId> {
    let (entry, name) = name_in_force(worker, plugins, held)?;
    let is_led = |other: &HeldLock| other.name_at_api_server() == name && other.is_same_for_controller(held);
    (!all.iter().any(is_led)).then_some(entry)
}

/// The name that the chain gives to a lock, and the entry that does. `None`: it renames no such lock.
fn name_in_force(worker: &Worker, plugins: &Plugins, held: &HeldLock) -> Option<(EntryId, String)> {
    let uri: Uri = held.path().parse().ok()?;
    let info = RequestInfo::parse(Method::GET.as_str(), uri.path(), None).ok()?;
    let facts = Facts {
        verb: Verb::Get,
        subresource: String::new(),
        ..Facts::new(&info)
    };
    let view = RequestView {
        traffic: Traffic::Api,
        facts: Rc::new(facts),
        method: Method::GET,
        uri: uri.clone(),
        host: Rc::clone(worker.host()),
        port: worker.port(),
        is_leader_lock: Cell::new(true),
        headers: ClientHeaders::default(),
        state: RequestState::default(),
    };
    let edits = plugins.of_same_chain(view).recheck()?;
    edits.into_iter().find_map(|(entry, edit)| match edit {
        RequestEdit::RenameObject { to, .. } => Some((entry, to)),
        _ => None,
    })
}
