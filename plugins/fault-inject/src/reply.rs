//! The responses that replace the expected one: status, reason, message, details and headers as the API server writes them. Submodules
//! have the families, with their upstream files; the catalogue says which fault uses which.
//!
//! Taken from k8s.io/apiserver and k8s.io/apimachinery v0.36.3 (kube-apiserver 1.36).

pub(crate) mod admission;
pub(crate) mod generic;
pub(crate) mod identity;
pub(crate) mod reads;
pub(crate) mod server;
pub(crate) mod writes;

use ctrlmesh_sdk::{Answer, Details, Facts, Refusal, Request, Traffic, Verb};

use admission::{Denied, Quota, Webhook};
use generic::CustomRefusal;

/// Placeholder for the object's name in a message. For a create it is in the body, where the host finds it.
pub(crate) const NAME: &str = "{name}";

/// metav1's `StatusReasonUnknown`, which is empty on the wire.
pub(crate) const UNKNOWN: &str = "Unknown";

/// A response, with the parameters from the rule.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// A status with custom code, reason and message.
    Plain(CustomRefusal),
    Foreign(Answer),
    /// The server timed out.
    Timeout,
    /// The store is unreachable; seconds until a retry.
    ServerTimeout(u32),
    /// The store did not answer, and the error is no API error.
    StoreTimeout,
    /// The resource version was compacted.
    TooOld,
    /// The resource version is not reached yet.
    TooNew,
    /// The token of the next page has expired.
    PageExpired,
    /// The server has no WatchList.
    NoWatchList,
    /// The watch cache is being filled.
    CacheNotReady,
    Conflict,
    Exists,
    /// Missing or expired token.
    Unauthorized,
    /// Missing permission of this user.
    Forbidden(String),
    /// Denied by an admission webhook or policy.
    Denied(Denied),
    /// Denied by a quota.
    Quota(Quota),
    /// An admission webhook does not answer.
    WebhookDown(Webhook),
    NamespaceTerminating,
    /// Priority and fairness; seconds until a retry.
    Throttled(u32),
    /// The server is shutting down.
    ShuttingDown,
    /// An aggregated API server does not answer.
    Unavailable,
    /// Discovery fails with this code.
    Discovery(u16),
}

/// The form in which the response is sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RenderedReply {
    /// A Status in the client's encoding.
    Status(Refusal),
    Bytes(Answer),
}

impl From<Refusal> for RenderedReply {
    fn from(refusal: Refusal) -> Self {
        Self::Status(refusal)
    }
}

impl From<Answer> for RenderedReply {
    fn from(answer: Answer) -> Self {
        Self::Bytes(answer)
    }
}

impl Reply {
    /// Reads of the request what it shows: a response that names no object is the same for all objects.
    pub(crate) fn render_for(&self, req: &dyn Request) -> RenderedReply {
        match self {
            Self::Plain(plain) => plain.render_for(req),
            Self::Foreign(answer) => answer.clone().into(),
            Self::Timeout => server::timeout().into(),
            Self::ServerTimeout(seconds) => writes::server_timeout(req, *seconds).into(),
            Self::StoreTimeout => writes::store_timeout().into(),
            Self::TooOld => reads::too_old(req).into(),
            Self::TooNew => reads::too_new(req).into(),
            Self::PageExpired => reads::page_expired().into(),
            Self::NoWatchList => reads::no_watch_list().into(),
            Self::CacheNotReady => reads::cache_not_ready().into(),
            Self::Conflict => writes::conflict(req.facts()).into(),
            Self::Exists => writes::already_exists(req.facts()).into(),
            Self::Unauthorized => identity::unauthorized().into(),
            Self::Forbidden(user) => identity::forbidden(req, user).into(),
            Self::Denied(denied) => denied.to_refusal(req).into(),
            Self::Quota(quota) => quota.to_refusal(req).into(),
            Self::WebhookDown(webhook) => webhook.unreachable_refusal().into(),
            Self::NamespaceTerminating => admission::namespace_terminating(req.facts()).into(),
            Self::Throttled(seconds) => server::throttled(*seconds).into(),
            Self::ShuttingDown => server::shutting_down().into(),
            Self::Unavailable => server::unavailable().into(),
            Self::Discovery(code) => server::discovery_failure(*code, req),
        }
    }
}

/// `deployments.apps`, or `pods` of the core group: `GroupResource.String()` (k8s.io/apimachinery
/// `pkg/runtime/schema/group_version.go`).
fn qualified_resource(facts: &Facts) -> String {
    group_resource(&facts.group, &facts.resource)
}

fn group_resource(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

fn shown_name(facts: &Facts) -> &str {
    if facts.name.is_empty() && facts.verb == Verb::Create {
        NAME
    } else {
        &facts.name
    }
}

fn object_details(facts: &Facts) -> Details {
    Details::new(&facts.group, &facts.resource, &facts.name)
}

fn is_resource(req: &dyn Request) -> bool {
    req.traffic() == Traffic::Api && !req.resource().is_empty()
}
