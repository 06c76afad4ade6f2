//! Watches: one line of JSON, or one frame of protobuf, per event, each sent as soon as it is there. A watch pulls from
//! the store's log when the client reads, so a slow client costs no memory: once the log has moved past it, the watch
//! ends with 410.

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
use crate::list::{VersionMatch, flag, number, version_match};
use crate::object::{Object, set};
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::selection::Selection;
use crate::store::{Change, Compacted, Event, Store};

/// The longest watch; upstream ends each after 30 to 60 minutes if the client names no time.
const LONGEST_WATCH: Duration = Duration::from_hours(1);

/// How many changes are taken from the log at once: few enough that a slow reader holds little.
const BATCH: usize = 64;

/// What a person or a test tells all open watches; each number counts how often it was said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    pub(crate) bookmark: u64,
    pub(crate) end: u64,
    pub(crate) expire: u64,
}

/// The options of a watch that are not selectors.
#[derive(Debug, Clone)]
pub(crate) struct WatchOptions {
    resource_version: Option<u64>,
    timeout: Duration,
    bookmarks: bool,
    /// `sendInitialEvents`, if given.
    initial_events: Option<bool>,
}

impl WatchOptions {
    /// Reads and checks them as apimachinery `pkg/apis/meta/internalversion/validation` does.
    pub(crate) fn read(query: &Query<'_>) -> Result<Self, Refusal> {
        let initial_events = query.get("sendInitialEvents").map(|value| flag(Some(&value)));
        let version_match = version_match(query)?;
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
        let timeout = match number(query, "timeoutSeconds")? {
            None | Some(0) => LONGEST_WATCH,
            Some(seconds) => Duration::from_secs(seconds).min(LONGEST_WATCH),
        };
        let bookmarks = flag(query.get("allowWatchBookmarks").as_deref());
        Ok(Self {
            resource_version: number(query, "resourceVersion")?,
            timeout,
            bookmarks,
            initial_events,
        })
    }
}

/// What a watch is about.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) store: Store,
    pub(crate) resource: Arc<Resource>,
    pub(crate) selection: Selection,
    pub(crate) form: Form,
    pub(crate) bookmark_every: Duration,
}

/// An open watch.
#[derive(Debug)]
pub(crate) struct Watch {
    subject: Subject,
    collection: String,
    bookmarks: bool,
    deadline: Instant,
    next_bookmark: Instant,
    initial: VecDeque<Arc<Object>>,
    /// The bookmark that ends the initial events is still to be sent.
    owes_initial_bookmark: bool,
    events: VecDeque<Arc<Event>>,
    /// Everything up to this resource version is sent or in `events`.
    reached: u64,
    is_first: bool,
    owes_bookmark: bool,
    /// To end when all that has happened is sent.
    is_timed_out: bool,
    is_over: bool,
    changed: watch::Receiver<u64>,
    signals: watch::Receiver<Signals>,
    heard: Signals,
    _guard: WatchGuard,
}

/// What ended a wait.
enum Woken {
    Change,
    Signal,
    Bookmark,
    Deadline,
}

