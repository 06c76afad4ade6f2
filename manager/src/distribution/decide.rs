//! Why something is as it is, for users.

/// Reason of a condition: a code of a closed set, which users and tools match, and a message that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Reason {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}
