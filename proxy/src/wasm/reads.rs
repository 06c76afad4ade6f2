//! Reads and effects of a call: the values that a plugin reads through the host, on which its verdict depends, and its other calls of
//! the host, which belong to the verdict.
//!
//! [`Step::evaluate`] is the only source of what a guest is shown of a request, so a look-up of a remembered verdict ([`crate::chain`]) and a
//! call compare the same values. Guarantee: a call that did something that must not be repeated has a [`ReuseObstacle`]. Leaves remembering to
//! `chain/reuse.rs`.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::state::{Ask, Increment, Place};
use crate::plugin::request_view::{NamedRule, Part, RequestView, header_text};

/// Maximum number of different reads of a call that is remembered: two cells for each of the 24 rules of a circuit breaker, and the facts
/// that decide which of them match. Most calls need about ten.
const MAX_READS: usize = 64;
/// Maximum length of a text that is remembered, in bytes.
const MAX_TEXT_BYTES: usize = 512;
/// Maximum number of metrics that a remembered call adds to: one for each rule of a circuit breaker.
const MAX_COUNTS: usize = 24;
/// Maximum number of counters of the state that a remembered call increments: as many as metrics, for a plugin that shows the same counts
/// in both.
const MAX_INCREMENTS: usize = 24;

/// A question to the host. `S` holds names: borrowed in a call, owned in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<S> {
    Traffic,
    Verb,
    Group,
    Version,
    Resource,
    Subresource,
    Namespace,
    Name,
    Method,
    Path,
    Host,
    Port,
    IsLeaderLock,
    IsRecheck,
    /// First value of a header field.
    Header(S),
    /// First value of a query parameter, decoded.
    Query(S),
    /// A cell of the entry's state. Its value is the number of the write that it is from.
    Cell(S),
}

/// A value as the guest was shown it, in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Absent,
    Number(u64),
    Text(Box<str>),
}

/// A step and what the guest was shown.
pub(crate) type Read = (Step<Box<str>>, Value);

/// A value as the guest is shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen<'v> {
    Absent,
    Number(u64),
    Text(Cow<'v, str>),
}

/// Why a verdict is used once although the plugin marked it as reusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReuseObstacle {
    /// The call read the clock, and its verdict does not say until when it holds.
    Clock,
    /// The call drew a random number.
    Random,
    /// The call wrote what is not repeated: state otherwise than by tokens, places and increments; a gauge, a report, a log line.
    Write,
    /// A cell was written during the call, or could not be read.
    Changed,
    /// The call asked for tokens or places in vain, or got them with a wait.
    Admission,
    /// The call was granted tokens or places more than once.
    SecondGrant,
    /// The call read or did more than is remembered.
    TooMuch,
}

/// Effects of a call that are repeated with its verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// None of them may wait.
    pub(crate) asks: Vec<Ask>,
    pub(crate) places: Vec<Place>,
    /// Whether other asks and places were granted after these. Such a call is compared, but never remembered.
    pub(crate) has_second_grant: bool,
    /// Name, label and amount.
    pub(crate) counts: Vec<(String, String, u64)>,
    pub(crate) increments: Vec<Increment>,
    pub(crate) note: Option<u64>,
    pub(crate) rules: Vec<NamedRule>,
}

/// The reads and effects of one call, in its order.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    reads: Vec<Read>,
    effects: Effects,
    read_clock: bool,
    admitted: bool,
    obstacle: Option<ReuseObstacle>,
    /// Whether the call met what another call may not meet: a cell that was written meanwhile, or tokens or places that it did not get at
    /// once.
    met_change: bool,
    /// Whether the call wrote what is not repeated, or drew a random number. Remembered calls do neither.
    wrote_or_drew: bool,
}

impl<S: AsRef<str>> Step<S> {
    /// The same step with a borrowed name.
    pub(crate) fn as_ref(&self) -> Step<&str> {
        self.map(AsRef::as_ref)
    }

    fn map<'s, T>(&'s self, name: impl FnOnce(&'s S) -> T) -> Step<T> {
        match self {
            Self::Traffic => Step::Traffic,
            Self::Verb => Step::Verb,
            Self::Group => Step::Group,
            Self::Version => Step::Version,
            Self::Resource => Step::Resource,
            Self::Subresource => Step::Subresource,
            Self::Namespace => Step::Namespace,
            Self::Name => Step::Name,
            Self::Method => Step::Method,
            Self::Path => Step::Path,
            Self::Host => Step::Host,
            Self::Port => Step::Port,
            Self::IsLeaderLock => Step::IsLeaderLock,
            Self::IsRecheck => Step::IsRecheck,
            Self::Header(header) => Step::Header(name(header)),
            Self::Query(parameter) => Step::Query(name(parameter)),
            Self::Cell(key) => Step::Cell(name(key)),
        }
    }
}

