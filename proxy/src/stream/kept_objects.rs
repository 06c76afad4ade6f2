//! A list or watch without the objects (WIT `keep-objects`, `ask-about-objects`) and fields (WIT `drop-fields`) that plugins leave out.
//!
//! Guarantees: nothing of a body passes that was not read as a whole object or as what surrounds objects; a list that cannot be read to its
//! end is a broken transfer; a watch that cannot be read ends with an ERROR event. Both end in the same way if a plugin fails that is asked.
//! Memory is bounded by the largest object (`ctrlmesh_wire::objects::MAX_OBJECT_BYTES`) and, in a watch, by `known_objects`.
//!
//! In a watch, an object that stops matching comes as DELETED with its name alone, and one that begins to match as ADDED. For that, a watch
//! remembers which objects its client has, if the predicates read what can change or a plugin is asked. If a client resumes, nothing is
//! known of an object before its first event: MODIFIED then stays MODIFIED, which informers of client-go take for an addition
//! (`tools/cache/controller.go`, `processDeltas`), and DELETED comes also if the client never had the object. Objects that the predicates
//! can never keep, by what cannot change in them, never occur.
//!
//! | file | what is in it |
//! |---|---|
//! | `asked_plugins` | plugins that decide on objects |
//! | `known_objects` | which objects the client of a watch has |

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_wire::objects::{
    CborListFilter, CborWatchFilter, DecideEvent, DecideObjects, DroppedFields, EventDecision, EventType, FilterError,
    JsonListFilter, JsonWatchFilter, MetadataFields, ObjectMetadata, ProtobufListFilter, ProtobufWatchFilter,
};
use ctrlmesh_wire::{WatchEncoding, watch_error_event};
use http_body::{Body, Frame};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use crate::plugin::object_predicate::ObjectPredicate;
use crate::respond::Reply;
use crate::stream::watch::Boundary;
use crate::upstream::BoxError;

mod asked_plugins;
mod known_objects;

pub(crate) use asked_plugins::AskedPlugins;
use known_objects::{KnownObjects, Possession};

/// A client that got nothing for this long gets a bookmark instead of an event that is left out, so that its resource version does not
/// become too old.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes that are read in one turn while nothing of them passes. A list of which nothing is kept must not take the thread for itself.
const MAX_SILENT_BYTES: usize = 1 << 20;

/// Least size that a frame counts for, in bytes: even an empty frame takes time.
const MIN_COUNTED_BYTES: usize = 1 << 10;

/// Largest frame, in bytes. What was sent is counted by frames, so that a client that reads slowly delays the next frames.
const MAX_FRAME_BYTES: usize = 64 << 10;

/// Which objects a client gets, and what of them.
pub(crate) struct KeptObjects {
    /// An object must match all of them.
    predicates: Box<[ObjectPredicate]>,
    /// They must keep an object as well, if any are asked.
    plugins: Option<AskedPlugins>,
    /// The fields that are left out of objects that match. The filter of a body takes them.
    dropped: DroppedFields,
    /// Counts objects that are left out.
    hidden: Counter,
    /// Counts bodies that cannot be read.
    unfilterable: Counter,
}

impl KeptObjects {
    pub(crate) fn new(
        predicates: Box<[ObjectPredicate]>,
        dropped: DroppedFields,
        hidden: Counter,
        unfilterable: Counter,
    ) -> Self {
        Self {
            predicates,
            plugins: None,
            dropped,
            hidden,
            unfilterable,
        }
    }

    /// Also asks plugins about objects that match.
    pub(crate) fn with_plugins(self, plugins: Option<AskedPlugins>) -> Self {
        Self { plugins, ..self }
    }

