//! The input of plugins: a request and its response, owned, parsed once, shared with the guest by handle.
//!
//! Created only for requests that some entry wants (`request/filtered.rs`); leaves the parsing to `ctrlmesh-wire`.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use ctrlmesh_wire::{RequestInfo, Verb};

use crate::plugin::held_place::HeldPlace;
use crate::plugin::verdict::Traffic;

/// A request as plugins see it (WIT `exchange.request`).
#[derive(Debug, Clone)]
pub struct RequestView {
    pub traffic: Traffic,
    pub facts: Rc<Facts>,
    pub method: http::Method,
    /// Path and query as sent; `path()` and `query()` decode on demand.
    pub uri: http::Uri,
    /// Host name without port.
    pub host: Rc<str>,
    pub port: u16,
    /// Whether the request is about the lock of a leader election. For some requests only the body shows it
    /// (`controller_state/leader_locks.rs`).
    pub is_leader_lock: Cell<bool>,
    pub headers: ClientHeaders,
    /// State that entries keep for the request.
    pub state: RequestState,
}

/// What method and target say about a request, in the terms of [`RequestInfo`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub verb: Verb,
    /// API group; empty for the core group.
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Namespace; empty if there is none.
    pub namespace: String,
    /// Object name; empty if there is none.
    pub name: String,
}

impl Facts {
    #[must_use]
    pub fn new(info: &RequestInfo<'_>) -> Self {
        Self {
            verb: info.verb,
            group: info.group.to_string(),
            version: info.version.to_string(),
            resource: info.resource.to_string(),
            subresource: info.subresource.to_string(),
            namespace: info.namespace.to_string(),
            name: info.name.to_string(),
        }
    }

    /// The facts of a request that is about no resource.
    #[must_use]
    pub const fn without_resource() -> Self {
        Self {
            verb: Verb::NonResource,
            group: String::new(),
            version: String::new(),
            resource: String::new(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
        }
    }
}

/// Header fields as sent by the client. They are here until the request is sent, and then only if a guest may still read them. Credentials
/// are filtered where a guest reads them.
#[derive(Debug, Clone, Default)]
pub struct ClientHeaders(RefCell<http::HeaderMap>);

impl ClientHeaders {
    #[must_use]
    pub fn new(fields: http::HeaderMap) -> Self {
        Self(RefCell::new(fields))
    }

    /// The fields, for reading.
    pub fn borrow(&self) -> Ref<'_, http::HeaderMap> {
        self.0.borrow()
    }

    pub(crate) fn get_mut(&mut self) -> &mut http::HeaderMap {
        self.0.get_mut()
    }

    /// The fields, to be sent. They are copied only if they are to stay here.
    pub(crate) fn fields_to_send(&self, stay: bool) -> http::HeaderMap {
        if stay { self.0.borrow().clone() } else { self.0.take() }
    }
}

/// State that entries keep for one request: a number for each entry, and the places that it holds.
#[derive(Debug, Default)]
pub struct RequestState {
    /// By the identity of the entry's state, which outlives a reload.
    notes: RefCell<Vec<(usize, u64)>>,
    /// Released when the request is over.
    places: RefCell<Vec<HeldPlace>>,
    rules: RefCell<Vec<NamedRule>>,
}

/// The part of a verdict that a named rule decided (WIT `report.part`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Delay,
    Action,
}

/// A rule that a plugin names as a reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedRule {
    pub(crate) name: String,
    pub(crate) decides: Part,
}

/// Maximum number of rules that one call may name: no verdict depends on more.
const MAX_NAMED_RULES: usize = 8;
/// Maximum length of a rule's name, in bytes; object names are rarely longer.
const MAX_RULE_NAME_BYTES: usize = 64;

impl Clone for RequestState {
    /// A copy belongs to another request, so it has no notes and holds nothing.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl RequestState {
    /// The number that an entry has noted; 0 initially.
    pub(crate) fn note(&self, entry: usize) -> u64 {
        let notes = self.notes.borrow();
        notes
            .iter()
            .find(|(owner, _)| *owner == entry)
            .map_or(0, |(_, note)| *note)
    }

    pub(crate) fn set_note(&self, entry: usize, value: u64) {
        let mut notes = self.notes.borrow_mut();
        match notes.iter_mut().find(|(owner, _)| *owner == entry) {
            Some((_, note)) => *note = value,
            None => notes.push((entry, value)),
        }
    }

    /// Keeps places until the request is over.
    pub(crate) fn hold(&self, taken: Vec<HeldPlace>) {
        let mut places = self.places.borrow_mut();
        if places.is_empty() {
            *places = taken;
        } else {
            places.extend(taken);
        }
    }

    /// Adds a rule that the plugin of the current call names. Returns `false` if it is dropped because there are too many.
    pub(crate) fn name_rule(&self, name: &str, decides: Part) -> bool {
        let mut rules = self.rules.borrow_mut();
        let has_room = rules.len() < MAX_NAMED_RULES;
        if has_room {
            let name = rule_name(name);
            rules.push(NamedRule { name, decides });
        }
        has_room
    }

    /// Takes the rules that were named since the last call.
    pub(crate) fn take_named_rules(&self) -> Vec<NamedRule> {
        self.rules.take()
    }

    /// Releases the places when the request is over.
    pub(crate) fn release(&self) {
        self.places.take();
    }
}

/// The text of a header field; `None` if it is not ASCII. The same as `HeaderValue::to_str`, which looks at each byte for itself.
pub(crate) fn header_text(value: &http::HeaderValue) -> Option<&str> {
    let text = std::str::from_utf8(value.as_bytes()).ok()?;
    text.is_ascii().then_some(text)
}

/// A rule's name, fit for display.
pub(crate) fn rule_name(name: &str) -> String {
    printable(name, MAX_RULE_NAME_BYTES)
}

/// At most `max_bytes` of the text, without control characters.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn places_of_several_calls_are_held_until_request_is_over() {
        let (taken, state) = (Arc::new(AtomicU32::new(0)), RequestState::default());
        for places in 1..=3 {
            state.hold(vec![HeldPlace::take(&taken)]);
            assert_eq!(taken.load(Ordering::Relaxed), places);
        }
        state.release();
        assert_eq!(taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn header_text_is_what_http_takes_for_text() {
        for byte in 0..=u8::MAX {
            if let Ok(value) = http::HeaderValue::from_bytes(&[b'a', byte, b'b']) {
                assert_eq!(header_text(&value), value.to_str().ok(), "{byte}");
            }
        }
        let value = http::HeaderValue::from_bytes("ä".as_bytes()).unwrap();
        assert_eq!(header_text(&value), None);
    }
}
