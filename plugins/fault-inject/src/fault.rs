//! The effect of a fault with validated parameters: an act on the request or on the response, and the requests that it applies to. The
//! catalogue maps names to faults.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{
    BodyShape, Request, RequestAction, Reset, ResponseAction, ResponseHead, ResponsePlan, ResponseVerdict, Verb,
};
use serde::Deserialize;

use crate::params::DelayParam;
use crate::reply::server::EXEMPT_FROM_SHUTDOWN;
use crate::reply::{RenderedReply, Reply};

/// The status with which a tunnel begins.
const SWITCHING_PROTOCOLS: u16 = 101;

/// How far from a healthy API server a fault is. A setting names the farthest class that it allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Class {
    /// Behaviour of a real API server or a network: each finding is a bug of the controller.
    #[default]
    Legal,
    /// Behaviour of an older or a reduced API server.
    Server,
    /// Behaviour of no API server.
    Illegal,
}

impl Class {
    /// The spelling in settings.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Legal => "legal",
            Self::Server => "server",
            Self::Illegal => "illegal",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Delay(DelayParam),
    /// Waits this many milliseconds, then answers; nothing is forwarded.
    Reply(u32, Reply),
    /// Resets the stream; nothing is forwarded.
    Reset(Reset),
    /// Closes the port for this many milliseconds.
    RefuseConnections(u32),
    /// Forwards at once, but holds the response, or the events of a watch.
    Hold(DelayParam),
    /// Forwards; if the request was executed, replaces the response.
    LoseTo(Reply),
    /// Forwards; if the request was executed, resets the stream.
    LoseBy(Reset),
    /// Changes how the body is sent.
    Shape(BodyShape),
    /// Asks the client for another connection.
    CloseConnection,
}

/// The requests that a fault makes sense for. Others count as not matched, because no controller would believe a conflict on a list, for
/// instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Applicability {
    Every,
    /// Requests of this API version, if they are about a resource.
    Version(String),
    /// Requests that change something.
    Write,
    Create,
    /// Creates in a namespace.
    Namespaced,
    /// Writes of an existing object.
    Change,
    Watch,
    ListOrWatch,
    /// Watches with `sendInitialEvents`.
    WatchList,
    /// Lists with `continue`.
    NextPage,
    /// Requests whose resource version can have been compacted.
    Aged,
    /// Requests whose resource version the server waits for.
    NotOlderThan,
    /// Requests that a server refuses while it shuts down.
    Shutdown,
}

impl Applicability {
    /// The verbs that it can apply to; `None` if it does not depend on the verb.
    pub(crate) const fn applicable_verbs(&self) -> Option<&'static [Verb]> {
        match self {
            Self::Every | Self::Version(_) | Self::Shutdown => None,
            Self::Write => Some(&[
                Verb::Create,
                Verb::Update,
                Verb::Patch,
                Verb::Delete,
                Verb::Deletecollection,
            ]),
            Self::Create | Self::Namespaced => Some(&[Verb::Create]),
            Self::Change => Some(&[Verb::Update, Verb::Patch, Verb::Delete, Verb::Deletecollection]),
            Self::Watch | Self::WatchList => Some(&[Verb::Watch]),
            Self::ListOrWatch => Some(&[Verb::List, Verb::Watch]),
            Self::NextPage => Some(&[Verb::List]),
            Self::Aged => Some(&[Verb::Watch, Verb::List]),
            Self::NotOlderThan => Some(&[Verb::List, Verb::Get]),
        }
    }

    pub(crate) fn applies_to(&self, req: &dyn Request) -> bool {
        let verb = || req.verb();
        match self {
            Self::Every => true,
            Self::Version(version) => verb() == Verb::NonResource || req.version() == *version,
            Self::Write => is_change(verb()) || verb() == Verb::Create,
            Self::Create => verb() == Verb::Create,
            Self::Namespaced => verb() == Verb::Create && !req.namespace().is_empty(),
            Self::Change => is_change(verb()),
            Self::Watch => verb() == Verb::Watch,
            Self::ListOrWatch => matches!(verb(), Verb::List | Verb::Watch),
            Self::WatchList => verb() == Verb::Watch && req.query("sendInitialEvents").as_deref() == Some("true"),
            Self::NextPage => is_next_page(req),
            Self::Aged => is_aged(req),
            Self::NotOlderThan => is_not_older_than(req),
            Self::Shutdown => {
                let path = req.path();
                !EXEMPT_FROM_SHUTDOWN.iter().any(|exempt| path.starts_with(exempt))
            }
        }
    }
}

const fn is_change(verb: Verb) -> bool {
    matches!(verb, Verb::Update | Verb::Patch | Verb::Delete | Verb::Deletecollection)
}

fn is_next_page(req: &dyn Request) -> bool {
    req.verb() == Verb::List && req.query("continue").is_some_and(|token| !token.is_empty())
}

