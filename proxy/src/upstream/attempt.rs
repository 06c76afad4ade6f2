//! Decides after a failed attempt whether the same request is sent again, and which error the caller gets if not.
//!
//! Pure; the loop around it is in `upstream.rs`. Rules: a request that the server certainly has not processed is repeated for any verb (RFC
//! 9113 §8.7). A request that it may have processed is repeated only if it is a read, and only if a pooled connection turned out to be gone
//! (as Go's and hyper's clients do).

use super::error::{BoxError, SendError};

/// Maximum number of attempts for one request. Servers refuse in series only while they restart; after ten connections the controller gets
/// the error.
const MAX_ATTEMPTS: u32 = 10;

/// Why an attempt returned no response.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection was closing; nothing was sent.
    Unsent(BoxError),
    /// The server reports that it did not process the request: GOAWAY, REFUSED_STREAM.
    NotProcessed(BoxError),
    /// The request may have been processed.
    Broken {
        /// The connection itself is gone, and had worked before.
        stale: bool,
        source: BoxError,
    },
    /// Reading the client's body failed.
    RequestBody(BoxError),
    /// The request cannot be written on this protocol.
    Invalid(BoxError),
}

/// The attempts made for one request.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    made: u32,
    broken: bool,
}

impl Attempts {
    /// Returns `Ok` to send the request again. `rewind` restarts the body, if possible.
    pub(super) fn after_failure(
        &mut self,
        failure: Failure,
        repeatable: bool,
        mut rewind: impl FnMut() -> bool,
    ) -> Result<(), SendError> {
        self.made += 1;
        match failure {
            Failure::Unsent(_) | Failure::NotProcessed(_) if self.made < MAX_ATTEMPTS && rewind() => Ok(()),
            Failure::Unsent(source) | Failure::NotProcessed(source) => Err(SendError::NotProcessed { source }),
            Failure::Broken { stale: true, .. } if repeatable && !self.broken && rewind() => {
                self.broken = true;
                Ok(())
            }
            Failure::Broken { source, .. } => Err(SendError::Broken {
                maybe_executed: true,
                source,
            }),
            Failure::RequestBody(source) => Err(SendError::RequestBody { source }),
            Failure::Invalid(source) => Err(SendError::InvalidRequest { source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_failure() -> Failure {
        Failure::Broken {
            stale: true,
            source: "reset".into(),
        }
    }

    #[test]
    fn write_that_may_have_been_executed_is_never_repeated() {
        let end = Attempts::default().after_failure(broken_failure(), false, || true);
        assert!(matches!(
            end,
            Err(SendError::Broken {
                maybe_executed: true,
                ..
            })
        ));
    }

    #[test]
    fn read_on_stale_connection_is_repeated_once() {
        let mut attempts = Attempts::default();
        attempts.after_failure(broken_failure(), true, || true).unwrap();
        assert!(attempts.after_failure(broken_failure(), true, || true).is_err());
    }

    #[test]
    fn read_on_new_connection_is_not_repeated() {
        let failure = Failure::Broken {
            stale: false,
            source: "reset".into(),
        };
        assert!(Attempts::default().after_failure(failure, true, || true).is_err());
    }

    #[test]
    fn unprocessed_request_is_repeated_while_its_body_is_kept() {
        let refused = || Failure::NotProcessed("refused".into());
        let mut attempts = Attempts::default();
        for _ in 1..MAX_ATTEMPTS {
            attempts.after_failure(refused(), false, || true).unwrap();
        }
        let end = attempts.after_failure(refused(), false, || true);
        assert!(
            matches!(end, Err(SendError::NotProcessed { .. })),
            "attempts are bounded"
        );
        let end = Attempts::default().after_failure(refused(), false, || false);
        assert!(matches!(end, Err(SendError::NotProcessed { .. })), "no body, no repeat");
    }
}
