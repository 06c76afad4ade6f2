//! The plugins that want one request, called phase by phase with the entry's failure policy.
//!
//! Flow: `on_request` in the order of the chain, `on_response` in reverse order, `on_complete` when the exchange is over; `objects` asks
//! about the objects of a response, and `outcomes` counts by rules that verdicts hand over. An entry that fails is skipped (`onFailure:
//! Open`) or answers the request (`Closed`). Leaves applying the edits to `edit`.

pub(crate) mod objects;
mod outcomes;
mod short_list;
mod touches;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_contract::FailurePolicy;
use ctrlmesh_wire::Verb;
use http::{HeaderMap, StatusCode, response};
use tokio::time::Instant;

use crate::chain::instances::{CallError, Instances, Phase};
use crate::chain::touched::{self, Effect, NamedTouch, Touch, TouchedRequests};
use crate::chain::{Entry, EntryId, MatchQuery, Matched, Snapshot};
use crate::connection::Connection;
use crate::plugin::request_view::{RequestView, ResponseView};
use crate::plugin::verdict::{
    self, BodyShape, Outcome, RequestAction, RequestEdit, Reset, ResponseAction, ResponseEdit,
};
use crate::respond::Reply;
use outcomes::Remark;
use short_list::ShortList;

/// The plugins that want this request, and the view of it that they get.
pub(crate) struct Plugins {
    snapshot: Arc<Snapshot>,
    matched: Matched,
    pub(crate) view: Rc<RequestView>,
    instances: Rc<Instances>,
    /// The current time, if it was read and nothing that takes time has happened since.
    now: Cell<Option<Instant>>,
    touches: RefCell<ShortList<Touch>>,
    remarks: RefCell<ShortList<Remark>>,
}

/// The entries whose edits shape the view.
pub(crate) fn shaping_entries(edits: &[Attributed]) -> impl Iterator<Item = EntryId> {
    let shaping = edits.iter().filter(|(_, edit)| edit.shapes_view());
    shaping.map(|(entry, _)| *entry)
}

/// Name that stands for the entry when a watch ended that no entry had shaped.
const NEW_CHAIN: &str = "new chain";

/// An edit with the entry that asked for it.
pub(crate) type Attributed = (EntryId, RequestEdit);

/// Why an edit can't be applied.
#[derive(Debug)]
pub(crate) enum EditError {
    /// The client's request cannot be filtered safely.
    Client(Reply),
    /// This entry asked for an edit that is impossible.
    Plugin { entry: EntryId, what: String },
}

/// The reaction that the client gets instead of the API server's response.
pub(crate) enum Stop {
    Reply(Reply),
    Answer(verdict::Answer),
    Reset(Reset),
    /// Closes the port for this time, and every client connection.
    RefuseConnections(Duration),
}

impl From<Reply> for Stop {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

/// Decision of the request phase.
pub(crate) enum RequestDecision {
    Proceed(Vec<Attributed>),
    Stop(Stop),
}

/// The bytes that follow the head of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterHead {
    Body,
    /// The bytes of a tunnel, which are not read.
    Tunnel,
}

/// Decision of the response phase.
enum ResponseDecision {
    Proceed {
        edits: Vec<ResponseEdit>,
        shapes: Vec<BodyShape>,
    },
    Stop(Stop),
}

