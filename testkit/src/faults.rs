//! Knobs that make the server misbehave, at run time: rules that say which requests, what happens to them and how
//! often. What a fault does to a connection or a body is done in [`crate::route`] and [`crate::body`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method};
use tokio::sync::watch;

use crate::{Error, WAIT_DEADLINE};

/// The longest that a [`Gate`] holds a request back, so that a forgotten gate can't hang a test run.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_mins(1);

/// What happens to a request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// The request waits before it is executed.
    Delay(Duration),
    /// The request waits before it is executed until the gate opens (a minute at most).
    Hold(Gate),
    /// The request is not executed and answered with a Status of this code.
    Status {
        /// HTTP status code.
        code: u16,
        /// `Retry-After` in seconds, in header and Status.
        retry_after: Option<u32>,
    },
    /// HTTP/2: `RST_STREAM`. HTTP/1.1 has no streams: as [`Fault::ResetConnection`].
    ResetStream(When),
    /// The TCP connection is reset (RST), with all that is in flight on it.
    ResetConnection(When),
    /// The connection is asked to end after this response: `GOAWAY` on HTTP/2, `Connection: close` on HTTP/1.1.
    Goaway,
    /// The body comes in pieces of at most `chunk` bytes, `every` so often.
    SlowBody {
        /// Bytes at once.
        chunk: usize,
        /// Pause before each piece.
        every: Duration,
    },
    /// The body breaks off after so many bytes: `RST_STREAM`, or a closed connection on HTTP/1.1.
    CutBody {
        /// Bytes sent before.
        after: usize,
    },
    /// The whole body is sent, with its length; that it is over is told when the gate opens (a minute later at most). HTTP/2 only:
    /// `END_STREAM` comes in a frame of its own, as Go's servers send it.
    LateEnd(Gate),
    /// A `103 Early Hints` comes before the response. HTTP/1.1 only: on HTTP/2 hyper offers no way to send one, and the
    /// request is answered with 501.
    EarlyHints,
    /// A wish to switch protocols is granted wherever it comes, and the bytes after the 101 come back as they were sent;
    /// so a watch over WebSocket can be open. A request without such a wish gets 400.
    Tunnel,
    /// Trailers follow the body. On HTTP/1.1 only if the request has `TE: trailers`, as RFC 9110 demands.
    Trailers(HeaderMap),
}

/// Whether a request that gets no answer was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Nothing happened in the store.
    BeforeExecuting,
    /// The write is in the store, the client can't know.
    AfterExecuting,
}

/// A fault and the requests that it befalls: all, unless narrowed.
#[derive(Debug, Clone)]
pub struct Rule {
    fault: Fault,
    verb: Option<String>,
    resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    path: Option<String>,
    method: Option<Method>,
    times: Option<u32>,
}

impl Rule {
    /// A fault for every request from now on.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            verb: None,
            resource: None,
            namespace: None,
            name: None,
            path: None,
            method: None,
            times: None,
        }
    }

    /// Only requests of this verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.into());
        self
    }

    /// Only requests for this resource: its plural name, without the group.
    #[must_use]
    pub fn resource(mut self, plural: &str) -> Self {
        self.resource = Some(plural.into());
        self
    }

    /// Only requests in this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only requests for objects of this name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only requests whose path begins so.
    #[must_use]
    pub fn path(mut self, prefix: &str) -> Self {
        self.path = Some(prefix.into());
        self
    }

    /// Only requests of this HTTP method.
    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Only the next `times` requests that match.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    fn matches(&self, facts: &Facts<'_>) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        is(&self.verb, facts.verb)
            && is(&self.resource, facts.resource)
            && is(&self.namespace, facts.namespace)
            && is(&self.name, facts.name)
            && self.path.as_deref().is_none_or(|prefix| facts.path.starts_with(prefix))
            && self.method.as_ref().is_none_or(|method| method == facts.method)
    }
}

/// What rules look at.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) verb: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// A rule in force; see [`Faults::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u64);