    /// Sets the flag of each object: whether the client gets it. After [`Self::has_failed`] it gets none.
    fn decide(&mut self, objects: &[ObjectMetadata<'_>], are_kept: &mut [bool]) {
        for (object, is_kept) in objects.iter().zip(are_kept.iter_mut()) {
            let mut predicates = self.predicates.iter();
            *is_kept = predicates.all(|kept| kept.predicate().matches(object));
        }
        if let Some(plugins) = &mut self.plugins
            && are_kept.contains(&true)
        {
            plugins.decide(objects, are_kept);
        }
    }

    fn contains(&mut self, object: &ObjectMetadata<'_>) -> bool {
        let mut is_kept = [false];
        self.decide(std::slice::from_ref(object), &mut is_kept);
        is_kept == [true]
    }

    /// Whether a plugin has failed to decide, so that the body must end.
    fn has_failed(&self) -> bool {
        self.plugins.as_ref().is_some_and(AskedPlugins::has_failed)
    }

    /// The reply that ends the body, if a plugin has failed to decide.
    fn take_failure(&mut self) -> Option<Reply> {
        self.plugins.as_mut()?.take_failure()
    }

    /// The fields that decisions read.
    fn fields(&self) -> MetadataFields {
        let asked = self.plugins.as_ref().map(AskedPlugins::fields);
        let fields = self.predicates.iter().map(|kept| kept.predicate().fields());
        fields.fold(asked.unwrap_or_default(), MetadataFields::union)
    }

    /// Whether an object can begin or stop to match. Plugins may decide differently at its next event.
    fn is_mutable(&self) -> bool {
        self.plugins.is_some() || self.predicates.iter().any(|kept| kept.predicate().is_mutable())
    }

    /// Whether an object can match at some time of its life. Nothing is known of plugins.
    fn may_ever_contain(&self, object: &ObjectMetadata<'_>) -> bool {
        let mut predicates = self.predicates.iter();
        predicates.all(|kept| kept.predicate().may_ever_match(object))
    }
}

/// Properties of the client of a watch that its request tells.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WatchClient {
    /// The client may get a bookmark instead of an event that is left out.
    pub(crate) takes_bookmarks: bool,
    pub(crate) start: ClientStart,
}

/// State of the client at the start of its watch, and the first events of the watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ClientStart {
    /// The client has no objects yet, and the watch begins with ADDED of all objects.
    Empty,
    /// The client may have objects, and the watch begins with what happened to them later.
    #[default]
    Resumed,
    /// The client may have objects, and the watch begins with ADDED of all objects.
    Repeated,
}

/// Why a body ends before it is complete.
enum BodyFailure {
    Unfilterable(FilterError),
    /// A plugin has failed to decide on an object.
    Undecided(Reply),
}

impl From<FilterError> for BodyFailure {
    fn from(error: FilterError) -> Self {
        Self::Unfilterable(error)
    }
}

/// The body of a list or watch of which the client gets some objects.
pub(crate) struct KeptObjectsBody<B> {
    inner: B,
    filter: BodyFilter,
    /// Bytes that are not in a frame yet.
    unsent: Bytes,
    /// Whether nothing follows the unsent bytes.
    is_ended: bool,
}

enum BodyFilter {
    List(ObjectList),
    Watch(EventStream),
}

impl<B> KeptObjectsBody<B> {
    pub(crate) fn list(inner: B, encoding: WatchEncoding, mut kept: KeptObjects) -> Self {
        let filter = ListFilter::new(encoding, kept.fields(), std::mem::take(&mut kept.dropped));
        let list = ObjectList {
            filter,
            kept,
            has_kept: false,
        };
        Self::new(inner, BodyFilter::List(list))
    }

    pub(crate) fn watch(inner: B, encoding: WatchEncoding, kept: KeptObjects, client: WatchClient) -> Self {
        let mut decider = EventDecider::new(kept, client);
        let dropped = std::mem::take(&mut decider.kept.dropped);
        let events = EventStream {
            filter: WatchFilter::new(encoding, decider.fields(), dropped),
            encoding,
            boundary: Boundary::new(Some(encoding)),
            decider,
        };
        Self::new(inner, BodyFilter::Watch(events))
    }

    fn new(inner: B, filter: BodyFilter) -> Self {
        Self {
            inner,
            filter,
            unsent: Bytes::new(),
            is_ended: false,
        }
    }

    /// Whether the client gets an object of the list, as far as it has come.
    pub(crate) const fn has_kept_object(&self) -> bool {
        matches!(&self.filter, BodyFilter::List(list) if list.has_kept)
    }

    /// The token of the list's next page, if it has come and there is one.
    pub(crate) fn continue_token(&self) -> Option<&str> {
        match &self.filter {
            BodyFilter::List(list) => list.filter.continue_token(),
            BodyFilter::Watch(_) => None,
        }
    }

