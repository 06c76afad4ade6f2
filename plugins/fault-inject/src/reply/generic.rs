//! A refusal with a code of choice. What is left out is as the API server, or client-go's reading of one, has it for that
//! code (k8s.io/apimachinery `pkg/api/errors/errors.go`).

use ctrlmesh_sdk::{Details, Refusal, Request, Verb};

use super::{Told, about, identity, is_resource, qualified, reads, server, shown_name, writes};

/// The parts that a rule may set.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub(crate) code: u16,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    /// Seconds. Without it client-go repeats nothing (client-go `rest/with_retry.go`).
    pub(crate) retry_after: Option<u32>,
    /// Who is refused by 403.
    pub(crate) user: String,
}

impl Plain {
    pub(crate) fn to(&self, req: &dyn Request) -> Told {
        let mut refusal = self.standard(req);
        if let Some(reason) = &self.reason {
            refusal.reason.clone_from(reason);
        }
        if let Some(message) = &self.message {
            refusal.message.clone_from(message);
        }
        refusal.retry_after_seconds = self.retry_after;
        refusal.into()
    }

    fn standard(&self, req: &dyn Request) -> Refusal {
        let facts = req.facts();
        if !is_resource(facts) {
            return unexplained(self.code);
        }
        match self.code {
            401 => identity::unauthorized(),
            403 => identity::forbidden(req, &self.user),
            404 => not_found(req),
            405 => method_not_supported(req),
            // As errors.go reads a 409 that does not explain itself.
            409 if facts.verb == Verb::Create => writes::exists(facts),
            409 => writes::conflict(facts),
            410 => reads::too_old(req),
            500 => internal_error("the server could not complete the request"),
            503 => {
                Refusal::new(503, "the server is currently unable to handle the request").reason("ServiceUnavailable")
            }
            504 => server::timeout(),
            code => unexplained(code),
        }
    }
}

/// `NewGenericServerResponse`: what people read when a server says nothing but a code.
fn unexplained(code: u16) -> Refusal {
    let message = format!("the server responded with the status code {code} but did not return more information");
    Refusal::new(code, message)
}

/// `NewNotFound`.
fn not_found(req: &dyn Request) -> Refusal {
    let facts = req.facts();
    let message = format!("{} {:?} not found", qualified(facts), shown_name(facts));
    Refusal::new(404, message).reason("NotFound").details(about(facts))
}

/// `NewMethodNotSupported`.
fn method_not_supported(req: &dyn Request) -> Refusal {
    let facts = req.facts();
    let verb = crate::draw::verb_name(facts.verb);
    let message = format!("{verb} is not supported on resources of kind {:?}", qualified(facts));
    let details = Details::new(&facts.group, &facts.resource, "");
    Refusal::new(405, message).reason("MethodNotAllowed").details(details)
}

/// `NewInternalError`.
pub(crate) fn internal_error(cause: &str) -> Refusal {
    let details = Details::new("", "", "").cause("", cause, "");
    Refusal::new(500, format!("Internal error occurred: {cause}"))
        .reason("InternalError")
        .details(details)
}
