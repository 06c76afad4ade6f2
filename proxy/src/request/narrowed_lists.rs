//! Remembers how plugins' label selectors narrowed a list, so that a list that a controller repeats is not parsed, edited and hashed again.
//!
//! Guarantees: a remembered list is found only for the same path and query, user agent and representation, and the same selectors in the
//! same order. Texts are compared in full, never by their hashes. Nothing else decides the edited target and the note of the list's view,
//! so a new chain clears nothing: its other selectors are not found, and the next list replaces what was remembered. Bounded:
//! [`MAX_LISTS`] lists of [`MAX_LIST_BYTES`]. The list that was remembered first is dropped first, also if clients still repeat it: it is
//! then narrowed and remembered anew.
//!
//! Leaves to `edit` and `view_check`: lists that other edits change as well, later pages of lists, and watches, which do not repeat
//! because clients vary their timeouts.

use std::collections::VecDeque;

use ctrlmesh_wire::{RequestInfo, Verb};
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};

use crate::chain::phases::Attributed;
use crate::controller_state::list_views::{NotedList, Representation};
use crate::plugin::label_selector::PluginLabelSelector;
use crate::plugin::verdict::RequestEdit;

/// Maximum number of lists that a thread remembers. Few controllers repeat lists of more collections, and a search compares the lengths of
/// all.
const MAX_LISTS: usize = 64;

/// Maximum memory of a remembered list, in bytes. Longer ones are rare, and all lists of a thread fit in 256 KiB.
const MAX_LIST_BYTES: usize = 4 << 10;

/// The parts of a list request that determine its edited target and the note of its view.
#[derive(Clone, Copy)]
pub(super) struct ListRequest<'a> {
    /// Path and query as the client sent them.
    target: &'a str,
    user_agent: &'a str,
    representation: Representation,
    edits: &'a [Attributed],
}

impl<'a> ListRequest<'a> {
    /// Returns `None` if the request is no list, or if no edit changes its target. `headers` are the client's.
    pub(super) fn new(
        info: &RequestInfo<'_>,
        uri: &'a Uri,
        headers: &HeaderMap,
        user_agent: &'a str,
        edits: &'a [Attributed],
    ) -> Option<Self> {
        if info.verb != Verb::List || selectors_of(edits).next().is_none() {
            return None;
        }
        Some(Self {
            target: uri.path_and_query()?.as_str(),
            user_agent,
            representation: Representation::from_headers(headers),
            edits,
        })
    }
}

/// The label selectors of all edits that change the target; `None` for an edit of another kind.
fn selectors_of(edits: &[Attributed]) -> impl Iterator<Item = Option<&PluginLabelSelector>> {
    let edits = edits.iter().filter(|(_, edit)| edit.edits_target());
    edits.map(|(_, edit)| match edit {
        RequestEdit::AndLabelSelector(selector) => Some(selector),
        _ => None,
    })
}

/// A list that was narrowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NarrowedList {
    /// The edited target.
    pub(super) uri: Uri,
    pub(super) noted: NotedList,
}

struct RememberedList {
    target: Box<str>,
    user_agent: Box<str>,
    representation: Representation,
    selectors: Box<[PluginLabelSelector]>,
    narrowed: NarrowedList,
}

impl RememberedList {
    fn is_sent_as(&self, list: &ListRequest<'_>) -> bool {
        *self.target == *list.target
            && *self.user_agent == *list.user_agent
            && self.representation == list.representation
    }

    fn is_narrowed_by(&self, edits: &[Attributed]) -> bool {
        selectors_of(edits).eq(self.selectors.iter().map(Some))
    }
}

/// The lists that one thread remembers, the oldest first.
#[derive(Default)]
pub(super) struct NarrowedLists(VecDeque<RememberedList>);

impl NarrowedLists {
    /// How the same list was narrowed before.
    pub(super) fn find(&self, list: &ListRequest<'_>) -> Option<NarrowedList> {
        let mut lists = self.0.iter();
        let known = lists.find(|known| known.is_sent_as(list) && known.is_narrowed_by(list.edits))?;
        Some(known.narrowed.clone())
    }

    /// Remembers how a list was narrowed, unless it is too long or an edit is no label selector.
    pub(super) fn remember(&mut self, list: &ListRequest<'_>, narrowed: NarrowedList) {
        let selectors = selectors_of(list.edits).map(|selector| selector.cloned());
        let Some(selectors) = selectors.collect::<Option<Box<[PluginLabelSelector]>>>() else {
            return;
        };
        let edited = narrowed.uri.path_and_query().map_or("", PathAndQuery::as_str);
        let texts = list.target.len() + list.user_agent.len() + edited.len();
        let parsed: usize = selectors.iter().map(PluginLabelSelector::bytes).sum();
        if size_of::<RememberedList>() + texts + parsed > MAX_LIST_BYTES {
            return;
        }
        let remembered = RememberedList {
            target: list.target.into(),
            user_agent: list.user_agent.into(),
            representation: list.representation,
            selectors,
            narrowed,
        };
        // Other selectors come from another chain, so the replaced list is not looked up again.
        if let Some(at) = self.0.iter().position(|known| known.is_sent_as(list)) {
            self.0.remove(at);
        } else if self.0.len() == MAX_LISTS {
            self.0.pop_front();
        }
        self.0.push_back(remembered);
    }
}

#[cfg(test)]
mod tests;