    /// Ends the body, with its trailers. It must be complete before them.
    fn end(&mut self, trailers: Option<Frame<Bytes>>) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.is_ended = true;
        match self.filter.finish() {
            Ok(()) => trailers.map(Ok),
            Err(error) => match self.fail(error.into(), Vec::new()) {
                Ok(()) => self.next_frame().map(Ok),
                Err(error) => Some(Err(error)),
            },
        }
    }

    /// Ends a body that cannot be read, or on which no plugin decides. `out` has the whole events before the mistake.
    ///
    /// # Errors
    /// The error with which a list ends. A watch ends with an event.
    fn fail(&mut self, failure: BodyFailure, mut out: Vec<u8>) -> Result<(), BoxError> {
        self.is_ended = true;
        let (error, reply): (BoxError, Reply) = match failure {
            BodyFailure::Unfilterable(error) => {
                self.filter.kept().unfilterable.inc();
                (error.into(), Reply::unfilterable_response(&error.to_string()))
            }
            BodyFailure::Undecided(reply) => (reply.status().message.clone().into(), reply),
        };
        tracing::warn!(%error, "failed to filter the objects of a response; it was ended with an error");
        match &self.filter {
            BodyFilter::List(_) => Err(error),
            BodyFilter::Watch(events) => {
                events.put_error(&reply, &mut out);
                self.put_unsent(out);
                Ok(())
            }
        }
    }

    /// Takes no more memory than the bytes, because these are what is counted until they are sent.
    fn put_unsent(&mut self, bytes: Vec<u8>) {
        self.unsent = Bytes::from(bytes.into_boxed_slice());
    }

    fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        let length = self.unsent.len().min(MAX_FRAME_BYTES);
        (length > 0).then(|| Frame::data(self.unsent.split_to(length)))
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for KeptObjectsBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let mut silent_bytes = 0_usize;
        loop {
            if let Some(frame) = this.next_frame() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if this.is_ended {
                return Poll::Ready(None);
            }
            if silent_bytes >= MAX_SILENT_BYTES {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let data = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => data,
                    Err(trailers) => return Poll::Ready(this.end(Some(trailers))),
                },
                Some(Err(error)) => {
                    this.is_ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => return Poll::Ready(this.end(None)),
            };
            let mut out = Vec::new();
            match this.filter.push(&data, &mut out) {
                Ok(()) => this.put_unsent(out),
                Err(error) => {
                    if let Err(error) = this.fail(error, out) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
            silent_bytes = silent_bytes.saturating_add(data.len().max(MIN_COUNTED_BYTES));
        }
    }

    /// Not that of the upstream's body: one that ends too early must be polled to its end.
    fn is_end_stream(&self) -> bool {
        self.is_ended && self.unsent.is_empty()
    }
}

impl BodyFilter {
    const fn kept(&self) -> &KeptObjects {
        match self {
            Self::List(list) => &list.kept,
            Self::Watch(events) => &events.decider.kept,
        }
    }

    /// If a plugin fails to decide on an object, nothing of the chunk passes: the client of a watch resumes behind the last event that it
    /// got, so it must get none behind that object.
    fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), BodyFailure> {
        match self {
            Self::List(list) => list.push(chunk, out),
            Self::Watch(events) => events.push(chunk, out),
        }
    }

    /// Fails if the body ends in the middle.
    fn finish(&mut self) -> Result<(), FilterError> {
        match self {
            Self::List(list) => list.filter.finish(),
            Self::Watch(events) if events.filter.is_mid_event() => Err(FilterError::Unfinished),
            Self::Watch(_) => Ok(()),
        }
    }
}

struct ObjectList {
    filter: ListFilter,
    kept: KeptObjects,
    /// Whether the client gets an object.
    has_kept: bool,
}

