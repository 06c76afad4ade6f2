//! Responses of admission. Its errors name the object, even in a create (k8s.io/apiserver `pkg/admission/errors.go`).

use ctrlmesh_sdk::{Details, Facts, Refusal, Request};

use super::writes::OPTIMISTIC_LOCK;
use super::{UNKNOWN, object_details, qualified_resource, server, shown_name};

#[derive(Clone, Debug)]
pub(crate) enum Denied {
    /// `admission webhook "…" denied the request: …` (`pkg/admission/plugin/webhook/errors/statuserror.go`).
    ByWebhook { name: String, message: String, code: u16 },
    /// `ValidatingAdmissionPolicy '…' with binding '…' denied request: …`
    /// (`pkg/admission/plugin/policy/validating/dispatcher.go`).
    ByPolicy {
        name: String,
        binding: String,
        message: String,
    },
}

impl Denied {
    pub(crate) fn to_refusal(&self, req: &dyn Request) -> Refusal {
        match self {
            Self::ByWebhook { name, message, code } => {
                let refused = format!("admission webhook {name:?} denied the request");
                let message = match message.as_str() {
                    "" => format!("{refused} without explanation"),
                    message => format!("{refused}: {message}"),
                };
                // The webhook's own Status is sent. controller-runtime's `Denied` says Forbidden, a validator's `NewInvalid` Invalid, `Errored`
                // nothing (`pkg/webhook/admission/response.go`).
                let reason = match code {
                    403 => "Forbidden",
                    422 => "Invalid",
                    _ => UNKNOWN,
                };
                Refusal::new(*code, message).reason(reason)
            }
            Self::ByPolicy { name, binding, message } => {
                let facts = req.facts();
                let denied =
                    format!("ValidatingAdmissionPolicy '{name}' with binding '{binding}' denied request: {message}");
                let mut refusal = forbidden_refusal(facts, &denied).reason("Invalid");
                refusal.code = 422;
                refusal.details(object_details(facts).cause("", denied, ""))
            }
        }
    }
}

/// A denial by a ResourceQuota.
#[derive(Clone, Debug)]
pub(crate) enum Quota {
    /// `exceeded quota: …` (`pkg/admission/plugin/resourcequota/controller.go`).
    Exceeded {
        name: String,
        requested: String,
        used: String,
        limited: String,
    },
    /// Too many requests updated its status at once: the last conflict is sent to the client (the same file, `checkQuotas`).
    Conflict { name: String },
}

impl Quota {
    pub(crate) fn to_refusal(&self, req: &dyn Request) -> Refusal {
        match self {
            Self::Exceeded {
                name,
                requested,
                used,
                limited,
            } => {
                let cause = format!("exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}");
                forbidden_refusal(req.facts(), &cause)
            }
            Self::Conflict { name } => {
                let message = format!("Operation cannot be fulfilled on resourcequotas {name:?}: {OPTIMISTIC_LOCK}");
                Refusal::new(409, message)
                    .reason("Conflict")
                    .details(Details::new("", "resourcequotas", name))
            }
        }
    }
}

/// An unreachable admission webhook.
#[derive(Clone, Debug)]
pub(crate) struct Webhook {
    pub(crate) name: String,
    /// URL that the API server calls.
    pub(crate) url: String,
    /// Go's error text.
    pub(crate) error: &'static str,
}

impl Webhook {
    /// `ErrCallingWebhook` inside `NewInternalError` (`pkg/util/webhook/error.go`,
    /// `pkg/admission/plugin/webhook/validating/dispatcher.go`).
    pub(crate) fn unreachable_refusal(&self) -> Refusal {
        let Self { name, url, error } = self;
        server::internal_error(&format!(
            "failed calling webhook {name:?}: failed to call webhook: Post {url:?}: {error}"
        ))
    }
}

/// `pkg/admission/plugin/namespace/lifecycle/admission.go`.
pub(crate) fn namespace_terminating(facts: &Facts) -> Refusal {
    let namespace = &facts.namespace;
    let message = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let details = object_details(facts).cause(
        "NamespaceTerminating",
        format!("namespace {namespace} is being terminated"),
        "metadata.namespace",
    );
    forbidden_refusal(facts, &message).details(details)
}

/// `admission.NewForbidden`.
fn forbidden_refusal(facts: &Facts, cause: &str) -> Refusal {
    let message = format!(
        "{} {:?} is forbidden: {cause}",
        qualified_resource(facts),
        shown_name(facts)
    );
    Refusal::new(403, message)
        .reason("Forbidden")
        .details(object_details(facts))
}
