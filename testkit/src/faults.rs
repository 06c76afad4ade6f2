//! Faults that can be injected at run time: rules with the matching requests, the fault, and how often it happens. [`crate::route`] and
//! [`crate::body`] carry the faults out.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method};
use tokio::sync::watch;

use crate::lock::lock_unpoisoned;
use crate::{Error, WAIT_DEADLINE};

/// The longest that a [`Gate`] holds a request, so that a forgotten gate can't block a test run.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_mins(1);

/// A fault of a request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// Delays the request before it is executed.
    Delay(Duration),
    /// Holds the request before it is executed until the gate opens (a minute at most).
    Hold(Gate),
    /// Reads and executes the request, and holds its response until the gate opens (a minute at most).
    HoldResponse(Gate),
    /// Answers with a Status of this code; the request is not executed.
    Status {
        code: u16,
        /// Seconds for `Retry-After`, in header and Status.
        retry_after: Option<u32>,
    },
    /// HTTP/2: `RST_STREAM`. HTTP/1.1 has no streams: like [`Fault::ResetConnection`].
    ResetStream(FaultTime),
    /// Resets the TCP connection (RST) with all requests in flight on it.
    ResetConnection(FaultTime),
    /// Asks the client to end the connection after this response: `GOAWAY` on HTTP/2, `Connection: close` on HTTP/1.1.
    Goaway,
    /// Sends the body in pieces of at most `chunk` bytes, with a pause of `every` before each.
    SlowBody { chunk: usize, every: Duration },
    /// Breaks the body off after this many bytes: `RST_STREAM`, or a closed connection on HTTP/1.1.
    CutBody { after: usize },
    /// Sends the whole body with its length, and delays the end of the stream until the gate opens (a minute at most). HTTP/2 only:
    /// `END_STREAM` comes in a frame of its own, as Go's servers send it.
    LateEnd(Gate),
    /// Sends `103 Early Hints` before the response. HTTP/1.1 only: hyper cannot send one on HTTP/2, so there the request is answered
    /// with 501.
    EarlyHints,
    /// Grants an upgrade on any path, and echoes the bytes after the 101; so a watch over WebSocket can be open. A request without an
    /// `Upgrade` header gets 400.
    Tunnel,
    /// Sends trailers after the body. On HTTP/1.1 only if the request has `TE: trailers`, as RFC 9110 demands.
    Trailers(HeaderMap),
}

/// Whether a request without a response was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultTime {
    /// The write is not in the store.
    BeforeExecuting,
    /// Executed: the write is stored, but the client can't know.
    AfterExecuting,
}

/// A fault and the requests that it applies to: all of them, unless narrowed.
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
        let is = |expected: &Option<String>, found: &str| expected.as_deref().is_none_or(|expected| expected == found);
        is(&self.verb, facts.verb)
            && is(&self.resource, facts.resource)
            && is(&self.namespace, facts.namespace)
            && is(&self.name, facts.name)
            && self.path.as_deref().is_none_or(|prefix| facts.path.starts_with(prefix))
            && self.method.as_ref().is_none_or(|method| method == facts.method)
    }
}

/// The properties of a request that rules match on.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    pub(crate) verb: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// An active rule; see [`Faults::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleId(u64);

/// The faults of a server. Clones share them.
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
    fn with_state<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut lock_unpoisoned(&self.state))
    }

    /// Activates a rule. Several rules may apply to one request.
    #[expect(clippy::must_use_candidate, reason = "a rule that is never removed needs no name")]
    pub fn add(&self, rule: Rule) -> RuleId {
        self.with_state(|state| {
            let id = RuleId(state.next);
            state.next += 1;
            state.rules.push((id, rule));
            state.hits.push((id, 0));
            id
        })
    }

    pub fn remove(&self, rule: RuleId) {
        self.with_state(|state| state.rules.retain(|(id, _)| *id != rule));
    }

    /// Removes all rules. Required tokens stay.
    pub fn clear(&self) {
        self.with_state(|state| state.rules.clear());
    }

    /// How many requests a rule has applied to. Still counted after the rule was removed.
    #[must_use]
    pub fn times_applied(&self, rule: RuleId) -> u64 {
        self.with_state(|state| {
            state
                .hits
                .iter()
                .find(|(id, _)| *id == rule)
                .map_or(0, |(_, hits)| *hits)
        })
    }

    /// Admits only requests with one of these bearer tokens; others get 401. Changing the tokens simulates a rotation.
    pub fn require_tokens<T: Into<String>>(&self, tokens: impl IntoIterator<Item = T>) {
        let tokens = tokens.into_iter().map(Into::into).collect();
        self.with_state(|state| state.tokens = Some(tokens));
    }

    /// Admits requests without a token again.
    pub fn require_no_token(&self) {
        self.with_state(|state| state.tokens = None);
    }

    pub(crate) fn is_authorized(&self, authorization: Option<&str>) -> bool {
        let bearer = authorization.and_then(|value| value.strip_prefix("Bearer "));
        self.with_state(|state| {
            let known = |tokens: &Vec<String>| bearer.is_some_and(|bearer| tokens.iter().any(|token| token == bearer));
            state.tokens.as_ref().is_none_or(known)
        })
    }

    /// The faults for this request. Each counts as one of its rule's `times`.
    pub(crate) fn take_faults(&self, facts: &Facts<'_>) -> Vec<Fault> {
        self.with_state(|state| {
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

/// Holds requests until it is opened. Clones are the same gate.
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
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: watch::Sender::new(GateState::default()),
        }
    }

    /// Lets all current and later requests through.
    pub fn open(&self) {
        self.state.send_modify(|state| state.is_open = true);
    }

    /// Waits until `count` requests have reached the gate.
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

    /// Returns false if the gate stayed closed.
    pub(crate) async fn wait_until_open(&self) -> bool {
        self.state.send_modify(|state| state.arrived += 1);
        let mut state = self.state.subscribe();
        let opened = state.wait_for(|state| state.is_open);
        matches!(tokio::time::timeout(LONGEST_HOLD, opened).await, Ok(Ok(_)))
    }
}