impl Plugins {
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        matched: Matched,
        view: Rc<RequestView>,
        instances: Rc<Instances>,
    ) -> Self {
        Self {
            snapshot,
            matched,
            view,
            instances,
            now: Cell::default(),
            touches: RefCell::default(),
            remarks: RefCell::default(),
        }
    }

    /// The plugins of the same chain that want another request, which is decided before this one goes on: their calls take time.
    pub(crate) fn of_same_chain(&self, view: RequestView) -> Self {
        self.forget_now();
        let matched = self
            .snapshot
            .matching_entries(&MatchQuery::new(&view, &view.headers.borrow()));
        let instances = Rc::clone(&self.instances);
        Self::new(Arc::clone(&self.snapshot), matched, Rc::new(view), instances)
    }

    /// Whether the request began under the pod's first chain.
    pub(crate) fn is_of_first_chain(&self) -> bool {
        self.snapshot.is_first()
    }

    /// Notes the current time. Its reading serves until a plugin is called or [`Self::forget_now`].
    pub(crate) fn note_now(&self, now: Instant) {
        self.now.set(Some(now));
    }

    /// Notes that time passes.
    pub(crate) fn forget_now(&self) {
        self.now.set(None);
    }

    /// The current time.
    pub(crate) fn now(&self) -> Instant {
        self.now.get().unwrap_or_else(Instant::now)
    }

    /// Calls every entry that subscribed to requests, and waits for its delays.
    pub(crate) async fn on_request(&self) -> RequestDecision {
        let mut edits = Vec::new();
        for entry in self.snapshot.on_request(self.matched) {
            let verdict = match self.instances.on_request(entry, &self.view, &self.now) {
                Ok(verdict) => verdict,
                Err(error) => {
                    // The rules that it named before it failed are not the next entry's.
                    self.view.state.take_named_rules();
                    match self.answer_if_closed(entry, &error) {
                        Some(reply) => return RequestDecision::Stop(reply.into()),
                        None => continue,
                    }
                }
            };
            self.note_remark(entry, &verdict);
            let named = self.view.state.take_named_rules();
            if !touches::lets_pass_at_once(&verdict) {
                self.record_touches(entry, touches::of_request(&verdict, named));
                self.forget_now();
                wait_for_delay(verdict.delay).await;
            }
            match &verdict.action {
                RequestAction::Proceed(more) => edits.extend(more.iter().map(|edit| attribute_edit(entry, edit))),
                RequestAction::Refuse(refusal) => {
                    return RequestDecision::Stop(Reply::refused_by_plugin(refusal).into());
                }
                RequestAction::Reset(how) => return RequestDecision::Stop(Stop::Reset(*how)),
                RequestAction::Answer(answer) => return RequestDecision::Stop(Stop::Answer(answer.clone())),
                RequestAction::RefuseConnections(length) => {
                    return RequestDecision::Stop(Stop::RefuseConnections(*length));
                }
            }
        }
        RequestDecision::Proceed(edits)
    }

    /// Applies the failure policy of an entry whose edit could not be applied. Returns `None` if its edits are to be left out.
    fn reject_edit(&self, id: EntryId, what: String) -> Option<Reply> {
        let entry = self.snapshot.entries().iter().find(|entry| entry.id == id)?;
        self.answer_if_closed(entry, &self.instances.invalid(entry, what))
    }

    /// Whether a mistake of this entry answers the request.
    pub(crate) fn fails_closed(&self, id: EntryId) -> bool {
        let mut entries = self.snapshot.entries().iter();
        entries.any(|entry| entry.id == id && entry.on_failure == FailurePolicy::Closed)
    }

    /// The response to a failed call, if the entry fails closed.
    fn answer_if_closed(&self, entry: &Entry, error: &CallError) -> Option<Reply> {
        match entry.on_failure {
            FailurePolicy::Closed => {
                self.record_touches(entry, [(String::new(), Effect::Failed)]);
                Some(Reply::plugin_failed(
                    &entry.name,
                    &entry.plugin.digest,
                    &error.to_string(),
                ))
            }
            FailurePolicy::Open => None,
        }
    }

    /// Notes that this entry refuses the request because of its object. Returns the name of the entry.
    pub(crate) fn note_refused_object(&self, id: EntryId) -> &str {
        let mut entries = self.snapshot.entries().iter();
        match entries.find(|entry| entry.id == id) {
            Some(entry) => {
                self.record_touches(entry, [(String::new(), Effect::Refused)]);
                &entry.name
            }
            None => "",
        }
    }

    fn record_touches(&self, entry: &Entry, done: impl IntoIterator<Item = (String, Effect)>) {
        let entry = Some(entry.id);
        let mut touches = self.touches.borrow_mut();
        for (rule, effect) in done {
            touches.push(Touch { entry, rule, effect });
        }
    }

    /// Notes that the view shaped by these entries has changed, so the client gets a 410.
    pub(crate) fn expired(&self, shaping: impl Iterator<Item = EntryId>) {
        self.touch_once(shaping, Effect::Expired);
        let mut touches = self.touches.borrow_mut();
        if !touches.iter().any(|touch| touch.effect == Effect::Expired) {
            touches.push(Touch {
                entry: None,
                rule: String::new(),
                effect: Effect::Expired,
            });
        }
    }

    fn touch_once(&self, entries: impl Iterator<Item = EntryId>, effect: Effect) {
        let mut touches = self.touches.borrow_mut();
        for entry in entries {
            let entry = Some(entry);
            let is_known = touches
                .iter()
                .any(|touch| touch.entry == entry && touch.effect == effect);
            if !is_known {
                let rule = String::new();
                touches.push(Touch { entry, rule, effect });
            }
        }
    }

    fn named_touches<'t>(&'t self, touches: &'t ShortList<Touch>) -> impl Iterator<Item = NamedTouch<'t>> + Clone {
        touches.iter().map(|touch| {
            let entries = self.snapshot.entries();
            let entry = touch.entry.and_then(|id| entries.iter().find(|entry| entry.id == id));
            NamedTouch {
                entry: entry.map_or(NEW_CHAIN, |entry| &entry.name),
                rule: &touch.rule,
                effect: touch.effect,
            }
        })
    }

    /// Describes what plugins did to the request, for the access log; empty if they did nothing.
    pub(crate) fn describe(&self) -> String {
        touched::describe_touches(self.named_touches(&self.touches.borrow()))
    }

    /// Notes what plugins did to the request, which ended at `end`, for `/status`.
    pub(crate) fn note_touched(&self, touched: &TouchedRequests, status: u16, end: Instant) {
        let touches = self.touches.borrow();
        if !touches.is_empty() {
            touched.record(self.named_touches(&touches), &self.view, status, end);
        }
    }

    /// Applies all edits but those of headers, which [`Self::headers_to_send`] applies. An entry whose edit is impossible is left out, or
    /// answers the request, as its failure policy says.
    pub(crate) fn apply_edits<T>(
        &self,
        edits: &mut Vec<Attributed>,
        apply: impl Fn(&[Attributed]) -> Result<T, EditError>,
    ) -> Result<T, Reply> {
        let edited = loop {
            match apply(edits) {
                Ok(edited) => break edited,
                Err(EditError::Client(reply)) => return Err(reply),
                Err(EditError::Plugin { entry, what }) => match self.reject_edit(entry, what) {
                    Some(reply) => return Err(reply),
                    None => edits.retain(|(owner, _)| *owner != entry),
                },
            }
        };
        self.touch_once(edits.iter().map(|(entry, _)| *entry), Effect::Edited);
        Ok(edited)
    }

    /// The client's header fields with the edits, to be sent. The view keeps a copy if a guest may still read them: a later phase, or the
    /// request phase again, of a watch under a new chain.
    pub(crate) fn headers_to_send(&self, edits: &[Attributed]) -> HeaderMap {
        let are_objects_asked_about = edits.iter().any(|(_, edit)| edit.question().is_some());
        let are_read_later =
            self.view.facts.verb == Verb::Watch || are_objects_asked_about || self.wants_response() || self.wants_end();
        let mut headers = self.view.headers.fields_to_send(are_read_later);
        edit_headers(&mut headers, edits);
        headers
    }

    /// Runs the response phase: edits the head, and returns how the body is to be shaped.
    pub(crate) async fn edit_response(
        &self,
        head: &mut response::Parts,
        connection: &Connection,
    ) -> Result<Vec<BodyShape>, Stop> {
        self.run_response_phase(head, connection, AfterHead::Body).await
    }

    /// Runs the response phase for the response with which a tunnel begins: edits the head.
    pub(crate) async fn edit_tunnel_response(
        &self,
        head: &mut response::Parts,
        connection: &Connection,
    ) -> Result<(), Stop> {
        let shapes = self.run_response_phase(head, connection, AfterHead::Tunnel).await;
        shapes.map(drop)
    }

    async fn run_response_phase(
        &self,
        head: &mut response::Parts,
        connection: &Connection,
        after_head: AfterHead,
    ) -> Result<Vec<BodyShape>, Stop> {
        if !self.wants_response() {
            self.count_head_for_all(head.status.as_u16());
            return Ok(Vec::new());
        }
        let view = Rc::new(ResponseView {
            status: head.status,
            headers: head.headers.clone(),
        });
        match self.on_response(&view, after_head).await {
            ResponseDecision::Proceed { edits, shapes } => {
                apply_head(&mut head.headers, &edits, connection);
                Ok(shapes)
            }
            ResponseDecision::Stop(stop) => Err(stop),
        }
    }

    /// Calls every entry that wants the response, and counts the head for every entry, last first.
    async fn on_response(&self, head: &Rc<ResponseView>, after_head: AfterHead) -> ResponseDecision {
        let mut edits = Vec::new();
        let mut shapes = Vec::new();
        for entry in self.snapshot.matched_entries(self.matched).rev() {
            self.count_head(entry, head.status.as_u16());
            if !self.wants_response_of(entry) {
                continue;
            }
            let verdict = self.instances.call(entry, Phase::Response, |instance| {
                instance.on_response(&self.view, head)
            });
            let mut verdict = match verdict {
                Ok(verdict) => verdict,
                Err(error) => {
                    self.view.state.take_named_rules();
                    match self.answer_if_closed(entry, &error) {
                        Some(reply) => return ResponseDecision::Stop(reply.into()),
                        None => continue,
                    }
                }
            };
            if after_head == AfterHead::Tunnel {
                leave_tunnel_alone(&mut verdict.action, head.status);
            }
            self.record_touches(
                entry,
                touches::of_response(&verdict, self.view.state.take_named_rules()),
            );
            wait_for_delay(verdict.delay).await;
            match verdict.action {
                ResponseAction::Proceed { edits: more, body } => {
                    edits.extend(more);
                    shapes.extend(body);
                }
                ResponseAction::Replace(refusal) => {
                    return ResponseDecision::Stop(Reply::refused_by_plugin(&refusal).into());
                }
                ResponseAction::Reset(how) => return ResponseDecision::Stop(Stop::Reset(how)),
                ResponseAction::Answer(answer) => return ResponseDecision::Stop(Stop::Answer(answer)),
            }
        }
        ResponseDecision::Proceed { edits, shapes }
    }

    fn wants_response_of(&self, entry: &Entry) -> bool {
        entry.subscription.phases.response && self.later_phases(entry).response
    }

    /// Whether any entry wants the response.
    fn wants_response(&self) -> bool {
        let mut entries = self.snapshot.on_response(self.matched);
        entries.any(|entry| self.later_phases(entry).response)
    }

    /// Whether any entry wants the outcome of the request.
    fn wants_end(&self) -> bool {
        let mut entries = self.snapshot.on_complete(self.matched);
        entries.any(|entry| self.later_phases(entry).complete)
    }

    /// Reports the outcome of the request, which ended at `end`, to every entry that wants it, counts it, and releases the places that the
    /// request held. A fault here changes nothing for the client.
    pub(crate) fn on_complete(&self, outcome: &Outcome, end: Instant) {
        let entries = self.snapshot.on_complete(self.matched);
        for entry in entries.filter(|entry| self.later_phases(entry).complete) {
            // `call` has already counted and logged it.
            let _ = self.instances.call(entry, Phase::Complete, |instance| {
                instance.on_complete(&self.view, outcome)
            });
        }
        self.count_end(outcome, end);
        self.view.state.release();
    }

    /// The edits that this chain would make to an open watch now, computed without effects. Returns `None` if the response would not be
    /// a stream at all: refused, reset, or a failure of an entry that fails closed.
    pub(crate) fn recheck(&self) -> Option<Vec<Attributed>> {
        let mut edits = Vec::new();
        for entry in self.snapshot.on_request(self.matched) {
            match self
                .instances
                .call(entry, Phase::Recheck, |instance| instance.on_request(&self.view, true))
            {
                Ok(verdict) => match verdict.action {
                    RequestAction::Proceed(more) => edits.extend(more.iter().map(|edit| attribute_edit(entry, edit))),
                    RequestAction::Refuse(_)
                    | RequestAction::Reset(_)
                    | RequestAction::Answer(_)
                    | RequestAction::RefuseConnections(_) => return None,
                },
                Err(_) if entry.on_failure == FailurePolicy::Closed => return None,
                Err(_) => {}
            }
        }
        Some(edits)
    }
}

