//! What a fault does, once its parameters are checked: an act on the request or on the response, and which requests it can
//! be done to. Which name makes which fault is the catalogue's.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{
    BodyShape, Facts, Request, RequestAction, Reset, ResponseAction, ResponseHead, ResponsePlan, ResponseVerdict, Verb,
};
use serde::Deserialize;

use crate::params::Wait;
use crate::reply::server::EXEMPT_FROM_SHUTDOWN;
use crate::reply::{Reply, Told};

/// How far from a healthy API server a fault is. A setting names the farthest that it wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Class {
    /// What a real API server does, or a network: each finding is the controller's.
    #[default]
    Legal,
    /// What an older or a reduced API server does.
    Server,
    /// What none ever does.
    Illegal,
}

impl Class {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Legal => "legal",
            Self::Server => "server",
            Self::Illegal => "illegal",
        }
    }
}

/// One act.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Wait, then go on.
    Delay(Wait),
    /// Wait so many milliseconds, then answer; nothing is forwarded.
    Reply(u32, Reply),
    /// Break off; nothing is forwarded.
    Reset(Reset),
    /// Close the port for so many milliseconds.
    RefuseConnections(u32),
    /// Forward at once, keep the answer, or a watch's events, back.
    Hold(Wait),
    /// Forward; if it was done, answer something else.
    LoseTo(Reply),
    /// Forward; if it was done, break off.
    LoseBy(Reset),
    /// Change how the body comes.
    Shape(BodyShape),
    /// Ask for another connection.
    CloseConnection,
}

/// Which requests a fault makes sense for. Others count as not matched: a conflict on a list would fool nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suits {
    Every,
    /// Of this version, if it is about a resource.
    Version(String),
    /// Whatever changes something.
    Write,
    Create,
    /// A create in a namespace.
    Namespaced,
    /// Writes of an object that is there.
    Change,
    Watch,
    ListOrWatch,
    /// A watch with `sendInitialEvents`.
    WatchList,
    /// A list with `continue`.
    NextPage,
    /// Whose resource version can have been compacted away.
    Aged,
    /// Whose resource version the server waits for.
    NotOlderThan,
    /// What a server that goes down refuses.
    Shutdown,
}

impl Suits {
    /// Verbs of the requests that it can include; `None`: any, or none, as of what is about no resource.
    pub(crate) const fn verbs(&self) -> Option<&'static [Verb]> {
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

    pub(crate) fn includes(&self, req: &dyn Request) -> bool {
        let facts = req.facts();
        match self {
            Self::Every => true,
            Self::Version(version) => facts.verb == Verb::NonResource || facts.version == *version,
            Self::Write => is_change(facts) || facts.verb == Verb::Create,
            Self::Create => facts.verb == Verb::Create,
            Self::Namespaced => facts.verb == Verb::Create && !facts.namespace.is_empty(),
            Self::Change => is_change(facts),
            Self::Watch => facts.verb == Verb::Watch,
            Self::ListOrWatch => matches!(facts.verb, Verb::List | Verb::Watch),
            Self::WatchList => facts.verb == Verb::Watch && req.query("sendInitialEvents").as_deref() == Some("true"),
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

fn is_change(facts: &Facts) -> bool {
    matches!(
        facts.verb,
        Verb::Update | Verb::Patch | Verb::Delete | Verb::Deletecollection
    )
}

fn is_next_page(req: &dyn Request) -> bool {
    req.facts().verb == Verb::List && req.query("continue").is_some_and(|token| !token.is_empty())
}

/// A version that names a moment; `0` is any, in whatever spelling, and none is now.
fn has_version(req: &dyn Request) -> bool {
    req.query("resourceVersion")
        .is_some_and(|version| version.bytes().any(|digit| digit != b'0'))
}

fn is_aged(req: &dyn Request) -> bool {
    let is_exact = || req.query("resourceVersionMatch").as_deref() == Some("Exact");
    match req.facts().verb {
        Verb::Watch => has_version(req),
        Verb::List => is_exact() && has_version(req),
        _ => false,
    }
}

fn is_not_older_than(req: &dyn Request) -> bool {
    let is_exact = || req.query("resourceVersionMatch").as_deref() == Some("Exact");
    matches!(req.facts().verb, Verb::List | Verb::Get) && has_version(req) && !is_exact() && !is_next_page(req)
}

/// What an act does to the request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OnRequest {
    /// Wait so many milliseconds more.
    Delay(u32),
    /// Wait so many milliseconds, then do this.
    Stop(u32, RequestAction),
    /// It acts on the response; so many milliseconds are drawn for it.
    Later(u32),
}

impl Act {
    /// What it does to the request; `unit` is drawn.
    pub(crate) fn on_request(&self, req: &dyn Request, unit: f64) -> OnRequest {
        match self {
            Self::Delay(wait) => OnRequest::Delay(wait.sample(unit)),
            Self::Reply(after, reply) => OnRequest::Stop(
                *after,
                match reply.to(req) {
                    Told::Status(refusal) => RequestAction::Refuse(refusal),
                    Told::Bytes(answer) => RequestAction::Answer(answer),
                },
            ),
            Self::Reset(how) => OnRequest::Stop(0, RequestAction::Reset(*how)),
            Self::RefuseConnections(ms) => OnRequest::Stop(0, RequestAction::RefuseConnections(*ms)),
            Self::Hold(wait) => OnRequest::Later(wait.sample(unit)),
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

    /// What it does to the response, if this one suits it; `drawn` milliseconds were drawn with the request.
    pub(crate) fn on_response(&self, req: &dyn Request, res: &dyn ResponseHead, drawn: u32) -> Option<ResponseVerdict> {
        let was_done = (200..300).contains(&res.status());
        let streams = was_done && req.facts().verb == Verb::Watch;
        match self {
            Self::Hold(_) if streams => {
                let shape = BodyShape::default().hold_ms(drawn);
                Some(ResponseVerdict::edit(ResponsePlan::default().body(shape)))
            }
            Self::Hold(_) => Some(ResponseVerdict::proceed().after_ms(drawn)),
            Self::LoseTo(reply) if was_done => Some(
                match reply.to(req) {
                    Told::Status(refusal) => ResponseAction::Replace(refusal),
                    Told::Bytes(answer) => ResponseAction::Answer(answer),
                }
                .into(),
            ),
            Self::LoseBy(how) if was_done => Some(ResponseVerdict::reset(*how)),
            Self::Shape(shape) if was_done => Some(ResponseVerdict::edit(ResponsePlan::default().body(*shape))),
            Self::CloseConnection => Some(ResponseVerdict::edit(ResponsePlan::default().close_connection())),
            _ => None,
        }
    }

    /// Whether it needs a number drawn.
    pub(crate) fn is_random(&self) -> bool {
        matches!(self, Self::Delay(wait) | Self::Hold(wait) if wait.is_random())
    }

    /// The longest wait that it asks of the host, in milliseconds.
    pub(crate) fn longest_wait(&self) -> u32 {
        match self {
            Self::Delay(wait) | Self::Hold(wait) => wait.longest(),
            Self::Reply(after, _) => *after,
            _ => 0,
        }
    }
}

/// How to break off, by the names of the interface.
///
/// # Errors
///
/// Names the field.
pub(crate) fn reset(how: Option<&str>) -> Result<Reset, Invalid> {
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
