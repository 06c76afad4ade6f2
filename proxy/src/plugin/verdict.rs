//! The output of plugins in the host's own types, independent of the WIT version that a plugin was built against.
//!
//! The bindings of each supported version convert into these types (`wasm/bindings.rs`), and the rest of the sidecar knows only this file.
//! Leaves the effects to `phases.rs`, `edit.rs` and `shape.rs`.

use std::rc::Rc;
use std::time::Duration;

use super::dropped_fields::PluginDroppedFields;
use super::label_selector::PluginLabelSelector;
use super::object_metadata::ObjectQuestion;
use super::object_predicate::ObjectPredicate;
use crate::plugin::tally::{CountingRule, Counts, Crossed, End, EndCause};

/// A change to a request (WIT `request-edit`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestEdit {
    /// AND a label selector with what the client sent.
    AndLabelSelector(PluginLabelSelector),
    /// AND a field selector with what the client sent.
    AndFieldSelector(String),
    /// Set a query parameter, replacing all its values. Already validated: parameters that decide what a client sees are excluded.
    SetQuery(String, String),
    /// Remove a query parameter. Validated in the same way.
    RemoveQuery(String),
    /// Set a request header, replacing all its values. Already validated.
    SetHeader(http::HeaderName, http::HeaderValue),
    /// Remove a request header. Already validated.
    RemoveHeader(http::HeaderName),
    /// Use another name for an object towards the API server.
    RenameObject {
        /// The controller's name for it.
        from: String,
        /// The API server's name for it.
        to: String,
    },
    /// Leave the objects that do not match out of a list, a watch or the delete of a collection. Already validated.
    KeepObjects(ObjectPredicate),
    /// Leave these fields out of the objects of a list or watch. Already validated.
    DropFields(PluginDroppedFields),
    /// Ask the plugin which objects of a list or watch the client gets. Already validated.
    AskAboutObjects(ObjectQuestion),
    /// Send the request only if its object matches. Already validated.
    RequireObjectMatch(ObjectPredicate, ObjectRefusal),
}

/// How a request is refused whose object does not match (WIT `object-refusal`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectRefusal {
    /// 409 `Conflict`.
    Conflict,
    /// 404 `NotFound`.
    NotFound,
    /// 403 `Forbidden`.
    Forbidden,
}

impl RequestEdit {
    /// Whether the edit shapes what the client sees of the API, as opposed to the form of the request.
    ///
    /// When a new chain comes into force, open watches are compared by these edits; so are watches with the lists that they come from.
    /// Edits that only say how fresh a response must be do not count, because they hold for a list and not for its watch.
    #[must_use]
    pub fn shapes_view(&self) -> bool {
        match self {
            Self::SetQuery(name, _) | Self::RemoveQuery(name) => {
                !matches!(name.as_str(), "resourceVersion" | "resourceVersionMatch")
            }
            _ => self.edits_target(),
        }
    }

    /// The question about objects, if the edit asks one.
    #[must_use]
    pub const fn question(&self) -> Option<&ObjectQuestion> {
        match self {
            Self::AskAboutObjects(question) => Some(question),
            _ => None,
        }
    }

    /// Whether the edit changes the request's path or query, or the objects of its response.
    #[must_use]
    pub const fn edits_target(&self) -> bool {
        !matches!(
            self,
            Self::SetHeader(..) | Self::RemoveHeader(_) | Self::RequireObjectMatch(..)
        )
    }
}

/// A refusal (WIT `refusal`); `respond.rs` makes the `Status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status, 400 to 599.
    pub code: u16,
    /// Reason of the `Status`; empty for the usual one.
    pub reason: String,
    pub message: String,
    pub retry_after_seconds: Option<u32>,
    /// Name of the refusing plugin or rule, for `details.causes`.
    pub cause: Option<String>,
    /// The object that the refusal is about.
    pub details: Option<Details>,
}

/// The object that a refusal is about (WIT `details`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// Name of the object; empty for a create, which has the name in its body.
    pub name: String,
    pub group: String,
    pub kind: String,
    pub causes: Vec<Cause>,
}

/// One cause (WIT `cause`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// A response that is no `Status` (WIT `answer`). Already validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status, 200 to 599.
    pub code: u16,
    /// Header fields in order.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    pub body: bytes::Bytes,
    /// Whether the connection takes no more requests afterwards.
    pub close_connection: bool,
}

/// How to break off (WIT `reset`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// RST_STREAM CANCEL, or close on HTTP/1.1.
    Cancel,
    /// RST_STREAM INTERNAL_ERROR, or close on HTTP/1.1.
    InternalError,
    /// Close the client's connection.
    Close,
    /// Never answer, up to the host's maximum wait.
    Hang,
    /// No more bytes are read from or written to the client's connection, up to the host's maximum wait.
    BlackHole,
}

/// The decision on a request (WIT `request-action`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestAction {
    /// Continue with these edits.
    Proceed(Vec<RequestEdit>),
    Refuse(Refusal),
    Reset(Reset),
    Answer(Answer),
    /// Close the port for this time, and all client connections. Already bounded.
    RefuseConnections(Duration),
}

/// For how long the host may repeat a verdict without a call (WIT `reuse`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    #[default]
    Never,
    /// While all that the call read through the host is unchanged.
    WhileUnchanged,
    /// While that is unchanged, and until this time, in milliseconds since 1970.
    UntilUnixMs(u64),
}

/// A verdict on a request (WIT `request-verdict`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestVerdict {
    /// Wait for this time first. Already bounded.
    pub delay: Duration,
    pub action: RequestAction,
    pub reuse: Reuse,
    /// The later phases that the plugin wants for this request, of those that it subscribes to.
    pub later: Phases,
    /// How the outcome of this request is counted.
    pub outcomes: Option<Rc<[OutcomeRule]>>,
}

