//! What may follow a failed attempt: whether the same request is sent once more, and what the caller is told if not.
//!
//! Pure; the loop that asks is in `upstream.rs`. The rules: what the server certainly has not processed is repeated
//! whatever the verb (RFC 9113 §8.7); what it may have processed only if reading, and only where a connection from the
//! pool turned out to be gone (as Go's and hyper's clients do).

use super::error::{BoxError, SendError};

/// Attempts for one request. Servers refuse in series only while they restart; ten connections later the controller
/// is told.
const MAX_ATTEMPTS: u32 = 10;

/// Why an attempt gave no response.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection was closing; nothing was sent.
    Unsent(BoxError),
    /// The server says that it did not process it: GOAWAY, REFUSED_STREAM.
    NotProcessed(BoxError),
    /// It may have been processed.
    Broken {
        /// The connection itself is gone, and had worked before.
        stale: bool,
        source: BoxError,
    },
    /// The client's body failed.
    RequestBody(BoxError),
    /// Not writable on this protocol.
    Invalid(BoxError),
}

/// What has been tried for one request.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    made: u32,
    broken: bool,
}

impl Attempts {
    /// `Ok`: send it again. `rewind` makes the body start again, if it can.
    pub(super) fn after(
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

    fn broken() -> Failure {
        Failure::Broken {
            stale: true,
            source: "reset".into(),
        }
    }

    #[test]
    fn write_that_may_have_been_executed_is_never_repeated() {
        let end = Attempts::default().after(broken(), false, || true);
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
        attempts.after(broken(), true, || true).unwrap();
        assert!(attempts.after(broken(), true, || true).is_err());
    }

    #[test]
    fn read_on_new_connection_is_not_repeated() {
        let failure = Failure::Broken {
            stale: false,
            source: "reset".into(),
        };
        assert!(Attempts::default().after(failure, true, || true).is_err());
    }

    #[test]
    fn unprocessed_request_is_repeated_while_its_body_is_kept() {
        let refused = || Failure::NotProcessed("refused".into());
        let mut attempts = Attempts::default();
        for _ in 1..MAX_ATTEMPTS {
            attempts.after(refused(), false, || true).unwrap();
        }
        let end = attempts.after(refused(), false, || true);
        assert!(
            matches!(end, Err(SendError::NotProcessed { .. })),
            "attempts are bounded"
        );
        let end = Attempts::default().after(refused(), false, || false);
        assert!(matches!(end, Err(SendError::NotProcessed { .. })), "no body, no repeat");
    }
}
