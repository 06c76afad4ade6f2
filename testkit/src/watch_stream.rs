//! Watches: one line of JSON or one frame of protobuf per event, sent at once. A watch pulls from the store's log when the client reads,
//! so that a slow client costs no memory: once the log has moved past its position, the watch ends with 410.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_wire::Query;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::activity::WatchGuard;
use crate::form::Form;
use crate::list::{VersionMatch, parse_flag, parse_number, parse_version_match};
use crate::object::{Object, set_metadata};
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::selection::Selection;
use crate::store::{Change, Compacted, Event, Store};

/// Longest watch; upstream ends each after 30 to 60 minutes if the client sets no timeout.
const LONGEST_WATCH: Duration = Duration::from_hours(1);

/// Changes taken from the log at once: few, so that a slow reader holds little memory.
const BATCH: usize = 64;

/// Requests to all open watches; each number counts how often the request was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    pub(crate) bookmark: u64,
    pub(crate) end: u64,
    pub(crate) expire: u64,
}

/// The options of a watch, without selectors.
#[derive(Debug, Clone)]
pub(crate) struct WatchOptions {
    resource_version: Option<u64>,
    timeout: Duration,
    bookmarks: bool,
    /// `sendInitialEvents`, if given.
    initial_events: Option<bool>,
}

impl WatchOptions {
    /// Reads and validates the options like apimachinery `pkg/apis/meta/internalversion/validation`.
    pub(crate) fn from_query(query: &Query<'_>) -> Result<Self, Refusal> {
        let initial_events = query.get("sendInitialEvents").map(|value| parse_flag(Some(&value)));
        let version_match = parse_version_match(query)?;
        let forbidden = |problem: &str| {
            Err(Refusal::bad_request(format!(
                "resourceVersionMatch: Forbidden: {problem}"
            )))
        };
        match (initial_events, version_match) {
            (Some(_), VersionMatch::NotOlderThan) | (None, VersionMatch::Unset) => {}
            (Some(_), _) => {
                return forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
            }
            (None, _) => {
                return forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
            }
        }
        if query.get("continue").is_some_and(|token| !token.is_empty()) {
            return Err(Refusal::bad_request(
                "continue: Forbidden: continue is forbidden for watch",
            ));
        }
        let timeout = match parse_number(query, "timeoutSeconds")? {
            None | Some(0) => LONGEST_WATCH,
            Some(seconds) => Duration::from_secs(seconds).min(LONGEST_WATCH),
        };
        let bookmarks = parse_flag(query.get("allowWatchBookmarks").as_deref());
        Ok(Self {
            resource_version: parse_number(query, "resourceVersion")?,
            timeout,
            bookmarks,
            initial_events,
        })
    }
}

#[derive(Debug)]
pub(crate) struct WatchTarget {
    pub(crate) store: Store,
    pub(crate) resource: Arc<Resource>,
    pub(crate) selection: Selection,
    pub(crate) form: Form,
    pub(crate) bookmark_every: Duration,
}

#[derive(Debug)]
pub(crate) struct Watch {
    subject: WatchTarget,
    collection: String,
    bookmarks: bool,
    deadline: Instant,
    next_bookmark: Instant,
    initial: VecDeque<Arc<Object>>,
    /// Whether the bookmark that ends the initial events is still to be sent.
    owes_initial_bookmark: bool,
    events: VecDeque<Arc<Event>>,
    /// All changes up to this resource version are sent or in `events`.
    reached: u64,
    is_first: bool,
    owes_bookmark: bool,
    /// End once all earlier changes are sent.
    is_timed_out: bool,
    is_over: bool,
    changed: watch::Receiver<u64>,
    signals: watch::Receiver<Signals>,
    seen_signals: Signals,
    _guard: WatchGuard,
}

enum WakeReason {
    Change,
    Signal,
    Bookmark,
    Deadline,
}

impl Watch {
    ///
    /// # Errors
    /// If the store has not reached the resource version. One that is too old is reported in the stream, like upstream does.
    pub(crate) fn open(
        subject: WatchTarget,
        options: &WatchOptions,
        signals: watch::Receiver<Signals>,
        guard: WatchGuard,
    ) -> Result<Self, Refusal> {
        let collection = subject.resource.qualified_name();
        let changed = subject
            .store
            .subscribe(&collection)
            .ok_or_else(Refusal::no_such_resource)?;
        let current = subject.store.resource_version();
        if let Some(asked) = options.resource_version.filter(|asked| *asked > current) {
            return Err(Refusal::resource_version_too_large(asked, current));
        }
        let asked = options.resource_version.filter(|version| *version > 0);
        // Without a version, a watch begins with the current state, as if all objects had just been created.
        let with_state = options.initial_events.unwrap_or(asked.is_none());
        let mut initial = VecDeque::new();
        let mut reached = asked.unwrap_or(current);
        if with_state {
            let (store, namespace) = (&subject.store, &subject.selection.namespace);
            let state = match options.resource_version {
                Some(version) => store.list_cached(&collection, namespace, version),
                None => store.list(&collection, namespace),
            };
            reached = state.resource_version;
            initial.extend(state.objects);
            initial.retain(|object| subject.selection.contains_object(&object.value));
        }
        let now = Instant::now();
        let seen_signals = *signals.borrow();
        Ok(Self {
            collection,
            bookmarks: options.bookmarks,
            deadline: now + options.timeout,
            next_bookmark: now + subject.bookmark_every,
            initial,
            owes_initial_bookmark: options.bookmarks && options.initial_events == Some(true),
            events: VecDeque::new(),
            reached,
            is_first: true,
            owes_bookmark: false,
            is_timed_out: false,
            is_over: false,
            changed,
            signals,
            seen_signals,
            subject,
            _guard: guard,
        })
    }

