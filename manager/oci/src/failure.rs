//! Why a pull failed, what to do about it, and when a retry makes sense.

use std::error::Error as StdError;
use std::time::Duration;
use std::{fmt, io, iter};

use ctrlmesh_manager_api::status::Reason;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// Maximum characters of a message. It may quote the registry, and it is written into the status of every object that names the
/// image.
const MAX_MESSAGE: usize = 600;

/// The kind of failure: reason of a condition, and label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The reference is malformed.
    InvalidReference,
    /// The registry does not answer, or answers with an error of its own.
    RegistryUnavailable,
    /// The repository, tag or manifest does not exist.
    NotFound,
    /// The registry refuses to let these credentials pull, or requires some.
    AccessDenied,
    /// The Secret with the credentials can't be used.
    PullSecret,
    /// The registry redirects to an address that is not allowed.
    UnsafeRedirect,
    /// The artifact does not have the layout of a component.
    InvalidArtifact,
    /// The bytes do not have the digest or size that was announced.
    DigestMismatch,
    /// The plugin is too large, or the manager holds too many.
    TooLarge,
    /// No signature was made by the given key.
    SignatureInvalid,
    /// The component is not a plugin that sidecars accept.
    Incompatible,
}

impl FailureReason {
    /// The word in conditions and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidReference => Reason::INVALID_REFERENCE,
            Self::RegistryUnavailable => Reason::REGISTRY_UNAVAILABLE,
            Self::NotFound => Reason::NOT_FOUND,
            Self::AccessDenied => Reason::ACCESS_DENIED,
            Self::PullSecret => Reason::PULL_SECRET,
            Self::UnsafeRedirect => Reason::UNSAFE_REDIRECT,
            Self::InvalidArtifact => Reason::INVALID_ARTIFACT,
            Self::DigestMismatch => Reason::DIGEST_MISMATCH,
            Self::TooLarge => Reason::TOO_LARGE,
            Self::SignatureInvalid => Reason::SIGNATURE_INVALID,
            Self::Incompatible => Reason::INCOMPATIBLE,
        }
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl EncodeLabelValue for FailureReason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.as_str(), encoder)
    }
}

/// When a retry makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// A retry within this pull is pointless: something has to change first.
    Later,
    Soon,
    /// After a pause that the registry asked for.
    After(Duration),
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: FailureReason,
    pub(super) message: String,
    pub(super) again: Retry,
}

impl Failure {
    /// A failure that is not retried within the pull.
    pub(super) fn new(reason: FailureReason, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(end);
            message.push('…');
        }
        Self {
            reason,
            message,
            again: Retry::Later,
        }
    }

    pub(super) fn temporary(reason: FailureReason, message: impl Into<String>) -> Self {
        Self {
            again: Retry::Soon,
            ..Self::new(reason, message)
        }
    }
}

/// An error and its causes, the deepest last. An `io::Error` is asked for the error in it, because its `source` skips that.
pub(super) fn error_chain<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    iter::successors(Some(error), |&error| match error.downcast_ref::<io::Error>() {
        Some(error) => error.get_ref().map(|inner| inner as _),
        None => error.source(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_description() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/registries.md");
        let text = std::fs::read_to_string(file).unwrap();
        for reason in [
            FailureReason::InvalidReference,
            FailureReason::RegistryUnavailable,
            FailureReason::NotFound,
            FailureReason::AccessDenied,
            FailureReason::PullSecret,
            FailureReason::UnsafeRedirect,
            FailureReason::InvalidArtifact,
            FailureReason::DigestMismatch,
            FailureReason::TooLarge,
            FailureReason::SignatureInvalid,
            FailureReason::Incompatible,
        ] {
            assert!(text.contains(&format!("| `{reason}` |")), "{reason}");
        }
    }

    #[test]
    fn messages_are_bounded() {
        let failure = Failure::new(FailureReason::InvalidArtifact, "ä".repeat(10_000));
        assert_eq!(failure.message.chars().count(), MAX_MESSAGE + 1);
        assert_eq!(Failure::new(FailureReason::InvalidArtifact, "short").message, "short");
    }
}