impl ObjectList {
    fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), BodyFailure> {
        let (kept, has_kept) = (&mut self.kept, &mut self.has_kept);
        let mut decide = |objects: &[ObjectMetadata<'_>], are_kept: &mut [bool]| {
            kept.decide(objects, are_kept);
            *has_kept |= are_kept.contains(&true);
            if !kept.has_failed() {
                let hidden = are_kept.iter().filter(|is_kept| !**is_kept);
                kept.hidden.inc_by(hidden.count() as u64);
            }
        };
        let filtered = self.filter.push(chunk, out, &mut decide);
        match self.kept.take_failure() {
            Some(reply) => {
                out.clear();
                Err(BodyFailure::Undecided(reply))
            }
            None => filtered.map_err(BodyFailure::from),
        }
    }
}

enum ListFilter {
    Json(Box<JsonListFilter>),
    Protobuf(Box<ProtobufListFilter>),
    Cbor(Box<CborListFilter>),
}

impl ListFilter {
    fn new(encoding: WatchEncoding, fields: MetadataFields, dropped: DroppedFields) -> Self {
        match encoding {
            WatchEncoding::Json => Self::Json(Box::new(JsonListFilter::new(fields).with_dropped_fields(dropped))),
            WatchEncoding::Protobuf => {
                Self::Protobuf(Box::new(ProtobufListFilter::new(fields).with_dropped_fields(dropped)))
            }
            WatchEncoding::Cbor => Self::Cbor(Box::new(CborListFilter::new(fields).with_dropped_fields(dropped))),
        }
    }

    fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideObjects<'_>) -> Result<(), FilterError> {
        match self {
            Self::Json(filter) => filter.push(chunk, out, decide),
            Self::Protobuf(filter) => filter.push(chunk, out, decide),
            Self::Cbor(filter) => filter.push(chunk, out, decide),
        }
    }

    fn finish(&mut self) -> Result<(), FilterError> {
        match self {
            Self::Json(filter) => filter.finish(),
            Self::Protobuf(filter) => filter.finish(),
            Self::Cbor(filter) => filter.finish(),
        }
    }

    fn continue_token(&self) -> Option<&str> {
        match self {
            Self::Json(filter) => filter.continue_token(),
            Self::Protobuf(filter) => filter.continue_token(),
            Self::Cbor(filter) => filter.continue_token(),
        }
    }
}

struct EventStream {
    filter: WatchFilter,
    encoding: WatchEncoding,
    /// Of what was sent.
    boundary: Boundary,
    decider: EventDecider,
}

impl EventStream {
    fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), BodyFailure> {
        let now = Instant::now();
        let decider = &mut self.decider;
        let last_sent = decider.last_sent;
        let mut decide = |event_type: EventType, object: &ObjectMetadata<'_>| decider.decide(event_type, object, now);
        let filtered = self.filter.push(chunk, out, &mut decide);
        if let Some(reply) = self.decider.kept.take_failure() {
            out.clear();
            return Err(BodyFailure::Undecided(reply));
        }
        self.boundary.track_events(out);
        if out.is_empty() {
            // An event without a resource version becomes no bookmark, and a row no tombstone.
            self.decider.last_sent = last_sent;
        } else {
            // Bookmarks of the API server pass without a decision.
            self.decider.mark_sent(now);
        }
        filtered.map_err(BodyFailure::from)
    }

    /// Appends the event that ends the watch.
    fn put_error(&self, reply: &Reply, out: &mut Vec<u8>) {
        // In JSON, the line feed of the last event may not have arrived.
        if !self.boundary.is_at_boundary() {
            out.push(b'\n');
        }
        out.extend(watch_error_event(reply.status(), self.encoding));
    }
}

enum WatchFilter {
    Json(Box<JsonWatchFilter>),
    Protobuf(Box<ProtobufWatchFilter>),
    Cbor(Box<CborWatchFilter>),
}

impl WatchFilter {
    fn new(encoding: WatchEncoding, fields: MetadataFields, dropped: DroppedFields) -> Self {
        match encoding {
            WatchEncoding::Json => Self::Json(Box::new(JsonWatchFilter::new(fields).with_dropped_fields(dropped))),
            WatchEncoding::Protobuf => {
                Self::Protobuf(Box::new(ProtobufWatchFilter::new(fields).with_dropped_fields(dropped)))
            }
            WatchEncoding::Cbor => Self::Cbor(Box::new(CborWatchFilter::new(fields).with_dropped_fields(dropped))),
        }
    }

    fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>, decide: &mut DecideEvent<'_>) -> Result<(), FilterError> {
        match self {
            Self::Json(filter) => filter.push(chunk, out, decide),
            Self::Protobuf(filter) => filter.push(chunk, out, decide),
            Self::Cbor(filter) => filter.push(chunk, out, decide),
        }
    }

    fn is_mid_event(&self) -> bool {
        match self {
            Self::Json(filter) => filter.is_mid_event(),
            Self::Protobuf(filter) => filter.is_mid_event(),
            Self::Cbor(filter) => filter.is_mid_event(),
        }
    }
}

/// Decides about the events of a watch.
struct EventDecider {
    kept: KeptObjects,
    /// `None` if no object can begin or stop to match: then the client has those that match.
    known: Option<KnownObjects>,
    /// Whether ADDED may be of an object that the client has.
    repeats_added: bool,
    /// When the client last got something; `None` if it takes no bookmarks.
    last_sent: Option<Instant>,
}

impl EventDecider {
    fn new(kept: KeptObjects, client: WatchClient) -> Self {
        Self {
            known: kept
                .is_mutable()
                .then(|| KnownObjects::new(client.start == ClientStart::Empty)),
            repeats_added: client.start == ClientStart::Repeated,
            last_sent: client.takes_bookmarks.then(Instant::now),
            kept,
        }
    }

    /// The fields that decisions read.
    fn fields(&self) -> MetadataFields {
        let mut fields = self.kept.fields();
        fields.uid |= self.known.is_some();
        fields
    }

    fn decide(&mut self, event_type: EventType, object: &ObjectMetadata<'_>, now: Instant) -> EventDecision {
        let is_kept = self.kept.contains(object);
        if self.kept.has_failed() {
            return EventDecision::Drop;
        }
        let shown = if is_kept {
            Some(self.show_matched(event_type, object))
        } else {
            self.show_unmatched(event_type, object)
        };
        let decision = shown.unwrap_or_else(|| {
            self.kept.hidden.inc();
            if self.needs_bookmark(now) {
                EventDecision::Bookmark
            } else {
                EventDecision::Drop
            }
        });
        if decision != EventDecision::Drop {
            // One bookmark is enough for all events of a chunk.
            self.mark_sent(now);
        }
        decision
    }

    /// Decides about the event of an object that matches.
    fn show_matched(&mut self, event_type: EventType, object: &ObjectMetadata<'_>) -> EventDecision {
        let possession = self.possession_of(object);
        self.remember(event_type, object, true);
        if event_type == EventType::Modified && possession == Possession::Lacks {
            EventDecision::KeepAs(EventType::Added)
        } else {
            EventDecision::Keep
        }
    }

    /// Decides about the event of an object that does not match; `None` if the client gets nothing. The client must not see the
    /// object's current state.
    fn show_unmatched(&mut self, event_type: EventType, object: &ObjectMetadata<'_>) -> Option<EventDecision> {
        if !self.kept.may_ever_contain(object) {
            return None;
        }
        let may_have = match self.possession_of(object) {
            Possession::Has => true,
            Possession::Lacks => false,
            // The client may have the object from a time when it matched, unless it is new.
            Possession::Unknown => event_type != EventType::Added || self.repeats_added,
        };
        self.remember(event_type, object, false);
        may_have.then_some(EventDecision::Tombstone)
    }

    fn possession_of(&self, object: &ObjectMetadata<'_>) -> Possession {
        let known = self.known.as_ref();
        known.map_or(Possession::Unknown, |known| known.possession_of(&object.uid))
    }

    /// Remembers whether the client has the object behind this event.
    fn remember(&mut self, event_type: EventType, object: &ObjectMetadata<'_>, has_object: bool) {
        let Some(known) = &mut self.known else { return };
        if event_type == EventType::Deleted {
            known.forget(&object.uid);
        } else {
            known.remember(&object.uid, has_object);
        }
    }

    fn needs_bookmark(&self, now: Instant) -> bool {
        self.last_sent
            .is_some_and(|last| now.saturating_duration_since(last) >= BOOKMARK_INTERVAL)
    }

    fn mark_sent(&mut self, now: Instant) {
        if let Some(last) = &mut self.last_sent {
            *last = now;
        }
    }
}

#[cfg(test)]
mod tests;