/// The faults of a server; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    rules: Vec<(RuleId, Rule)>,
    hits: Vec<(RuleId, u64)>,
    tokens: Option<Vec<String>>,
}

impl Faults {
    fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a rule in force. Several may befall one request.
    #[expect(clippy::must_use_candidate, reason = "a rule that is never removed needs no name")]
    pub fn add(&self, rule: Rule) -> RuleId {
        self.with(|state| {
            let id = RuleId(state.next);
            state.next += 1;
            state.rules.push((id, rule));
            state.hits.push((id, 0));
            id
        })
    }

    /// Ends a rule.
    pub fn remove(&self, rule: RuleId) {
        self.with(|state| state.rules.retain(|(id, _)| *id != rule));
    }

    /// Ends all rules. The tokens stay.
    pub fn clear(&self) {
        self.with(|state| state.rules.clear());
    }

    /// How many requests a rule has befallen; it is remembered after the rule's end.
    #[must_use]
    pub fn hits(&self, rule: RuleId) -> u64 {
        self.with(|state| {
            state
                .hits
                .iter()
                .find(|(id, _)| *id == rule)
                .map_or(0, |(_, hits)| *hits)
        })
    }

    /// Lets in only requests with one of these bearer tokens; others get 401. Changing them plays a rotation.
    pub fn require_tokens<T: Into<String>>(&self, tokens: impl IntoIterator<Item = T>) {
        let tokens = tokens.into_iter().map(Into::into).collect();
        self.with(|state| state.tokens = Some(tokens));
    }

    /// Lets everyone in again.
    pub fn require_no_token(&self) {
        self.with(|state| state.tokens = None);
    }

    pub(crate) fn admits(&self, authorization: Option<&str>) -> bool {
        let bearer = authorization.and_then(|value| value.strip_prefix("Bearer "));
        self.with(|state| {
            let known = |tokens: &Vec<String>| bearer.is_some_and(|bearer| tokens.iter().any(|token| token == bearer));
            state.tokens.as_ref().is_none_or(known)
        })
    }

    /// The faults that befall this request; each counts as one of its rule's `times`.
    pub(crate) fn befall(&self, facts: &Facts<'_>) -> Vec<Fault> {
        self.with(|state| {
            let mut faults = Vec::new();
            for (id, rule) in state.rules.iter_mut().filter(|(_, rule)| rule.matches(facts)) {
                faults.push(rule.fault.clone());
                if let Some(times) = &mut rule.times {
                    *times = times.saturating_sub(1);
                }
                if let Some((_, hits)) = state.hits.iter_mut().find(|(hit, _)| hit == id) {
                    *hits += 1;
                }
            }
            state.rules.retain(|(_, rule)| rule.times != Some(0));
            faults
        })
    }
}

/// Holds requests back until it is opened; clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate {
    state: watch::Sender<GateState>,
}

#[derive(Debug, Clone, Copy, Default)]
struct GateState {
    is_open: bool,
    arrived: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: watch::Sender::new(GateState::default()),
        }
    }

    /// Lets all requests through, now and later.
    pub fn open(&self) {
        self.state.send_modify(|state| state.is_open = true);
    }

    /// Waits until `count` requests have come to the gate.
    ///
    /// # Errors
    /// [`Error::Deadline`] after [`WAIT_DEADLINE`].
    pub async fn wait_for_arrivals(&self, count: usize) -> Result<(), Error> {
        let mut state = self.state.subscribe();
        let arrived = state.wait_for(|state| state.arrived >= count);
        match tokio::time::timeout(WAIT_DEADLINE, arrived).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Deadline { after: WAIT_DEADLINE }),
        }
    }

    /// Waits at the gate; false if it stayed closed.
    pub(crate) async fn pass(&self) -> bool {
        self.state.send_modify(|state| state.arrived += 1);
        let mut state = self.state.subscribe();
        let opened = state.wait_for(|state| state.is_open);
        matches!(tokio::time::timeout(LONGEST_HOLD, opened).await, Ok(Ok(_)))
    }
}