/// Whether the version is that of a certain state; `0` in any spelling means any version, and none means the latest.
fn has_version(req: &dyn Request) -> bool {
    req.query("resourceVersion")
        .is_some_and(|version| version.bytes().any(|digit| digit != b'0'))
}

fn is_aged(req: &dyn Request) -> bool {
    let is_exact = || req.query("resourceVersionMatch").as_deref() == Some("Exact");
    match req.verb() {
        Verb::Watch => has_version(req),
        Verb::List => is_exact() && has_version(req),
        _ => false,
    }
}

fn is_not_older_than(req: &dyn Request) -> bool {
    let is_exact = || req.query("resourceVersionMatch").as_deref() == Some("Exact");
    matches!(req.verb(), Verb::List | Verb::Get) && has_version(req) && !is_exact() && !is_next_page(req)
}

/// The effect of an act on the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OnRequest {
    /// Wait this many more milliseconds.
    Delay(u32),
    /// Wait this many milliseconds, then do this.
    Stop(u32, RequestAction),
    /// The act is on the response; this many milliseconds are drawn for it.
    Later(u32),
}

impl Act {
    /// `unit` is a drawn number in [0, 1).
    pub(crate) fn on_request(&self, req: &dyn Request, unit: f64) -> OnRequest {
        match self {
            Self::Delay(wait) => OnRequest::Delay(wait.sample_ms(unit)),
            Self::Reply(after, reply) => OnRequest::Stop(
                *after,
                match reply.render_for(req) {
                    RenderedReply::Status(refusal) => RequestAction::Refuse(refusal),
                    RenderedReply::Bytes(answer) => RequestAction::Answer(answer),
                },
            ),
            Self::Reset(how) => OnRequest::Stop(0, RequestAction::Reset(*how)),
            Self::RefuseConnections(ms) => OnRequest::Stop(0, RequestAction::RefuseConnections(*ms)),
            Self::Hold(wait) => OnRequest::Later(wait.sample_ms(unit)),
            Self::LoseTo(_) | Self::LoseBy(_) | Self::Shape(_) | Self::CloseConnection => OnRequest::Later(0),
        }
    }

    /// Whether it acts on the response.
    pub(crate) fn is_later(&self) -> bool {
        matches!(
            self,
            Self::Hold(_) | Self::LoseTo(_) | Self::LoseBy(_) | Self::Shape(_) | Self::CloseConnection
        )
    }

    /// The act on the response, if it applies to this one; `drawn` milliseconds were drawn with the request.
    pub(crate) fn on_response(&self, req: &dyn Request, res: &dyn ResponseHead, drawn: u32) -> Option<ResponseVerdict> {
        let was_done = (200..300).contains(&res.status());
        let streams = was_done && req.verb() == Verb::Watch;
        match self {
            Self::Hold(_) if streams => {
                let shape = BodyShape::default().hold_ms(drawn);
                Some(ResponseVerdict::edit(ResponsePlan::default().body(shape)))
            }
            Self::Hold(_) => Some(ResponseVerdict::proceed().after_ms(drawn)),
            Self::LoseTo(reply) if was_done => Some(
                match reply.render_for(req) {
                    RenderedReply::Status(refusal) => ResponseAction::Replace(refusal),
                    RenderedReply::Bytes(answer) => ResponseAction::Answer(answer),
                }
                .into(),
            ),
            Self::LoseBy(how) if was_done => Some(ResponseVerdict::reset(*how)),
            Self::Shape(shape) if was_done => Some(ResponseVerdict::edit(ResponsePlan::default().body(*shape))),
            // The connection of a tunnel takes no other request.
            Self::CloseConnection if res.status() != SWITCHING_PROTOCOLS => {
                Some(ResponseVerdict::edit(ResponsePlan::default().close_connection()))
            }
            _ => None,
        }
    }

    /// Whether the act needs a random number.
    pub(crate) fn is_random(&self) -> bool {
        matches!(self, Self::Delay(wait) | Self::Hold(wait) if wait.is_random())
    }

    /// The longest wait that it requires of the host, in milliseconds.
    pub(crate) fn longest_wait(&self) -> u32 {
        match self {
            Self::Delay(wait) | Self::Hold(wait) => wait.longest_ms(),
            Self::Reply(after, _) => *after,
            _ => 0,
        }
    }
}

/// The kind of reset, by the names of the interface.
///
/// # Errors
///
/// If the word is unknown; names the field.
pub(crate) fn parse_reset(how: Option<&str>) -> Result<Reset, Invalid> {
    match how.unwrap_or("internalError") {
        "internalError" => Ok(Reset::InternalError),
        "cancel" => Ok(Reset::Cancel),
        "close" => Ok(Reset::Close),
        other => {
            let message = format!(
                "{other:?} is no way to break off; write internalError, cancel or close (Go repeats a request silently \
                 after a refused stream)"
            );
            Err(Invalid::new(message).field("how"))
        }
    }
}