/// The edit of an entry. A question about objects names the entry, because another one may decide differently.
fn attribute_edit(entry: &Entry, edit: &RequestEdit) -> Attributed {
    let edit = match edit {
        RequestEdit::AskAboutObjects(question) => RequestEdit::AskAboutObjects(question.asked_of(entry.id.number())),
        edit => edit.clone(),
    };
    (entry.id, edit)
}

/// Sets and removes header fields, in the order of the edits.
fn edit_headers(headers: &mut HeaderMap, edits: &[Attributed]) {
    for (_, edit) in edits {
        match edit {
            RequestEdit::SetHeader(name, value) => {
                headers.insert(name, value.clone());
            }
            RequestEdit::RemoveHeader(name) => {
                headers.remove(name);
            }
            _ => {}
        }
    }
}

async fn wait_for_delay(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

/// Removes from a verdict what has no effect on a tunnel, so that it is not reported as done: the shape of the body, and after a 101 also
/// the end of the connection, which takes no other request and whose client needs `Connection: upgrade`.
fn leave_tunnel_alone(action: &mut ResponseAction, status: StatusCode) {
    if let ResponseAction::Proceed { edits, body } = action {
        *body = None;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            edits.retain(|edit| *edit != ResponseEdit::CloseConnection);
        }
    }
}