impl Watch {
    /// Opens a watch.
    ///
    /// # Errors
    /// For a resource version the store has not reached. One that is too old is told in the stream, as upstream does.
    pub(crate) fn open(
        subject: Subject,
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
        // Without a version a watch begins with the state, as if everything had just been created.
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
            initial.retain(|object| subject.selection.takes(&object.value));
        }
        let now = Instant::now();
        let heard = *signals.borrow();
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
            heard,
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
                return Some(self.line("ADDED", &object.value, &object.encoded));
            }
            if std::mem::take(&mut self.owes_initial_bookmark) {
                return Some(self.bookmark(true));
            }
            while let Some(event) = self.events.pop_front() {
                if let Some(line) = self.event(&event) {
                    return Some(line);
                }
            }
            self.changed.borrow_and_update();
            match self.subject.store.changes(&self.collection, self.reached, BATCH) {
                Ok((events, reached)) => (self.events, self.reached) = (events.into(), reached),
                Err(Compacted { oldest }) => {
                    let problem = format!("too old resource version: {} ({oldest})", self.reached);
                    return Some(self.expired(&problem));
                }
            }
            if self.events.is_empty() {
                // Only now does a bookmark promise nothing that is still to be sent.
                if std::mem::take(&mut self.owes_bookmark) {
                    return Some(self.bookmark(false));
                }
                if self.is_timed_out {
                    return None;
                }
                if let Some(line) = self.wait().await {
                    return Some(line);
                }
            }
        }
    }

    /// Waits for something to send; gives the line that ends an expired watch.
    async fn wait(&mut self) -> Option<Bytes> {
        let woken = tokio::select! {
            _ = self.changed.changed() => Woken::Change,
            _ = self.signals.changed() => Woken::Signal,
            () = sleep_until(self.next_bookmark), if self.bookmarks => Woken::Bookmark,
            () = sleep_until(self.deadline) => Woken::Deadline,
        };
        match woken {
            Woken::Change => {}
            Woken::Bookmark => self.owes_bookmark = true,
            Woken::Deadline => {
                self.is_timed_out = true;
                self.owes_bookmark = self.bookmarks;
            }
            Woken::Signal => {
                let said = *self.signals.borrow_and_update();
                let before = std::mem::replace(&mut self.heard, said);
                if said.expire != before.expire {
                    return Some(self.expired("the watch was expired on request"));
                }
                self.is_timed_out = said.end != before.end;
                self.owes_bookmark = said.bookmark != before.bookmark && self.bookmarks;
            }
        }
        None
    }

    /// The line of a change, if this watch shall see it: an object that leaves the selection is deleted for the client,
    /// one that enters it is added.
    fn event(&mut self, event: &Event) -> Option<Bytes> {
        let selection = &self.subject.selection;
        let previous = event.previous.as_ref().filter(|object| selection.takes(&object.value));
        match &event.change {
            Change::Deleted(last) => {
                // The state before decides: a last write that removed finalizers may have moved labels, too.
                previous.map(|_| ())?;
                Some(self.line("DELETED", &last.value, &last.encoded))
            }
            Change::Stored(object) => match (previous.cloned(), selection.takes(&object.value)) {
                (None, false) => None,
                (None, true) => Some(self.line("ADDED", &object.value, &object.encoded)),
                (Some(_), true) => Some(self.line("MODIFIED", &object.value, &object.encoded)),
                (Some(previous), false) => {
                    // The old labels, the new resource version: so that the client's selector still recognises it and
                    // its place in the stream moves on.
                    let left = Object::new(previous.value.clone(), event.resource_version);
                    Some(self.line("DELETED", &left.value, &left.encoded))
                }
            },
        }
    }

    fn line(&mut self, kind: &str, object: &Value, encoded: &[u8]) -> Bytes {
        let first = std::mem::replace(&mut self.is_first, false);
        let event = self.subject.form.event(kind, object, encoded, first);
        event.unwrap_or_else(|refusal| self.failed(&refusal))
    }

    fn bookmark(&mut self, ends_initial_events: bool) -> Bytes {
        self.next_bookmark = Instant::now() + self.subject.bookmark_every;
        let mut bookmark = json!({
            "kind": self.subject.resource.kind,
            "apiVersion": self.subject.resource.api_version(),
            "metadata": { "creationTimestamp": null },
        });
        set(&mut bookmark, "resourceVersion", self.reached.to_string().into());
        if ends_initial_events {
            set(
                &mut bookmark,
                "annotations",
                json!({ "k8s.io/initial-events-end": "true" }),
            );
        }
        self.line("BOOKMARK", &bookmark, bookmark.to_string().as_bytes())
    }

    fn expired(&mut self, message: &str) -> Bytes {
        self.failed(&Refusal::expired(message))
    }

    /// The event that ends the watch.
    fn failed(&mut self, refusal: &Refusal) -> Bytes {
        self.is_over = true;
        self.subject.form.error_event(&refusal.0)
    }
}