impl Step<&str> {
    /// The same step with a name of its own. Names of header fields are compared without regard to case.
    fn to_owned(self) -> Step<Box<str>> {
        match self {
            Step::Header(name) => Step::Header(name.to_ascii_lowercase().into()),
            step => step.map(|name| Box::from(*name)),
        }
    }

    /// The value that a guest is shown. `Absent` for a cell, which the request does not have.
    pub(crate) fn evaluate(self, request: &RequestView, recheck: bool) -> Seen<'_> {
        let header = |name: &str| {
            let headers = request.headers.borrow();
            visible_header(&headers, name).map(|value| Cow::Owned(value.to_owned()))
        };
        let query = request.uri.query().map(ctrlmesh_wire::Query::new);
        self.evaluate_with(request, recheck, header, |name| query.and_then(|query| query.get(name)))
    }

    /// As [`Self::evaluate`], for a caller that holds the header fields and has parsed the query. `header` returns what
    /// [`visible_header`] does, `parameter` the first value of a parameter.
    pub(crate) fn evaluate_with<'r>(
        self,
        request: &'r RequestView,
        recheck: bool,
        header: impl FnOnce(&str) -> Option<Cow<'r, str>>,
        parameter: impl FnOnce(&str) -> Option<Cow<'r, str>>,
    ) -> Seen<'r> {
        let text = |text| Seen::Text(Cow::Borrowed(text));
        match self {
            Self::Traffic => Seen::Number(request.traffic as u64),
            Self::Verb => Seen::Number(request.facts.verb as u64),
            Self::Group => text(&request.facts.group),
            Self::Version => text(&request.facts.version),
            Self::Resource => text(&request.facts.resource),
            Self::Subresource => text(&request.facts.subresource),
            Self::Namespace => text(&request.facts.namespace),
            Self::Name => text(&request.facts.name),
            Self::Method => text(request.method.as_str()),
            Self::Path => Seen::Text(percent_encoding::percent_decode_str(request.uri.path()).decode_utf8_lossy()),
            Self::Host => text(&request.host),
            Self::Port => Seen::Number(request.port.into()),
            Self::IsLeaderLock => Seen::Number(request.is_leader_lock.get().into()),
            Self::IsRecheck => Seen::Number(recheck.into()),
            Self::Header(name) => header(name).map_or(Seen::Absent, Seen::Text),
            Self::Query(name) => parameter(name).map_or(Seen::Absent, Seen::Text),
            Self::Cell(_) => Seen::Absent,
        }
    }
}

/// Header fields with a secret of the client or of its session. `sec-websocket-protocol` carries a bearer token where a browser cannot set
/// `authorization` (apiserver `pkg/authentication/request/websocket/protocol.go`).
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "sec-websocket-protocol",
    "set-cookie",
];

/// First value of a header field, if it is text and no secret.
pub(crate) fn visible_header<'h>(headers: &'h http::HeaderMap, name: &str) -> Option<&'h str> {
    if CREDENTIALS.iter().any(|secret| name.eq_ignore_ascii_case(secret)) {
        return None;
    }
    headers.get(name).and_then(header_text)
}

impl Seen<'_> {
    /// The text; `None` if the value is absent.
    pub(crate) fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.into_owned()),
            Self::Absent | Self::Number(_) => None,
        }
    }

    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Absent | Self::Text(_) => 0,
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Absent => Value::Absent,
            Self::Number(number) => Value::Number(*number),
            Self::Text(text) => Value::Text(Box::from(text.as_ref())),
        }
    }
}

impl Value {
    /// Compares a value of a table with a value of a request; a total order.
    pub(crate) fn cmp_seen(&self, seen: &Seen<'_>) -> Ordering {
        match (self, seen) {
            (Self::Absent, Seen::Absent) => Ordering::Equal,
            (Self::Absent, _) | (Self::Number(_), Seen::Text(_)) => Ordering::Less,
            (_, Seen::Absent) | (Self::Text(_), Seen::Number(_)) => Ordering::Greater,
            (Self::Number(known), Seen::Number(seen)) => known.cmp(seen),
            (Self::Text(known), Seen::Text(seen)) => known.as_ref().cmp(seen.as_ref()),
        }
    }