fn apply_head(headers: &mut HeaderMap, edits: &[ResponseEdit], connection: &Connection) {
    for edit in edits {
        match edit {
            ResponseEdit::SetHeader(name, value) => {
                headers.insert(name, value.clone());
            }
            ResponseEdit::RemoveHeader(name) => {
                headers.remove(name);
            }
            ResponseEdit::CloseConnection => connection.retire_with(headers),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use serde_json::json;

    use super::*;
    use crate::chain::tests::worker::Worker;

    #[tokio::test]
    async fn reading_of_the_clock_serves_until_a_plugin_is_called_or_delays() {
        let noted = Instant::now();
        for (delay_ms, after_repetition) in [(0, Some(noted)), (1, None)] {
            let step = json!({"reuse": "whileUnchanged", "delayMs": delay_ms, "then": {"proceed": []}});
            let worker = Worker::new(&[("scripted", json!({"onRequest": [step]}))]);
            for expected in [None, after_repetition] {
                let plugins = worker.plugins();
                plugins.note_now(noted);
                assert!(matches!(plugins.on_request().await, RequestDecision::Proceed(_)));
                assert_eq!(plugins.now.get(), expected);
            }
            assert_eq!(worker.instances.repeated_verdicts(), 1);
        }
    }

    #[tokio::test]
    async fn reading_of_the_clock_does_not_serve_after_calls_about_another_request() {
        let step = json!({"reuse": "whileUnchanged", "then": {"proceed": []}});
        let worker = Worker::new(&[("scripted", json!({"onRequest": [step]}))]);
        let plugins = worker.plugins();
        plugins.note_now(Instant::now());
        let other = plugins.of_same_chain(RequestView::clone(&plugins.view));
        assert!(other.recheck().is_some());
        assert_eq!(plugins.now.get(), None, "the call has taken time");
    }

    #[test]
    fn headers_are_set_replaced_and_removed() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("2"));
        headers.append("x-b", HeaderValue::from_static("3"));
        let edits = vec![
            (
                EntryId::next_id(),
                RequestEdit::SetHeader(HeaderName::from_static("x-a"), HeaderValue::from_static("9")),
            ),
            (
                EntryId::next_id(),
                RequestEdit::RemoveHeader(HeaderName::from_static("x-b")),
            ),
        ];
        edit_headers(&mut headers, &edits);
        assert_eq!(headers.get_all("x-a").iter().collect::<Vec<_>>(), ["9"]);
        assert!(!headers.contains_key("x-b"));
    }

    #[test]
    fn verdict_on_tunnel_keeps_only_effective_parts() {
        let shape = BodyShape {
            pace: Some(1),
            hold: None,
            cut_after: Some(1),
            end_after: None,
            expired: false,
            reset: Reset::Close,
        };
        let set = ResponseEdit::SetHeader(HeaderName::from_static("x-a"), HeaderValue::from_static("1"));
        let close = ResponseEdit::CloseConnection;
        for (status, expected) in [
            (StatusCode::SWITCHING_PROTOCOLS, vec![set.clone()]),
            (StatusCode::OK, vec![set.clone(), close.clone()]),
        ] {
            let mut action = ResponseAction::Proceed {
                edits: vec![set.clone(), close.clone()],
                body: Some(shape.clone()),
            };
            leave_tunnel_alone(&mut action, status);
            let (edits, body) = (expected, None);
            assert_eq!(action, ResponseAction::Proceed { edits, body }, "{status}");
        }
    }
}
