//! What plugins say, in the host's own words: independent of the WIT version that a plugin was built against.
//!
//! The bindings of each supported version convert into these types (`wasm/bindings.rs`); everything behind them knows
//! only this file. Leaves the effects to `phases.rs`, `edit.rs` and `shape.rs`.

use std::time::Duration;

/// A change to a request (WIT `request-edit`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestEdit {
    /// AND a label selector with what the client sent.
    AndLabelSelector(String),
    /// AND a field selector with what the client sent.
    AndFieldSelector(String),
    /// Set a query parameter, replacing all its values. Already validated: none that decides what a client sees.
    SetQuery(String, String),
    /// Remove a query parameter. Already validated, as for setting one.
    RemoveQuery(String),
    /// Set a request header, replacing all its values. Already validated.
    SetHeader(http::HeaderName, http::HeaderValue),
    /// Remove a request header. Already validated.
    RemoveHeader(http::HeaderName),
    /// Call an object by another name towards the API server.
    RenameObject {
        /// The controller's name for it.
        from: String,
        /// The API server's name for it.
        to: String,
    },
}

impl RequestEdit {
    /// Whether the edit shapes what the client sees of the API (as opposed to how the request is dressed).
    ///
    /// Open watches are compared by these edits when a new chain comes into force, and watches with the lists that they
    /// come from. How fresh an answer must be says nothing about what it is of: it holds for the list and not for its watch.
    #[must_use]
    pub fn shapes_view(&self) -> bool {
        match self {
            Self::SetQuery(name, _) | Self::RemoveQuery(name) => {
                !matches!(name.as_str(), "resourceVersion" | "resourceVersionMatch")
            }
            _ => self.edits_target(),
        }
    }

    /// Whether the edit changes the request's path or query.
    #[must_use]
    pub const fn edits_target(&self) -> bool {
        !matches!(self, Self::SetHeader(..) | Self::RemoveHeader(_))
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
    /// Seconds for `Retry-After`.
    pub retry_after_seconds: Option<u32>,
    /// What refused, for `details.causes`.
    pub cause: Option<String>,
    /// What it is about.
    pub details: Option<Details>,
}

/// What a refusal is about (WIT `details`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// Name of the object; empty for a create, whose name is in the body.
    pub name: String,
    pub group: String,
    pub kind: String,
    pub causes: Vec<Cause>,
}

/// One cause (WIT `cause`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// A word for machines.
    pub reason: String,
    pub message: String,
    /// Path of the field.
    pub field: String,
}

/// An answer that is no Status (WIT `answer`). Already validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status, 200 to 599.
    pub code: u16,
    /// Header fields in their order.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    pub body: bytes::Bytes,
    /// The connection takes no more requests.
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
    /// Never answer, up to the host's longest wait.
    Hang,
    /// The client's connection falls silent, up to the host's longest wait.
    BlackHole,
}

/// What happens with a request (WIT `request-action`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestAction {
    /// Go on with these edits.
    Proceed(Vec<RequestEdit>),
    Refuse(Refusal),
    Reset(Reset),
    Answer(Answer),
    /// Close the port for so long, and all client connections. Already bounded.
    RefuseConnections(Duration),
}

/// A verdict on a request (WIT `request-verdict`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestVerdict {
    /// Wait so long first. Already bounded.
    pub delay: Duration,
    pub action: RequestAction,
}

/// A change to a response head (WIT `response-edit`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseEdit {
    /// Set a header, replacing all its values. Already validated.
    SetHeader(http::HeaderName, http::HeaderValue),
    /// Remove a header. Already validated.
    RemoveHeader(http::HeaderName),
    /// Ask the client to take another connection.
    CloseConnection,
}

/// What happens to a body while it streams (WIT `body-shape`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyShape {
    /// Bytes per second at most.
    pub pace: Option<u32>,
    /// Hold back the first byte so long.
    pub hold: Option<Duration>,
    /// Break off after so many bytes.
    pub cut_after: Option<u64>,
    /// End cleanly after so long.
    pub end_after: Option<Duration>,
    /// With `end_after`: send ERROR 410 first.
    pub expired: bool,
    /// How `cut_after` breaks off.
    pub reset: Reset,
}

/// What to do with a response (WIT `response-action`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseAction {
    /// Pass it on, with these changes.
    Proceed {
        /// Changes to the head.
        edits: Vec<ResponseEdit>,
        /// Changes to the body's flow.
        body: Option<BodyShape>,
    },
    Replace(Refusal),
    /// Break off: executed, but the answer is lost.
    Reset(Reset),
    /// Answer these bytes instead.
    Answer(Answer),
}

/// A verdict on a response (WIT `response-verdict`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseVerdict {
    /// Wait so long first. Already bounded.
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
    /// A plugin broke it off on purpose.
    PluginReset,
    /// A plugin failed and its entry is closed on failure.
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

    /// The word for it in metrics and in the access log.
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
    /// Status that the client got; 0 for none.
    pub status: u16,
    /// Status that the upstream sent; 0 for none.
    pub upstream_status: u16,
    /// Why there was no complete response.
    pub failure: Option<Failure>,
    /// From request head to the end of the body.
    pub duration: Duration,
    /// From sending to the response head.
    pub upstream: Duration,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
}

/// Which phases an entry wants (WIT `phases`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phases {
    pub request: bool,
    pub response: bool,
    pub complete: bool,
}

/// One match rule (WIT `match-rule`), as the plugin gave it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MatchRule {
    /// Kinds of traffic; empty: all.
    pub traffic: Vec<Traffic>,
    /// Verbs; empty: all.
    pub verbs: Vec<ctrlmesh_wire::Verb>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    /// Subresources; the empty string is the resource itself.
    pub subresources: Vec<String>,
    pub namespaces: Vec<String>,
    pub names: Vec<String>,
    pub paths: Vec<String>,
    pub hosts: Vec<String>,
    pub user_agents: Vec<String>,
}

/// What an entry wants to see (WIT `subscription`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subscription {
    pub phases: Phases,
    /// One matching rule is enough; none: never called.
    pub rules: Vec<MatchRule>,
}

/// Which kind of traffic (WIT `traffic`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// To the Kubernetes API server.
    Api,
    /// From the API server to the controller's webhooks.
    Webhook,
    /// To any other service.
    External,
}