    /// The value as if a request had it.
    pub(crate) fn as_seen(&self) -> Seen<'_> {
        match self {
            Self::Absent => Seen::Absent,
            Self::Number(number) => Seen::Number(*number),
            Self::Text(text) => Seen::Text(Cow::Borrowed(text)),
        }
    }

    /// Bytes that the value takes besides itself.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Absent | Self::Number(_) => 0,
        }
    }
}

impl Trace {
    /// Records a read. A step that was read before is recorded once; if its value differs, somebody wrote in between, and the call is not
    /// remembered.
    pub(crate) fn record_read(&mut self, step: Step<&str>, seen: &Seen<'_>) {
        #[cfg(test)]
        if hooks::forgets_reads() {
            return;
        }
        let step = step.to_owned();
        if let Some((_, known)) = self.reads.iter().find(|(known, _)| *known == step) {
            if known.cmp_seen(seen).is_ne() {
                self.end(ReuseObstacle::Changed);
            }
            return;
        }
        let is_long = |text: &str| text.len() > MAX_TEXT_BYTES;
        let is_long_name = match step.as_ref() {
            Step::Header(name) | Step::Query(name) | Step::Cell(name) => is_long(name),
            _ => false,
        };
        let is_long_value = matches!(seen, Seen::Text(text) if is_long(text));
        if self.reads.len() == MAX_READS || is_long_name || is_long_value {
            self.end(ReuseObstacle::TooMuch);
        } else {
            self.reads.push((step, seen.to_value()));
        }
    }

    pub(crate) fn record_clock(&mut self) {
        self.read_clock = true;
    }

    pub(crate) fn record_count(&mut self, name: &str, label: &str, by: u64) {
        if self.effects.counts.len() == MAX_COUNTS {
            self.end(ReuseObstacle::TooMuch);
        } else {
            self.effects.counts.push((name.to_owned(), label.to_owned(), by));
        }
    }

    /// Records a call of `increment`, whether or not the counter could be added to: the call did not learn of it.
    pub(crate) fn record_increment(&mut self, key: &str, by: u64) {
        if self.effects.increments.len() == MAX_INCREMENTS || key.len() > MAX_TEXT_BYTES {
            self.end(ReuseObstacle::TooMuch);
        } else {
            let key = key.to_owned();
            self.effects.increments.push(Increment { key, by });
        }
    }

    pub(crate) fn record_note(&mut self, note: u64) {
        self.effects.note = Some(note);
    }

    pub(crate) fn record_rule(&mut self, name: &str, decides: Part) {
        let name = name.to_owned();
        self.effects.rules.push(NamedRule { name, decides });
    }

    /// Records tokens and places that were granted without waiting. They are repeated only if they are there at once again. Of a call that
    /// is granted some more than once, the first ones are recorded.
    pub(crate) fn record_grant(&mut self, asks: &[Ask], places: &[Place]) {
        if std::mem::replace(&mut self.admitted, true) {
            self.effects.has_second_grant = true;
            self.end(ReuseObstacle::SecondGrant);
            return;
        }
        let claims = asks.iter().map(|ask| ask.claim.clone());
        self.effects.asks = claims.map(Ask::available_now).collect();
        self.effects.places = places.to_vec();
    }

    /// Records that the call can't be repeated. The first reason stays.
    pub(crate) fn end(&mut self, obstacle: ReuseObstacle) {
        self.obstacle.get_or_insert(obstacle);
        self.met_change |= matches!(obstacle, ReuseObstacle::Changed | ReuseObstacle::Admission);
        self.wrote_or_drew |= matches!(obstacle, ReuseObstacle::Write | ReuseObstacle::Random);
    }

    /// Whether the call must decide as another one that read the same.
    pub(crate) const fn is_comparable(&self) -> bool {
        !self.met_change
    }

    /// Whether the call wrote what is not repeated ([`ReuseObstacle::Write`]) or drew a random number.
    pub(crate) const fn wrote_or_drew(&self) -> bool {
        self.wrote_or_drew
    }

    /// Why the call is not remembered. `may_read_clock`: the verdict says until when it holds.
    pub(crate) fn reason_to_forget(&self, may_read_clock: bool) -> Option<ReuseObstacle> {
        self.obstacle
            .or((self.read_clock && !may_read_clock).then_some(ReuseObstacle::Clock))
    }

    pub(crate) fn into_parts(self) -> (Vec<Read>, Effects) {
        (self.reads, self.effects)
    }
}

/// Lets tests break the recording, to show that they would notice.
#[cfg(test)]
pub(crate) mod hooks {
    use std::cell::Cell;

