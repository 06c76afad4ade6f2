//! What plugins are shown of a request and its response: owned, parsed once, shared with the guest by handle.
//!
//! Made only for requests that some entry wants (`guarded.rs`); leaves the parsing to `ctrlmesh-wire`.

use std::any::Any;
use std::cell::{Cell, RefCell};

use crate::plugin::verdict::Traffic;

/// A request as plugins see it (WIT `exchange.request`).
#[derive(Debug, Clone)]
pub struct RequestView {
    pub traffic: Traffic,
    pub verb: ctrlmesh_wire::Verb,
    /// API group; empty for the core group.
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Namespace; empty if there is none.
    pub namespace: String,
    /// Object name; empty if there is none.
    pub name: String,
    pub method: http::Method,
    /// Path and query as sent; `path()` and `query()` decode on demand.
    pub uri: http::Uri,
    /// Host name without port.
    pub host: String,
    pub port: u16,
    /// It is about the lock of a leader election. Found out late for some: the body tells (`leader_lock.rs`).
    pub is_leader_lock: Cell<bool>,
    /// Header fields as sent by the client. Credentials are filtered where a guest reads them.
    pub headers: http::HeaderMap,
    /// What entries keep with it.
    pub memory: Memory,
}

/// What entries keep with one request as long as it lives: a number each, and the places that it holds.
#[derive(Debug, Default)]
pub struct Memory {
    /// By the identity of the entry's state, which outlives a reload.
    notes: RefCell<Vec<(usize, u64)>>,
    /// Dropped when the request is over.
    guards: RefCell<Vec<Box<dyn Any>>>,
    rules: RefCell<Vec<NamedRule>>,
}

/// Which part of its verdict a plugin names a rule for (WIT `report.part`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Delay,
    Action,
}

/// A rule that a plugin names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedRule {
    pub(crate) name: String,
    pub(crate) decides: Part,
}

/// Rules that one call may name: as many as decide anything about a request.
const MAX_NAMED_RULES: usize = 8;
/// Bytes of a rule's name that are kept; an object's name is no longer as a rule.
const MAX_RULE_NAME_BYTES: usize = 64;

impl Clone for Memory {
    /// A copy is another request: it has no notes and holds nothing.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Memory {
    /// The number that an entry has noted; 0 at first.
    pub(crate) fn note(&self, entry: usize) -> u64 {
        let notes = self.notes.borrow();
        notes
            .iter()
            .find(|(owner, _)| *owner == entry)
            .map_or(0, |(_, note)| *note)
    }

    /// Notes a number for an entry.
    pub(crate) fn set_note(&self, entry: usize, value: u64) {
        let mut notes = self.notes.borrow_mut();
        match notes.iter_mut().find(|(owner, _)| *owner == entry) {
            Some((_, note)) => *note = value,
            None => notes.push((entry, value)),
        }
    }

    /// Keeps a guard until the request is over.
    pub(crate) fn hold(&self, guard: impl Any) {
        self.guards.borrow_mut().push(Box::new(guard));
    }

    /// Notes a rule that the plugin in hand names. `false` if it is dropped: one too many.
    pub(crate) fn name_rule(&self, name: &str, decides: Part) -> bool {
        let mut rules = self.rules.borrow_mut();
        let has_room = rules.len() < MAX_NAMED_RULES;
        if has_room {
            let name = rule_name(name);
            rules.push(NamedRule { name, decides });
        }
        has_room
    }

    /// The rules that were named since this was last asked.
    pub(crate) fn take_named_rules(&self) -> Vec<NamedRule> {
        self.rules.take()
    }

    /// The request is over: gives its places back.
    pub(crate) fn release(&self) {
        self.guards.take();
    }
}

/// A rule's name, as people are told of it.
pub(crate) fn rule_name(name: &str) -> String {
    printable(name, MAX_RULE_NAME_BYTES)
}

/// At most so many bytes of a text, without control characters.
pub(crate) fn printable(text: &str, max_bytes: usize) -> String {
    let cut = text.get(..text.floor_char_boundary(max_bytes)).unwrap_or_default();
    cut.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A response head as plugins see it (WIT `exchange.response-head`).
#[derive(Debug, Clone)]
pub struct ResponseView {
    pub status: http::StatusCode,
    /// Header fields as sent by the upstream.
    pub headers: http::HeaderMap,
}
