//! Why a pull failed, what to do about it, and when a retry makes sense.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// Characters of a message: it may quote what a registry has sent, and goes into the status of every object that asks.
const MAX_MESSAGE: usize = 600;

/// What kind of failure: the reason of a condition, and a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The reference can't be read.
    InvalidReference,
    /// The registry does not answer, or has trouble of its own.
    RegistryUnavailable,
    /// There is no such repository, tag or manifest.
    NotFound,
    /// The credentials, or their lack, do not allow pulling.
    AccessDenied,
    /// The Secret with the credentials can't be used.
    PullSecret,
    /// The registry sends us to where we don't go.
    UnsafeRedirect,
    /// What is there has another layout than a component has.
    InvalidArtifact,
    /// The bytes are others than their digest or size says.
    DigestMismatch,
    /// It is larger than a plugin may be, or the manager holds too many.
    TooLarge,
    /// No signature by the given key.
    SignatureInvalid,
    /// A component, but no plugin that sidecars take.
    Incompatible,
}

impl Reason {
    /// As written in a condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidReference => "InvalidReference",
            Self::RegistryUnavailable => "RegistryUnavailable",
            Self::NotFound => "NotFound",
            Self::AccessDenied => "AccessDenied",
            Self::PullSecret => "PullSecret",
            Self::UnsafeRedirect => "UnsafeRedirect",
            Self::InvalidArtifact => "InvalidArtifact",
            Self::DigestMismatch => "DigestMismatch",
            Self::TooLarge => "TooLarge",
            Self::SignatureInvalid => "SignatureInvalid",
            Self::Incompatible => "Incompatible",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl EncodeLabelValue for Reason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

/// When the same request may have another answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Not before somebody has changed something.
    Later,
    Soon,
    /// The registry has named a time.
    After(Duration),
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) again: Again,
}

impl Failure {
    /// One that a second try does not mend.
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(end);
            message.push('…');
        }
        Self {
            reason,
            message,
            again: Again::Later,
        }
    }

    pub(super) fn passing(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            again: Again::Soon,
            ..Self::new(reason, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_described() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/registries.md");
        let text = std::fs::read_to_string(file).unwrap();
        for reason in [
            Reason::InvalidReference,
            Reason::RegistryUnavailable,
            Reason::NotFound,
            Reason::AccessDenied,
            Reason::PullSecret,
            Reason::UnsafeRedirect,
            Reason::InvalidArtifact,
            Reason::DigestMismatch,
            Reason::TooLarge,
            Reason::SignatureInvalid,
            Reason::Incompatible,
        ] {
            assert!(text.contains(&format!("| `{reason}` |")), "{reason}");
        }
    }

    #[test]
    fn messages_are_bounded() {
        let failure = Failure::new(Reason::InvalidArtifact, "ä".repeat(10_000));
        assert_eq!(failure.message.chars().count(), MAX_MESSAGE + 1);
        assert_eq!(Failure::new(Reason::InvalidArtifact, "short").message, "short");
    }
}