    thread_local! {
        static FORGETS_READS: Cell<bool> = const { Cell::new(false) };
    }

    /// While this lives, reads on this thread are not recorded.
    #[derive(Debug)]
    pub(crate) struct Forgetting(());

    pub(crate) fn forget_reads() -> Forgetting {
        FORGETS_READS.set(true);
        Forgetting(())
    }

    pub(super) fn forgets_reads() -> bool {
        FORGETS_READS.get()
    }

    impl Drop for Forgetting {
        fn drop(&mut self) {
            FORGETS_READS.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> Seen<'_> {
        Seen::Text(Cow::Borrowed(text))
    }

    #[test]
    fn order_of_values_is_total_and_agrees_with_equality() {
        let values = [
            Value::Absent,
            Value::Number(0),
            Value::Number(7),
            Value::Text("".into()),
            Value::Text("a".into()),
            Value::Text("ab".into()),
        ];
        for (at, value) in values.iter().enumerate() {
            for (other_at, other) in values.iter().enumerate() {
                assert_eq!(
                    value.cmp_seen(&other.as_seen()),
                    at.cmp(&other_at),
                    "{value:?} {other:?}"
                );
            }
        }
    }

    #[test]
    fn repeated_read_is_recorded_once_and_ends_reuse_if_it_differs() {
        let mut trace = Trace::default();
        trace.record_read(Step::Header("Accept"), &seen("a"));
        trace.record_read(Step::Header("accept"), &seen("a"));
        assert_eq!(trace.reads, [(Step::Header("accept".into()), Value::Text("a".into()))]);
        assert_eq!(trace.reason_to_forget(false), None);
        trace.record_read(Step::Cell("k"), &Seen::Number(1));
        assert!(trace.is_comparable());
        trace.record_read(Step::Cell("k"), &Seen::Number(2));
        assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::Changed));
        assert!(!trace.is_comparable());
    }

    #[test]
    fn too_many_or_too_long_reads_are_not_remembered() {
        let mut trace = Trace::default();
        for number in 0..MAX_READS {
            trace.record_read(Step::Query(&number.to_string()), &Seen::Absent);
        }
        assert_eq!(trace.reason_to_forget(false), None);
        trace.record_read(Step::Query("more"), &Seen::Absent);
        assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::TooMuch));
        let mut trace = Trace::default();
        trace.record_read(Step::Name, &seen(&"x".repeat(MAX_TEXT_BYTES + 1)));
        assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::TooMuch));
    }

    #[test]
    fn too_many_or_too_long_increments_are_not_remembered() {
        let mut trace = Trace::default();
        for _ in 0..MAX_INCREMENTS {
            trace.record_increment(&"k".repeat(MAX_TEXT_BYTES), 1);
        }
        assert_eq!(trace.reason_to_forget(false), None);
        assert_eq!(trace.effects.increments.len(), MAX_INCREMENTS);
        trace.record_increment("k", 1);
        assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::TooMuch));
        let mut trace = Trace::default();
        trace.record_increment(&"k".repeat(MAX_TEXT_BYTES + 1), 1);
        assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::TooMuch));
        assert!(!trace.wrote_or_drew());
    }

    #[test]
    fn write_is_noticed_after_another_reason_to_forget() {
        for obstacle in [ReuseObstacle::Write, ReuseObstacle::Random] {
            let mut trace = Trace::default();
            trace.end(ReuseObstacle::TooMuch);
            assert!(!trace.wrote_or_drew());
            trace.end(obstacle);
            assert!(trace.wrote_or_drew() && trace.is_comparable());
            assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::TooMuch));
        }
    }

    #[test]
    fn clock_ends_reuse_unless_verdict_says_until_when_it_holds() {
        let mut trace = Trace::default();
        trace.record_clock();
        assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::Clock));
        assert_eq!(trace.reason_to_forget(true), None);
    }

    #[test]
    fn second_grant_of_a_call_ends_reuse_and_is_compared() {
        let place = |key: &str| Place {
            key: key.to_owned(),
            max: 1,
        };
        let mut trace = Trace::default();
        trace.record_grant(&[], &[place("a")]);
        assert_eq!(trace.reason_to_forget(false), None);
        trace.record_grant(&[], &[place("b")]);
        assert_eq!(trace.reason_to_forget(false), Some(ReuseObstacle::SecondGrant));
        assert!(trace.is_comparable());
        assert_eq!(trace.effects.places, [place("a")]);
        assert!(trace.effects.has_second_grant);
        trace.end(ReuseObstacle::Admission);
        assert!(!trace.is_comparable());
    }
}