/// How the outcome of a request is counted (WIT `outcome-rule`). Already validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeRule {
    /// Key of the tally in the entry's state.
    pub(crate) tally: String,
    /// The cells that the tally belongs to.
    pub(crate) cells: Vec<CellWrite>,
    pub(crate) counting: CountingRule,
}

/// A cell as a call read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellWrite {
    pub(crate) key: String,
    /// Number of the write that it, or its absence, is from.
    pub(crate) write: u64,
}

/// A tally that has reached a threshold (WIT `crossing`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crossing {
    pub(crate) tally: String,
    /// Versions of the rule's cells; 0 for one that does not exist.
    pub(crate) versions: Vec<u64>,
    pub(crate) crossed: Crossed,
    pub(crate) counts: Counts,
}

/// A change to a response head (WIT `response-edit`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseEdit {
    /// Set a header, replacing all its values. Already validated.
    SetHeader(http::HeaderName, http::HeaderValue),
    /// Remove a header. Already validated.
    RemoveHeader(http::HeaderName),
    /// Ask the client to open another connection.
    CloseConnection,
}

/// Changes to a body's flow (WIT `body-shape`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyShape {
    /// Bytes per second at most.
    pub pace: Option<u32>,
    /// Delay the first byte for this time.
    pub hold: Option<Duration>,
    /// Break off after this many bytes.
    pub cut_after: Option<u64>,
    /// End cleanly after this time.
    pub end_after: Option<Duration>,
    /// With `end_after`: send ERROR 410 first.
    pub expired: bool,
    /// How `cut_after` breaks off.
    pub reset: Reset,
}

/// The decision on a response (WIT `response-action`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseAction {
    /// Pass it on with these changes.
    Proceed {
        /// Changes to the head.
        edits: Vec<ResponseEdit>,
        /// Changes to the body's flow.
        body: Option<BodyShape>,
    },
    Replace(Refusal),
    /// Break off: the request was carried out, but its response is lost.
    Reset(Reset),
    /// Send these bytes instead.
    Answer(Answer),
}

/// A verdict on a response (WIT `response-verdict`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseVerdict {
    /// Wait for this time first. Already bounded.
    pub delay: Duration,
    pub action: ResponseAction,
}

/// Why a request ended without a complete response (WIT `failure`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The client went away.
    ClientGone,
    /// Refused by a plugin or the host.
    Refused,
    /// No connection to the upstream.
    Unreachable,
    /// The upstream broke off.
    UpstreamReset,
    Timeout,
    /// Broken off on purpose by a plugin.
    PluginReset,
    /// A plugin failed and its entry fails closed.
    PluginFailed,
}

impl Failure {
    pub(crate) const ALL: [Self; 7] = [
        Self::ClientGone,
        Self::Refused,
        Self::Unreachable,
        Self::UpstreamReset,
        Self::Timeout,
        Self::PluginReset,
        Self::PluginFailed,
    ];

    /// Name in metrics and in the access log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::UpstreamReset => "upstream_reset",
            Self::Timeout => "timeout",
            Self::PluginReset => "plugin_reset",
            Self::PluginFailed => "plugin_failed",
        }
    }
}

/// How a request ended (WIT `outcome`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Status that the client received; 0 if none.
    pub status: u16,
    /// Status that the upstream sent; 0 for none.
    pub upstream_status: u16,
    /// Why the response is not complete.
    pub failure: Option<Failure>,
    /// From the request head to the end of the response body.
    pub duration: Duration,
    /// From sending the request to receiving the response head.
    pub upstream: Duration,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
}

impl Outcome {
    /// The part by which rules of a plugin judge.
    pub(crate) fn end(&self) -> End {
        End {
            cause: match self.failure {
                Some(Failure::ClientGone) => EndCause::ClientGone,
                Some(Failure::Unreachable) => EndCause::Unreachable,
                Some(Failure::UpstreamReset) => EndCause::UpstreamReset,
                Some(Failure::Timeout) => EndCause::Timeout,
                Some(Failure::Refused | Failure::PluginReset | Failure::PluginFailed) | None => EndCause::Other,
            },
            upstream_status: self.upstream_status,
            duration_us: microseconds(self.duration),
            upstream_us: microseconds(self.upstream),
        }
    }
}

/// Whole microseconds, as plugins get them.
pub(crate) fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Phases that an entry subscribes to (WIT `phases`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases {
    pub request: bool,
    pub response: bool,
    pub complete: bool,
}

impl Phases {
    pub const ALL: Self = Self {
        request: true,
        response: true,
        complete: true,
    };
}

/// One match rule (WIT `match-rule`), as the plugin gave it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MatchRule {
    pub traffic: Vec<Traffic>,
    pub verbs: Vec<ctrlmesh_wire::Verb>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    /// Subresources; the empty string stands for the resource itself.
    pub subresources: Vec<String>,
    pub namespaces: Vec<String>,
    pub names: Vec<String>,
    pub paths: Vec<String>,
    pub hosts: Vec<String>,
    pub user_agents: Vec<String>,
}

/// Requests that an entry wants to see (WIT `subscription`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subscription {
    pub phases: Phases,
    /// One matching rule is enough; without rules the plugin is never called.
    pub rules: Vec<MatchRule>,
}

/// Kind of traffic (WIT `traffic`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// To the Kubernetes API server.
    Api,
    /// From the API server to the controller's webhooks.
    Webhook,
    /// To any other service.
    External,
}
