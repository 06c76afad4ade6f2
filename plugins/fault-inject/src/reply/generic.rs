//! A refusal with a custom code. Missing parts are filled in as the API server, or client-go when it reads the response, does for that code
//! (k8s.io/apimachinery `pkg/api/errors/errors.go`).

use ctrlmesh_sdk::{Details, Refusal, Request, Verb};

use super::{
    RenderedReply, group_resource, identity, is_resource, object_details, qualified_resource, reads, server,
    shown_name, writes,
};

/// The parts that a rule may set.
#[derive(Clone, Debug)]
pub(crate) struct CustomRefusal {
    pub(crate) code: u16,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    /// Seconds. Without it, client-go does not retry (client-go `rest/with_retry.go`).
    pub(crate) retry_after: Option<u32>,
    /// The user in a 403.
    pub(crate) user: String,
}

impl CustomRefusal {
    pub(crate) fn render_for(&self, req: &dyn Request) -> RenderedReply {
        let mut refusal = self.standard_refusal(req);
        if let Some(reason) = &self.reason {
            refusal.reason.clone_from(reason);
        }
        if let Some(message) = &self.message {
            refusal.message.clone_from(message);
        }
        refusal.retry_after_seconds = self.retry_after;
        refusal.into()
    }

    fn standard_refusal(&self, req: &dyn Request) -> Refusal {
        if !is_resource(req) {
            return generic_refusal(self.code);
        }
        match self.code {
            401 => identity::unauthorized(),
            403 => identity::forbidden(req, &self.user),
            404 => not_found(req),
            405 => method_not_supported(req),
            // As errors.go reads a 409 without a reason.
            409 if req.verb() == Verb::Create => writes::already_exists(req.facts()),
            409 => writes::conflict(req.facts()),
            410 => reads::too_old(req),
            500 => server::internal_error("the server could not complete the request"),
            503 => {
                Refusal::new(503, "the server is currently unable to handle the request").reason("ServiceUnavailable")
            }
            504 => server::timeout(),
            code => generic_refusal(code),
        }
    }
}

/// `NewGenericServerResponse`: the text for a server that sends only a code.
fn generic_refusal(code: u16) -> Refusal {
    let message = format!("the server responded with the status code {code} but did not return more information");
    Refusal::new(code, message)
}

/// `NewNotFound`.
fn not_found(req: &dyn Request) -> Refusal {
    let facts = req.facts();
    let message = format!("{} {:?} not found", qualified_resource(facts), shown_name(facts));
    Refusal::new(404, message)
        .reason("NotFound")
        .details(object_details(facts))
}

/// `NewMethodNotSupported`.
fn method_not_supported(req: &dyn Request) -> Refusal {
    let verb = crate::draw::verb_name(req.verb());
    let (group, resource) = (req.group(), req.resource());
    let message = format!(
        "{verb} is not supported on resources of kind {:?}",
        group_resource(group, resource)
    );
    let details = Details::new(group, resource, "");
    Refusal::new(405, message).reason("MethodNotAllowed").details(details)
}
