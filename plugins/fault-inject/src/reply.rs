//! What a client is told instead of the answer that it wants: status, reason, message, details, headers as the API server
//! writes them. The families lie below, each with its upstream file; which fault says what is the catalogue's.
//!
//! Read at k8s.io/apiserver and k8s.io/apimachinery v0.36.3 (kube-apiserver 1.36).

pub(crate) mod admission;
pub(crate) mod generic;
pub(crate) mod identity;
pub(crate) mod reads;
pub(crate) mod server;
pub(crate) mod writes;

use ctrlmesh_sdk::{Answer, Details, Facts, Refusal, Request, Traffic, Verb};

use admission::{Denied, Quota, Webhook};
use generic::Plain;

/// In a message: the name of the object. For a create it is in the body, where the host looks.
pub(crate) const NAME: &str = "{name}";

/// metav1's `StatusReasonUnknown`, which is no word at all on the wire.
pub(crate) const UNKNOWN: &str = "Unknown";

/// One answer, with what a rule says about it.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A status of choice.
    Plain(Plain),
    /// Bytes of choice.
    Foreign(Answer),
    /// The server's own patience ended.
    Timeout,
    /// The store could not be reached; seconds until a repeat.
    ServerTimeout(u32),
    /// The store did not answer, and nobody has made an API error of that.
    StoreTimeout,
    /// The resource version is gone.
    TooOld,
    /// The resource version is not there yet.
    TooNew,
    /// The token of a list's next page is too old.
    PageExpired,
    /// No WatchList on this server.
    NoWatchList,
    /// The watch cache is being filled.
    CacheNotReady,
    /// Somebody else has written before.
    Conflict,
    /// The name is taken.
    Exists,
    /// No or an expired token.
    Unauthorized,
    /// No right; the user's name.
    Forbidden(String),
    /// An admission webhook or policy says no.
    Denied(Denied),
    /// A quota says no.
    Quota(Quota),
    /// An admission webhook does not answer.
    WebhookDown(Webhook),
    /// The namespace is on its way out.
    NamespaceTerminating,
    /// Priority and fairness; seconds until a repeat.
    Throttled(u32),
    /// The server goes down.
    ShuttingDown,
    /// An aggregated API server does not answer.
    Unavailable,
    /// Discovery fails with this code.
    Discovery(u16),
}

/// In which form it goes out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    /// A Status, in the client's encoding.
    Status(Refusal),
    /// These bytes.
    Bytes(Answer),
}

impl From<Refusal> for Told {
    fn from(refusal: Refusal) -> Self {
        Self::Status(refusal)
    }
}

impl From<Answer> for Told {
    fn from(answer: Answer) -> Self {
        Self::Bytes(answer)
    }
}

impl Reply {
    /// The answer to this request.
    pub(crate) fn to(&self, req: &dyn Request) -> Told {
        let facts = req.facts();
        match self {
            Self::Plain(plain) => plain.to(req),
            Self::Foreign(answer) => answer.clone().into(),
            Self::Timeout => server::timeout().into(),
            Self::ServerTimeout(seconds) => writes::server_timeout(facts, *seconds).into(),
            Self::StoreTimeout => writes::store_timeout().into(),
            Self::TooOld => reads::too_old(req).into(),
            Self::TooNew => reads::too_new(req).into(),
            Self::PageExpired => reads::page_expired().into(),
            Self::NoWatchList => reads::no_watch_list().into(),
            Self::CacheNotReady => reads::cache_not_ready().into(),
            Self::Conflict => writes::conflict(facts).into(),
            Self::Exists => writes::exists(facts).into(),
            Self::Unauthorized => identity::unauthorized().into(),
            Self::Forbidden(user) => identity::forbidden(req, user).into(),
            Self::Denied(denied) => denied.to(facts).into(),
            Self::Quota(quota) => quota.to(facts).into(),
            Self::WebhookDown(webhook) => webhook.unreachable().into(),
            Self::NamespaceTerminating => admission::namespace_terminating(facts).into(),
            Self::Throttled(seconds) => server::throttled(*seconds).into(),
            Self::ShuttingDown => server::shutting_down().into(),
            Self::Unavailable => server::unavailable().into(),
            Self::Discovery(code) => server::discovery(*code, req),
        }
    }
}

/// `deployments.apps`, or `pods` of the core group: `GroupResource.String()` (k8s.io/apimachinery
/// `pkg/runtime/schema/group_version.go`).
fn qualified(facts: &Facts) -> String {
    if facts.group.is_empty() {
        facts.resource.clone()
    } else {
        format!("{}.{}", facts.resource, facts.group)
    }
}

/// The object's name for a message.
fn shown_name(facts: &Facts) -> &str {
    if facts.name.is_empty() && facts.verb == Verb::Create {
        NAME
    } else {
        &facts.name
    }
}

/// Details about the object.
fn about(facts: &Facts) -> Details {
    Details::new(&facts.group, &facts.resource, &facts.name)
}

/// Whether it is about a resource of the Kubernetes API.
fn is_resource(facts: &Facts) -> bool {
    facts.traffic == Traffic::Api && !facts.resource.is_empty()
}
