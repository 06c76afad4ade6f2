//! Whether, and until when, a write may still be carried out after the client stopped waiting for the response.
//!
//! Pure. `chain::in_flight` counts such writes, and `/status` shows them.

use std::time::Duration;

use http::{Response, StatusCode};
use tokio::time::Instant;

use crate::upstream::SendError;

/// An API server gives up a request after this time, even if it has not noticed that its client is gone: the default of
/// `--request-timeout`. (Its handlers allow 34 s to all writes but DELETECOLLECTION: `requestTimeoutUpperBound` in k8s.io/apiserver
/// `pkg/endpoints/handlers/rest.go`.)
const LONGEST_REQUEST: Duration = Duration::from_secs(60);

/// How a request ended at the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// The request was carried out or refused, or the API server has never received it.
    Finished,
    /// The API server gives up the request about now, but not the part that it has passed to etcd: it answered with an error of its own
    /// (504 for a timeout, 500 possibly for an error of etcd), or its client went away, which it notices.
    GivenUp,
    /// There was no response, and the API server may not know that the client has stopped waiting.
    CutOff,
}

impl WriteOutcome {
    /// Derives the outcome from the result of sending.
    pub(crate) fn from_result<B>(result: &Result<Response<B>, SendError>) -> Self {
        match result {
            Ok(response) => Self::of_status(response.status()),
            Err(error) => Self::of_error(error),
        }
    }

    /// Derives the outcome from the status of the response.
    pub(crate) fn of_status(status: StatusCode) -> Self {
        if status.is_server_error() {
            Self::GivenUp
        } else {
            Self::Finished
        }
    }

    /// Derives the outcome from the error that replaced the response.
    pub(crate) fn of_error(error: &SendError) -> Self {
        match error {
            SendError::RequestBody { .. } => Self::GivenUp,
            error if error.maybe_executed() => Self::CutOff,
            _ => Self::Finished,
        }
    }

    /// The outcome of two requests together: that of the one that may go on for longer.
    pub(crate) const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::CutOff, _) | (_, Self::CutOff) => Self::CutOff,
            (Self::GivenUp, _) | (_, Self::GivenUp) => Self::GivenUp,
            (Self::Finished, Self::Finished) => Self::Finished,
        }
    }

    /// When the API server has given up the request; `None` if there is nothing to give up.
    pub(crate) fn given_up(self, sent: Instant, ended: Instant) -> Option<Instant> {
        match self {
            Self::Finished => None,
            Self::GivenUp => Some(ended),
            Self::CutOff => Some(ended.max(sent + LONGEST_REQUEST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_with(code: u16) -> Result<Response<()>, SendError> {
        Ok(Response::builder().status(code).body(()).unwrap())
    }

    fn broken_send(maybe_executed: bool) -> Result<Response<()>, SendError> {
        let source = "reset".into();
        Err(SendError::Broken { maybe_executed, source })
    }

    #[test]
    fn write_ends_only_with_conclusive_response() {
        for code in [200, 201, 202, 307, 400, 403, 404, 409, 422, 429] {
            assert_eq!(
                WriteOutcome::from_result(&response_with(code)),
                WriteOutcome::Finished,
                "{code}"
            );
        }
        for code in [500, 502, 503, 504] {
            assert_eq!(
                WriteOutcome::from_result(&response_with(code)),
                WriteOutcome::GivenUp,
                "{code}"
            );
        }
    }

    #[test]
    fn write_without_response_may_go_on_unless_it_was_never_sent() {
        let source = || "reset".into();
        let timeout = Duration::from_secs(75);
        for (result, outcome) in [
            (broken_send(true), WriteOutcome::CutOff),
            (broken_send(false), WriteOutcome::Finished),
            (Err(SendError::HeadTimeout { timeout }), WriteOutcome::CutOff),
            (Err(SendError::RequestBody { source: source() }), WriteOutcome::GivenUp),
            (
                Err(SendError::NotProcessed { source: source() }),
                WriteOutcome::Finished,
            ),
            (Err(SendError::TooManyConnections { limit: 1 }), WriteOutcome::Finished),
        ] {
            assert_eq!(WriteOutcome::from_result(&result), outcome, "{result:?}");
        }
    }

    #[test]
    fn outcome_of_two_writes_is_that_of_the_one_that_may_go_on_for_longer() {
        use WriteOutcome::{CutOff, Finished, GivenUp};
        for (one, other, both) in [
            (Finished, Finished, Finished),
            (Finished, GivenUp, GivenUp),
            (GivenUp, CutOff, CutOff),
            (Finished, CutOff, CutOff),
        ] {
            assert_eq!((one.and(other), other.and(one)), (both, both));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cut_off_write_may_go_on_for_longest_request_time() {
        let sent = Instant::now();
        let (soon, late) = (sent + Duration::from_secs(5), sent + Duration::from_secs(75));
        assert_eq!(WriteOutcome::Finished.given_up(sent, soon), None);
        assert_eq!(WriteOutcome::GivenUp.given_up(sent, soon), Some(soon));
        assert_eq!(WriteOutcome::CutOff.given_up(sent, soon), Some(sent + LONGEST_REQUEST));
        assert_eq!(WriteOutcome::CutOff.given_up(sent, late), Some(late));
    }
}