    /// The next event; `None` at the end of the watch.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over {
                return None;
            }
            if let Some(object) = self.initial.pop_front() {
                return Some(self.encode_line("ADDED", &object.value, &object.encoded));
            }
            if std::mem::take(&mut self.owes_initial_bookmark) {
                return Some(self.encode_bookmark(true));
            }
            while let Some(event) = self.events.pop_front() {
                if let Some(line) = self.encode_change(&event) {
                    return Some(line);
                }
            }
            self.changed.borrow_and_update();
            match self.subject.store.changes_since(&self.collection, self.reached, BATCH) {
                Ok((events, reached)) => (self.events, self.reached) = (events.into(), reached),
                Err(Compacted { oldest }) => {
                    let problem = format!("too old resource version: {} ({oldest})", self.reached);
                    return Some(self.end_expired(&problem));
                }
            }
            if self.events.is_empty() {
                // Only now does a bookmark not skip an event that is still to be sent.
                if std::mem::take(&mut self.owes_bookmark) {
                    return Some(self.encode_bookmark(false));
                }
                if self.is_timed_out {
                    return None;
                }
                if let Some(line) = self.wait_for_change().await {
                    return Some(line);
                }
            }
        }
    }

    /// Waits for something to send. Returns the last event of an expired watch.
    async fn wait_for_change(&mut self) -> Option<Bytes> {
        let woken = tokio::select! {
            _ = self.changed.changed() => WakeReason::Change,
            _ = self.signals.changed() => WakeReason::Signal,
            () = sleep_until(self.next_bookmark), if self.bookmarks => WakeReason::Bookmark,
            () = sleep_until(self.deadline) => WakeReason::Deadline,
        };
        match woken {
            WakeReason::Change => {}
            WakeReason::Bookmark => self.owes_bookmark = true,
            WakeReason::Deadline => {
                self.is_timed_out = true;
                self.owes_bookmark = self.bookmarks;
            }
            WakeReason::Signal => {
                let signals = *self.signals.borrow_and_update();
                let before = std::mem::replace(&mut self.seen_signals, signals);
                if signals.expire != before.expire {
                    return Some(self.end_expired("the watch was expired on request"));
                }
                self.is_timed_out = signals.end != before.end;
                self.owes_bookmark = signals.bookmark != before.bookmark && self.bookmarks;
            }
        }
        None
    }

    /// The event for a change, if this watch selects it: an object that leaves the selection is deleted for the client, one that enters
    /// it is added.
    fn encode_change(&mut self, event: &Event) -> Option<Bytes> {
        let selection = &self.subject.selection;
        let previous = event
            .previous
            .as_ref()
            .filter(|object| selection.contains_object(&object.value));
        match &event.change {
            Change::Deleted(last) => {
                // The previous state decides: a last write that removed finalizers may also have changed labels.
                previous.map(|_| ())?;
                Some(self.encode_line("DELETED", &last.value, &last.encoded))
            }
            Change::Stored(object) => match (previous.cloned(), selection.contains_object(&object.value)) {
                (None, false) => None,
                (None, true) => Some(self.encode_line("ADDED", &object.value, &object.encoded)),
                (Some(_), true) => Some(self.encode_line("MODIFIED", &object.value, &object.encoded)),
                (Some(previous), false) => {
                    // The old labels with the new resource version, so that the client's selector still matches and its position in the stream
                    // advances.
                    let left = Object::new(previous.value.clone(), event.resource_version);
                    Some(self.encode_line("DELETED", &left.value, &left.encoded))
                }
            },
        }
    }

    fn encode_line(&mut self, kind: &str, object: &Value, encoded: &[u8]) -> Bytes {
        let first = std::mem::replace(&mut self.is_first, false);
        let event = self.subject.form.encode_event(kind, object, encoded, first);
        event.unwrap_or_else(|refusal| self.end_with_error(&refusal))
    }

    fn encode_bookmark(&mut self, ends_initial_events: bool) -> Bytes {
        self.next_bookmark = Instant::now() + self.subject.bookmark_every;
        let mut bookmark = json!({
            "kind": self.subject.resource.kind,
            "apiVersion": self.subject.resource.api_version(),
            "metadata": { "creationTimestamp": null },
        });
        set_metadata(&mut bookmark, "resourceVersion", self.reached.to_string().into());
        if ends_initial_events {
            set_metadata(
                &mut bookmark,
                "annotations",
                json!({ "k8s.io/initial-events-end": "true" }),
            );
        }
        self.encode_line("BOOKMARK", &bookmark, bookmark.to_string().as_bytes())
    }

    fn end_expired(&mut self, message: &str) -> Bytes {
        self.end_with_error(&Refusal::expired(message))
    }

    /// The event that ends the watch.
    fn end_with_error(&mut self, refusal: &Refusal) -> Bytes {
        self.is_over = true;
        self.subject.form.encode_error_event(&refusal.0)
    }
}
